//! "Why was this blocked?", answered in words.

use std::{fmt, net::IpAddr};

use crate::{
    document::{Action, RuleIndex},
    inside::{Surroundings, hidden_ipv4},
    name::{DomainName, NameError},
    plan::AddressPlan,
    policy::{Policy, Verdict, Why},
    target::Target,
    warning::{FilterMode, looks_internal},
};

/// What somebody wants explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A name that a sandbox may look up.
    Name(DomainName),
    /// An address that a sandbox may connect to without having looked it up.
    Address(IpAddr),
}

impl Subject {
    /// Reads an address or a name.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        match text.parse() {
            Ok(address) => Ok(Self::Address(address)),
            Err(_) => DomainName::from_question(text).map(Self::Name),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Where a decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// When the name is looked up.
    Name,
    /// When a packet is sent.
    Address,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name lookup",
            Self::Address => "address filter",
        })
    }
}

/// An answer to "why?".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The subject in canonical form.
    pub subject: Subject,
    /// What happens.
    pub verdict: Verdict,
    /// The rule that decided, if one did.
    pub rule: Option<RuleIndex>,
    /// Where it is decided.
    pub layer: Layer,
    /// Everything in sentences, for people.
    pub words: String,
}

impl Policy {
    /// Explains what happens to a name or an address.
    #[must_use]
    pub fn explain(
        &self,
        subject: &Subject,
        mode: FilterMode,
        around: &Surroundings,
    ) -> Explanation {
        let plan = AddressPlan::new(self, FilterMode::DnsNft, around);
        match subject {
            Subject::Name(name) => self.explain_name(name, mode, &plan),
            Subject::Address(address) => self.explain_address(*address, mode, &plan),
        }
    }

    fn explain_name(&self, name: &DomainName, mode: FilterMode, plan: &AddressPlan) -> Explanation {
        let verdict = self.name_verdict(name);
        let mut words = Words::default();
        words.say(format!(
            "{name} is {}: {}.",
            past(verdict.action),
            self.cause(verdict.why)
        ));
        match verdict.action {
            Action::Deny => {
                words.say("The lookup is answered NXDOMAIN on the spot and never leaves the host.");
                if self.default_action() == Action::Allow || mode == FilterMode::Dns {
                    words.say(
                        "This binds the name, not its addresses: the same host can still be reached \
                         by address, or under another name on the same address.",
                    );
                }
            }
            Action::Allow => {
                if mode == FilterMode::DnsNft && plan.default_action() == Action::Deny {
                    words
                        .say("Its addresses are opened for the sandbox when it looks the name up.");
                }
                self.say_what_stays_closed(name, verdict, mode, plan, &mut words);
                words.say(
                    "Names that share an address cannot be told apart: whoever reaches one address \
                     of this name reaches every other host behind it.",
                );
            }
        }
        Explanation {
            subject: Subject::Name(name.clone()),
            verdict,
            rule: rule_of(verdict.why),
            layer: Layer::Name,
            words: words.0,
        }
    }

    fn say_what_stays_closed(
        &self,
        name: &DomainName,
        verdict: Verdict,
        mode: FilterMode,
        plan: &AddressPlan,
        words: &mut Words,
    ) {
        let by = rule_of(verdict.why);
        let earlier = self.indexed_rules().find(|(index, rule)| {
            rule.action == Action::Deny
                && rule.target.is_range()
                && by.is_none_or(|by| *index < by)
                && plan.decides(*index)
        });
        if let (FilterMode::DnsNft, Some((index, rule))) = (mode, earlier) {
            words.say(format!(
                "Addresses that an earlier address rule denies stay closed (the first is {index}, {}).",
                rule.shown()
            ));
        }
        let opens = self
            .indexed_rules()
            .find(|(index, rule)| match rule.target {
                Target::Range(range) => {
                    rule.action == Action::Allow
                        && plan.decides(*index)
                        && crate::inside::private_ranges().any(|private| private.covers(range))
                }
                _ => false,
            });
        match opens {
            Some((index, rule)) => words.say(format!(
                "Private addresses in the answer are used only where an address rule opens them, \
                 as {index} ({}) does.",
                rule.shown()
            )),
            None => words.say(
                "The address filter takes private and inside addresses out of the answer; no \
                 address rule opens a private range.",
            ),
        }
        if opens.is_none() && looks_internal(name) {
            words.say(
                "This name looks internal, so the address filter is what will stop it: add an \
                 address rule for its range.",
            );
        }
    }

