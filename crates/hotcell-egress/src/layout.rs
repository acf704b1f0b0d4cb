//! How the filter is laid out: one table, a few base chains, a handful of objects for each lease.
//!
//! ```text
//! mark    ── in a namespace of sandboxes only: every packet gets the mark that its routes ask for
//! forward ─┬ where it came in: lease_forward ─► lease's chain   <L>_forward
//!          └ where it goes to: lease_reply   ─► replies         established or related, else dropped
//! input   ── where it came in: lease_input   ─► lease's chain   <L>_input
//!
//! <L>_forward, in this order
//!   another source address than the lease's, another family than it has   drop   anti-spoofing
//!   source-routed, or invalid                                             drop
//!   <L>_closed   metadata, host, appliance, sandboxes, private, …         drop   before "established"
//!   established                                                           accept survives expiry
//!   neither TCP nor UDP                                                   drop
//!   ports 53, 853, 5353, 5355, 137: DNS by another way                    drop
//!   <L>_blocked  well-known encrypted resolvers                           drop
//!   <L>_learned  addresses of allowed names, timed                        accept
//!   <L>_static   address rules that differ from the default               the other verdict
//!   the default                                                           accept or drop
//!
//! <L>_input
//!   spoofed                                                               drop
//!   established, related: answers to our own connections                  accept
//!   the gateway's address, port 53, UDP and TCP                           accept
//!   everything else                                                       drop
//! ```
//! ICMP echo is dropped like every protocol that is neither TCP nor UDP; ICMP errors that belong to a
//! connection pass towards the sandbox as *related*. A sandbox is cut off by pointing its interface at
//! `drop` in all three maps: established connections end with it. Where only the way behind the gateway
//! is in doubt, it is cut off in the first two, and its agent goes on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hotcell_policy::{Action, AddressPlan, KernelRanges};
use hotcell_types::net::WAY_OUT_MARK;

use crate::ruleset::{
    Base, Chain, Element, Family, Hook, InterfaceName, Key, LogGroup, ObjectName, Rule, Ruleset,
    Set, SetKind, SourceRoute, Statement, States, Verdict,
};

/// From a lease's interface to its chain, for packets that go through.
pub const FORWARD_MAP: &str = "lease_forward";
/// From a lease's interface to the chain for what comes back.
pub const REPLY_MAP: &str = "lease_reply";
/// From a lease's interface to its chain, for packets to the gateway.
pub const INPUT_MAP: &str = "lease_input";
const PROTOCOLS: &str = "protocols";
const DNS_PORTS: &str = "dns_ports";
const REPLIES: &str = "replies";

/// Before Docker's, Podman's and the distribution's filter chains, which sit at 0.
pub(crate) const FILTER_PRIORITY: i32 = -10;
/// Before a packet's way is chosen and before destination address translation (-100), but when its
/// connection is known (-200).
pub(crate) const BEFORE_ROUTING_PRIORITY: i32 = -150;
/// Where source address translation belongs.
pub(crate) const SOURCE_NAT_PRIORITY: i32 = 100;
const DNS_PORT: u16 = 53;
/// DNS, DNS over TLS and QUIC, mDNS, LLMNR, NetBIOS names.
const OTHER_DNS_PORTS: [u16; 5] = [DNS_PORT, 853, 5353, 5355, 137];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Whether a packet of this protocol is let through at all.
pub(crate) const fn carries_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP)
}

/// Whether this port belongs to DNS or one of its relatives.
pub(crate) fn is_dns_port(port: u16) -> bool {
    OTHER_DNS_PORTS.contains(&port)
}

/// Whose namespace the table is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Only sandboxes and this way out are there: what is not known is dropped, and sources are
    /// translated on the way out.
    Gateway {
        /// The interface that leads out.
        uplink: InterfaceName,
    },
    /// The host's own: packets of interfaces that are no lease's are none of our business.
    Host,
}

