//! The DNS side of filters on loopback: questions a second, latency, and memory of many filters. The packet
//! filter is in memory, so this is everything but the kernel's part; that is `hotcell-nft`'s bench.
//!
//! `cargo bench -p hotcell-egress --features fake --bench dns`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a bench may panic, and prints what it found"
)]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{Name, RecordType},
};
use hotcell_egress::{
    dns::{
        DnsFilter, DnsParts, EventSink, FilterEvent, serve,
        upstream::{Resolvers, Upstream},
    },
    fake::{FakeFirewall, FakeHost, FakeUpstream},
    filter::{FilterSettings, SandboxFilter},
    firewall::Firewall,
    host::Host,
    layout::{self, LeaseFilter, Link, Scope, learned_set},
    ruleset::{Family, ObjectName},
};
use hotcell_policy::{Policy, Surroundings};
use tokio::{
    net::{TcpListener, UdpSocket},
    time::Instant,
};

const CLIENTS: usize = 8;
const NAMES: usize = 64;
const FOR: Duration = Duration::from_secs(5);
const FILTERS: usize = 1_000;
const RULES: usize = 100;

struct Nobody;

impl EventSink for Nobody {
    fn record(&self, _: FilterEvent) {}
}

fn table() -> ObjectName {
    ObjectName::fixed("bench")
}

fn policy() -> Policy {
    let mut rules: Vec<String> = (1..RULES)
        .map(|n| format!(r#"{{"action":"allow","target":"*.n{n}.example.net"}}"#))
        .collect();
    rules.push(r#"{"action":"allow","target":"*.example.org"}"#.to_owned());
    Policy::parse(&format!(r#"{{"egress":[{}]}}"#, rules.join(","))).unwrap()
}

async fn filter(firewall: &FakeFirewall, upstream: Arc<dyn Upstream>, number: usize) -> DnsFilter {
    let space = FakeHost::default().space(None).await;
    let space = space.unwrap();
    let model = SandboxFilter::new(
        Some(policy()),
        &Surroundings::default(),
        FilterSettings::default(),
    );
    let short = format!("lease{number}");
    let rules = LeaseFilter {
        short: &short,
        interface: format!("sb{number}").parse().unwrap(),
        v4: Link {
            sandbox: Ipv4Addr::new(100, 64, 0, 2),
            gateway: Ipv4Addr::new(100, 64, 0, 1),
        },
        v6: None,
        plan: model.plan(),
        blocked: model.blocked_addresses(),
        log: None,
    }
    .rules();
    firewall.add_lease(&table(), &rules).await.unwrap();
    DnsFilter::new(DnsParts {
        filter: model,
        firewall: Arc::new(firewall.clone()),
        table: table(),
        learned_sets: [Family::V4, Family::V6].map(|family| (family, learned_set(&short, family))),
        upstream,
        connections: space.connections(&[]),
        events: Arc::new(Nobody),
        rate_per_second: u32::MAX,
    })
}

async fn sockets() -> (UdpSocket, TcpListener, SocketAddr) {
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = udp.local_addr().unwrap();
    (udp, tcp, address)
}

fn question(number: usize) -> Vec<u8> {
    let name = Name::from_ascii(format!("n{}.example.org.", number % NAMES)).unwrap();
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().unwrap()
}

async fn client(server: SocketAddr, until: Instant) -> Vec<Duration> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(server).await.unwrap();
    let questions: Vec<Vec<u8>> = (0..NAMES).map(question).collect();
    let mut answer = [0; 512];
    let mut took = Vec::new();
    while Instant::now() < until {
        let sent = Instant::now();
        socket.send(&questions[took.len() % NAMES]).await.unwrap();
        let length = socket.recv(&mut answer).await.unwrap();
        assert_eq!(answer[3] & 15, 0, "no error");
        assert!(length > 40, "an address");
        took.push(sent.elapsed());
    }
    took
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn throughput(firewall: &FakeFirewall) {
    let known = FakeUpstream::default();
    for number in 0..NAMES {
        let address: IpAddr = [203, 0, 113, u8::try_from(number).unwrap()].into();
        known.set(&format!("n{number}.example.org"), &[address]);
    }
    // The resolver that is asked is another filter: the first answer comes from it, the rest from the cache.
    let (udp, tcp, upstream) = sockets().await;
    let _upstream = serve(filter(firewall, Arc::new(known), 0).await, udp, tcp);
    let resolvers = Arc::new(Resolvers::new(&[upstream]).unwrap());
    let (udp, tcp, server) = sockets().await;
    let _server = serve(filter(firewall, resolvers, 1).await, udp, tcp);
    client(server, Instant::now() + Duration::from_millis(200)).await;
    let until = Instant::now() + FOR;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(client(server, until)))
        .collect();
    let mut took = Vec::new();
    for client in clients {
        took.extend(client.await.unwrap());
    }
    took.sort_unstable();
    println!(
        "allowed answers from the cache: {} a second, p50 {} µs, p99 {} µs ({CLIENTS} clients in this process)",
        took.len() as u64 / FOR.as_secs(),
        took[took.len() / 2].as_micros(),
        took[took.len() * 99 / 100].as_micros(),
    );
}

async fn memory(firewall: &FakeFirewall) {
    let upstream: Arc<dyn Upstream> = Arc::new(FakeUpstream::default());
    let before = resident_kib();
    let mut servers = Vec::with_capacity(FILTERS);
    for number in 0..FILTERS {
        let (udp, tcp, _) = sockets().await;
        let dns = filter(firewall, Arc::clone(&upstream), number + 2).await;
        servers.push(serve(dns, udp, tcp));
    }
    let more = resident_kib().saturating_sub(before);
    println!(
        "{FILTERS} filters of {RULES} rules: {} KiB each, the fake packet filter's copy of the rules included",
        more / FILTERS
    );
}

#[tokio::main]
async fn main() {
    let firewall = FakeFirewall::default();
    let uplink = "up0".parse().unwrap();
    let base = layout::base(table(), &Scope::Gateway { uplink });
    firewall.replace(&base, &[]).await.unwrap();
    throughput(&firewall).await;
    memory(&firewall).await;
}