    fn explain_address(
        &self,
        address: IpAddr,
        mode: FilterMode,
        plan: &AddressPlan,
    ) -> Explanation {
        let shown = address;
        let address = address.to_canonical();
        let planned = plan.verdict(address);
        let enforced = mode == FilterMode::DnsNft || matches!(planned.why, Why::Inside(_));
        let verdict = if enforced {
            planned
        } else {
            Verdict {
                action: Action::Allow,
                why: Why::Default,
            }
        };
        let mut words = Words::default();
        if enforced {
            words.say(format!(
                "{shown} is {}: {}.",
                past(verdict.action),
                self.cause(verdict.why)
            ));
        } else {
            words.say(format!(
                "{shown} is allowed: mode dns enforces names only. Address rules are NOT enforced; \
                 in mode dns+nft it would be {}: {}.",
                past(planned.action),
                self.cause(planned.why)
            ));
        }
        if let IpAddr::V6(v6) = shown
            && let Some(hidden) = hidden_ipv4(v6)
        {
            words.say(format!("It carries the IPv4 address {hidden}."));
        }
        let may_be_learned = verdict.action == Action::Deny
            && self.indexed_rules().any(|(index, rule)| {
                rule.action == Action::Allow
                    && !rule.target.is_range()
                    && match verdict.why {
                        Why::Rule(by) => index < by,
                        Why::Default => true,
                        _ => false,
                    }
            });
        if may_be_learned {
            words
                .say("It is opened when the sandbox looks up an allowed name that resolves to it.");
        }
        if let Why::Inside(inside) = verdict.why {
            words.say(if inside.may_be_opened() {
                "A rule that allows this address, or a range within the private one, opens it."
            } else {
                "No policy opens it."
            });
        }
        Explanation {
            subject: Subject::Address(shown),
            verdict,
            rule: rule_of(verdict.why),
            layer: Layer::Address,
            words: words.0,
        }
    }

    fn cause(&self, why: Why) -> String {
        let Why::Rule(index) = why else {
            return match why {
                Why::Default => format!(
                    "no rule matches, and defaultAction is {}",
                    self.default_action()
                ),
                Why::NumericName => {
                    "it is a numeric spelling of an address, which is never looked up".to_owned()
                }
                Why::Inside(inside) => format!("it is {inside}"),
                Why::Rule(index) => format!("{index} matches first"),
            };
        };
        let Some(rule) = self.rule(index) else {
            return format!("{index} matches first");
        };
        let shown = rule.shown();
        let meaning = match &rule.target {
            Target::Below(name) => {
                format!(" (every name below {name}, at any depth, and not {name} itself)")
            }
            target if target.to_string() != shown => format!(" (that is {target})"),
            _ => String::new(),
        };
        format!(
            "{index}, {} {shown}{meaning}, is the first rule that matches",
            rule.action
        )
    }
}

const fn past(action: Action) -> &'static str {
    match action {
        Action::Allow => "allowed",
        Action::Deny => "denied",
    }
}

const fn rule_of(why: Why) -> Option<RuleIndex> {
    match why {
        Why::Rule(index) => Some(index),
        _ => None,
    }
}

#[derive(Default)]
struct Words(String);

impl Words {
    fn say(&mut self, sentence: impl AsRef<str>) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(sentence.as_ref());
    }
}
