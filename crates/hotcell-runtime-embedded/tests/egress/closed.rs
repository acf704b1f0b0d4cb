//! What stays closed under every policy.

use hotcell_egress::firewall::Firewall;
use hotcell_nft::DeniedPackets;
use hotcell_runtime::{Runtime, RuntimeError};
use hotcell_testkit::internet::SERVICE_PORTS;
use tokio::time::{Duration, timeout};

use crate::{
    common::Engine,
    stage::{Guard, LOG, Probe, Stage, base, policy, table},
    staged,
};

staged!(
    an_allowing_policy_opens_nothing_inside,
    other_protocols_do_not_pass,
    other_spellings_of_an_address_are_that_address,
    nothing_passes_before_a_filter_or_without_one,
    a_sandbox_without_a_network_stays_closed,
    denied_packets_are_told,
    rules_inside_decide_nothing,
    a_flushed_host_leaves_the_filter,
);

/// EG-38 as far as it is ours: the host, the appliance, metadata, private networks, other sandboxes.
async fn an_allowing_policy_opens_nothing_inside(stage: &Stage<'_>) {
    let (guard, cell, _filter) = stage.one("allow", &[]).await;
    let (other, _other_filter, other_site) = stage.sandbox(&guard, policy("allow", &[])).await;
    let (lease, _, _) = stage.create().await;
    let stopped = stage.rig.runtime.filter_site(&lease).await.unwrap();
    other
        .get("nohup python3 -m http.server 8000 >/dev/null 2>&1 & for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000), 1)' && break; sleep 0.1; done")
        .await;
    let host: Vec<String> = stage
        .internet
        .host_addresses()
        .iter()
        .filter(|address| address.is_ipv4())
        .map(ToString::to_string)
        .collect();
    assert!(
        host.len() >= 3,
        "the host's own, the control's and the uplink's: {host:?}"
    );
    let mut closed: Vec<Probe<'_>> = Vec::new();
    for address in &host {
        for port in SERVICE_PORTS {
            closed.extend([
                ("tcp", address.as_str(), port),
                ("udp", address.as_str(), port),
            ]);
        }
    }
    let neighbour = other_site.v4.sandbox.to_string();
    let gateway_of_neighbour = other_site.v4.gateway.to_string();
    let uplink = other_site.way_out.as_ref().unwrap().gateway.to_string();
    let of_stopped = stopped.v4.gateway.to_string();
    for address in [&neighbour, &gateway_of_neighbour, &uplink, &of_stopped] {
        for port in [53, 80, 8000, 8888] {
            closed.extend([
                ("tcp", address.as_str(), port),
                ("udp", address.as_str(), port),
            ]);
        }
    }
    for address in [
        "169.254.169.254",
        "169.254.170.2",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.100.100.200",
        "198.18.0.1",
    ] {
        closed.extend([("tcp", address, 80), ("udp", address, 9999)]);
    }
    let open = [
        ("tcp", "203.0.113.5", 80),
        ("udp", "198.51.100.9", 9999),
        ("tcp", "192.0.2.77", 8080),
    ];
    cell.only(&open, &closed).await;
    assert_eq!(stage.internet.host_hits(), 0);
    // An address that the host got after the filter was made: the host's own table asks the kernel.
    stage
        .internet
        .run_on_host("ip", &["addr", "add", "203.0.113.200/32", "dev", "lo"]);
    cell.only(
        &[open[0]],
        &[
            ("tcp", "203.0.113.200", 8080),
            ("udp", "203.0.113.200", 2222),
        ],
    )
    .await;
    assert_eq!(stage.internet.host_hits(), 0);
    // And what an engine of the host's hands on to a container is no way round either.
    stage.internet.run_on_host(
        "nft",
        &["add table ip other
           add chain ip other pre { type nat hook prerouting priority dstnat ; }
           add rule ip other pre ip daddr 203.0.113.200 tcp dport 80 dnat to 203.0.113.5:80"],
    );
    cell.only(&[open[0]], &[("tcp", "203.0.113.200", 80)]).await;
}

/// EG-33 and EG-34.
async fn other_protocols_do_not_pass(stage: &Stage<'_>) {
    stage
        .internet
        .names()
        .address("ok.example.org", &["203.0.113.5", "2001:db8::5"]);
    let (_guard, cell, _filter) = stage.one("deny", &["allow ok.example.org"]).await;
    cell.only(
        &[
            ("tcp", "ok.example.org", 443),
            ("udp", "ok.example.org", 123),
        ],
        &[
            ("udp", "203.0.113.99", 443),
            ("tcp", "2001:db8::5", 443),
            ("udp", "2001:db8::5", 53),
            ("tcp", "::ffff:203.0.113.99", 443),
            ("tcp", "2001:db8:18::2", 22),
        ],
    )
    .await;
    // Whatever of these the sandbox lets its user make; a sender that is refused sends nothing either.
    let said = cell
        .python(
            r"
import socket
made = 0
for to in ('203.0.113.5', '203.0.113.99'):
    for kind, protocol in ((socket.SOCK_DGRAM, 1), (socket.SOCK_RAW, 1), (socket.SOCK_RAW, 47), (socket.SOCK_STREAM, 132), (socket.SOCK_RAW, 255)):
        try:
            s = socket.socket(socket.AF_INET, kind, protocol); s.settimeout(0.5)
            s.sendto(b'\x08\x00\xf7\xff\x00\x00\x00\x00' + b'x' * 24, (to, 0)); made += 1
        except OSError: pass
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'y' * 4000, (to, 9999))
    try:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4]) + socket.inet_aton('203.0.113.7') + b'\x00')
        s.sendto(b'z', (to, 9999))
    except OSError: pass
