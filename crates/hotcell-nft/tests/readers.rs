//! What is read of the kernel beside its packet filter, in namespaces of their own. Needs root.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use std::net::IpAddr;

use common::Namespace;
use hotcell_egress::dns::Connections;
use hotcell_nft::{Conntrack, dns_sockets, forward_drops};

/// Firewalls of others that drop what is forwarded are found, whatever made them.
#[tokio::test]
async fn forwarding_that_others_drop_is_seen() {
    let space = Namespace::new("drops");
    assert_eq!(forward_drops(Some(space.fd()), "hcu-").unwrap(), []);
    space.nft("add table ip filter");
    space
        .nft("add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }");
    space.nft("add chain ip filter INPUT { type filter hook input priority 0 ; policy drop ; }");
    space.nft("add table inet other");
    space
        .nft("add chain inet other pass { type filter hook forward priority 5 ; policy accept ; }");
    // A rule of another table does not help; one about other interfaces does neither.
    space.nft("add rule inet other pass iifname \"hcu-*\" accept");
    space.nft("add rule ip filter FORWARD iifname \"docker0\" accept");
    let found = forward_drops(Some(space.fd()), "hcu-").unwrap();
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["ip filter FORWARD"]);
    // As an operator is told to, beneath a chain of Docker's, or straight.
    space.nft("add chain ip filter DOCKER-USER");
    space.nft("insert rule ip filter FORWARD jump DOCKER-USER");
    space.nft("add rule ip filter DOCKER-USER iifname \"hcu-*\" accept");
    assert_eq!(forward_drops(Some(space.fd()), "hcu-").unwrap(), []);
}

/// Connections are told apart by sandbox and are forgotten with one.
#[tokio::test]
async fn connections_are_listed_and_forgotten() {
    let space = Namespace::new("flows");
    // Connections are followed only where a rule asks for them.
    space.nft("add table inet t");
    space.nft("add chain inet t c { type filter hook output priority 0 ; }");
    space.nft("add rule inet t c ct state new accept");
    for address in [
        "10.9.0.1/32",
        "10.9.0.2/32",
        "203.0.113.1/32",
        "203.0.113.2/32",
    ] {
        space.run("ip", &["addr", "add", address, "dev", "lo"]);
    }
    let _flows = space.start(
        r"
import socket, sys
keep = []
server = socket.socket(); server.bind(('0.0.0.0', 443)); server.listen()
for source, to in (('10.9.0.1', '203.0.113.1'), ('10.9.0.2', '203.0.113.2')):
    s = socket.socket(); s.bind((source, 0)); s.connect((to, 443)); keep.append(s)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('10.9.0.1', 0)); u.sendto(b'x', ('203.0.113.2', 9))
print('ready')
sys.stdin.read()
",
    );
    let conntrack = Conntrack::open(Some(space.fd())).unwrap();
    let [one, two]: [IpAddr; 2] = ["10.9.0.1", "10.9.0.2"].map(|text| text.parse().unwrap());
    let remotes = |sandbox| {
        let mut found: Vec<_> = conntrack.remotes(sandbox).unwrap().into_iter().collect();
        found.sort_unstable();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(remotes(one), ["203.0.113.1", "203.0.113.2"]);
    assert_eq!(remotes(two), ["203.0.113.2"]);
    assert_eq!(conntrack.of_sandbox([one, two]).addresses().len(), 2);
    assert_eq!(conntrack.forget(one).await.unwrap(), 2);
    assert_eq!(remotes(one), Vec::<String>::new());
    assert_eq!(remotes(two), ["203.0.113.2"], "the neighbour's stay");
    assert_eq!(conntrack.forget(one).await.unwrap(), 0);
    assert_eq!(
        remotes("2001:db8::1".parse().unwrap()),
        Vec::<String>::new()
    );
}

