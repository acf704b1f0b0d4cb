//! What a policy that is well-formed may still get wrong: said when it is saved, never silently.

use std::fmt;

use hotcell_types::limits::MAX_POLICY_WARNINGS;

use crate::{
    document::{Action, Rule, RuleIndex},
    inside::{self, Surroundings},
    name::DomainName,
    plan::AddressPlan,
    policy::{Policy, Verdict, Why},
    prefix::Prefix,
    target::Target,
};

/// How much of a policy the filter enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FilterMode {
    /// Names only.
    Dns,
    /// Names and addresses.
    #[default]
    DnsNft,
}

impl fmt::Display for FilterMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dns => "dns",
            Self::DnsNft => "dns+nft",
        })
    }
}

/// One warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// Address rules under a mode that does not enforce them.
    NotEnforced(Vec<RuleIndex>),
    /// Domain denies under default allow.
    DeniesBindNames(Vec<RuleIndex>),
    /// The target was rewritten.
    Normalised(RuleIndex, String, Prefix),
    /// Earlier rules decide about everything that this one is for.
    NeverDecides(RuleIndex),
    /// An allow for addresses that stay closed under every policy.
    StaysClosed(RuleIndex),
    /// An allow that is wider than private ranges does not open them.
    PrivateStaysClosed(RuleIndex),
    /// An allowed name that looks internal, and no rule opens a private range.
    PrivateAnswersStripped(RuleIndex),
    /// There are more warnings than are named.
    More(usize),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnforced(rules) => write!(
                f,
                "{} address rule(s) are NOT enforced in mode dns (first: {}): every public address \
                 can be reached by number; use mode dns+nft",
                rules.len(),
                First(rules),
            ),
            Self::DeniesBindNames(rules) => write!(
                f,
                "{} rule(s) deny names while defaultAction is allow (first: {}): they bind names, \
                 not addresses. The same hosts can still be reached by address, or under another \
                 name on the same address",
                rules.len(),
                First(rules),
            ),
            Self::Normalised(index, typed, prefix) => {
                write!(f, "{index}: {typed:?} means {prefix} and is shown so")
            }
            Self::NeverDecides(index) => write!(
                f,
                "{index} never decides anything: the rules before it match all that it matches"
            ),
            Self::StaysClosed(index) => write!(
                f,
                "{index} allows addresses that no policy opens (metadata, host, appliance, other \
                 sandboxes, loopback, link-local, reserved)"
            ),
            Self::PrivateStaysClosed(index) => write!(
                f,
                "{index} does not open the private ranges within it; name each private range that \
                 is meant in a rule of its own"
            ),
            Self::PrivateAnswersStripped(index) => write!(
                f,
                "{index} allows a name that looks internal, but no rule opens a private range: \
                 private addresses are taken out of its answers, so it will resolve to nothing \
                 that can be used"
            ),
            Self::More(count) => write!(f, "and {count} more"),
        }
    }
}

struct First<'a>(&'a [RuleIndex]);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.first().map_or(Ok(()), |index| write!(f, "{index}"))
    }
}

impl Policy {
    /// What should be said when this policy is saved for profiles of this mode.
    #[must_use]
    pub fn warnings(&self, mode: FilterMode, around: &Surroundings) -> Vec<Warning> {
        let plan = AddressPlan::new(self, FilterMode::DnsNft, around);
        let deciding = plan.deciding_rules();
        let mut found = Vec::new();

        let picked = |wanted: &dyn Fn(&Rule) -> bool| -> Vec<RuleIndex> {
            self.indexed_rules()
                .filter_map(|(index, rule)| wanted(rule).then_some(index))
                .collect()
        };
        let ranges = picked(&|rule| rule.target.is_range());
        if mode == FilterMode::Dns && !ranges.is_empty() {
            found.push(Warning::NotEnforced(ranges));
        }
        let name_denies = picked(&|rule| rule.action == Action::Deny && !rule.target.is_range());
        if self.default_action() == Action::Allow && !name_denies.is_empty() {
            found.push(Warning::DeniesBindNames(name_denies));
        }

        let opens_private = self.indexed_rules().any(|(index, rule)| match rule.target {
            Target::Range(range) => {
                rule.action == Action::Allow && within_private(range) && deciding.contains(&index)
            }
            _ => false,
        });
        for (index, rule) in self.indexed_rules() {
            match &rule.target {
                Target::Range(range) => {
                    if rule.normalised {
                        found.push(Warning::Normalised(index, rule.typed.clone(), *range));
                    }
                    if !deciding.contains(&index) {
                        let closed = inside::closed_ranges(around)
                            .iter()
                            .any(|(_, closed)| closed.covers(*range));
                        found.push(match (rule.action, closed) {
                            (Action::Allow, true) => Warning::StaysClosed(index),
                            // It repeats what holds anyway.
                            (Action::Deny, true) => continue,
                            (_, false) => Warning::NeverDecides(index),
                        });
                    } else if rule.action == Action::Allow && wider_than_private(*range) {
                        found.push(Warning::PrivateStaysClosed(index));
                    }
                }
                Target::Name(name) | Target::Below(name) => {
                    if self.is_shadowed(index, rule) {
                        found.push(Warning::NeverDecides(index));
                    } else if rule.action == Action::Allow && looks_internal(name) && !opens_private
                    {
                        found.push(Warning::PrivateAnswersStripped(index));
                    }
                }
            }
        }
        let more = found.len().saturating_sub(MAX_POLICY_WARNINGS);
        if more > 0 {
            found.truncate(MAX_POLICY_WARNINGS);
            found.push(Warning::More(more));
        }
        found
    }

    fn is_shadowed(&self, index: RuleIndex, rule: &Rule) -> bool {
        match &rule.target {
            Target::Name(name) => !matches!(
                self.name_verdict(name),
                Verdict { why: Why::Rule(first), .. } if first == index
            ),
            // A wildcard is shadowed only by one at or above its name; `*` as a label is matched
            // by exactly those, since no rule names it.
            Target::Below(name) => {
                let labels = std::iter::once("*").chain(name.as_str().split('.'));
                DomainName::from_labels(labels.map(str::as_bytes)).is_ok_and(|star| {
                    !matches!(
                        self.name_verdict(&star),
                        Verdict { why: Why::Rule(first), .. } if first == index
                    )
                })
            }
            Target::Range(_) => false,
        }
    }
}

fn within_private(range: Prefix) -> bool {
    inside::private_ranges().any(|private| private.covers(range))
}

fn wider_than_private(range: Prefix) -> bool {
    inside::private_ranges().any(|private| range.covers(private) && range != private)
}

/// Names that by convention are served only inside some network.
pub(crate) fn looks_internal(name: &DomainName) -> bool {
    const ZONES: [&str; 11] = [
        "local",
        "internal",
        "lan",
        "intranet",
        "corp",
        "home",
        "private",
        "localdomain",
        "localhost",
        "home.arpa",
        "consul",
    ];
    ZONES.iter().any(|zone| {
        name.as_str()
            .strip_suffix(zone)
            .is_some_and(|front| front.is_empty() || front.ends_with('.'))
    })
}
