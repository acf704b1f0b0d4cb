//! What a sandbox that is root in its own namespace may put on its link: foreign sources, pieces of
//! packets, claims about its neighbours. Raw packets, seen from where they would arrive.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use common::{
    Namespace, Running, base,
    net::{Net, only},
    policy, table,
};
use hotcell_egress::firewall::Firewall;

/// Tells protocol, source, destination and port of every IPv4 packet that comes in by an interface,
/// until one ends with `the last one`.
fn capture(space: &Namespace, interface: &str) -> Running {
    space.start(&format!(
        r"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)); s.bind(('{interface}', 0)); s.settimeout(20)
print('ready'); seen = set()
while True:
    p, (_, _, direction, *_) = s.recvfrom(65535)
    if direction == 4 or p[12:14] != b'\x08\x00': continue
    if p.endswith(b'the last one'): break
    seen.add((p[23], socket.inet_ntoa(p[26:30]), socket.inet_ntoa(p[30:34]), int.from_bytes(p[36:38], 'big')))
for row in sorted(seen): print(*row)
"
    ))
}

/// Raw packets: a header of any source, checksums, pieces.
const RAW: &str = r"
import socket, struct
def sum16(data):
    data += b'\0' * (len(data) % 2)
    total = sum(struct.unpack('>%dH' % (len(data) // 2), data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
def ip(source, to, protocol, payload, number=7, piece=0, more=False):
    head = struct.pack('>2B3H2BH4s4s', 0x45, 0, 20 + len(payload), number, piece // 8 | (0x2000 if more else 0), 64, protocol, 0, socket.inet_aton(source), socket.inet_aton(to))
    return head[:10] + struct.pack('>H', sum16(head)) + head[12:] + payload
def udp(port, data): return struct.pack('>4H', 9999, port, 8 + len(data), 0) + data
out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
def send(packet):
    try: out.sendto(packet, (socket.inet_ntoa(packet[16:20]), 0))
    except OSError: pass
def last():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'the last one', ('203.0.113.5', 9999))
";

fn run(space: &Namespace, program: &str) {
    let sent = space.python(&format!("{RAW}\n{program}"));
    let error = String::from_utf8_lossy(&sent.stderr);
    assert!(sent.status.success(), "{error}");
}

async fn two(rules: [&[&str]; 2]) -> Net {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    for (n, rules) in (1..).zip(rules) {
        net.lease(n, &policy("deny", rules), false).await;
    }
    net
}

/// Somebody else's address, the gateway's, the host's, one of the world's: no such packet arrives, not
/// even where the sandbox may go.
#[tokio::test]
async fn foreign_sources_do_not_pass() {
    let net = two([&["allow 203.0.113.5"], &["allow 203.0.113.7"]]).await;
    let sandbox = &net.boxes[0];
    let mut arrived = capture(&net.world, "eth0");
    let mut at_neighbour = capture(&net.boxes[1], "eth0");
    run(
        sandbox,
        r"
sources = ('10.77.2.2', '10.77.1.1', '10.77.2.1', '198.18.7.2', '203.0.113.5', '203.0.113.7', '127.0.0.1', '0.0.0.0', '255.255.255.255', '10.77.1.3')
for source in sources:
    for to in ('203.0.113.5', '203.0.113.7', '10.77.2.2', '10.77.1.1'):
        send(ip(source, to, 17, udp(9999, b'x')))
        send(ip(source, to, 6, struct.pack('>2H2L2B3H', 999, 443, 1, 0, 0x50, 2, 999, 0, 0)))
        send(ip(source, to, 1, b'\x08\0\xf7\xff\0\0\0\0'))
# The control: its own address arrives, behind the gateway's.
send(ip('10.77.1.2', '203.0.113.5', 17, udp(9999, b'own')))
last()
",
    );
    let seen: Vec<String> = arrived
        .rest()
        .into_iter()
        .filter(|line| line.contains(" 203.0.113."))
        .collect();
    assert_eq!(seen, ["17 198.18.7.2 203.0.113.5 9999"]);
    // What the second is sent from its own side comes; nothing came from the first.
    net.gateway.run(
        "python3",
        &[
            "-c",
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'the last one', ('10.77.2.2', 9999))",
        ],
    );
    assert_eq!(at_neighbour.rest(), [""; 0]);
    only(
        sandbox,
        &[("udp", "203.0.113.5", 443)],
        &[("udp", "203.0.113.7", 443)],
    );
    only(&net.boxes[1], &[("udp", "203.0.113.7", 443)], &[]);
}

/// A port or a destination hidden in pieces: pieces are put together before anything is decided, and
/// what cannot be put together goes nowhere.
#[tokio::test]
async fn pieces_hide_nothing() {
    let net = two([&["allow 203.0.113.5"], &[]]).await;
    let sandbox = &net.boxes[0];
    let mut arrived = capture(&net.world, "eth0");
    run(
        sandbox,
        r"
whole = udp(53, b'q' * 56)
for number, to in ((1, '203.0.113.5'), (2, '203.0.113.99')):
    # DNS in two pieces, the port in the first; and in the other order.
    send(ip('10.77.1.2', to, 17, whole[:32], number, 0, True)); send(ip('10.77.1.2', to, 17, whole[32:], number, 32))
    send(ip('10.77.1.2', to, 17, whole[32:], number + 10, 32)); send(ip('10.77.1.2', to, 17, whole[:32], number + 10, 0, True))
    # Eight bytes a piece, so that the port of TCP stands alone.
    syn = struct.pack('>2H2L2B3H', 999, 853, 1, 0, 0x50, 2, 999, 0, 0) + b'\0' * 12
    for at in range(0, 32, 8): send(ip('10.77.1.2', to, 6, syn[at:at + 8], number + 20, at, at < 24))
    # A second piece over the first, to turn an allowed port into DNS.
    good = udp(9999, b'g' * 56)
    send(ip('10.77.1.2', to, 17, good[:32], number + 30, 0, True)); send(ip('10.77.1.2', to, 17, whole[:32], number + 30, 0, True)); send(ip('10.77.1.2', to, 17, good[32:], number + 30, 32))
    # Pieces without a first one.
    send(ip('10.77.1.2', to, 17, b'z' * 32, number + 40, 64, True)); send(ip('10.77.1.2', to, 17, b'z' * 32, number + 40, 96))
last()
",
    );
    let seen: Vec<String> = arrived
        .rest()
        .into_iter()
        .filter(|line| line.contains(" 203.0.113."))
        .collect();
    // Of pieces that lie over each other the first counts, and its port is one that is open: it goes on
    // in the two pieces that it came in. The second begins with `gg`.
    let pieces = [9999, 0x6767].map(|port| format!("17 198.18.7.2 203.0.113.5 {port}"));
    assert_eq!(seen, pieces);
    // The control: an honest datagram in many pieces gets there and back whole.
    let echoed = sandbox.python(
        r"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
s.sendto(b'y' * 9000, ('203.0.113.5', 9999)); assert s.recv(65535) == b'y' * 9000
",
    );
    assert!(echoed.status.success(), "{echoed:?}");
}

/// Claims about other addresses on one's own link change nothing on another's.
#[tokio::test]
async fn claims_about_neighbours_move_nothing() {
    let net = two([&["allow 203.0.113.5"], &["allow 203.0.113.7"]]).await;
    let sandbox = &net.boxes[0];
    let before = net.gateway.run("ip", &["route", "show", "table", "all"]);
    run(
        sandbox,
        r"
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); link.bind(('eth0', 0))
own = link.getsockname()[4]
for kind in (1, 2):
    for claimed in ('10.77.2.2', '10.77.1.1', '10.77.2.1', '198.18.7.1', '203.0.113.7'):
        for asked in (claimed, '10.77.1.1'):
            link.send(b'\xff' * 6 + own + b'\x08\x06' + struct.pack('>2H2BH', 1, 0x800, 6, 4, kind) + own + socket.inet_aton(claimed) + b'\0' * 6 + socket.inet_aton(asked))
",
    );
    run(
        sandbox,
        r"
# A redirect from whoever the gateway might believe, about a connection that it might have.
inner = ip('10.77.2.2', '203.0.113.7', 17, udp(443, b'x'))[:28]
for source in ('10.77.1.2', '10.77.1.1', '198.18.7.1'):
    for to in ('10.77.1.1', '10.77.2.2', '198.18.7.2'):
        for inside in (inner, ip(to, '203.0.113.7', 17, udp(443, b'x'))[:28], ip(to, '10.77.1.2', 17, udp(9999, b'x'))[:28]):
            body = b'\x05\x01\0\0' + socket.inet_aton('10.77.1.2') + inside
            body = body[:2] + struct.pack('>H', sum16(body)) + body[4:]
            send(ip(source, to, 1, body))
",
    );
    // Whatever is believed of the sandbox's own link, no packet is routed there by it.
    let own = sandbox.run("cat", &["/sys/class/net/eth0/address"]);
    for link in ["sb2", "up0"] {
        let neighbours = net.gateway.run("ip", &["neigh", "show", "dev", link]);
        assert!(!neighbours.contains(own.trim()), "{link}: {neighbours}");
    }
    let way = net.gateway.run(
        "ip",
        &[
            "route",
            "get",
            "203.0.113.7",
            "from",
            "10.77.2.2",
            "iif",
            "sb2",
        ],
    );
    assert!(way.contains("up0") && !way.contains("redirected"), "{way}");
    let after = net.gateway.run("ip", &["route", "show", "table", "all"]);
    assert_eq!(before, after);
    // Both go on as before, and the agent's port of the second is still the second's.
    only(&net.gateway, &[("tcp", "10.77.2.2", 8888)], &[]);
    only(
        &net.boxes[1],
        &[("tcp", "203.0.113.7", 443)],
        &[("tcp", "203.0.113.5", 443)],
    );
    only(
        sandbox,
        &[("tcp", "203.0.113.5", 443)],
        &[("tcp", "203.0.113.7", 443), ("tcp", "10.77.2.2", 8888)],
    );
}

/// The same over IPv6, where neighbours are found by ICMP.
#[tokio::test]
async fn claims_over_ipv6_move_nothing() {
    let net = Net::new(true);
    net.firewall.replace(&base(), &[]).await.unwrap();
    for n in [1, 2] {
        net.lease(n, &policy("deny", &["allow 2001:db8::5"]), true)
            .await;
    }
    let sandbox = &net.boxes[0];
    let open = ("tcp", "2001:db8::5", 443);
    only(&net.boxes[1], &[open], &[]);
    let before = net
        .gateway
        .run("ip", &["-6", "route", "show", "table", "all"]);
    run(
        sandbox,
        r"
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255); s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
index = socket.if_nametoindex('eth0')
def say(body, to):
    try: s.sendto(body, (to, 0, 0, index))
    except OSError: pass
for claimed in ('fd77::2:2', 'fd77::1:1', 'fd77::2:1', '2001:db8:7::1'):
    # An unasked advertisement that overrides, with a link address of our own making.
    say(b'\x88\0\0\0\x60\0\0\0' + socket.inet_pton(socket.AF_INET6, claimed) + b'\x02\x01\x02\0\0\0\0\x66', 'ff02::1')
    say(b'\x88\0\0\0\x60\0\0\0' + socket.inet_pton(socket.AF_INET6, claimed) + b'\x02\x01\x02\0\0\0\0\x66', 'fd77::1:1')
# A router's advertisement, and a redirect.
say(b'\x86\0\0\0\x40\0\xff\xff' + b'\0' * 8, 'ff02::1')
say(b'\x89\0\0\0\0\0\0\0' + socket.inet_pton(socket.AF_INET6, 'fd77::1:2') + socket.inet_pton(socket.AF_INET6, '2001:db8::5'), 'fd77::1:1')
",
    );
    let neighbours = net.gateway.run("ip", &["-6", "neigh", "show"]);
    assert!(!neighbours.contains("02:00:00:00:00:66"), "{neighbours}");
    let after = net
        .gateway
        .run("ip", &["-6", "route", "show", "table", "all"]);
    assert_eq!(before, after);
    only(&net.boxes[1], &[open], &[("tcp", "2001:db8:7::1", 443)]);
    only(sandbox, &[open], &[("tcp", "fd77::2:2", 8888)]);
}

/// A policy that takes the place of another: what was connected under the first does not go on under
/// the second unless that lets it.
#[tokio::test]
async fn a_connection_does_not_outlive_its_policy() {
    let net = Net::new(false);
    net.firewall.replace(&base(), &[]).await.unwrap();
    let first = net
        .lease(1, &policy("deny", &["allow 203.0.113.5"]), false)
        .await;
    let conntrack = hotcell_nft::Conntrack::open(Some(net.gateway.fd())).unwrap();
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
    client.say("go");
    assert_eq!(client.line(), "True");
    net.firewall.remove_lease(&table(), &first).await.unwrap();
    conntrack
        .forget("10.77.1.2".parse().unwrap())
        .await
        .unwrap();
    net.lease(1, &policy("deny", &["allow 203.0.113.7"]), false)
        .await;
    client.say("go");
    assert_eq!(client.line(), "False");
    only(
        &net.boxes[0],
        &[("tcp", "203.0.113.7", 443)],
        &[("tcp", "203.0.113.5", 443)],
    );
}
