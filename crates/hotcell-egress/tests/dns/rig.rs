//! Upstream, filter and client.

pub(crate) use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub(crate) use async_trait::async_trait;
pub(crate) use hickory_net::runtime::Time;
pub(crate) use hickory_proto::{
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
pub(crate) use hickory_server::{
    Server,
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
pub(crate) use hotcell_egress::{
    dns::{
        Connections, DnsFilter, DnsParts, EventSink, FilterEvent, serve,
        upstream::{Resolvers, Upstream, UpstreamAnswer, UpstreamError},
    },
    filter::{Denial, FilterSettings, SandboxFilter},
    firewall::{Firewall, FirewallError, OpenAddress},
    layout::{LeaseRules, Reach, learned_set},
    report::{Difference, TableReport},
    ruleset::{Family, ObjectName, Ruleset},
};
pub(crate) use hotcell_policy::{Policy, Surroundings};
pub(crate) use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Notify, Semaphore, watch},
};

/// Answers by script; counts.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) records: Mutex<BTreeMap<(String, RecordType), Vec<Record>>>,
    pub(crate) asked: Mutex<Vec<(String, RecordType)>>,
    pub(crate) dead: AtomicBool,
}

impl Script {
    pub(crate) fn set(&self, name: &str, kind: RecordType, data: &[(&str, u32, RData)]) {
        let records = data
            .iter()
            .map(|(owner, ttl, data)| Record::from_rdata(fqdn(owner), *ttl, data.clone()))
            .collect();
        self.records
            .lock()
            .unwrap()
            .insert((name.to_owned(), kind), records);
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .map(|(name, _)| name.clone())
            .collect()
    }
}

pub(crate) struct ScriptServer(Arc<Script>);

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
pub(crate) struct Ledger {
    pub(crate) opened: Mutex<Vec<OpenAddress>>,
    pub(crate) closed: Mutex<Vec<IpAddr>>,
    pub(crate) broken: AtomicBool,
    pub(crate) asked: Notify,
    pub(crate) gate: Semaphore,
    /// What is open.
    pub(crate) open: Mutex<HashSet<IpAddr>>,
    /// Whose closing waits until told to go on.
    pub(crate) held: Mutex<Option<IpAddr>>,
    pub(crate) go_on: Notify,
}

