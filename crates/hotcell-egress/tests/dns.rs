//! The DNS side over real sockets on loopback: a scripted upstream that counts what it is asked, a
//! packet filter that writes down what it is told, and a client that speaks plain DNS.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use hickory_net::runtime::Time;
use hickory_proto::{
    op::{Edns, Message, Metadata, OpCode, Query, ResponseCode},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{
            A, AAAA, CNAME, HTTPS, MX, SVCB, TXT,
            opt::{EdnsCode, EdnsOption},
            svcb::{IpHint, SvcParamKey, SvcParamValue},
        },
    },
};
use hickory_server::{
    Server,
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
use hotcell_egress::{
    dns::{
        Connections, DnsFilter, DnsParts, EventSink, FilterEvent, serve,
        upstream::{Resolvers, Upstream},
    },
    filter::{Denial, FilterSettings, SandboxFilter},
    firewall::{Firewall, FirewallError, OpenAddress},
    layout::{LeaseRules, Reach, learned_set},
    report::{Difference, TableReport},
    ruleset::{Family, ObjectName, Ruleset},
};
use hotcell_policy::{Policy, Surroundings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Notify, Semaphore},
};

/// Answers by script; counts.
#[derive(Default)]
struct Script {
    records: Mutex<BTreeMap<(String, RecordType), Vec<Record>>>,
    asked: Mutex<Vec<(String, RecordType)>>,
    dead: AtomicBool,
}

impl Script {
    fn set(&self, name: &str, kind: RecordType, data: &[(&str, u32, RData)]) {
        let records = data
            .iter()
            .map(|(owner, ttl, data)| Record::from_rdata(fqdn(owner), *ttl, data.clone()))
            .collect();
        self.records
            .lock()
            .unwrap()
            .insert((name.to_owned(), kind), records);
    }

    fn asked(&self) -> Vec<String> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .map(|(name, _)| name.clone())
            .collect()
    }
}

struct ScriptServer(Arc<Script>);

#[async_trait]
impl RequestHandler for ScriptServer {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response_handle: R,
    ) -> ResponseInfo {
        let info = request.request_info().unwrap();
        let name = info.query.name().to_string().to_lowercase();
        let key = (
            name.trim_end_matches('.').to_owned(),
            info.query.query_type(),
        );
        self.0.asked.lock().unwrap().push(key.clone());
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = true;
        let (records, exists) = {
            let scripted = self.0.records.lock().unwrap();
            let exists = scripted.keys().any(|(name, _)| *name == key.0);
            (scripted.get(&key).cloned().unwrap_or_default(), exists)
        };
        if self.0.dead.load(Ordering::SeqCst) {
            metadata.response_code = ResponseCode::ServFail;
        } else if !exists {
            metadata.response_code = ResponseCode::NXDomain;
        }
        let edns = request.edns.as_ref().map(|asked| {
            let mut edns = Edns::new();
            edns.set_max_payload(asked.max_payload());
            edns
        });
        let mut builder = MessageResponseBuilder::from_message_request(request);
        if let Some(edns) = &edns {
            builder.edns(edns);
        }
        let message = builder.build(metadata, &records, [], [], []);
        response_handle.send_response(message).await.unwrap()
    }
}

/// Writes down; fails or waits when told to.
struct Ledger {
    opened: Mutex<Vec<OpenAddress>>,
    closed: Mutex<Vec<IpAddr>>,
    broken: AtomicBool,
    asked: Notify,
    gate: Semaphore,
}

impl Ledger {
    fn addresses(&self) -> HashSet<IpAddr> {
        self.opened
            .lock()
            .unwrap()
            .iter()
            .map(|open| open.address)
            .collect()
    }
}

