//! First match over names: a tree of labels from the top-level domain down.
//!
//! ```text
//! (root) ── org ── example          exact = 4     rule 4: example.org
//!                    │              below = 1     rule 1: *.example.org
//!                    └── www        exact = 0     rule 0: www.example.org
//! ```
//! Each node holds the smallest index of a rule for the name itself and of one for everything
//! below. A lookup walks down its own labels and takes the smallest index it meets, so its cost
//! depends on the depth of the name, not on the number of rules. Children are sorted and found by
//! bisection: no hashing, so nothing that a sandbox asks can make lookups slow.

use std::collections::BTreeMap;

use crate::{document::RuleIndex, name::DomainName};

#[derive(Debug, Clone, Copy)]
struct Node {
    exact: u32,
    below: u32,
    first_child: u32,
    children: u32,
}

const NONE: u32 = u32::MAX;

/// The name rules of a policy.
#[derive(Debug, Clone)]
pub(crate) struct NameIndex {
    nodes: Vec<Node>,
    /// Labels of the nodes, in the order of `nodes`; children of one node are neighbours.
    labels: Vec<Box<str>>,
}

/// The tree while it grows.
#[derive(Default)]
struct Growing {
    exact: Option<u32>,
    below: Option<u32>,
    children: BTreeMap<Box<str>, usize>,
}

/// Which names a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Exact,
    Below,
}

impl NameIndex {
    /// Rules in order: the first of several for one name counts.
    pub(crate) fn new<'a>(
        rules: impl IntoIterator<Item = (RuleIndex, Reach, &'a DomainName)>,
    ) -> Self {
        let mut arena = vec![Growing::default()];
        for (RuleIndex(rule), reach, name) in rules {
            let mut at = 0;
            for label in name.labels_from_top() {
                at = match arena[at].children.get(label) {
                    Some(child) => *child,
                    None => {
                        let child = arena.len();
                        arena.push(Growing::default());
                        arena[at].children.insert(Box::from(label), child);
                        child
                    }
                };
            }
            let slot = match reach {
                Reach::Exact => &mut arena[at].exact,
                Reach::Below => &mut arena[at].below,
            };
            *slot = Some(slot.map_or(rule, |old| old.min(rule)));
        }
        Self::flatten(&mut arena)
    }

    /// Breadth first, so that the children of a node end up side by side.
    fn flatten(arena: &mut [Growing]) -> Self {
        let mut nodes = Vec::with_capacity(arena.len());
        let mut labels = Vec::with_capacity(arena.len());
        let mut order = Vec::with_capacity(arena.len());
        order.push(0);
        labels.push(Box::from(""));
        let mut next = 0;
        while let Some(&at) = order.get(next) {
            next += 1;
            let grown = std::mem::take(&mut arena[at]);
            let first_child = order.len();
            for (label, child) in grown.children {
                labels.push(label);
                order.push(child);
            }
            nodes.push(Node {
                exact: grown.exact.unwrap_or(NONE),
                below: grown.below.unwrap_or(NONE),
                // At most MAX_POLICY_RULES rules of at most 127 labels: far below 2³².
                first_child: first_child as u32,
                children: (order.len() - first_child) as u32,
            });
        }
        Self { nodes, labels }
    }

    /// The first rule that is for `name`.
    pub(crate) fn first_match(&self, name: &DomainName) -> Option<RuleIndex> {
        let mut node = self.nodes[0];
        let mut best = NONE;
        let mut labels = name.labels_from_top();
        loop {
            let Some(label) = labels.next() else {
                best = best.min(node.exact);
                break;
            };
            best = best.min(node.below);
            let first = node.first_child as usize;
            let children = &self.labels[first..first + node.children as usize];
            let Ok(place) = children.binary_search_by(|child| (**child).cmp(label)) else {
                break;
            };
            node = self.nodes[first + place];
        }
        (best != NONE).then_some(RuleIndex(best))
    }
}
