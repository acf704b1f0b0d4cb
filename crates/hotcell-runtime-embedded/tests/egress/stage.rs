//! A runtime on the host of a stub internet, and filters for its sandboxes, put together in the order
//! that keeps every packet filtered: create, filter, start.

use std::{
    net::{IpAddr, Ipv4Addr},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
};

use hotcell_egress::{
    dns::{DnsFilter, DnsParts, EventSink, FilterEvent, Handler, serve, upstream::Resolvers},
    filter::{FilterSettings, SandboxFilter},
    firewall::Firewall,
    layout::{self, LeaseFilter, LeaseRules, Link, Scope, learned_set},
    ruleset::{Family, LogGroup, ObjectName, Ruleset},
    way_out,
};
use hotcell_nft::{Conntrack, DnsSockets, NftFirewall, dns_sockets};
use hotcell_policy::{Policy, Prefix, Surroundings};
use hotcell_runtime::{FilterSite, NetworkMode, Runtime};
use hotcell_testkit::internet::{Internet, RESOLVER};
use hotcell_types::{AgentKey, LeaseId, UnixMillis};
use tokio::net::{TcpListener, UdpSocket};

use crate::common::{Cell, Engine, Rig};

/// Where denials are told.
pub(crate) const LOG: LogGroup = LogGroup {
    group: 77,
    per_second: 1_000,
};

pub(crate) struct Stage<'a> {
    pub(crate) internet: &'a Internet,
    pub(crate) rig: Rig,
}

/// What stands in the gateway and on the host for all sandboxes.
pub(crate) struct Guard {
    pub(crate) firewall: NftFirewall,
    pub(crate) conntrack: Conntrack,
    pub(crate) on_host: NftFirewall,
    host_rules: Ruleset,
    upstream: Arc<Resolvers>,
    around: Surroundings,
}

/// The filter of one sandbox. Its rules stay when this is dropped; nothing answers then.
pub(crate) struct Filter {
    pub(crate) rules: LeaseRules,
    pub(crate) events: Arc<Events>,
    pub(crate) dns: DnsFilter,
    _server: hickory_server::Server<Handler>,
}

#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<FilterEvent>>);

impl Events {
    pub(crate) fn all(&self) -> Vec<FilterEvent> {
        self.0.lock().unwrap().clone()
    }
}

impl EventSink for Events {
    fn record(&self, event: FilterEvent) {
        self.0.lock().unwrap().push(event);
    }
}

pub(crate) fn table() -> ObjectName {
    "hotcell".parse().unwrap()
}

