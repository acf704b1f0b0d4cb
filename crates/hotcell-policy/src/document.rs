//! From the text of a policy to its rules, or to everything that is wrong with it.
//!
//! Strict on purpose: an unknown key, a repeated key or an odd type is an error with its
//! path, since a typo that is ignored turns a restriction off.

use std::fmt;

use hotcell_types::limits::{MAX_POLICY_BYTES, MAX_POLICY_PROBLEMS, MAX_POLICY_RULES};

use crate::{
    json::Node,
    target::{self, Target, TargetError, quoted},
};

/// What happens to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It passes.
    Allow,
    /// It is stopped.
    Deny,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

/// The place of a rule in `egress`, from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleIndex(pub u32);

impl fmt::Display for RuleIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "egress[{}]", self.0)
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What to do.
    pub action: Action,
    /// With what, in canonical form.
    pub target: Target,
    /// What the operator wrote, to be shown back.
    pub typed: String,
    /// Whether host bits were cleared or an IPv4-mapped range became IPv4: then show [`Rule::shown`].
    pub normalised: bool,
}

impl Rule {
    /// The target as it is shown: as typed, unless its meaning was normalised.
    #[must_use]
    pub fn shown(&self) -> String {
        if self.normalised {
            self.target.to_string()
        } else {
            self.typed.clone()
        }
    }
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Problem {
    /// A JSON path, such as `$.egress[3].target`.
    pub path: String,
    /// What is wrong there.
    pub reason: Reason,
}

/// What can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The document is over the limit.
    #[error("the document is longer than {MAX_POLICY_BYTES} bytes")]
    TooLong,
    /// No JSON.
    #[error("not JSON: {message} at line {line}, column {column}")]
    Syntax {
        /// What the parser says.
        message: String,
        /// The line, from one.
        line: usize,
        /// The column, from one.
        column: usize,
    },
    /// The wrong kind of JSON value.
    #[error("expected {expected}, got {got}")]
    Kind {
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        got: &'static str,
    },
    /// A key that the format does not have.
    #[error("unknown key {}{}", quoted(.key), similar(.meant))]
    UnknownKey {
        /// The key.
        key: String,
        /// The key that was probably meant.
        meant: Option<&'static str>,
    },
    /// A key that stands there twice.
    #[error("the key {} is given more than once", quoted(.0))]
    RepeatedKey(String),
    /// A key that must be there and is not.
    #[error("the key {0:?} is missing")]
    MissingKey(&'static str),
    /// An action that is none.
    #[error("{} is no action; write \"allow\" or \"deny\"", quoted(.0))]
    Action(String),
    /// Too many rules.
    #[error("there are {0} rules, and {MAX_POLICY_RULES} are allowed")]
    TooManyRules(usize),
    /// A target that is none.
    #[error("{} is no target: {error}", quoted(.typed))]
    Target {
        /// What was written.
        typed: String,
        /// Why it is refused.
        error: TargetError,
    },
}

fn similar(meant: &Option<&'static str>) -> String {
    meant.map_or_else(String::new, |key| format!("; did you mean {key:?}?"))
}

/// Why a policy is refused: at least one problem, in the order of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    problems: Vec<Problem>,
    left_out: usize,
}

impl PolicyError {
    /// The problems, the first [`MAX_POLICY_PROBLEMS`] of them.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// How many more there are.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    fn one(path: &str, reason: Reason) -> Self {
        Self {
            problems: vec![Problem {
                path: path.to_owned(),
                reason,
            }],
            left_out: 0,
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{problem}")?;
        }
        if self.left_out > 0 {
            write!(f, "; and {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyError {}

/// Default action and rules, read and in canonical form.
pub(crate) struct Document {
    pub(crate) default: Action,
    pub(crate) rules: Vec<Rule>,
}

pub(crate) fn read(text: &str) -> Result<Document, PolicyError> {
    if text.len() > MAX_POLICY_BYTES {
        return Err(PolicyError::one("$", Reason::TooLong));
    }
    let root: Node = serde_json::from_str(text).map_err(|error| {
        // The parser's message ends in the position, which is a field of ours.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        PolicyError::one(
            "$",
            Reason::Syntax {
                message: message.to_owned(),
                line: error.line(),
                column: error.column(),
            },
        )
    })?;
    let mut reader = Reader::default();
    let document = reader.document(root);
    if reader.problems.is_empty() {
        Ok(document)
    } else {
        Err(PolicyError {
            problems: reader.problems,
            left_out: reader.left_out,
        })
    }
}

#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
    left_out: usize,
}

const DOCUMENT_KEYS: [&str; 2] = ["defaultAction", "egress"];
const RULE_KEYS: [&str; 2] = ["action", "target"];

impl Reader {
    fn note(&mut self, path: String, reason: Reason) {
        if self.problems.len() < MAX_POLICY_PROBLEMS {
            self.problems.push(Problem { path, reason });
        } else {
            self.left_out += 1;
        }
    }