#[async_trait]
impl Firewall for Ledger {
    async fn open(&self, _: &ObjectName, addresses: &[OpenAddress]) -> Result<(), FirewallError> {
        self.asked.notify_one();
        let _pass = self.gate.acquire().await.unwrap();
        if self.broken.load(Ordering::SeqCst) {
            return Err(FirewallError::NotThere("the table".to_owned()));
        }
        self.opened.lock().unwrap().extend_from_slice(addresses);
        Ok(())
    }
    async fn close(
        &self,
        _: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError> {
        self.closed
            .lock()
            .unwrap()
            .extend(addresses.iter().map(|(_, address)| *address));
        Ok(())
    }
    async fn replace(&self, _: &Ruleset, _: &[OpenAddress]) -> Result<(), FirewallError> {
        Err(FirewallError::Gone)
    }
    async fn remove(&self, _: &ObjectName) -> Result<(), FirewallError> {
        Err(FirewallError::Gone)
    }
    async fn add_lease(&self, _: &ObjectName, _: &LeaseRules) -> Result<(), FirewallError> {
        Err(FirewallError::Gone)
    }
    async fn remove_lease(&self, _: &ObjectName, _: &LeaseRules) -> Result<(), FirewallError> {
        Err(FirewallError::Gone)
    }
    async fn connect(&self, _: &ObjectName, _: &LeaseRules, _: Reach) -> Result<(), FirewallError> {
        Err(FirewallError::Gone)
    }
    async fn tables(&self, _: &str) -> Result<Vec<ObjectName>, FirewallError> {
        Err(FirewallError::Gone)
    }
    async fn report(&self, _: &ObjectName) -> Result<Option<TableReport>, FirewallError> {
        Err(FirewallError::Gone)
    }
    async fn differences(&self, _: &Ruleset) -> Result<Vec<Difference>, FirewallError> {
        Err(FirewallError::Gone)
    }
}

#[derive(Default)]
struct Events(Mutex<Vec<FilterEvent>>);

impl EventSink for Events {
    fn record(&self, event: FilterEvent) {
        self.0.lock().unwrap().push(event);
    }
}

struct NoConnections;

impl Connections for NoConnections {
    fn addresses(&self) -> HashSet<IpAddr> {
        HashSet::new()
    }
}

/// Upstream, filter and everything around.
struct Rig {
    script: Arc<Script>,
    upstream: Arc<dyn Upstream>,
    _upstream: Server<ScriptServer>,
}

struct Sandbox {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    events: Arc<Events>,
    filter: DnsFilter,
    _server: hotcell_egress::dns::DnsServer,
}

async fn sockets() -> (UdpSocket, TcpListener, SocketAddr) {
    loop {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = udp.local_addr().unwrap();
        // The same port may be taken for TCP by somebody else.
        if let Ok(tcp) = TcpListener::bind(address).await {
            return (udp, tcp, address);
        }
    }
}

impl Rig {
    async fn new() -> Self {
        let script = Arc::new(Script::default());
        let (udp, tcp, address) = sockets().await;
        let mut server = Server::new(ScriptServer(script.clone()));
        server.register_socket(udp);
        server.register_listener(tcp, Duration::from_secs(5), 16);
        // The first resolver is not there: the second is asked instead.
        let gone = sockets().await.2;
        let upstream = Arc::new(Resolvers::new(&[gone, address]).unwrap());
        Self {
            script,
            upstream,
            _upstream: server,
        }
    }

    async fn sandbox(
        &self,
        default: &str,
        rules: &[&str],
        change: impl FnOnce(&mut FilterSettings, &mut u32),
    ) -> Sandbox {
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| {
                let (action, target) = rule.split_once(' ').unwrap();
                serde_json::json!({ "action": action, "target": target })
            })
            .collect();
        let document = serde_json::json!({ "defaultAction": default, "egress": rules });
        let policy = Policy::parse(&document.to_string()).unwrap();
        let mut settings = FilterSettings::default();
        let mut rate_per_second = 10_000;
        change(&mut settings, &mut rate_per_second);
        let ledger = Arc::new(Ledger {
            opened: Mutex::default(),
            closed: Mutex::default(),
            broken: AtomicBool::new(false),
            asked: Notify::new(),
            gate: Semaphore::new(1_000),
        });
        let events = Arc::new(Events::default());
        let filter = DnsFilter::new(DnsParts {
            filter: SandboxFilter::new(Some(policy), &Surroundings::default(), settings),
            firewall: ledger.clone(),
            table: "hotcell".parse().unwrap(),
            learned_sets: [Family::V4, Family::V6].map(|family| (family, learned_set("x", family))),
            upstream: self.upstream.clone(),
            connections: Arc::new(NoConnections),
            events: events.clone(),
            rate_per_second,
        });
        let (udp, tcp, address) = sockets().await;
        let server = serve(filter.clone(), udp, tcp);
        Sandbox {
            address,
            ledger,
            events,
            filter,
            _server: server,
        }
    }

