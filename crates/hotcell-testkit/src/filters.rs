//! Filters for sandboxes on a stub [`internet`](crate::internet), put together by hand: what stands
//! between a runtime and the daemon's actors, for tests of runtimes.
//!
//! ```text
//!  create ─► filter_site ─► Guard::open, once a namespace ─► Guard::admit ─► start
//!                           Guard::adopt ─► Guard::readmit              a sandbox that runs already
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
};

use hotcell_egress::{
    dns::{DnsFilter, DnsParts, DnsServer, EventSink, FilterEvent, serve, upstream::Resolvers},
    filter::{FilterSettings, SandboxFilter},
    firewall::Firewall,
    layout::{self, LeaseFilter, LeaseRules, Link, Reach, Scope, learned_set},
    ruleset::{Family, LogGroup, ObjectName, Ruleset},
    way_out,
};
use hotcell_nft::{Conntrack, DnsSockets, NftFirewall, dns_sockets};
use hotcell_policy::{Policy, Prefix, Surroundings};
use hotcell_runtime::FilterSite;
use hotcell_types::{LeaseId, UnixMillis};
use tokio::net::{TcpListener, UdpSocket};

use crate::internet::{Internet, RESOLVER};

/// Where denials are told.
pub const LOG: LogGroup = LogGroup {
    group: 77,
    per_second: 1_000,
};

/// What stands in the gateway and on the host for all sandboxes.
pub struct Guard {
    /// The packet filter of the gateway.
    pub firewall: NftFirewall,
    /// The connections that it sees.
    pub conntrack: Conntrack,
    /// The packet filter of the host.
    pub on_host: NftFirewall,
    host_rules: Ruleset,
    upstream: Arc<Resolvers>,
    around: Surroundings,
}

/// The filter of one sandbox. Its rules stay when this is dropped; nothing answers then.
pub struct Filter {
    /// What the kernel has of it.
    pub rules: LeaseRules,
    /// What it decided.
    pub events: Arc<Events>,
    /// Its names.
    pub dns: DnsFilter,
    _server: DnsServer,
}

/// Decisions, in order.
#[derive(Default)]
pub struct Events(Mutex<Vec<FilterEvent>>);

impl Events {
    /// All of them.
    ///
    /// # Panics
    /// When somebody panicked while writing one down.
    #[must_use]
    pub fn all(&self) -> Vec<FilterEvent> {
        self.0.lock().unwrap().clone()
    }
}

impl EventSink for Events {
    fn record(&self, event: FilterEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// The gateway's table.
///
/// # Panics
/// Never.
#[must_use]
pub fn table() -> ObjectName {
    "hotcell".parse().unwrap()
}

/// A policy of rules such as `allow example.org`.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn policy(default: &str, rules: &[&str]) -> Policy {
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

fn namespace(site: &FilterSite) -> Option<OwnedFd> {
    site.namespace.as_ref().map(|fd| fd.try_clone().unwrap())
}

impl Guard {
    /// Installs the host's table, then the gateway's: a packet that passes the second meets the first.
    ///
    /// # Panics
    /// When the kernel does not take them.
    pub async fn open(internet: &Internet, site: &FilterSite) -> Self {
        let guard = Self::adopt(internet, site);
        guard.restore_host().await;
        guard.firewall.replace(&base(site), &[]).await.unwrap();
        guard
    }

    /// Makes the host's table what it shall be.
    ///
    /// # Panics
    /// When the kernel does not take it.
    pub async fn restore_host(&self) {
        self.on_host.replace(&self.host_rules, &[]).await.unwrap();
    }

    /// The same over tables that are there.
    ///
    /// # Panics
    /// When their namespaces cannot be entered.
    #[must_use]
    pub fn adopt(internet: &Internet, site: &FilterSite) -> Self {
        let way_out = site.way_out.as_ref().unwrap();
        let single = |address: IpAddr| Prefix::single(address);
        Self {
            firewall: NftFirewall::open(namespace(site)).unwrap(),
            conntrack: Conntrack::open(namespace(site)).unwrap(),
            on_host: NftFirewall::open(None).unwrap(),
            host_rules: way_out::ruleset(
                format!("hotcell_{}", way_out.interface).parse().unwrap(),
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
    ///
    /// # Panics
    /// When the kernel does not take it.
    pub async fn admit(&self, lease: &LeaseId, site: &FilterSite, policy: Policy) -> Filter {
        self.admit_with(lease, site, policy, FilterSettings::default())
            .await
    }

    /// The same with other settings.
    ///
    /// # Panics
    /// When the kernel does not take it.
    pub async fn admit_with(
        &self,
        lease: &LeaseId,
        site: &FilterSite,
        policy: Policy,
        settings: FilterSettings,
    ) -> Filter {
        let model = SandboxFilter::new(Some(policy), &self.around, settings);
        let rules = rules(lease, site, &model);
        self.conntrack.forget(site.v4.sandbox.into()).await.unwrap();
        self.firewall.add_lease(&table(), &rules).await.unwrap();
        self.answer(lease, site, model, rules).await
    }

    /// Takes over the filter of a running sandbox, the only one in its namespace.
    ///
    /// # Panics
    /// When it is not there as it was.
    pub async fn readmit(&self, lease: &LeaseId, site: &FilterSite, policy: Policy) -> Filter {
        let mut model = self.model(policy);
        let rules = rules(lease, site, &model);
        let mut meant = base(site);
        rules.join(&mut meant, Reach::Outside);
        let differences = self.firewall.differences(&meant).await.unwrap();
        assert!(differences.is_empty(), "{differences:?}");
        let report = self.firewall.report(&table()).await.unwrap().unwrap();
        let learned = learned_set(lease.short(), Family::V4).to_string();
        let remaining = report.sets[&learned].remaining_ms.clone();
        model.adopt(UnixMillis(0), remaining);
        self.answer(lease, site, model, rules).await
    }

    fn model(&self, policy: Policy) -> SandboxFilter {
        SandboxFilter::new(Some(policy), &self.around, FilterSettings::default())
    }

    async fn answer(
        &self,
        lease: &LeaseId,
        site: &FilterSite,
        model: SandboxFilter,
        rules: LeaseRules,
    ) -> Filter {
        // Those of a filter that was dropped just now may be open for a moment more.
        let sockets = crate::wait_for("the resolver's sockets", async || {
            dns_sockets(
                namespace(site),
                site.v4.gateway.into(),
                vec![site.v4.sandbox.into()],
            )
            .ok()
        });
        let DnsSockets { udp, tcp } = sockets.await;
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

/// The gateway's table without any lease.
///
/// # Panics
/// When the site has no uplink.
#[must_use]
pub fn base(site: &FilterSite) -> Ruleset {
    let uplink = site.uplink.as_ref().unwrap().parse().unwrap();
    layout::base(table(), &Scope::Gateway { uplink })
}

/// What a lease has in it.
///
/// # Panics
/// When its interface has no name.
#[must_use]
pub fn rules(lease: &LeaseId, site: &FilterSite, model: &SandboxFilter) -> LeaseRules {
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
pub type Probe<'a> = (&'a str, &'a str, u16);

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

/// A command for a sandbox that asks all at once and prints a 1 for each that got its echo in time,
/// a 0 for each that did not.
#[must_use]
pub fn probe_command(probes: &[Probe<'_>]) -> String {
    let words: Vec<String> = probes
        .iter()
        .map(|(kind, host, port)| format!("'{kind}|{host}|{port}'"))
        .collect();
    format!("python3 - {} <<'E'\n{PROBE}\nE", words.join(" "))
}
