//! What the kernel says is there, and how it differs from what shall be.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use crate::ruleset::{Base, Element, Key, SetKind};

/// A chain as reported. Rules are in a rendering that is the same for what is meant and for what
/// the kernel reports; only equality counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainReport {
    /// Set for a base chain.
    pub base: Option<Base>,
    /// The rules in order.
    pub rules: Vec<String>,
}

/// A set as reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetReport {
    /// What its keys are; `None` when it is nothing that hotcell makes.
    pub key: Option<Key>,
    /// How it keeps them; `None` when it is nothing that hotcell makes.
    pub kind: Option<SetKind>,
    /// The elements of a set that is not timed.
    pub elements: BTreeSet<Element>,
    /// The addresses of a timed set, with the milliseconds that each has left.
    pub remaining_ms: BTreeMap<IpAddr, u64>,
}

/// A table as reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableReport {
    /// Chains by name.
    pub chains: BTreeMap<String, ChainReport>,
    /// Sets by name.
    pub sets: BTreeMap<String, SetReport>,
}

/// One way in which the kernel differs from what was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The whole table is gone.
    TableMissing,
    /// A chain is gone.
    ChainMissing(String),
    /// A chain that nobody of us made.
    ChainForeign(String),
    /// A base chain sits elsewhere or lets other packets pass.
    ChainMoved(String),
    /// The rules of a chain are others.
    RulesChanged(String),
    /// A set is gone.
    SetMissing(String),
    /// A set that nobody of us made.
    SetForeign(String),
    /// A set of another kind.
    SetChanged(String),
    /// An element is gone from a set.
    ElementMissing(String, Element),
    /// An element that nobody of us put there.
    ElementForeign(String, Element),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableMissing => f.write_str("the table is gone"),
            Self::ChainMissing(name) => write!(f, "chain {name} is gone"),
            Self::ChainForeign(name) => write!(f, "chain {name} is not ours"),
            Self::ChainMoved(name) => write!(f, "chain {name} has another hook or policy"),
            Self::RulesChanged(name) => write!(f, "the rules of chain {name} were changed"),
            Self::SetMissing(name) => write!(f, "set {name} is gone"),
            Self::SetForeign(name) => write!(f, "set {name} is not ours"),
            Self::SetChanged(name) => write!(f, "set {name} is of another kind"),
            Self::ElementMissing(name, element) => write!(f, "{element:?} is gone from set {name}"),
            Self::ElementForeign(name, element) => {
                write!(f, "{element:?} in set {name} is not ours")
            }
        }
    }
}

impl TableReport {
    /// How `reported` differs from this, which is what was meant. What is in timed sets does not count.
    #[must_use]
    pub fn differences(&self, reported: Option<&TableReport>) -> Vec<Difference> {
        let Some(reported) = reported else {
            return vec![Difference::TableMissing];
        };
        let mut found = Vec::new();
        for (name, meant) in &self.chains {
            match reported.chains.get(name) {
                None => found.push(Difference::ChainMissing(name.clone())),
                Some(there) => {
                    if there.base != meant.base {
                        found.push(Difference::ChainMoved(name.clone()));
                    }
                    if there.rules != meant.rules {
                        found.push(Difference::RulesChanged(name.clone()));
                    }
                }
            }
        }
        for (name, meant) in &self.sets {
            let Some(there) = reported.sets.get(name) else {
                found.push(Difference::SetMissing(name.clone()));
                continue;
            };
            if (there.key, there.kind) != (meant.key, meant.kind) {
                found.push(Difference::SetChanged(name.clone()));
                continue;
            }
            let missing = meant.elements.difference(&there.elements);
            found.extend(missing.map(|e| Difference::ElementMissing(name.clone(), e.clone())));
            let foreign = there.elements.difference(&meant.elements);
            found.extend(foreign.map(|e| Difference::ElementForeign(name.clone(), e.clone())));
        }
        let foreign = |name: &&String| !self.chains.contains_key(*name);
        let chains = reported.chains.keys().filter(foreign);
        found.extend(chains.map(|name| Difference::ChainForeign(name.clone())));
        let foreign = |name: &&String| !self.sets.contains_key(*name);
        let sets = reported.sets.keys().filter(foreign);
        found.extend(sets.map(|name| Difference::SetForeign(name.clone())));
        found
    }
}
