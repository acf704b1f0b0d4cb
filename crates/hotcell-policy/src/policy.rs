//! A policy, and the verdict for a name.

use std::fmt;

use crate::{
    document::{self, Action, PolicyError, Rule, RuleIndex},
    inside::Inside,
    name::DomainName,
    names::{NameIndex, Reach},
    target::Target,
};

/// A parsed policy, ready to be asked.
#[derive(Debug, Clone)]
pub struct Policy {
    default: Action,
    rules: Vec<Rule>,
    names: NameIndex,
}

/// What happens, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// What happens.
    pub action: Action,
    /// Why.
    pub why: Why,
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// This rule was the first to match.
    Rule(RuleIndex),
    /// No rule matched.
    Default,
    /// The name is a numeric spelling of an address.
    NumericName,
    /// The address is inside.
    Inside(Inside),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(index) => write!(f, "rule {index}"),
            Self::Default => f.write_str("no rule matches, so defaultAction"),
            Self::NumericName => f.write_str("a number is no name"),
            Self::Inside(inside) => write!(f, "{inside}"),
        }
    }
}

impl Policy {
    /// Reads a policy document.
    ///
    /// # Errors
    /// With every problem (up to a limit) and its path; nothing is half-accepted.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let document = document::read(text)?;
        Ok(Self::new(document.default, document.rules))
    }

    /// Reads the field in which an operator keeps the policy: a field without a single character
    /// means no restriction, everything else must be a document.
    ///
    /// # Errors
    /// As [`Policy::parse`].
    pub fn parse_field(text: &str) -> Result<Option<Self>, PolicyError> {
        if text.is_empty() {
            Ok(None)
        } else {
            Self::parse(text).map(Some)
        }
    }

    /// What an absent policy means: everything but the inside is allowed.
    #[must_use]
    pub fn unrestricted() -> Self {
        Self::new(Action::Allow, Vec::new())
    }

    fn new(default: Action, rules: Vec<Rule>) -> Self {
        let names = NameIndex::new(indexed(&rules).filter_map(
            |(index, rule)| match &rule.target {
                Target::Name(name) => Some((index, Reach::Exact, name)),
                Target::Below(name) => Some((index, Reach::Below, name)),
                Target::Range(_) => None,
            },
        ));
        Self {
            default,
            rules,
            names,
        }
    }

    /// What happens when no rule matches.
    #[must_use]
    pub const fn default_action(&self) -> Action {
        self.default
    }

    /// The rules in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule at this place.
    #[must_use]
    pub fn rule(&self, index: RuleIndex) -> Option<&Rule> {
        self.rules.get(index.0 as usize)
    }

    /// The rules with their places.
    pub fn indexed_rules(&self) -> impl Iterator<Item = (RuleIndex, &Rule)> {
        indexed(&self.rules)
    }

    /// Whether any rule denies a name.
    #[must_use]
    pub fn denies_names(&self) -> bool {
        self.rules
            .iter()
            .any(|rule| rule.action == Action::Deny && !rule.target.is_range())
    }

    /// The verdict for a query of this name, whatever its type. Address rules have no say here:
    /// they decide about what the name resolves to.
    #[must_use]
    pub fn name_verdict(&self, name: &DomainName) -> Verdict {
        if name.is_numeric() {
            return Verdict {
                action: Action::Deny,
                why: Why::NumericName,
            };
        }
        let matched = self
            .names
            .first_match(name)
            .and_then(|index| Some((index, self.rule(index)?)));
        match matched {
            Some((index, rule)) => Verdict {
                action: rule.action,
                why: Why::Rule(index),
            },
            None => Verdict {
                action: self.default,
                why: Why::Default,
            },
        }
    }

    /// The document again: targets as typed (normalised ranges as normalised), one rule a line.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.written(Rule::shown)
    }

    /// The document in canonical form: names in lower case and A-labels, ranges as they are meant.
    #[must_use]
    pub fn to_canonical_json(&self) -> String {
        self.written(|rule| rule.target.to_string())
    }

    fn written(&self, target: impl Fn(&Rule) -> String) -> String {
        let mut text = format!(
            "{{\n  \"defaultAction\": \"{}\",\n  \"egress\": [",
            self.default
        );
        for (index, rule) in self.rules.iter().enumerate() {
            text.push_str(if index == 0 { "\n" } else { ",\n" });
            let target = serde_json::Value::from(target(rule));
            text.push_str(&format!(
                "    {{ \"action\": \"{}\", \"target\": {target} }}",
                rule.action
            ));
        }
        text.push_str(if self.rules.is_empty() {
            "]\n}\n"
        } else {
            "\n  ]\n}\n"
        });
        text
    }
}

fn indexed(rules: &[Rule]) -> impl Iterator<Item = (RuleIndex, &Rule)> {
    (0..).map(RuleIndex).zip(rules)
}
