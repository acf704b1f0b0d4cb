//! What passes and what does not, with real packets. Every denial has an allowed control beside it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::time::Duration;

use common::{
    base,
    net::{Net, echo, only, probe},
    policy, table,
};
use hotcell_egress::{firewall::Firewall, layout::Reach};
use hotcell_policy::Policy;

#[tokio::test]
async fn eg24_address_order_in_the_kernel() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    let sandbox = &net.boxes[0];
    let [seven, eight, other] =
        ["203.0.113.7", "203.0.113.8", "192.0.2.1"].map(|a| ("tcp", a, 443));
    let p3 = net
        .lease(
            1,
            &policy("allow", &["deny 203.0.113.0/24", "allow 203.0.113.7"]),
            false,
        )
        .await;
    only(sandbox, &[other], &[seven, eight]);
    net.firewall.remove_lease(&table(), &p3).await.unwrap();
    let p4 = net
        .lease(
            1,
            &policy("allow", &["allow 203.0.113.7", "deny 203.0.113.0/24"]),
            false,
        )
        .await;
    only(sandbox, &[other, seven], &[eight]);
    net.firewall.remove_lease(&table(), &p4).await.unwrap();
    // P2: what an allowed name resolved to is open although a later rule denies its range.
    net.lease(
        1,
        &policy("deny", &["allow app.example.org", "deny 198.51.100.0/24"]),
        false,
    )
    .await;
    let [ten, eleven] = ["198.51.100.10", "198.51.100.11"].map(|a| ("tcp", a, 443));
    net.learn(1, "203.0.113.5", 60_000).await;
    only(sandbox, &[("tcp", "203.0.113.5", 443)], &[ten, eleven]);
    net.learn(1, "198.51.100.10", 60_000).await;
    only(sandbox, &[ten], &[eleven]);
}

#[tokio::test]
async fn eg33_not_only_tcp() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    net.lease(1, &policy("deny", &["allow ok.example.org"]), false)
        .await;
    net.learn(1, "203.0.113.5", 60_000).await;
    let sandbox = &net.boxes[0];
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    for kind in ["tcp", "udp"] {
        for port in [443, 123, 9999] {
            open.push((kind, "203.0.113.5", port));
            closed.push((kind, "203.0.113.99", port));
        }
    }
    only(sandbox, &open, &closed);
    // What arrives in the world of everything else, seen from there until a last packet comes.
    let mut capture = net.world.start(
        r"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)); s.bind(('eth0', 0)); s.settimeout(20)
print('ready'); seen = set()
while True:
    p = s.recv(65535)
    if p[12:14] != b'\x08\x00': continue
    if p.endswith(b'the last one'): break
    seen.add((p[23], socket.inet_ntoa(p[30:34]), (p[14] & 15) > 5))
for row in sorted(seen): print(*row)
",
    );
    let send = r"
import socket
for to in ('203.0.113.5', '203.0.113.99'):
    for proto in (1, 47, 132, 50, 4, 41, 103, 255):
        s = socket.socket(socket.AF_INET, socket.SOCK_RAW, proto)
        s.sendto(b'\x08\x00\xf7\xff\x00\x00\x00\x00' + b'x' * 24, (to, 0))
    # A fragmented datagram, and some with a source route.
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'y' * 4000, (to, 9999))
    for option in (131, 137):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        route = bytes([option, 7, 4]) + socket.inet_aton('203.0.113.7') + b'\x00'
        s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, route)
        try: s.sendto(b'z', (to, 9999))
        except OSError: pass
    # Somebody else's address as the source.
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    h = bytes([0x45,0,0,29, 0,1,0,0, 64,17,0,0]) + socket.inet_aton('10.77.2.2') + socket.inet_aton(to)
    s.sendto(h + bytes([0x27,0x0f,0x27,0x0f,0,9,0,0,120]), (to, 0))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'the last one', ('203.0.113.5', 9999))
";
    let sent = sandbox.python(send);
    assert!(
        sent.status.success(),
        "{}",
        String::from_utf8_lossy(&sent.stderr)
    );
    let seen = capture.rest();
    // Only UDP to the open address, without options; nothing at all to the other.
    let towards: Vec<&String> = seen
        .iter()
        .filter(|line| line.contains("203.0.113."))
        .collect();
    assert_eq!(towards, ["17 203.0.113.5 False"], "{seen:?}");
}