    async fn plain(&self, rules: &[&str]) -> Sandbox {
        self.sandbox("deny", rules, |_, _| {}).await
    }
}

fn fqdn(name: &str) -> Name {
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    name
}

fn a(address: &str) -> RData {
    RData::A(A(address.parse::<Ipv4Addr>().unwrap()))
}

fn aaaa(address: &str) -> RData {
    RData::AAAA(AAAA(address.parse::<Ipv6Addr>().unwrap()))
}

fn cname(target: &str) -> RData {
    RData::CNAME(CNAME(fqdn(target)))
}

fn question(name: &str, kind: RecordType, edns_bytes: Option<u16>) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(fqdn(name), kind));
    if let Some(bytes) = edns_bytes {
        let mut edns = Edns::new();
        edns.set_max_payload(bytes);
        message.set_edns(edns);
    }
    message
}

impl Sandbox {
    async fn raw_udp(&self, bytes: &[u8]) -> (Message, usize) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket.send(bytes).await.unwrap();
        let mut buffer = vec![0; 65_535];
        let wait = Duration::from_secs(20);
        let length = tokio::time::timeout(wait, socket.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        (Message::from_vec(&buffer[..length]).unwrap(), length)
    }

    async fn udp(&self, message: &Message) -> (Message, usize) {
        let (answer, length) = self.raw_udp(&message.to_vec().unwrap()).await;
        assert_eq!(answer.metadata.id, message.metadata.id);
        (answer, length)
    }