impl Ledger {
    pub(crate) fn addresses(&self) -> HashSet<IpAddr> {
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
        let opened = addresses.iter().map(|open| open.address);
        self.open.lock().unwrap().extend(opened);
        Ok(())
    }
    async fn close(
        &self,
        _: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError> {
        let closing: Vec<IpAddr> = addresses.iter().map(|(_, address)| *address).collect();
        let held = *self.held.lock().unwrap();
        if held.is_some_and(|address| closing.contains(&address)) {
            self.go_on.notified().await;
        }
        self.open
            .lock()
            .unwrap()
            .retain(|open| !closing.contains(open));
        self.closed.lock().unwrap().extend(closing);
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
pub(crate) struct Events(pub(crate) Mutex<Vec<FilterEvent>>);

impl EventSink for Events {
    fn record(&self, event: FilterEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// The open connections of the sandbox.
#[derive(Default)]
pub(crate) struct Connected(pub(crate) Mutex<HashSet<IpAddr>>);

impl Connections for Connected {
    fn addresses(&self) -> HashSet<IpAddr> {
        self.0.lock().unwrap().clone()
    }
}

/// Upstream, filter and everything around.
pub(crate) struct Rig {
    pub(crate) script: Arc<Script>,
    pub(crate) upstream: Arc<dyn Upstream>,
    pub(crate) _upstream: Server<ScriptServer>,
}

pub(crate) struct Sandbox {
    pub(crate) address: SocketAddr,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) events: Arc<Events>,
    pub(crate) filter: DnsFilter,
    pub(crate) _server: hotcell_egress::dns::DnsServer,
}

pub(crate) async fn sockets() -> (UdpSocket, TcpListener, SocketAddr) {
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
    pub(crate) async fn new() -> Self {
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

    /// What a filter is made of, and what watches it.
    pub(crate) fn parts(
        &self,
        default: &str,
        rules: &[&str],
        change: impl FnOnce(&mut FilterSettings, &mut u32),
    ) -> (DnsParts, Arc<Ledger>, Arc<Events>) {
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
            open: Mutex::default(),
            held: Mutex::default(),
            go_on: Notify::new(),
        });
        let events = Arc::new(Events::default());
        let parts = DnsParts {
            filter: SandboxFilter::new(Some(policy), &Surroundings::default(), settings),
            firewall: ledger.clone(),
            table: "hotcell".parse().unwrap(),
            learned_sets: [Family::V4, Family::V6].map(|family| (family, learned_set("x", family))),
            upstream: self.upstream.clone(),
            connections: Arc::new(Connected::default()),
            events: events.clone(),
            rate_per_second,
        };
        (parts, ledger, events)
    }

    pub(crate) async fn sandbox(
        &self,
        default: &str,
        rules: &[&str],
        change: impl FnOnce(&mut FilterSettings, &mut u32),
    ) -> Sandbox {
        let (parts, ledger, events) = self.parts(default, rules, change);
        let filter = DnsFilter::new(parts);
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

    pub(crate) async fn plain(&self, rules: &[&str]) -> Sandbox {
        self.sandbox("deny", rules, |_, _| {}).await
    }
}

pub(crate) fn fqdn(name: &str) -> Name {
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    name
}

pub(crate) fn a(address: &str) -> RData {
    RData::A(A(address.parse::<Ipv4Addr>().unwrap()))
}

pub(crate) fn aaaa(address: &str) -> RData {
    RData::AAAA(AAAA(address.parse::<Ipv6Addr>().unwrap()))
}

pub(crate) fn cname(target: &str) -> RData {
    RData::CNAME(CNAME(fqdn(target)))
}

pub(crate) fn question(name: &str, kind: RecordType, edns_bytes: Option<u16>) -> Message {
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
    pub(crate) async fn raw_udp(&self, bytes: &[u8]) -> (Message, usize) {
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

    pub(crate) async fn udp(&self, message: &Message) -> (Message, usize) {
        let (answer, length) = self.raw_udp(&message.to_vec().unwrap()).await;
        assert_eq!(answer.metadata.id, message.metadata.id);
        (answer, length)
    }

    pub(crate) async fn tcp(&self, message: &Message) -> Message {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let bytes = message.to_vec().unwrap();
        stream.write_u16(bytes.len() as u16).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut buffer = vec![0; length.into()];
        stream.read_exact(&mut buffer).await.unwrap();
        Message::from_vec(&buffer).unwrap()
    }

    pub(crate) async fn ask(&self, name: &str, kind: RecordType) -> Message {
        self.udp(&question(name, kind, Some(1232))).await.0
    }

    pub(crate) fn events(&self) -> Vec<FilterEvent> {
        self.events.0.lock().unwrap().clone()
    }
}

pub(crate) fn shown(message: &Message) -> Vec<IpAddr> {
    let address = |record: &Record| match &record.data {
        RData::A(a) => Some(IpAddr::V4(a.0)),
        RData::AAAA(a) => Some(IpAddr::V6(a.0)),
        _ => None,
    };
    message.answers.iter().filter_map(address).collect()
}

pub(crate) fn extended_error(message: &Message) -> Option<(u16, String)> {
    let option = message.edns.as_ref()?.option(EdnsCode::from(15))?;
    let EdnsOption::Unknown(_, data) = option else {
        return None;
    };
    let text = String::from_utf8(data[2..].to_vec()).unwrap();
    Some((u16::from_be_bytes([data[0], data[1]]), text))
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
