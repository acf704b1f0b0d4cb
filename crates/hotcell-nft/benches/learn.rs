//! Opening one learned address: our transaction, read back, against forking `nft` for the same.
//! `cargo bench -p hotcell-nft`, as root. Target: 20 times faster.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reads the real clock, prints, and stops when it cannot go on"
)]

use std::{net::Ipv4Addr, process::Command, time::Instant};

use hotcell_egress::{
    firewall::{Firewall, OpenAddress},
    layout::{self, LeaseFilter, Link, Reach, Scope, learned_set},
    ruleset::Family,
};
use hotcell_nft::NftFirewall;
use hotcell_policy::{AddressPlan, FilterMode, Policy, Surroundings};

const OURS: u32 = 2_000;
const FORKED: u32 = 200;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let name = format!("hcbench-{}", std::process::id());
    let ip = |arguments: &[&str]| Command::new("ip").args(arguments).status().unwrap();
    assert!(ip(&["netns", "add", &name]).success());
    let namespace = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let firewall = NftFirewall::open(Some(namespace.into())).unwrap();
    let table: hotcell_egress::ruleset::ObjectName = "hotcell".parse().unwrap();
    let uplink = "up0".parse().unwrap();
    let mut ruleset = layout::base(table.clone(), &Scope::Gateway { uplink });
    let policy = Policy::parse("{}").unwrap();
    let plan = AddressPlan::new(&policy, FilterMode::DnsNft, &Surroundings::default());
    let lease = LeaseFilter {
        short: "bench",
        interface: "sb0".parse().unwrap(),
        v4: Link {
            sandbox: Ipv4Addr::new(10, 0, 0, 2),
            gateway: Ipv4Addr::new(10, 0, 0, 1),
        },
        v6: None,
        plan: &plan,
        blocked: &[],
        log: None,
    };
    lease.rules().join(&mut ruleset, Reach::Outside);
    runtime.block_on(firewall.replace(&ruleset, &[])).unwrap();
    let set = learned_set("bench", Family::V4);

    let address = |n: u32| Ipv4Addr::from(0xcb00_0000 + n);
    let ours = (0..OURS).map(|n| {
        let open = [OpenAddress {
            set: set.clone(),
            address: address(n).into(),
            for_ms: 60_000,
        }];
        let start = Instant::now();
        runtime.block_on(firewall.open(&table, &open)).unwrap();
        start.elapsed().as_secs_f64() * 1e6
    });
    let ours = median(ours.collect());
    let forked = (0..FORKED).map(|n| {
        let element = format!("{{ {} timeout 60s }}", address(100_000 + n));
        let start = Instant::now();
        // `nsenter` would be one process more; `-n` of the namespace is what a daemon could do.
        let status = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{name}"))
            .args([
                "nft",
                "add",
                "element",
                "inet",
                "hotcell",
                set.as_str(),
                &element,
            ])
            .status()
            .unwrap();
        assert!(status.success());
        start.elapsed().as_secs_f64() * 1e6
    });
    let forked = median(forked.collect());
    println!(
        "open one address: {ours:.1} µs, by nft: {forked:.1} µs, ratio {:.1}",
        forked / ours
    );
    ip(&["netns", "del", &name]);
}
