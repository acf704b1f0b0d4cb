//! Two sandboxes, a gateway and a world of namespaces, with real servers in them.
//!
//! ```text
//!  sandbox 1 ── sb1 ┐                    ┌ up0 ── world: 203.0.113.1 (way), .5, .7, .99; 198.51.100.10, .11
//!                   ├─ gateway (filter) ─┤              192.168.9.9, 169.254.169.254, 2001:db8::5
//!  sandbox 2 ── sb2 ┘                    └ 198.18.7.2
//! ```

use hotcell_egress::{
    firewall::{Firewall, OpenAddress},
    layout::LeaseRules,
};
use hotcell_nft::NftFirewall;
use hotcell_policy::{Policy, Prefix, Surroundings};

use super::{Namespace, Running, lease, name, plan, run, table};

pub struct Net {
    pub boxes: [Namespace; 2],
    pub gateway: Namespace,
    pub world: Namespace,
    pub firewall: NftFirewall,
    _servers: Vec<Running>,
}

const PUBLIC: [&str; 10] = [
    "203.0.113.5",
    "203.0.113.7",
    "203.0.113.8",
    "203.0.113.99",
    "198.51.100.10",
    "198.51.100.11",
    "192.0.2.1",
    "192.168.9.9",
    "169.254.169.254",
    "8.8.8.8",
];

/// Answers TCP and UDP on some ports of every address with what it got.
const ECHO: &str = r#"
import os, socket, sys, threading
def tcp(sock):
    while True:
        c, _ = sock.accept()
        def work(c):
            try:
                while True:
                    d = c.recv(4096)
                    if not d: break
                    c.sendall(d)
            except OSError: pass
            c.close()
        threading.Thread(target=work, args=(c,), daemon=True).start()
def udp(sock):
    while True:
        d, a = sock.recvfrom(65535)
        sock.sendto(d, a)
for port in PORTS:
    t = socket.socket(socket.AF_INET6); t.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    t.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    t.bind(('::', port)); t.listen(64)
    threading.Thread(target=tcp, args=(t,), daemon=True).start()
    # A socket for each address, so that the answer comes from the address that was asked.
    for address in ADDRESSES:
        u = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM)
        u.bind((address, port))
        threading.Thread(target=udp, args=(u,), daemon=True).start()
print('ready')
sys.stdin.read()
"#;

const PORTS: &str = "[53, 80, 123, 443, 853, 5353, 5355, 137, 9999, 8888]";

pub fn echo(addresses: &[&str]) -> String {
    let addresses: Vec<String> = addresses.iter().map(|a| format!("'{a}'")).collect();
    format!(
        "ADDRESSES = [{}]\nPORTS = {PORTS}\n{ECHO}",
        addresses.join(",")
    )
}

