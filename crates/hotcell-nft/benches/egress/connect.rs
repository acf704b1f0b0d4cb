//! Setting up a TCP connection through the gateway: with the filter's table, and without any.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
};

use hotcell_egress::{
    firewall::{Firewall, OpenAddress},
    layout::{self, Link, Reach, Scope, learned_set},
    ruleset::Family,
};
use hotcell_nft::NftFirewall;
use tokio::time::Instant;

use crate::{
    ours,
    row::{Target, median, quantile, row},
    space::{Space, ip},
};

const ROUNDS: usize = 10;
/// In each round, both ways.
const CONNECTIONS: usize = 200;
const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(203, 0, 113, 5)), 443);

/// `sandbox ── sb0 ┤ here ├ up0 ── world`.
fn join(sandbox: &Space, world: &Space) {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    for (space, outside, gateway, inside) in [
        (sandbox, "sb0", "10.77.1.1/24", "10.77.1.2/24"),
        (world, "up0", "203.0.113.1/24", "203.0.113.5/24"),
    ] {
        let path = space.path();
        ip(&[
            "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", &path,
        ]);
        ip(&["addr", "add", gateway, "dev", outside]);
        ip(&["link", "set", outside, "up"]);
        space.ip(&["addr", "add", inside, "dev", "eth0"]);
        space.ip(&["link", "set", "eth0", "up"]);
        let (gateway, _) = gateway.split_once('/').unwrap();
        space.ip(&["route", "add", "default", "via", gateway]);
    }
}

/// Microseconds of each connection.
fn connections(sandbox: &Space) -> Vec<f64> {
    let connecting = sandbox.run(|| {
        let connect = |_| {
            let start = Instant::now();
            let stream = TcpStream::connect(SERVER).unwrap();
            let took_us = start.elapsed().as_secs_f64() * 1e6;
            drop(stream);
            took_us
        };
        (0..CONNECTIONS).map(connect).collect()
    });
    connecting.join().unwrap()
}

pub(crate) fn setting_up() {
    let (sandbox, world) = (Space::new(), Space::new());
    join(&sandbox, &world);
    let listener = world.run(|| TcpListener::bind(SERVER).unwrap());
    let listener = listener.join().unwrap();
    std::thread::spawn(move || while listener.accept().is_ok() {});
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let firewall = NftFirewall::open(None).unwrap();
    let uplink = "up0".parse().unwrap();
    let mut ruleset = layout::base(ours::table(), &Scope::Gateway { uplink });
    let link = Link {
        sandbox: Ipv4Addr::new(10, 77, 1, 2),
        gateway: Ipv4Addr::new(10, 77, 1, 1),
    };
    ours::lease(&ours::model(), "bench", "sb0", link).join(&mut ruleset, Reach::Outside);
    let open = [OpenAddress {
        set: learned_set("bench", Family::V4),
        address: SERVER.ip(),
        for_ms: 3_600_000,
    }];
    let (mut filtered_us, mut bare_us) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        runtime.block_on(firewall.replace(&ruleset, &open)).unwrap();
        filtered_us.extend(connections(&sandbox));
        runtime.block_on(firewall.remove(&ours::table())).unwrap();
        bare_us.extend(connections(&sandbox));
    }
    let (filtered, bare) = (median(&filtered_us), median(&bare_us));
    row(
        "egress.connect_ratio",
        filtered / bare,
        "ratio",
        Target::None,
        &format!(
            "TCP connection to a learned address through the gateway's namespace: {filtered:.1} µs filtered \
             (p99 {:.1}) / {bare:.1} µs forwarded without any table (p99 {:.1}); medians of {} each",
            quantile(&filtered_us, 0.99),
            quantile(&bare_us, 0.99),
            ROUNDS * CONNECTIONS
        ),
    );
}