/// The table with nothing about any lease.
#[must_use]
pub fn base(table: ObjectName, scope: &Scope) -> Ruleset {
    let accepts = matches!(scope, Scope::Host);
    let mut forward = vec![
        rule([Statement::InInterfaceVerdict(ObjectName::fixed(
            FORWARD_MAP,
        ))]),
        rule([Statement::OutInterfaceVerdict(ObjectName::fixed(REPLY_MAP))]),
    ];
    let mut input = vec![rule([Statement::InInterfaceVerdict(ObjectName::fixed(
        INPUT_MAP,
    ))])];
    let mut chains = Vec::new();
    if let Scope::Gateway { uplink } = scope {
        // Nothing is forwarded that no lease takes part in, whatever the chain's policy becomes.
        forward.push(rule([Statement::Verdict(Verdict::Drop)]));
        // What answers us: by the uplink, and the agents of sandboxes that have no filter since they
        // have no network.
        input.push(rule([
            Statement::State(ANSWERS),
            Statement::Verdict(Verdict::Accept),
        ]));
        // Without it the way out has no IPv6 neighbours.
        input.push(rule([
            Statement::InInterface(uplink.clone()),
            Statement::NeighbourDiscovery,
            Statement::Verdict(Verdict::Accept),
        ]));
        // The runtime routes marked packets only: without this table nothing goes anywhere.
        chains.push(Chain {
            name: ObjectName::fixed("mark"),
            base: Some(Base {
                hook: Hook::Prerouting,
                priority: BEFORE_ROUTING_PRIORITY,
                accepts: true,
            }),
            rules: vec![rule([Statement::SetMark(WAY_OUT_MARK)])],
        });
        chains.push(Chain {
            name: ObjectName::fixed("masquerade"),
            base: Some(Base {
                hook: Hook::PostroutingNat,
                priority: SOURCE_NAT_PRIORITY,
                accepts: true,
            }),
            rules: vec![rule([
                Statement::OutInterface(uplink.clone()),
                Statement::Masquerade,
            ])],
        });
    }
    let base = |hook| {
        Some(Base {
            hook,
            priority: FILTER_PRIORITY,
            accepts,
        })
    };
    chains.extend([
        Chain {
            name: ObjectName::fixed(REPLIES),
            base: None,
            rules: vec![
                rule([
                    Statement::State(ANSWERS),
                    Statement::Verdict(Verdict::Accept),
                ]),
                rule([Statement::Verdict(Verdict::Drop)]),
            ],
        },
        Chain {
            name: ObjectName::fixed("forward"),
            base: base(Hook::Forward),
            rules: forward,
        },
        Chain {
            name: ObjectName::fixed("input"),
            base: base(Hook::Input),
            rules: input,
        },
    ]);
    let verdicts = |name| Set {
        name: ObjectName::fixed(name),
        key: Key::Interface,
        kind: SetKind::Verdicts,
        elements: Vec::new(),
    };
    Ruleset {
        table,
        sets: vec![
            Set {
                name: ObjectName::fixed(PROTOCOLS),
                key: Key::Protocol,
                kind: SetKind::Plain,
                elements: [TCP, UDP].map(Element::Protocol).to_vec(),
            },
            Set {
                name: ObjectName::fixed(DNS_PORTS),
                key: Key::Port,
                kind: SetKind::Plain,
                elements: OTHER_DNS_PORTS.map(Element::Port).to_vec(),
            },
            verdicts(FORWARD_MAP),
            verdicts(REPLY_MAP),
            verdicts(INPUT_MAP),
        ],
        chains,
    }
}

pub(crate) const ANSWERS: States = States {
    invalid: false,
    established: true,
    related: true,
};

pub(crate) fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule(statements.to_vec())
}

/// The addresses of a lease in one family, and of the gateway that it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link<A> {
    /// The sandbox's.
    pub sandbox: A,
    /// The gateway's, where the filter answers DNS.
    pub gateway: A,
}

/// Everything that the kernel has to know about one lease.
#[derive(Debug, Clone)]
pub struct LeaseFilter<'a> {
    /// Tells the lease's objects apart: [`hotcell_types::LeaseId::short`].
    pub short: &'a str,
    /// Where its packets come in: the host's end of the veth, or its bridge.
    pub interface: InterfaceName,
    /// Its IPv4 addresses.
    pub v4: Link<Ipv4Addr>,
    /// Its IPv6 addresses; without them IPv6 is dropped.
    pub v6: Option<Link<Ipv6Addr>>,
    /// What its policy says about addresses.
    pub plan: &'a AddressPlan,
    /// Addresses of encrypted resolvers to block.
    pub blocked: &'a [IpAddr],
    /// Where denials are told, if they are.
    pub log: Option<LogGroup>,
}