#[tokio::test]
async fn eg34_ipv6_is_closed_or_filtered() {
    // The host has IPv6 and a route; the sandbox gave itself addresses.
    let net = Net::new(true);
    net.firewall.replace(&base(), &[]).await.unwrap();
    let denying = policy("deny", &["allow ok.example.org"]);
    let off = net.lease(1, &denying, false).await;
    net.learn(1, "203.0.113.5", 60_000).await;
    let sandbox = &net.boxes[0];
    let control = ("tcp", "203.0.113.5", 443);
    let mut closed = Vec::new();
    for address in [
        "2001:db8::5",
        "2001:db8:7::2",
        "fd77::1:1",
        "::ffff:203.0.113.99",
    ] {
        closed.extend([("tcp", address, 443), ("udp", address, 53)]);
    }
    only(
        sandbox,
        &[control, ("tcp", "::ffff:203.0.113.5", 443)],
        &closed,
    );
    net.firewall.remove_lease(&table(), &off).await.unwrap();
    // With IPv6 on it is the same policy: nothing before it is learned, then just that.
    net.lease(1, &denying, true).await;
    let far = ("tcp", "2001:db8::5", 443);
    net.learn(1, "203.0.113.5", 60_000).await;
    only(sandbox, &[control], &[far]);
    net.learn(1, "2001:db8::5", 60_000).await;
    let server = net.gateway.start(
        r"
import socket
u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); u.bind(('fd77::1:1', 53))
print('ready')
while True:
    d, a = u.recvfrom(9999); u.sendto(d, a)
",
    );
    let closed = [
        ("tcp", "2001:db8:7::1", 443),
        ("tcp", "2001:db8:7::2", 443),
        ("tcp", "fd77::1:1", 443),
        ("udp", "2001:db8::5", 53),
    ];
    only(sandbox, &[far, ("udp", "fd77::1:1", 53)], &closed);
    drop(server);
}

#[tokio::test]
async fn eg31_other_ways_to_ask() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    // Even where everything is allowed, DNS goes through the filter.
    for policy in [
        Policy::unrestricted(),
        policy("deny", &["allow 8.8.8.8", "allow 203.0.113.0/24"]),
    ] {
        let lease = net.lease(1, &policy, false).await;
        let gateway = "10.77.1.1";
        let open = [
            ("tcp", "8.8.8.8", 443),
            ("udp", "8.8.8.8", 443),
            ("udp", gateway, 53),
            ("tcp", gateway, 53),
        ];
        let mut closed = vec![("udp", "203.0.113.5", 5353)];
        for port in [53, 853, 5353, 5355, 137] {
            closed.extend([("udp", "8.8.8.8", port), ("tcp", "8.8.8.8", port)]);
        }
        only(&net.boxes[0], &open, &closed);
        net.firewall.remove_lease(&table(), &lease).await.unwrap();
    }
}

#[tokio::test]
async fn eg38_host_neighbours_and_inside_stay_closed() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    let everything = policy(
        "allow",
        &[
            "allow 0.0.0.0/0",
            "allow 169.254.169.254",
            "allow 198.18.0.0/15",
            "allow 10.0.0.0/8",
        ],
    );
    let lease = net.lease(1, &everything, false).await;
    let second = net.lease(2, &everything, false).await;
    let sandbox = &net.boxes[0];
    let control = ("tcp", "203.0.113.5", 443);
    let mut closed = Vec::new();
    for (address, port) in [
        ("10.77.1.1", 80),
        ("10.77.1.1", 8888),
        ("10.77.2.1", 53),
        ("198.18.7.2", 443),
        ("198.18.7.1", 443),
        ("10.77.2.2", 8888),
        ("169.254.169.254", 80),
        ("192.168.9.9", 443),
    ] {
        closed.extend([("tcp", address, port), ("udp", address, port)]);
    }
    only(sandbox, &[control], &closed);
    // Controls: the same servers answer somebody who may ask.
    let there = [
        ("tcp", "10.77.2.2", 8888),
        ("tcp", "192.168.9.9", 443),
        ("tcp", "169.254.169.254", 80),
    ];
    only(&net.gateway, &there, &[]);
    net.firewall.remove_lease(&table(), &lease).await.unwrap();
    net.firewall.remove_lease(&table(), &second).await.unwrap();
    // Without a lease an interface has no way at all.
    assert_eq!(probe(sandbox, &[control]), [false]);
    // A rule within a private range opens it.
    net.lease(1, &policy("deny", &["allow 192.168.9.0/24"]), false)
        .await;
    only(sandbox, &[("tcp", "192.168.9.9", 443)], &[control]);
}