print('sent')
",
            &[],
        )
        .await;
    assert_eq!(said, "sent");
    // The control again, so that everything before it has arrived if it could.
    cell.only(&[("udp", "203.0.113.5", 9999)], &[]).await;
    let strangers: Vec<_> = stage
        .internet
        .arrived()
        .into_iter()
        .filter(|(address, protocol)| {
            let resolver = address.to_string() == "198.51.100.53";
            !resolver
                && (address.to_string() != "203.0.113.5" || !["tcp", "udp"].contains(&&**protocol))
        })
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

/// EG-28.
async fn other_spellings_of_an_address_are_that_address(stage: &Stage<'_>) {
    let (_guard, cell, _filter) = stage.one("allow", &[]).await;
    let metadata = [
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
    ];
    let closed: Vec<Probe<'_>> = metadata.iter().map(|host| ("tcp", *host, 80)).collect();
    // 203.0.113.5 as a number: the same spelling of an address that is open.
    cell.only(&[("tcp", "3405803781", 80)], &closed).await;
    let said = cell
        .sh("timeout 5 bash -c 'exec 3<>/dev/tcp/2852039166/80' 2>/dev/null; echo $?; timeout 5 bash -c 'exec 3<>/dev/tcp/3405803781/80 && echo open'")
        .await;
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(
        lines.len() == 2 && lines[0] != "0" && lines[1] == "open",
        "{said:?}"
    );
    assert_eq!(stage.internet.names().asked(), []);
}

/// Not one packet before a filter stands, and none after it was flushed: not out, not to a neighbour.
async fn nothing_passes_before_a_filter_or_without_one(stage: &Stage<'_>) {
    let (lease, key, site) = stage.create().await;
    let (second, second_key, second_site) = stage.create().await;
    let cell = stage.start(&lease, &key).await;
    let neighbour = stage.start(&second, &second_key).await;
    let probes = [("tcp", "203.0.113.5", 443), ("udp", "203.0.113.5", 9999)];
    let to_neighbour = second_site.v4.sandbox.to_string();
    let agent = ("tcp", to_neighbour.as_str(), 8888);
    assert_eq!(cell.probe(&[probes[0], probes[1], agent]).await, [false; 3]);
    assert!(
        stage.internet.arrived().is_empty(),
        "{:?}",
        stage.internet.arrived()
    );
    // A table without a filter for this sandbox lets nothing of it pass either.
    let guard = Guard::open(stage.internet, &site).await;
    let neighbours = guard
        .admit(&second, &second_site, policy("allow", &[]))
        .await;
    assert_eq!(cell.probe(&[probes[0], probes[1], agent]).await, [false; 3]);
    neighbour.only(&probes, &[]).await;
    let filter = guard.admit(&lease, &site, policy("allow", &[])).await;
    cell.only(&probes, &[agent]).await;
    // An open connection ends with the table.
    cell.get(
        "python3 - <<'E' >/tmp/said 2>&1 &
import socket, time
s = socket.create_connection(('203.0.113.5', 443)); s.settimeout(2)
print('open', flush=True)
while True:
    try: s.send(b'x'); s.recv(9); print('.', end='', flush=True); time.sleep(0.05)
    except OSError: print('cut', flush=True); break
E
for i in $(seq 100); do grep -q '\\.' /tmp/said && break; sleep 0.05; done; head -1 /tmp/said",
    )
    .await;
    guard.firewall.remove(&table()).await.unwrap();
    assert_eq!(cell.probe(&[probes[0], probes[1], agent]).await, [false; 3]);
    cell.get("for i in $(seq 100); do grep -q cut /tmp/said && exit 0; sleep 0.1; done; exit 1")
        .await;
    // It comes back as it was.
    let mut whole = base(&site);
    filter
        .rules
        .join(&mut whole, hotcell_egress::layout::Reach::Outside);
    neighbours
        .rules
        .join(&mut whole, hotcell_egress::layout::Reach::Outside);
    guard.firewall.replace(&whole, &[]).await.unwrap();
    cell.only(&probes, &[agent]).await;
}

