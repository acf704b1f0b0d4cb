//! First match over addresses, worked out once: every address gets exactly one ruling.
//!
//! ```text
//! priority   what                                   example
//! 0…         closed ranges (inside.rs)              169.254.169.254, the host, 2002::/16
//! …          the policy's address rules in order    deny 10.1.0.0/16, allow 10.0.0.0/8
//! last       private ranges that no rule opened     192.168.0.0/16
//! (gap)      defaultAction
//! ```
//! A sweep over the ends of all ranges turns this stack into disjoint spans: O(n log n), at most
//! twice as many spans as ranges, and first-match order is kept whatever overlaps what. The kernel
//! gets only what differs from the default, so it needs no order at all.
//!
//! An `allow` that is wider than a private range (`0.0.0.0/0`) has holes where the private ranges
//! are. IPv4 rules hold behind the NAT64 prefix too.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    document::{Action, RuleIndex},
    inside::{self, Inside, NAT64, Surroundings},
    policy::{Policy, Verdict, Why},
    prefix::{Family, Prefix},
    target::Target,
    warning::FilterMode,
};

/// What decides about a span of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ruling {
    Inside(Inside),
    Rule(RuleIndex, Action),
}

/// Consecutive addresses with one ruling, as numbers of the family; both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    first: u128,
    last: u128,
    ruling: Ruling,
}

/// A range of the kernel's sets; both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange<A> {
    /// The first address.
    pub first: A,
    /// The last address.
    pub last: A,
}

/// What the kernel has to know of one family: disjoint, ascending, neighbours joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRanges<A> {
    /// Dropped before anything else is looked at, learned addresses included.
    pub closed: Vec<AddressRange<A>>,
    /// Where the verdict is the opposite of the default; looked at after learned addresses.
    pub exceptions: Vec<AddressRange<A>>,
}

impl<A> Default for KernelRanges<A> {
    fn default() -> Self {
        Self {
            closed: Vec::new(),
            exceptions: Vec::new(),
        }
    }
}

/// What may happen to an address that an allowed name resolved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// It must be opened for the sandbox before the answer leaves.
    Learn,
    /// Address rules or the default let it through as it is.
    AlreadyOpen,
    /// It stays closed, and the answer must not show it.
    Closed(Why),
}

/// The address rules of one policy on one installation.
#[derive(Debug, Clone)]
pub struct AddressPlan {
    default: Action,
    v4: Vec<Span>,
    v6: Vec<Span>,
}

impl AddressPlan {
    /// Works out the plan. In mode `dns` address rules and the default say nothing about
    /// addresses: only what is inside stays closed.
    #[must_use]
    pub fn new(policy: &Policy, mode: FilterMode, around: &Surroundings) -> Self {
        let (rules, default) = match mode {
            FilterMode::Dns => (None, Action::Allow),
            FilterMode::DnsNft => (Some(policy.indexed_rules()), policy.default_action()),
        };
        let mut stack = Stack::default();
        for (reason, range) in inside::closed_ranges(around) {
            stack.lay(Ruling::Inside(reason), range);
            stack.lay_behind_nat64(Ruling::Inside(Inside::Transition), range);
        }
        for range in inside::private_ranges() {
            stack.lay_behind_nat64(Ruling::Inside(Inside::Transition), range);
        }
        for (index, rule) in rules.into_iter().flatten() {
            let Target::Range(range) = rule.target else {
                continue;
            };
            let ruling = Ruling::Rule(index, rule.action);
            if rule.action == Action::Allow {
                stack.lay_around_private(ruling, range);
            } else {
                stack.lay(ruling, range);
            }
            stack.lay_behind_nat64(ruling, range);
        }
        for range in inside::private_ranges() {
            stack.lay(Ruling::Inside(Inside::Private), range);
        }
        let Stack { rulings, v4, v6 } = stack;
        Self {
            default,
            v4: sweep(v4, &rulings, Family::V4),
            v6: sweep(v6, &rulings, Family::V6),
        }
    }

    /// The verdict for an address that nobody looked up.
    #[must_use]
    pub fn verdict(&self, address: IpAddr) -> Verdict {
        let (action, why) = match self.ruling(address) {
            Some(Ruling::Inside(inside)) => (Action::Deny, Why::Inside(inside)),
            Some(Ruling::Rule(index, action)) => (action, Why::Rule(index)),
            None => (self.default, Why::Default),
        };
        Verdict { action, why }
    }

    /// What may happen to `address`, which a name allowed by the rule `by` (or by the default,
    /// when there is none) resolved to. Rules are compared by their place, names and addresses alike.
    #[must_use]
    pub fn opening(&self, address: IpAddr, by: Option<RuleIndex>) -> Opening {
        match self.ruling(address) {
            Some(Ruling::Inside(inside)) => Opening::Closed(Why::Inside(inside)),
            Some(Ruling::Rule(_, Action::Allow)) => Opening::AlreadyOpen,
            Some(Ruling::Rule(index, Action::Deny)) => match by {
                Some(by) if by < index => Opening::Learn,
                _ => Opening::Closed(Why::Rule(index)),
            },
            None => match self.default {
                Action::Allow => Opening::AlreadyOpen,
                Action::Deny => Opening::Learn,
            },
        }
    }

    /// Whether this rule decides about any address at all.
    #[must_use]
    pub(crate) fn decides(&self, index: RuleIndex) -> bool {
        self.v4
            .iter()
            .chain(&self.v6)
            .any(|span| matches!(span.ruling, Ruling::Rule(rule, _) if rule == index))
    }