/// Sockets answer on an address that comes later, and nobody else gets the port.
#[tokio::test]
async fn dns_sockets_wait_for_their_address() {
    let space = Namespace::new("sockets");
    let address: IpAddr = "10.9.0.1".parse().unwrap();
    let sockets = dns_sockets(Some(space.fd()), address, vec![address]).unwrap();
    assert!(
        dns_sockets(Some(space.fd()), address, Vec::new()).is_err(),
        "the port is taken"
    );
    space.run("ip", &["addr", "add", "10.9.0.1/32", "dev", "lo"]);
    let udp = tokio::net::UdpSocket::from_std(sockets.udp).unwrap();
    let tcp = tokio::net::TcpListener::from_std(sockets.tcp).unwrap();
    let mut client = space.start(
        r"
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(10)
print('ready')
u.sendto(b'question', ('10.9.0.1', 53)); print(u.recvfrom(99)[1][0])
socket.create_connection(('10.9.0.1', 53), 10); print('connected')
",
    );
    let mut buffer = [0; 99];
    let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..length], b"question");
    udp.send_to(b"answer", from).await.unwrap();
    tcp.accept().await.unwrap();
    assert_eq!([client.line(), client.line()], ["10.9.0.1", "connected"]);
}

/// Neither a datagram nor a connection of anybody but the sandbox gets anywhere, without any packet filter.
#[tokio::test]
async fn dns_sockets_are_for_their_own_sandbox_only() {
    const ASK: &str = r"
import socket, sys
gateway, sources = sys.argv[1], sys.argv[2:]
family = socket.AF_INET6 if ':' in gateway else socket.AF_INET
print('ready')
for source in sources:
    u = socket.socket(family, socket.SOCK_DGRAM); u.bind((source, 0)); u.sendto(source.encode(), (gateway, 53))
    t = socket.socket(family); t.bind((source, 0)); t.settimeout(float(sys.stdin.readline()))
    try: t.connect((gateway, 53)); print('connected')
    except OSError: print('no')
";
    let space = Namespace::new("askers");
    for (gateway, own, others) in [
        (
            "10.9.0.1",
            ["10.9.0.2", "10.9.0.3", "127.0.0.5"],
            ["10.9.0.4", "10.9.0.1"],
        ),
        (
            "2001:db8::1",
            ["2001:db8::2", "2001:db8:0:1::2", "::1"],
            ["2001:db8::3", "2001:db8:0:2::2"],
        ),
    ] {
        let gateway: IpAddr = gateway.parse().unwrap();
        for address in own.iter().chain(&others) {
            if !address.parse::<IpAddr>().unwrap().is_loopback() {
                let assign = ["addr", "replace", address, "dev", "lo", "nodad"];
                let words = if gateway.is_ipv4() { 5 } else { 6 };
                space.run("ip", &assign[..words]);
            }
        }
        let width = if gateway.is_ipv4() { 32 } else { 128 };
        let on_lo = format!("{gateway}/{width}");
        space.run("ip", &["addr", "replace", &on_lo, "dev", "lo"]);
        // Those of both families, as a sandbox may have them.
        let sandbox = ["10.9.0.2", "10.9.0.3", "2001:db8::2", "2001:db8:0:1::2"];
        let sandbox = sandbox.map(|text| text.parse().unwrap()).to_vec();
        let sockets = dns_sockets(Some(space.fd()), gateway, sandbox).unwrap();
        let udp = tokio::net::UdpSocket::from_std(sockets.udp).unwrap();
        let _listening = sockets.tcp;

        let sources = [&others[..], &own[..]].concat();
        let arguments: Vec<String> = [gateway.to_string()]
            .into_iter()
            .chain(sources.iter().map(ToString::to_string))
            .collect();
        let mut client = space.start_with(ASK, &arguments);
        for source in sources {
            // Nobody has to wait for what must work; what must not is given a moment.
            let is_own = own.contains(&source);
            client.say(if is_own { "10" } else { "0.3" });
            let expected = if is_own { "connected" } else { "no" };
            assert_eq!(client.line(), expected, "{source}");
        }
        // Those of others were sent before, and are not there.
        let mut buffer = [0; 99];
        for source in own {
            let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
            assert_eq!(
                (&buffer[..length], from.ip().to_string()),
                (source.as_bytes(), source.to_owned())
            );
        }
    }
}
