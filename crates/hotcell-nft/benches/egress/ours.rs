//! Our resolver as a process: the real DNS side over the real packet filter, in the namespace that it
//! is started in.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use std::collections::HashSet;

use hotcell_egress::{
    dns::{
        Connections, DnsFilter, DnsParts, EventSink, FilterEvent, serve,
        upstream::{Resolvers, Upstream},
    },
    filter::{FilterSettings, SandboxFilter},
    firewall::Firewall,
    layout::{self, LeaseFilter, LeaseRules, Link, Scope, learned_set},
    ruleset::{Family, ObjectName},
};
use hotcell_nft::NftFirewall;
use hotcell_policy::{Policy, Surroundings};
use tokio::net::{TcpListener, UdpSocket};

use crate::upstream::{self, NAMES};

/// Where it listens.
pub(crate) const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5301);
/// Rules of its policy: one for each name.
pub(crate) const RULES: usize = NAMES;

pub(crate) fn table() -> ObjectName {
    ObjectName::fixed("hotcell")
}

/// A policy that allows the upstream's names, each by a rule, and nothing else.
pub(crate) fn policy() -> Policy {
    let rules: Vec<String> = (0..RULES)
        .map(|number| {
            let name = upstream::name(number);
            format!(r#"{{"action":"allow","target":"{name}"}}"#)
        })
        .collect();
    Policy::parse(&format!(r#"{{"egress":[{}]}}"#, rules.join(","))).unwrap()
}

pub(crate) fn model() -> SandboxFilter {
    SandboxFilter::new(
        Some(policy()),
        &Surroundings::default(),
        FilterSettings::default(),
    )
}

/// The lease's part of the packet filter.
pub(crate) fn lease(
    model: &SandboxFilter,
    short: &str,
    interface: &str,
    link: Link<Ipv4Addr>,
) -> LeaseRules {
    LeaseFilter {
        short,
        interface: interface.parse().unwrap(),
        v4: link,
        v6: None,
        plan: model.plan(),
        blocked: model.blocked_addresses(),
        log: None,
    }
    .rules()
}

pub(crate) async fn firewall() -> NftFirewall {
    let firewall = NftFirewall::open(None).unwrap();
    // As beside a container engine: the client's questions come in by the loopback, which is no
    // sandbox's interface.
    let base = layout::base(table(), &Scope::Host);
    firewall.replace(&base, &[]).await.unwrap();
    firewall
}

struct Nobody;

impl EventSink for Nobody {
    fn record(&self, _: FilterEvent) {}
}

impl Connections for Nobody {
    fn addresses(&self) -> HashSet<IpAddr> {
        HashSet::new()
    }
}

/// The DNS side of a filter whose lease is in the table.
pub(crate) fn dns(
    model: SandboxFilter,
    firewall: &NftFirewall,
    upstream: &Arc<dyn Upstream>,
    short: &str,
) -> DnsFilter {
    DnsFilter::new(DnsParts {
        filter: model,
        firewall: Arc::new(firewall.clone()),
        table: table(),
        learned_sets: [Family::V4, Family::V6].map(|family| (family, learned_set(short, family))),
        upstream: Arc::clone(upstream),
        connections: Arc::new(Nobody),
        events: Arc::new(Nobody),
        rate_per_second: u32::MAX,
    })
}

/// Answers until the process is ended.
pub(crate) fn resolve() {
    // As the daemon does: a thread for each core.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let firewall = firewall().await;
        let model = model();
        let link = Link {
            sandbox: Ipv4Addr::new(10, 0, 0, 2),
            gateway: Ipv4Addr::new(10, 0, 0, 1),
        };
        let rules = lease(&model, "bench", "sb0", link);
        firewall.add_lease(&table(), &rules).await.unwrap();
        let upstream: Arc<dyn Upstream> = Arc::new(Resolvers::new(&[upstream::ADDRESS]).unwrap());
        let dns = dns(model, &firewall, &upstream, "bench");
        let udp = UdpSocket::bind(ADDRESS).await.unwrap();
        let tcp = TcpListener::bind(ADDRESS).await.unwrap();
        let _server = serve(dns, udp, tcp);
        std::future::pending::<()>().await;
    });
}