    /// The indices of the address rules that decide about at least one address, ascending.
    pub(crate) fn deciding_rules(&self) -> std::collections::BTreeSet<RuleIndex> {
        self.v4
            .iter()
            .chain(&self.v6)
            .filter_map(|span| match span.ruling {
                Ruling::Rule(index, _) => Some(index),
                Ruling::Inside(_) => None,
            })
            .collect()
    }

    /// The default action, for what no span holds.
    #[must_use]
    pub const fn default_action(&self) -> Action {
        self.default
    }

    /// What the kernel has to know about IPv4.
    #[must_use]
    pub fn kernel_v4(&self) -> KernelRanges<Ipv4Addr> {
        let address = |number| Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX));
        self.kernel(&self.v4, address)
    }

    /// What the kernel has to know about IPv6.
    #[must_use]
    pub fn kernel_v6(&self) -> KernelRanges<Ipv6Addr> {
        self.kernel(&self.v6, Ipv6Addr::from)
    }

    fn kernel<A>(&self, spans: &[Span], address: impl Fn(u128) -> A) -> KernelRanges<A> {
        let pick = |wanted: &dyn Fn(Ruling) -> bool| {
            let mut joined: Vec<(u128, u128)> = Vec::new();
            for span in spans.iter().filter(|span| wanted(span.ruling)) {
                match joined.last_mut() {
                    Some((_, last)) if *last + 1 == span.first => *last = span.last,
                    _ => joined.push((span.first, span.last)),
                }
            }
            let range = |(first, last)| AddressRange {
                first: address(first),
                last: address(last),
            };
            joined.into_iter().map(range).collect()
        };
        KernelRanges {
            closed: pick(&|ruling| matches!(ruling, Ruling::Inside(_))),
            exceptions: pick(
                &|ruling| matches!(ruling, Ruling::Rule(_, action) if action != self.default),
            ),
        }
    }

    fn ruling(&self, address: IpAddr) -> Option<Ruling> {
        let (family, number) = Family::of(address);
        let spans = match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let after = spans.partition_point(|span| span.first <= number);
        let span = spans[..after].last()?;
        (number <= span.last).then_some(span.ruling)
    }
}

/// One range with the place of its ruling.
#[derive(Debug, Clone, Copy)]
struct Layer {
    first: u128,
    last: u128,
    priority: u32,
}

/// Ranges laid on one another, the first on top.
#[derive(Default)]
struct Stack {
    rulings: Vec<Ruling>,
    v4: Vec<Layer>,
    v6: Vec<Layer>,
}

impl Stack {
    fn push(&mut self, family: Family, first: u128, last: u128, ruling: Ruling) {
        if self.rulings.last() != Some(&ruling) {
            self.rulings.push(ruling);
        }
        let layers = match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        layers.push(Layer {
            first,
            last,
            // Far fewer rulings than 2³²: a few for each of MAX_POLICY_RULES rules.
            priority: (self.rulings.len() - 1) as u32,
        });
    }

    fn lay(&mut self, ruling: Ruling, range: Prefix) {
        let (first, last) = range.numbers();
        self.push(range.family(), first, last, ruling);
    }

    fn lay_around_private(&mut self, ruling: Ruling, range: Prefix) {
        let (mut first, last) = range.numbers();
        let mut holes: Vec<(u128, u128)> = inside::private_ranges()
            .filter(|private| range.covers(*private) && range != *private)
            .map(Prefix::numbers)
            .collect();
        holes.sort_unstable();
        for (hole_first, hole_last) in holes {
            if first < hole_first {
                self.push(range.family(), first, hole_first - 1, ruling);
            }
            match hole_last.checked_add(1) {
                Some(next) => first = next,
                None => return,
            }
        }
        if first <= last {
            self.push(range.family(), first, last, ruling);
        }
    }

    fn lay_behind_nat64(&mut self, ruling: Ruling, range: Prefix) {
        if range.family() == Family::V4 {
            let (first, last) = range.numbers();
            let (first, last) = (NAT64.carrying(first), NAT64.carrying(last));
            self.push(Family::V6, first, last, ruling);
        }
    }
}

fn sweep(mut layers: Vec<Layer>, rulings: &[Ruling], family: Family) -> Vec<Span> {
    layers.sort_unstable_by_key(|layer| layer.first);
    let mut ends: Vec<u128> = layers
        .iter()
        .map(|layer| layer.first)
        .chain(layers.iter().filter_map(|layer| layer.last.checked_add(1)))
        .filter(|end| *end <= family.last())
        .collect();
    ends.sort_unstable();
    ends.dedup();

    let mut spans: Vec<Span> = Vec::with_capacity(ends.len());
    let mut open: BinaryHeap<Reverse<(u32, u128)>> = BinaryHeap::new();
    let mut coming = layers.into_iter().peekable();
    for (place, &first) in ends.iter().enumerate() {
        while let Some(layer) = coming.next_if(|layer| layer.first <= first) {
            open.push(Reverse((layer.priority, layer.last)));
        }
        while open.peek().is_some_and(|Reverse((_, last))| *last < first) {
            open.pop();
        }
        let Some(Reverse((priority, _))) = open.peek() else {
            continue;
        };
        let ruling = rulings[*priority as usize];
        let last = ends.get(place + 1).map_or(family.last(), |next| next - 1);
        match spans.last_mut() {
            Some(before) if before.last + 1 == first && before.ruling == ruling => {
                before.last = last;
            }
            _ => spans.push(Span {
                first,
                last,
                ruling,
            }),
        }
    }
    spans
}