    async fn tcp(&self, message: &Message) -> Message {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let bytes = message.to_vec().unwrap();
        stream.write_u16(bytes.len() as u16).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut buffer = vec![0; length.into()];
        stream.read_exact(&mut buffer).await.unwrap();
        Message::from_vec(&buffer).unwrap()
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Message {
        self.udp(&question(name, kind, Some(1232))).await.0
    }

    fn events(&self) -> Vec<FilterEvent> {
        self.events.0.lock().unwrap().clone()
    }
}

fn shown(message: &Message) -> Vec<IpAddr> {
    let address = |record: &Record| match &record.data {
        RData::A(a) => Some(IpAddr::V4(a.0)),
        RData::AAAA(a) => Some(IpAddr::V6(a.0)),
        _ => None,
    };
    message.answers.iter().filter_map(address).collect()
}

fn extended_error(message: &Message) -> Option<(u16, String)> {
    let option = message.edns.as_ref()?.option(EdnsCode::from(15))?;
    let EdnsOption::Unknown(_, data) = option else {
        return None;
    };
    let text = String::from_utf8(data[2..].to_vec()).unwrap();
    Some((u16::from_be_bytes([data[0], data[1]]), text))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn eg01_chains_in_one_message_and_over_two() {
    let rig = Rig::new().await;
    let sandbox = rig
        .plain(&["allow shop.example.org", "allow split.example.org"])
        .await;
    rig.script.set(
        "shop.example.org",
        RecordType::A,
        &[
            ("shop.example.org", 60, cname("e1.edge.example.net")),
            ("e1.edge.example.net", 60, cname("e1.pop.example.net")),
            ("e1.pop.example.net", 60, a("203.0.113.10")),
            ("elsewhere.example.net", 60, a("203.0.113.66")),
        ],
    );
    let answer = sandbox.ask("shop.example.org", RecordType::A).await;
    assert_eq!(
        (answer.metadata.response_code, answer.answers.len()),
        (ResponseCode::NoError, 3)
    );
    assert_eq!(shown(&answer), [ip("203.0.113.10")]);
    // Upstream gives only the alias; the rest is asked for by us.
    rig.script.set(
        "split.example.org",
        RecordType::A,
        &[("split.example.org", 60, cname("far.example.net"))],
    );
    rig.script.set(
        "far.example.net",
        RecordType::A,
        &[("far.example.net", 60, a("203.0.113.11"))],
    );
    let answer = sandbox.ask("split.example.org", RecordType::A).await;
    assert_eq!(shown(&answer), [ip("203.0.113.11")]);
    assert_eq!(
        sandbox.ledger.addresses(),
        [ip("203.0.113.10"), ip("203.0.113.11")].into()
    );
    // The aliases themselves stay denied.
    let denied = sandbox.ask("e1.pop.example.net", RecordType::A).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn eg07_expanded_names_are_nxdomain_and_stay_here() {
    let rig = Rig::new().await;
    let sandbox = rig.plain(&["allow api.example.org"]).await;
    rig.script.set(
        "api.example.org",
        RecordType::A,
        &[("api.example.org", 60, a("203.0.113.5"))],
    );
    for suffix in ["ns.svc.cluster.local", "svc.cluster.local"] {
        let answer = sandbox
            .ask(&format!("api.example.org.{suffix}"), RecordType::A)
            .await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    }
    assert_eq!(
        shown(&sandbox.ask("API.example.ORG", RecordType::A).await),
        [ip("203.0.113.5")]
    );
    assert_eq!(rig.script.asked(), ["api.example.org"]);
}

#[tokio::test]
async fn eg08_aaaa_is_empty_without_ipv6() {
    let rig = Rig::new().await;
    rig.script.set(
        "v4only.example.org",
        RecordType::A,
        &[("v4only.example.org", 60, a("203.0.113.5"))],
    );
    rig.script.set(
        "dual.example.org",
        RecordType::A,
        &[("dual.example.org", 60, a("203.0.113.6"))],
    );
    rig.script.set(
        "dual.example.org",
        RecordType::AAAA,
        &[("dual.example.org", 60, aaaa("2001:db8::6"))],
    );
    let off = rig.plain(&["allow *.example.org"]).await;
    for name in ["v4only.example.org", "dual.example.org"] {
        let answer = off.ask(name, RecordType::AAAA).await;
        assert_eq!(
            (answer.metadata.response_code, answer.answers.len()),
            (ResponseCode::NoError, 0)
        );
        assert_eq!(shown(&off.ask(name, RecordType::A).await).len(), 1);
    }
    let on = rig
        .sandbox("deny", &["allow *.example.org"], |settings, _| {
            settings.ipv6 = true
        })
        .await;
    assert_eq!(
        shown(&on.ask("dual.example.org", RecordType::AAAA).await),
        [ip("2001:db8::6")]
    );
    // There is none upstream: no error, and no answer, either.
    let none = on.ask("v4only.example.org", RecordType::AAAA).await;
    assert_eq!(
        (none.metadata.response_code, none.answers.len()),
        (ResponseCode::NoError, 0)
    );
}

#[tokio::test]
async fn eg10_answers_of_every_size() {
    let rig = Rig::new().await;
    for count in [25_u8, 40, 120] {
        let name = format!("many{count}.example.org");
        let records: Vec<_> = (1..=count)
            .map(|n| (name.as_str(), 60, a(&format!("203.0.113.{n}"))))
            .collect();
        rig.script.set(&name, RecordType::A, &records);
        let sandbox = rig.plain(&["allow *.example.org"]).await;
        let all: HashSet<IpAddr> = (1..=count)
            .map(|n| IpAddr::from([203, 0, 113, n]))
            .collect();
        for (edns, limit) in [
            (None, 512),
            (Some(512), 512),
            (Some(1232), 1232),
            (Some(4096), 4096),
        ] {
            let (answer, length) = sandbox.udp(&question(&name, RecordType::A, edns)).await;
            assert!(length <= limit, "{length} over {limit}");
            let code = answer.metadata.response_code;
            assert_eq!(
                code,
                ResponseCode::NoError,
                "{count} {edns:?}: {:?}",
                sandbox.events()
            );
            let whole = answer.answers.len() == usize::from(count);
            assert_eq!(answer.metadata.truncation, !whole, "{count} {edns:?}");
            // 16 bytes a record; everything that fits is there.
            assert_eq!(
                whole,
                70 + 16 * usize::from(count) <= limit,
                "{count} {edns:?}"
            );
            assert!(
                shown(&answer)
                    .iter()
                    .all(|address| sandbox.ledger.addresses().contains(address))
            );
        }
        let answer = sandbox.tcp(&question(&name, RecordType::A, None)).await;
        assert_eq!(shown(&answer).into_iter().collect::<HashSet<_>>(), all);
        assert!(!answer.metadata.truncation);
        assert_eq!(sandbox.ledger.addresses(), all);
    }
}

#[tokio::test]
async fn eg13_an_answer_leaves_after_the_packet_filter_or_not_at_all() {
    let rig = Rig::new().await;
    rig.script.set(
        "new.example.org",
        RecordType::A,
        &[("new.example.org", 60, a("203.0.113.5"))],
    );
    let sandbox = rig.plain(&["allow new.example.org"]).await;
    let closed = sandbox.ledger.gate.acquire_many(1_000).await.unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(sandbox.address).await.unwrap();
    let bytes = question("new.example.org", RecordType::A, None)
        .to_vec()
        .unwrap();
    socket.send(&bytes).await.unwrap();
    sandbox.ledger.asked.notified().await;
    // A second question for the same address meanwhile does not take the intention for the deed.
    socket.send(&bytes).await.unwrap();
    sandbox.ledger.asked.notified().await;
    let mut buffer = [0; 512];
    assert!(socket.try_recv(&mut buffer).is_err());
    drop(closed);
    for _ in 0..2 {
        let length = socket.recv(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(shown(&answer), [ip("203.0.113.5")]);
    }
    assert_eq!(sandbox.ledger.addresses(), [ip("203.0.113.5")].into());

    // Run 2: the packet filter does not take it.
    sandbox.ledger.broken.store(true, Ordering::SeqCst);
    rig.script.set(
        "other.example.org",
        RecordType::A,
        &[("other.example.org", 60, a("203.0.113.6"))],
    );
    let broken = rig.plain(&["allow other.example.org"]).await;
    broken.ledger.broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let answer = broken.ask("other.example.org", RecordType::A).await;
        assert_eq!(
            (answer.metadata.response_code, answer.answers.len()),
            (ResponseCode::ServFail, 0)
        );
    }
    assert!(matches!(
        broken.events()[..],
        [
            FilterEvent::PacketFilterFailed { .. },
            FilterEvent::PacketFilterFailed { .. }
        ]
    ));
    broken.ledger.broken.store(false, Ordering::SeqCst);
    assert_eq!(
        shown(&broken.ask("other.example.org", RecordType::A).await),
        [ip("203.0.113.6")]
    );
}

#[tokio::test]
async fn eg14_and_eg21_the_cache_gives_answers_not_leave() {
    let rig = Rig::new().await;
    rig.script.set(
        "a.example.org",
        RecordType::A,
        &[("a.example.org", 3600, a("203.0.113.1"))],
    );
    let first = rig.plain(&["allow a.example.org"]).await;
    let second = rig.plain(&["allow a.example.org"]).await;
    let third = rig.plain(&["allow b.example.org"]).await;
    assert_eq!(
        shown(&first.ask("a.example.org", RecordType::A).await),
        [ip("203.0.113.1")]
    );
    // Cached by the first: opened for the second all the same, and denied to the third.
    assert_eq!(
        shown(&second.ask("a.example.org", RecordType::A).await),
        [ip("203.0.113.1")]
    );
    assert_eq!(second.ledger.addresses(), [ip("203.0.113.1")].into());
    let denied = third.ask("a.example.org", RecordType::A).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    assert!(third.ledger.addresses().is_empty());
    assert_eq!(rig.script.asked(), ["a.example.org"]);
    // The kernel lost it: the next answer from the cache opens it again.
    second.filter.with_filter(|filter, _| filter.doubt());
    second.ledger.opened.lock().unwrap().clear();
    second.ask("a.example.org", RecordType::A).await;
    assert_eq!(second.ledger.addresses(), [ip("203.0.113.1")].into());
    assert_eq!(second.filter.open_addresses()[0].address, ip("203.0.113.1"));
}

#[tokio::test]
async fn eg26_rebinding_answers_nothing() {
    let rig = Rig::new().await;
    let inside = [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
    ];
    let sandbox = rig.plain(&["allow *.example.org"]).await;
    for (n, address) in inside.iter().enumerate() {
        let name = format!("r{n}.example.org");
        rig.script
            .set(&name, RecordType::A, &[(&name, 60, a(address))]);
        let answer = sandbox.ask(&name, RecordType::A).await;
        assert_eq!(
            (answer.metadata.response_code, answer.answers.len()),
            (ResponseCode::NoError, 0),
            "{address}"
        );
    }
    let mixed = [
        ("mixed.example.org", 60, a("203.0.113.5")),
        ("mixed.example.org", 60, a("10.1.2.3")),
    ];
    rig.script.set("mixed.example.org", RecordType::A, &mixed);
    assert_eq!(
        shown(&sandbox.ask("mixed.example.org", RecordType::A).await),
        [ip("203.0.113.5")]
    );
    assert_eq!(sandbox.ledger.addresses(), [ip("203.0.113.5")].into());
}

#[tokio::test]
async fn eg28_numbers_are_not_asked_for() {
    let rig = Rig::new().await;
    let sandbox = rig.sandbox("allow", &[], |_, _| {}).await;
    for name in [
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "127.1",
        "1.2.3.4",
    ] {
        let answer = sandbox.ask(name, RecordType::A).await;
        assert_eq!(
            answer.metadata.response_code,
            ResponseCode::NXDomain,
            "{name}"
        );
    }
    assert!(rig.script.asked().is_empty());
}

#[tokio::test]
async fn eg30_denied_names_never_leave() {
    let rig = Rig::new().await;
    rig.script.set(
        "pypi.org",
        RecordType::A,
        &[("pypi.org", 60, a("203.0.113.5"))],
    );
    let sandbox = rig.plain(&["allow pypi.org"]).await;
    let kinds = [
        RecordType::A,
        RecordType::TXT,
        RecordType::NULL,
        RecordType::MX,
    ];
    for n in 0..50_usize {
        let name = format!("{n:032x}.t.evil.example");
        let answer = sandbox.ask(&name, kinds[n % 4]).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        let expected = (15, "blocked by network policy".to_owned());
        assert_eq!(extended_error(&answer), Some(expected));
    }
    for (name, kind) in [
        ("x.pypi.org", RecordType::A),
        ("8.8.8.8.in-addr.arpa", RecordType::PTR),
    ] {
        let answer = sandbox.ask(name, kind).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    }
    // Without the extension there is no extended error, and the same denial.
    let (plain, _) = sandbox
        .udp(&question("evil.example", RecordType::A, None))
        .await;
    assert_eq!(
        (plain.metadata.response_code, plain.edns),
        (ResponseCode::NXDomain, None)
    );
    assert!(rig.script.asked().is_empty());
    let denials = sandbox.events();
    assert_eq!(denials.len(), 53);
    assert!(denials.iter().all(|e| matches!(
        e,
        FilterEvent::NameDenied {
            denial: Denial::Policy(_),
            ..
        }
    )));
    // The control.
    assert_eq!(
        shown(&sandbox.ask("pypi.org", RecordType::A).await),
        [ip("203.0.113.5")]
    );
    // Under default allow it is the names of the deny rule that stay here.
    let open = rig
        .sandbox("allow", &["deny *.evil.example"], |_, _| {})
        .await;
    open.ask("x.evil.example", RecordType::A).await;
    open.ask("fine.example", RecordType::A).await;
    assert_eq!(rig.script.asked(), ["pypi.org", "fine.example"]);
}

#[tokio::test]
async fn service_bindings_lose_their_hints() {
    let rig = Rig::new().await;
    let hints = vec![
        (SvcParamKey::Port, SvcParamValue::Port(443)),
        (
            SvcParamKey::Ipv4Hint,
            SvcParamValue::Ipv4Hint(IpHint(vec![A(Ipv4Addr::new(203, 0, 113, 66))])),
        ),
        (
            SvcParamKey::Ipv6Hint,
            SvcParamValue::Ipv6Hint(IpHint(vec![AAAA("2001:db8::66".parse().unwrap())])),
        ),
    ];
    let service = RData::HTTPS(HTTPS(SVCB::new(1, fqdn("svc.example.net"), hints)));
    rig.script.set(
        "www.example.org",
        RecordType::HTTPS,
        &[("www.example.org", 60, service)],
    );
    let sandbox = rig.plain(&["allow www.example.org"]).await;
    let answer = sandbox.ask("www.example.org", RecordType::HTTPS).await;
    let RData::HTTPS(https) = &answer.answers[0].data else {
        panic!("{answer:?}");
    };
    let keys: Vec<SvcParamKey> = https.0.svc_params.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [SvcParamKey::Port]);
    assert!(sandbox.ledger.addresses().is_empty());
    // Other kinds pass, and open nothing.
    let text = RData::TXT(TXT::new(vec!["hello".to_owned()]));
    rig.script.set(
        "www.example.org",
        RecordType::TXT,
        &[("www.example.org", 60, text)],
    );
    let mail = RData::MX(MX::new(10, fqdn("mail.example.net")));
    rig.script.set(
        "www.example.org",
        RecordType::MX,
        &[("www.example.org", 60, mail)],
    );
    for kind in [RecordType::TXT, RecordType::MX] {
        assert_eq!(sandbox.ask("www.example.org", kind).await.answers.len(), 1);
    }
    assert!(sandbox.ledger.addresses().is_empty());
}

#[tokio::test]
async fn odd_questions_get_short_answers() {
    let rig = Rig::new().await;
    let sandbox = rig.sandbox("allow", &[], |_, _| {}).await;
    let mut two = question("a.example.org", RecordType::A, None);
    two.add_query(Query::query(fqdn("b.example.org"), RecordType::A));
    let mut none = Message::query();
    none.metadata.recursion_desired = true;
    let mut chaos = question("version.bind", RecordType::TXT, None);
    chaos.queries[0].set_query_class(DNSClass::CH);
    let mut update = question("a.example.org", RecordType::A, None);
    update.metadata.op_code = OpCode::Status;
    for (message, code) in [
        (two, ResponseCode::FormErr),
        (none, ResponseCode::FormErr),
        (chaos, ResponseCode::Refused),
        (update, ResponseCode::NotImp),
        (
            question("a.example.org", RecordType::ANY, None),
            ResponseCode::Refused,
        ),
        (
            question("a.example.org", RecordType::AXFR, None),
            ResponseCode::Refused,
        ),
    ] {
        let (answer, _) = sandbox.udp(&message).await;
        assert_eq!(answer.metadata.response_code, code, "{message:?}");
    }
    // A label with a dot in it is no way round a rule.
    let mut bytes = question("a.example.org", RecordType::A, None)
        .to_vec()
        .unwrap();
    bytes[13] = b'.';
    let (answer, _) = sandbox.raw_udp(&bytes).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    assert!(rig.script.asked().is_empty());
}

#[tokio::test]
async fn a_dead_upstream_is_a_failure_and_comes_back() {
    let rig = Rig::new().await;
    rig.script.set(
        "a.example.org",
        RecordType::A,
        &[("a.example.org", 60, a("203.0.113.1"))],
    );
    rig.script.dead.store(true, Ordering::SeqCst);
    let sandbox = rig.plain(&["allow a.example.org"]).await;
    let answer = sandbox.ask("a.example.org", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(extended_error(&answer).unwrap().0, 22);
    assert!(matches!(
        sandbox.events()[..],
        [FilterEvent::UpstreamFailed { .. }]
    ));
    rig.script.dead.store(false, Ordering::SeqCst);
    assert_eq!(
        shown(&sandbox.ask("a.example.org", RecordType::A).await),
        [ip("203.0.113.1")]
    );
}

#[tokio::test]
async fn the_rate_is_bounded() {
    let rig = Rig::new().await;
    let sandbox = rig.sandbox("deny", &[], |_, rate| *rate = 5).await;
    let mut codes = Vec::new();
    for _ in 0..40 {
        codes.push(
            sandbox
                .ask("x.example.org", RecordType::A)
                .await
                .metadata
                .response_code,
        );
    }
    assert_eq!(codes[..5], [ResponseCode::NXDomain; 5]);
    assert!(codes.contains(&ResponseCode::Refused));
    assert!(sandbox.events().contains(&FilterEvent::RateExceeded));
}