/// A sandbox without a network, beside one that has one.
async fn a_sandbox_without_a_network_stays_closed(stage: &Stage<'_>) {
    let (_guard, filtered, _filter) = stage.one("allow", &[]).await;
    let closed = stage.rig.start().await;
    let neighbour = stage
        .rig
        .runtime
        .filter_site(&filtered.lease)
        .await
        .unwrap()
        .v4;
    let (sandbox, gateway) = (neighbour.sandbox.to_string(), neighbour.gateway.to_string());
    let probes = [
        ("tcp", "203.0.113.5", 443),
        ("udp", "203.0.113.5", 9999),
        ("tcp", "198.18.0.2", 22),
        ("tcp", "169.254.169.254", 80),
        ("tcp", sandbox.as_str(), 8888),
        ("tcp", gateway.as_str(), 53),
    ];
    assert_eq!(closed.probe(&probes).await, [false; 6]);
    filtered.only(&probes[..2], &probes[2..5]).await;
    let site = stage.rig.runtime.filter_site(&closed.lease).await;
    assert!(
        matches!(site, Err(RuntimeError::Unsupported { .. })),
        "{site:?}"
    );
}

/// What the operator hears of a packet that was dropped.
async fn denied_packets_are_told(stage: &Stage<'_>) {
    let (lease, key, site) = stage.create().await;
    let guard = Guard::open(stage.internet, &site).await;
    let namespace = site.namespace.as_ref().map(|fd| fd.try_clone().unwrap());
    let mut denied = DeniedPackets::start(namespace, LOG.group).unwrap();
    let _filter = guard
        .admit(&lease, &site, policy("deny", &["allow 203.0.113.5"]))
        .await;
    let cell = stage.start(&lease, &key).await;
    cell.only(
        &[("tcp", "203.0.113.5", 443)],
        &[("tcp", "203.0.113.99", 8443)],
    )
    .await;
    let packet = timeout(Duration::from_secs(10), denied.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(packet.lease, lease.short());
    assert_eq!((packet.protocol, packet.port), (6, Some(8443)));
    assert_eq!(packet.destination.to_string(), "203.0.113.99");
    assert_eq!(denied.lost(), 0);
}

/// EG-35 (1): firewall rules in the sandbox's own namespace are not what keeps it in.
async fn rules_inside_decide_nothing(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("ok.example.org", &["203.0.113.5"]);
    let (_guard, cell, _filter) = stage.one("deny", &["allow ok.example.org"]).await;
    let (open, closed) = (("tcp", "ok.example.org", 443), ("tcp", "203.0.113.99", 443));
    let inside = |rules: &str| {
        let network = format!("--net=/proc/{}/ns/net", stage.rig.main_pid(&cell.lease));
        let done = std::process::Command::new("nsenter")
            .args([&network, "--", "nft", rules])
            .status();
        assert!(done.unwrap().success(), "{rules}");
    };
    // Whoever might open everything in there opens nothing.
    inside(
        "add table inet own; add chain inet own out { type filter hook output priority 0 ; policy accept ; }",
    );
    cell.only(&[open], &[closed]).await;
    if stage.rig.engine == Engine::RunscOwn {
        // gVisor's own network stack passes such a rule by. With the kernel's it would cut off the
        // agent, too; that is no filter of ours.
        inside("add rule inet own out drop");
        cell.only(&[open], &[closed]).await;
    }
    inside("delete table inet own");
    cell.only(&[open], &[closed]).await;
}

/// A reload of the host's firewall takes the host's table along: nothing opens by it, and with the
/// table everything is as before.
async fn a_flushed_host_leaves_the_filter(stage: &Stage<'_>) {
    let (guard, cell, _filter) = stage.one("allow", &[]).await;
    let open = ("tcp", "203.0.113.5", 80);
    let closed = [
        ("tcp", "198.18.0.2", 22),
        ("udp", "198.18.0.2", 2222),
        ("tcp", "169.254.169.254", 80),
        ("tcp", "10.1.2.3", 80),
    ];
    cell.only(&[open], &closed).await;
    stage.internet.run_on_host("nft", &["flush", "ruleset"]);
    assert_eq!(cell.probe(&closed).await, [false; 4]);
    guard.restore_host().await;
    cell.only(&[open], &closed).await;
    assert_eq!(stage.internet.host_hits(), 0);
}