/// What the log says of a lease's packets: `l_` and its short id.
#[must_use]
pub fn log_label(short: &str) -> ObjectName {
    object(short, "denied", None)
}

/// The short id in a label.
#[must_use]
pub fn short_of_label(label: &str) -> Option<&str> {
    label.strip_prefix("l_")?.strip_suffix("_denied")
}

/// The objects of one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRules {
    /// Where its packets come in.
    pub interface: InterfaceName,
    /// Its sets.
    pub sets: Vec<Set>,
    /// Its chains: forward, then input.
    pub chains: Vec<Chain>,
}

/// The objects of a lease that are timed sets: learned addresses of each family.
#[must_use]
pub fn learned_set(short: &str, family: Family) -> ObjectName {
    object(short, "learned", Some(family))
}

/// A short id has ten characters `a-z2-7`, so this is always a name; anything else is cut down to one.
fn object(short: &str, what: &str, family: Option<Family>) -> ObjectName {
    let digit = match family {
        Some(Family::V4) => "4",
        Some(Family::V6) => "6",
        None => "",
    };
    let short: String = short
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(16)
        .collect();
    format!("l_{short}_{what}{digit}")
        .parse()
        .expect("letters, digits and _, far below the longest name")
}

impl LeaseFilter<'_> {
    /// The lease's objects.
    #[must_use]
    pub fn rules(&self) -> LeaseRules {
        LeaseRules {
            interface: self.interface.clone(),
            sets: self.sets(),
            chains: vec![self.forward(), self.input()],
        }
    }

    fn families(&self) -> impl Iterator<Item = Family> {
        std::iter::once(Family::V4).chain(self.v6.map(|_| Family::V6))
    }

    fn name(&self, what: &str, family: Family) -> ObjectName {
        object(self.short, what, Some(family))
    }

    fn sets(&self) -> Vec<Set> {
        let KernelRanges { closed, exceptions } = self.plan.kernel_v4();
        let closed_v4 = closed.into_iter().map(Element::Ipv4).collect();
        let static_v4 = exceptions.into_iter().map(Element::Ipv4).collect();
        let mut sets = self.sets_of(Family::V4, closed_v4, static_v4);
        if self.v6.is_some() {
            let KernelRanges { closed, exceptions } = self.plan.kernel_v6();
            let closed_v6 = closed.into_iter().map(Element::Ipv6).collect();
            let static_v6 = exceptions.into_iter().map(Element::Ipv6).collect();
            sets.extend(self.sets_of(Family::V6, closed_v6, static_v6));
        }
        sets
    }

    fn sets_of(&self, family: Family, closed: Vec<Element>, ruled: Vec<Element>) -> Vec<Set> {
        let set = |what, kind, elements| Set {
            name: self.name(what, family),
            key: Key::of(family),
            kind,
            elements,
        };
        let blocked = self
            .blocked
            .iter()
            .filter(|address| Family::of(**address).0 == family)
            .map(|address| Element::address(*address))
            .collect();
        vec![
            set("closed", SetKind::Interval, closed),
            set("blocked", SetKind::Plain, blocked),
            set("learned", SetKind::Timed, Vec::new()),
            set("static", SetKind::Interval, ruled),
        ]
    }

    fn against_spoofing(&self) -> Vec<Rule> {
        let drop = Statement::Verdict(Verdict::Drop);
        let other = |address| rule([Statement::SourceIsNot(address), drop.clone()]);
        let v6 = match self.v6 {
            Some(link) => other(IpAddr::V6(link.sandbox)),
            None => rule([Statement::Family(Family::V6), drop.clone()]),
        };
        vec![other(IpAddr::V4(self.v4.sandbox)), v6]
    }

    fn denied(&self, matches: Vec<Statement>) -> Vec<Rule> {
        let mut rules = Vec::new();
        if let Some(log) = self.log {
            let mut told = matches.clone();
            told.push(Statement::Log(log, log_label(self.short)));
            rules.push(Rule(told));
        }
        let mut dropped = matches;
        dropped.push(Statement::Verdict(Verdict::Drop));
        rules.push(Rule(dropped));
        rules
    }

    fn forward(&self) -> Chain {
        let drop = Statement::Verdict(Verdict::Drop);
        let accept = Statement::Verdict(Verdict::Accept);
        let mut rules = self.against_spoofing();
        for route in [SourceRoute::Loose, SourceRoute::Strict] {
            rules.push(rule([
                Statement::Family(Family::V4),
                Statement::SourceRouted(route),
                drop.clone(),
            ]));
        }
        let invalid = States {
            invalid: true,
            established: false,
            related: false,
        };
        rules.push(rule([Statement::State(invalid), drop.clone()]));
        for family in self.families() {
            let closed = Statement::DestinationIn(family, self.name("closed", family));
            rules.extend(self.denied(vec![closed]));
        }
        let established = States {
            invalid: false,
            established: true,
            related: false,
        };
        rules.push(rule([Statement::State(established), accept.clone()]));
        rules.extend(self.denied(vec![Statement::ProtocolNotIn(ObjectName::fixed(PROTOCOLS))]));
        rules.extend(self.denied(vec![Statement::PortIn(ObjectName::fixed(DNS_PORTS))]));
        for family in self.families() {
            let blocked = Statement::DestinationIn(family, self.name("blocked", family));
            rules.extend(self.denied(vec![blocked]));
        }
        for family in self.families() {
            let learned = Statement::DestinationIn(family, self.name("learned", family));
            rules.push(rule([learned, accept.clone()]));
        }
        for family in self.families() {
            let ruled = Statement::DestinationIn(family, self.name("static", family));
            match self.plan.default_action() {
                Action::Deny => rules.push(rule([ruled, accept.clone()])),
                Action::Allow => rules.extend(self.denied(vec![ruled])),
            }
        }
        match self.plan.default_action() {
            Action::Allow => rules.push(rule([accept])),
            Action::Deny => rules.extend(self.denied(Vec::new())),
        }
        Chain {
            name: object(self.short, "forward", None),
            base: None,
            rules,
        }
    }

    fn input(&self) -> Chain {
        let accept = Statement::Verdict(Verdict::Accept);
        let mut rules = Vec::new();
        if self.v6.is_some() {
            rules.push(rule([Statement::NeighbourDiscovery, accept.clone()]));
        }
        rules.extend(self.against_spoofing());
        rules.push(rule([Statement::State(ANSWERS), accept.clone()]));
        let gateways = std::iter::once(IpAddr::V4(self.v4.gateway))
            .chain(self.v6.map(|link| IpAddr::V6(link.gateway)));
        for gateway in gateways {
            rules.push(rule([
                Statement::Destination(gateway),
                Statement::ProtocolIn(ObjectName::fixed(PROTOCOLS)),
                Statement::Port(DNS_PORT),
                accept.clone(),
            ]));
        }
        rules.extend(self.denied(Vec::new()));
        Chain {
            name: object(self.short, "input", None),
            base: None,
            rules,
        }
    }
}

