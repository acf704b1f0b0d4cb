//! The host's side of the gateway's way out: a table of its own in the host's namespace.
//!
//! ```text
//!  sandbox ── gateway namespace ── uplink ══ host's end ── this table ── the world
//!                 lease filters                   │
//!                                                 ├ from it to the host itself   drop, before any translation
//!                                                 ├ from it, another source      drop
//!                                                 ├ from it, back into it        drop
//!                                                 ├ from it, out                 pass, masqueraded
//!                                                 └ into it                      answers only
//! ```
//! It decides nothing about names or policies: that was done in the gateway. It says only packets of
//! the host's end; whatever else the host forwards is none of its business. The host's own addresses
//! are asked of the kernel for each packet, so one that came later is closed, too, and so is a port of
//! the host that some engine translates to a container.

use std::net::{IpAddr, Ipv4Addr};

use crate::{
    layout::{ANSWERS, BEFORE_ROUTING_PRIORITY, FILTER_PRIORITY, SOURCE_NAT_PRIORITY, rule},
    ruleset::{
        Base, Chain, Family, Hook, InterfaceName, ObjectName, Rule, Ruleset, Statement, Verdict,
    },
};

/// The table. `host_end` is the host's end of the uplink, `gateway` the address of the other end,
/// which is the source of everything that comes out of it.
#[must_use]
pub fn ruleset(table: ObjectName, host_end: &InterfaceName, gateway: Ipv4Addr) -> Ruleset {
    let gateway = IpAddr::V4(gateway);
    let from = || Statement::InInterface(host_end.clone());
    let into = || Statement::OutInterface(host_end.clone());
    let drop = || Statement::Verdict(Verdict::Drop);
    let accept = || Statement::Verdict(Verdict::Accept);
    let before_routing = vec![
        rule([from(), Statement::Family(Family::V6), drop()]),
        rule([from(), Statement::SourceIsNot(gateway), drop()]),
        rule([from(), Statement::DestinationIsLocal, drop()]),
    ];
    let forward = vec![
        rule([from(), into(), drop()]),
        rule([into(), Statement::State(ANSWERS), accept()]),
        rule([into(), drop()]),
    ];
    let masquerade = vec![
        rule([into(), accept()]),
        rule([Statement::Source(gateway), Statement::Masquerade]),
    ];
    Ruleset {
        table,
        sets: Vec::new(),
        chains: vec![
            chain(
                "before_routing",
                Hook::Prerouting,
                BEFORE_ROUTING_PRIORITY,
                before_routing,
            ),
            chain(
                "input",
                Hook::Input,
                FILTER_PRIORITY,
                vec![rule([from(), drop()])],
            ),
            chain("forward", Hook::Forward, FILTER_PRIORITY, forward),
            chain(
                "masquerade",
                Hook::PostroutingNat,
                SOURCE_NAT_PRIORITY,
                masquerade,
            ),
        ],
    }
}

fn chain(name: &'static str, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain {
        name: ObjectName::fixed(name),
        base: Some(Base {
            hook,
            priority,
            accepts: true,
        }),
        rules,
    }
}