pub(crate) fn policy(default: &str, rules: &[&str]) -> Policy {
    let rules: Vec<String> = rules
        .iter()
        .map(|rule| {
            let (action, target) = rule.split_once(' ').unwrap();
            format!(r#"{{"action":"{action}","target":"{target}"}}"#)
        })
        .collect();
    let rules = rules.join(",");
    Policy::parse(&format!(
        r#"{{"defaultAction":"{default}","egress":[{rules}]}}"#
    ))
    .unwrap()
}

impl Stage<'_> {
    pub(crate) fn run(engine: Engine, test: impl AsyncFnOnce(&Stage<'_>) + Send) {
        let internet = Internet::new();
        internet.on_host(async || {
            let stage = Stage {
                internet: &internet,
                rig: Rig::open(engine).await,
            };
            Box::pin(test(&stage)).await;
            stage.rig.end().await;
            let links = internet.run_on_host("ip", &["-br", "link"]);
            assert!(!links.contains("hcu-"), "{links}");
        });
    }

    /// Makes a sandbox with a filtered network; nothing of it runs yet.
    pub(crate) async fn create(&self) -> (LeaseId, AgentKey, FilterSite) {
        let (mut spec, lease, key) = self.rig.spec();
        spec.network = NetworkMode::Filtered;
        self.rig.runtime.create(&spec).await.unwrap();
        let site = self.rig.runtime.filter_site(&lease).await.unwrap();
        (lease, key, site)
    }

    pub(crate) async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Cell {
        self.rig.runtime.start(lease, key).await.unwrap();
        self.rig.cell(lease, key).await
    }

    /// A running sandbox behind a filter.
    pub(crate) async fn sandbox(
        &self,
        guard: &Guard,
        policy: Policy,
    ) -> (Cell, Filter, FilterSite) {
        let (lease, key, site) = self.create().await;
        let filter = guard.admit(&lease, &site, policy).await;
        (self.start(&lease, &key).await, filter, site)
    }

    /// A guard, and one running sandbox behind a filter of this policy.
    pub(crate) async fn one(&self, default: &str, rules: &[&str]) -> (Guard, Cell, Filter) {
        let (lease, key, site) = self.create().await;
        let guard = Guard::open(self.internet, &site).await;
        let filter = guard.admit(&lease, &site, policy(default, rules)).await;
        (guard, self.start(&lease, &key).await, filter)
    }
}

fn namespace(site: &FilterSite) -> Option<OwnedFd> {
    site.namespace.as_ref().map(|fd| fd.try_clone().unwrap())
}

impl Guard {
    /// The host's table, then the gateway's: a packet that passes the second meets the first.
    pub(crate) async fn open(internet: &Internet, site: &FilterSite) -> Self {
        let guard = Self::adopt(internet, site);
        guard.on_host.replace(&guard.host_rules, &[]).await.unwrap();
        guard.firewall.replace(&base(site), &[]).await.unwrap();
        guard
    }

    /// The same over tables that are there.
    pub(crate) fn adopt(internet: &Internet, site: &FilterSite) -> Self {
        let way_out = site.way_out.as_ref().unwrap();
        let single = |address: IpAddr| Prefix::single(address);
        Self {
            firewall: NftFirewall::open(namespace(site)).unwrap(),
            conntrack: Conntrack::open(namespace(site)).unwrap(),
            on_host: NftFirewall::open(None).unwrap(),
            host_rules: way_out::ruleset(
                "hotcell_host".parse().unwrap(),
                &way_out.interface.parse().unwrap(),
                way_out.gateway,
            ),
            upstream: Arc::new(Resolvers::new(&[RESOLVER]).unwrap()),
            around: Surroundings {
                host: internet.host_addresses().into_iter().map(single).collect(),
                sandboxes: site
                    .ranges
                    .iter()
                    .map(|(address, bits)| Prefix::new(*address, *bits))
                    .collect(),
                ..Surroundings::default()
            },
        }
    }

    /// Installs a filter for a sandbox that does not run yet.
    pub(crate) async fn admit(&self, lease: &LeaseId, site: &FilterSite, policy: Policy) -> Filter {
        let model = self.model(policy);
        let rules = rules(lease, site, &model);
        self.conntrack.forget(site.v4.sandbox.into()).await.unwrap();
        self.firewall.add_lease(&table(), &rules).await.unwrap();
        self.answer(lease, site, model, rules)
    }

    /// Takes over the filter of a running sandbox.
    pub(crate) async fn readmit(
        &self,
        lease: &LeaseId,
        site: &FilterSite,
        policy: Policy,
    ) -> Filter {
        let mut model = self.model(policy);
        let rules = rules(lease, site, &model);
        let mut meant = base(site);
        rules.join(&mut meant, true);
        let differences = self.firewall.differences(&meant).await.unwrap();
        assert!(differences.is_empty(), "{differences:?}");
        let report = self.firewall.report(&table()).await.unwrap().unwrap();
        let learned = learned_set(lease.short(), Family::V4).to_string();
        let remaining = report.sets[&learned].remaining_ms.clone();
        model.adopt(UnixMillis(0), remaining);
        self.answer(lease, site, model, rules)
    }

    fn model(&self, policy: Policy) -> SandboxFilter {
        SandboxFilter::new(Some(policy), &self.around, FilterSettings::default())
    }

    fn answer(
        &self,
        lease: &LeaseId,
        site: &FilterSite,
        model: SandboxFilter,
        rules: LeaseRules,
    ) -> Filter {
        let DnsSockets { udp, tcp } = dns_sockets(namespace(site), site.v4.gateway.into()).unwrap();
        let events = Arc::new(Events::default());
        let learned = |family| (family, learned_set(lease.short(), family));
        let dns = DnsFilter::new(DnsParts {
            filter: model,
            firewall: Arc::new(self.firewall.clone()),
            table: table(),
            learned_sets: [Family::V4, Family::V6].map(learned),
            upstream: self.upstream.clone(),
            connections: Arc::new(self.conntrack.of_sandbox([site.v4.sandbox.into()])),
            events: events.clone(),
            rate_per_second: DnsParts::USUAL_RATE_PER_SECOND,
        });
        let server = serve(
            dns.clone(),
            UdpSocket::from_std(udp).unwrap(),
            TcpListener::from_std(tcp).unwrap(),
        );
        Filter {
            rules,
            events,
            dns,
            _server: server,
        }
    }
}

pub(crate) fn base(site: &FilterSite) -> Ruleset {
    let uplink = site.uplink.as_ref().unwrap().parse().unwrap();
    layout::base(table(), &Scope::Gateway { uplink })
}

pub(crate) fn rules(lease: &LeaseId, site: &FilterSite, model: &SandboxFilter) -> LeaseRules {
    LeaseFilter {
        short: lease.short(),
        interface: site.interface.parse().unwrap(),
        v4: Link {
            sandbox: site.v4.sandbox,
            gateway: site.v4.gateway,
        },
        v6: None,
        plan: model.plan(),
        blocked: model.blocked_addresses(),
        log: Some(LOG),
    }
    .rules()
}

/// One question: TCP or UDP, an address or a name, a port.
pub(crate) type Probe<'a> = (&'a str, &'a str, u16);

const PROBE: &str = r"
import socket, sys, threading
socket.setdefaulttimeout(3)
def ask(kind, host, port):
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
    try:
        s.connect((host, int(port))); s.send(b'hello'); return s.recv(99) == b'hello'
    except OSError: return False
probes = [line.split('|') for line in sys.argv[1:]]
results = [None] * len(probes)
def work(i): results[i] = ask(*probes[i])
threads = [threading.Thread(target=work, args=(i,)) for i in range(len(probes))]
[t.start() for t in threads]; [t.join() for t in threads]
print(''.join('1' if r else '0' for r in results))
";

impl Cell {
    /// Runs a Python program that must succeed, and returns what it printed.
    pub(crate) async fn python(&self, program: &str, arguments: &[String]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|text| format!("'{text}'")).collect();
        let arguments = arguments.join(" ");
        self.get(&format!("python3 - {arguments} <<'E'\n{program}\nE"))
            .await
    }

    /// Asks all at once and says which got their echo in time.
    pub(crate) async fn probe(&self, probes: &[Probe<'_>]) -> Vec<bool> {
        let arguments: Vec<String> = probes
            .iter()
            .map(|(kind, host, port)| format!("{kind}|{host}|{port}"))
            .collect();
        let said = self.python(PROBE, &arguments).await;
        said.chars().map(|c| c == '1').collect()
    }

    /// Finds these open and those closed, in one go.
    #[track_caller]
    pub(crate) fn only<'a>(
        &'a self,
        open: &'a [Probe<'a>],
        closed: &'a [Probe<'a>],
    ) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            assert!(!open.is_empty(), "{place}: a control is missing");
            let all: Vec<Probe<'_>> = open.iter().chain(closed).copied().collect();
            let got = self.probe(&all).await;
            let wrong: Vec<_> = all
                .iter()
                .zip(&got)
                .enumerate()
                .filter(|(i, (_, got))| **got != (*i < open.len()))
                .collect();
            assert!(wrong.is_empty(), "{place}: probe, got: {wrong:?}");
        }
    }

    /// The addresses that a name has for the sandbox; nothing when it has none.
    pub(crate) async fn resolve(&self, name: &str) -> Vec<Ipv4Addr> {
        let said = self.sh(&format!("getent ahostsv4 {name}")).await;
        let of_line = |line: &str| line.split_whitespace().next()?.parse().ok();
        let mut found: Vec<Ipv4Addr> = said.stdout.lines().filter_map(of_line).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}