    fn document(&mut self, root: Node) -> Document {
        let [default, egress] = self.fields("$", root, DOCUMENT_KEYS);
        let default = match default {
            Some(node) => self.action("$.defaultAction", node),
            None => Some(Action::Deny),
        };
        let rules = match egress {
            Some(Node::List(items)) => self.rules(items),
            Some(other) => {
                let got = other.kind();
                let expected = "a list of rules";
                self.note("$.egress".to_owned(), Reason::Kind { expected, got });
                Vec::new()
            }
            None => Vec::new(),
        };
        Document {
            default: default.unwrap_or(Action::Deny),
            rules,
        }
    }

    fn rules(&mut self, items: Vec<Node>) -> Vec<Rule> {
        if items.len() > MAX_POLICY_RULES {
            self.note("$.egress".to_owned(), Reason::TooManyRules(items.len()));
            return Vec::new();
        }
        items
            .into_iter()
            .enumerate()
            .filter_map(|(index, item)| self.rule(index, item))
            .collect()
    }

    fn rule(&mut self, index: usize, item: Node) -> Option<Rule> {
        let path = format!("$.egress[{index}]");
        let is_object = matches!(item, Node::Object(_));
        let [action, target] = self.fields(&path, item, RULE_KEYS);
        if !is_object {
            return None;
        }
        let action = match action {
            Some(node) => self.action(&format!("{path}.action"), node),
            None => {
                self.note(path.clone(), Reason::MissingKey("action"));
                None
            }
        };
        let (target, typed) = match target {
            Some(Node::Text(typed)) => match target::read(&typed) {
                Ok(read) => (read, typed),
                Err(error) => {
                    self.note(format!("{path}.target"), Reason::Target { typed, error });
                    return None;
                }
            },
            Some(other) => {
                let got = other.kind();
                let expected = "a string";
                self.note(format!("{path}.target"), Reason::Kind { expected, got });
                return None;
            }
            None => {
                self.note(path, Reason::MissingKey("target"));
                return None;
            }
        };
        Some(Rule {
            action: action?,
            target: target.target,
            typed,
            normalised: target.normalised,
        })
    }

    fn action(&mut self, path: &str, node: Node) -> Option<Action> {
        let reason = match node {
            Node::Text(text) => match text.as_str() {
                "allow" => return Some(Action::Allow),
                "deny" => return Some(Action::Deny),
                _ => Reason::Action(text),
            },
            other => Reason::Kind {
                expected: "\"allow\" or \"deny\"",
                got: other.kind(),
            },
        };
        self.note(path.to_owned(), reason);
        None
    }

    /// The values of the known keys of an object; everything else about it is a problem.
    fn fields<const N: usize>(
        &mut self,
        path: &str,
        node: Node,
        keys: [&'static str; N],
    ) -> [Option<Node>; N] {
        let mut found = [const { None }; N];
        let Node::Object(entries) = node else {
            let got = node.kind();
            let expected = "an object";
            self.note(path.to_owned(), Reason::Kind { expected, got });
            return found;
        };
        for (key, value) in entries {
            let Some(place) = keys.iter().position(|known| *known == key) else {
                let meant = meant(&key, &keys);
                self.note(path.to_owned(), Reason::UnknownKey { key, meant });
                continue;
            };
            if found[place].is_some() {
                self.note(format!("{path}.{key}"), Reason::RepeatedKey(key));
            } else {
                found[place] = Some(value);
            }
        }
        found
    }
}

/// The known key at most two typos away.
fn meant(key: &str, keys: &[&'static str]) -> Option<&'static str> {
    const FAR: usize = 3;
    if key.len() > 32 {
        return None;
    }
    let lower = key.to_lowercase();
    keys.iter()
        .map(|known| (distance(&lower, &known.to_lowercase()), *known))
        .min()
        .filter(|(distance, _)| *distance < FAR)
        .map(|(_, known)| known)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