impl Net {
    /// With IPv6 addresses on everything when `v6`.
    pub fn new(v6: bool) -> Self {
        let gateway = Namespace::new("gw");
        let world = Namespace::new("world");
        let boxes = [Namespace::new("sb1"), Namespace::new("sb2")];
        gateway.run(
            "sysctl",
            &[
                "-qw",
                "net.ipv4.ip_forward=1",
                "net.ipv6.conf.all.forwarding=1",
            ],
        );
        for space in [&gateway, &world, &boxes[0], &boxes[1]] {
            space.run(
                "sysctl",
                &[
                    "-qw",
                    "net.ipv6.conf.default.accept_dad=0",
                    "net.ipv6.conf.all.accept_dad=0",
                ],
            );
        }
        for (n, space) in (1_u8..).zip(&boxes) {
            let outside = format!("sb{n}");
            run(
                "ip",
                &[
                    "link", "add", &outside, "netns", &gateway.0, "type", "veth", "peer", "name",
                    "eth0", "netns", &space.0,
                ],
            );
            gateway.run(
                "ip",
                &["addr", "add", &format!("10.77.{n}.1/24"), "dev", &outside],
            );
            space.run(
                "ip",
                &["addr", "add", &format!("10.77.{n}.2/24"), "dev", "eth0"],
            );
            if v6 {
                gateway.run(
                    "ip",
                    &["addr", "add", &format!("fd77::{n}:1/112"), "dev", &outside],
                );
                space.run(
                    "ip",
                    &["addr", "add", &format!("fd77::{n}:2/112"), "dev", "eth0"],
                );
            }
            gateway.run("ip", &["link", "set", &outside, "up"]);
            space.run("ip", &["link", "set", "eth0", "up"]);
            space.run(
                "ip",
                &["route", "add", "default", "via", &format!("10.77.{n}.1")],
            );
            if v6 {
                space.run(
                    "ip",
                    &[
                        "-6",
                        "route",
                        "add",
                        "default",
                        "via",
                        &format!("fd77::{n}:1"),
                    ],
                );
            }
        }
        run(
            "ip",
            &[
                "link", "add", "up0", "netns", &gateway.0, "type", "veth", "peer", "name", "eth0",
                "netns", &world.0,
            ],
        );
        gateway.run("ip", &["addr", "add", "198.18.7.2/30", "dev", "up0"]);
        world.run("ip", &["addr", "add", "198.18.7.1/30", "dev", "eth0"]);
        gateway.run("ip", &["addr", "add", "2001:db8:7::2/64", "dev", "up0"]);
        world.run("ip", &["addr", "add", "2001:db8:7::1/64", "dev", "eth0"]);
        for address in PUBLIC {
            world.run(
                "ip",
                &["addr", "add", &format!("{address}/32"), "dev", "lo"],
            );
        }
        world.run("ip", &["addr", "add", "2001:db8::5/128", "dev", "lo"]);
        gateway.run("ip", &["link", "set", "up0", "up"]);
        world.run("ip", &["link", "set", "eth0", "up"]);
        gateway.run("ip", &["route", "add", "default", "via", "198.18.7.1"]);
        gateway.run(
            "ip",
            &["-6", "route", "add", "default", "via", "2001:db8:7::1"],
        );
        let firewall = NftFirewall::open(Some(gateway.fd())).unwrap();
        let mut in_world = PUBLIC.to_vec();
        in_world.push("2001:db8::5");
        let servers = vec![
            world.start(&echo(&in_world)),
            gateway.start(&echo(&["10.77.1.1", "10.77.2.1"])),
            boxes[1].start(&echo(&["10.77.2.2"])),
        ];
        Self {
            boxes,
            gateway,
            world,
            firewall,
            _servers: servers,
        }
    }

    pub async fn lease(&self, n: u8, policy: &Policy, v6: bool) -> LeaseRules {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let around = Surroundings {
            sandboxes: vec![prefix("10.77.0.0/16"), prefix("fd77::/64")],
            host: vec![prefix("198.18.7.0/30")],
            ..Surroundings::default()
        };
        let rules = lease(n, &plan(policy, &around), v6, &[]);
        self.firewall.add_lease(&table(), &rules).await.unwrap();
        rules
    }

    pub async fn learn(&self, n: u8, address: &str, for_ms: u64) {
        let family = if address.contains(':') { 6 } else { 4 };
        let open = OpenAddress {
            set: name(&format!("l_lease{n}_learned{family}")),
            address: address.parse().unwrap(),
            for_ms,
        };
        self.firewall.open(&table(), &[open]).await.unwrap();
    }
}

/// One question: TCP or UDP, address, port.
pub type Probe<'a> = (&'a str, &'a str, u16);

/// Asks all at once, each in its own thread, and says which got their echo in time.
pub fn probe(space: &Namespace, probes: &[Probe<'_>]) -> Vec<bool> {
    let program = format!(
        r"
import socket, threading
probes = {probes:?}
def ask(kind, address, port):
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
    s.settimeout(3)
    try:
        s.connect((address, port)); s.send(b'hello'); return s.recv(99) == b'hello'
    except OSError: return False
results = [None] * len(probes)
def work(i): results[i] = ask(*probes[i])
threads = [threading.Thread(target=work, args=(i,)) for i in range(len(probes))]
[t.start() for t in threads]; [t.join() for t in threads]
print(''.join('1' if r else '0' for r in results))
",
    );
    let output = space.python(&program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().chars().map(|c| c == '1').collect()
}

/// The control comes first: it must pass, so that a dead network cannot look like a good filter.
#[track_caller]
pub fn only(space: &Namespace, open: &[Probe<'_>], closed: &[Probe<'_>]) {
    let all: Vec<Probe<'_>> = open.iter().chain(closed).copied().collect();
    let got = probe(space, &all);
    let expected =
        std::iter::repeat_n(true, open.len()).chain(std::iter::repeat_n(false, closed.len()));
    let wrong: Vec<_> = all
        .iter()
        .zip(got.iter().zip(expected))
        .filter(|(_, (got, meant))| *got != meant)
        .collect();
    assert!(
        !open.is_empty() && wrong.is_empty(),
        "probe, (got, meant): {wrong:?}"
    );
}