#[tokio::test]
async fn eg43_dns_works_inside_a_denied_range() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    let rules = ["deny 127.0.0.0/8", "deny 10.0.0.0/8", "allow pypi.org"];
    net.lease(1, &policy("deny", &rules), false).await;
    net.learn(1, "203.0.113.5", 60_000).await;
    let sandbox = &net.boxes[0];
    let loopback = sandbox.start(&echo(&["127.0.0.1"]));
    let (gateway, local) = ("10.77.1.1", "127.0.0.1");
    let open = [
        ("udp", gateway, 53),
        ("tcp", gateway, 53),
        ("tcp", "203.0.113.5", 443),
        ("tcp", local, 443),
        ("udp", local, 443),
    ];
    only(
        sandbox,
        &open,
        &[("tcp", gateway, 80), ("tcp", "10.77.2.2", 8888)],
    );
    drop(loopback);
}

#[tokio::test]
async fn eg48_denying_everything_leaves_the_control_path() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    net.lease(2, &policy("deny", &[]), false).await;
    // From the gateway to the agent's port; not the other way.
    only(&net.gateway, &[("tcp", "10.77.2.2", 8888)], &[]);
    let closed = [("tcp", "10.77.2.1", 8888), ("tcp", "203.0.113.5", 443)];
    only(&net.boxes[1], &[("udp", "10.77.2.1", 53)], &closed);
}

/// EG-21, as far as the kernel is concerned.
#[tokio::test]
async fn eg21_what_one_learned_stays_closed_to_another() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    net.lease(1, &policy("deny", &["allow a.example.org"]), false)
        .await;
    net.lease(2, &policy("deny", &["allow b.example.org"]), false)
        .await;
    net.learn(1, "203.0.113.5", 60_000).await;
    net.learn(2, "203.0.113.7", 60_000).await;
    let (first, second) = (("tcp", "203.0.113.5", 443), ("tcp", "203.0.113.7", 443));
    only(&net.boxes[0], &[first], &[second]);
    only(&net.boxes[1], &[second], &[first]);
}

/// A connection outlives the address it was made to, and ends when the sandbox is cut off.
#[tokio::test]
async fn established_connections_survive_expiry_and_not_being_cut_off() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    let lease = net
        .lease(1, &policy("deny", &["allow a.example.org"]), false)
        .await;
    net.learn(1, "203.0.113.5", 60_000).await;
    // Says a line for each line on a connection that is made once.
    let mut client = net.boxes[0].start(
        r"
import socket, sys
s = socket.create_connection(('203.0.113.5', 443), 5); s.settimeout(3)
print('ready', flush=True)
for line in sys.stdin:
    try:
        s.send(b'hello'); print(s.recv(99) == b'hello', flush=True)
    except OSError: print(False, flush=True)
",
    );
    let mut alive = || {
        client.say("go");
        client.line()
    };
    assert_eq!(alive(), "True");
    net.learn(1, "203.0.113.5", 500).await;
    // Until the kernel has let the address go.
    loop {
        let report = net.firewall.report(&table()).await.unwrap().unwrap();
        if report.sets["l_lease1_learned4"].remaining_ms.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        probe(&net.boxes[0], &[("tcp", "203.0.113.5", 443)]),
        [false]
    );
    assert_eq!(alive(), "True");
    net.firewall
        .connect(&table(), &lease, Reach::Nothing)
        .await
        .unwrap();
    assert_eq!(alive(), "False");
}