/// How far packets of a lease's interface come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// As its chains say.
    Outside,
    /// To the gateway as its chain says, and no further: its agent answers, names are answered.
    Gateway,
    /// Nowhere.
    Nothing,
}

impl LeaseRules {
    /// Where packets of the lease's interface go: into its chains as far as `reach`, beyond that
    /// nowhere.
    #[must_use]
    pub fn map_elements(&self, reach: Reach) -> [(ObjectName, Element); 3] {
        let towards = |chain: Option<ObjectName>, is_open: bool| {
            let verdict = match chain {
                Some(chain) if is_open => Verdict::Jump(chain),
                _ => Verdict::Drop,
            };
            Element::Interface(self.interface.clone(), verdict)
        };
        let chain = |place: usize| self.chains.get(place).map(|chain| chain.name.clone());
        let outside = reach == Reach::Outside;
        let gateway = reach != Reach::Nothing;
        [
            (ObjectName::fixed(FORWARD_MAP), towards(chain(0), outside)),
            (
                ObjectName::fixed(REPLY_MAP),
                towards(Some(ObjectName::fixed(REPLIES)), outside),
            ),
            (ObjectName::fixed(INPUT_MAP), towards(chain(1), gateway)),
        ]
    }

    /// Puts the lease's objects into a table.
    pub fn join(&self, ruleset: &mut Ruleset, reach: Reach) {
        ruleset.sets.extend(self.sets.iter().cloned());
        ruleset.chains.extend(self.chains.iter().cloned());
        for (map, element) in self.map_elements(reach) {
            if let Some(set) = ruleset.set_mut(&map) {
                set.elements.push(element);
            }
        }
    }
}
