//! Network policies in files: whether they are sound, and what they would do. Needs no running daemon.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use clap::{Subcommand, ValueEnum};
use hotcell_policy::{Action, FilterMode, Policy, Subject, Surroundings};
use hotcell_types::limits::MAX_POLICY_BYTES;
use serde_json::json;

use super::{Exit, exit::say};

/// How much of a policy is enforced.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum Mode {
    /// Names only.
    #[value(name = "dns")]
    Dns,
    /// Names and addresses.
    #[default]
    #[value(name = "dns+nft")]
    DnsNft,
}

impl From<Mode> for FilterMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Dns => Self::Dns,
            Mode::DnsNft => Self::DnsNft,
        }
    }
}

/// `hotcell policy`.
#[derive(Subcommand)]
pub(super) enum PolicyCommand {
    /// Reads a policy and says what is wrong with it, or what an operator should know about it.
    ///
    /// Exit code 7 when it would be refused.
    Check {
        /// The file; - for standard input.
        file: PathBuf,
        /// The filter mode of the profile.
        #[arg(long, value_enum, default_value_t)]
        mode: Mode,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Says what a policy does with a name or an address, which rule decides, where, and why.
    ///
    /// A wildcard such as *.example.org covers every depth below example.org, and not example.org itself.
    /// Exit code 0 when it is allowed, 8 when it is denied, 7 when the policy would be refused.
    Explain {
        /// The file; - for standard input.
        file: PathBuf,
        /// A host's name, or an address.
        target: String,
        /// The filter mode of the profile.
        #[arg(long, value_enum, default_value_t)]
        mode: Mode,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

impl PolicyCommand {
    pub(super) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Check { file, mode, json } => check(&file, mode.into(), json),
            Self::Explain {
                file,
                target,
                mode,
                json,
            } => explain(&file, &target, mode.into(), json),
        }
    }
}

fn read(file: &Path) -> Result<String, Exit> {
    let failed =
        |error: std::io::Error| Exit::words(format!("{} cannot be read: {error}", file.display()));
    // One byte more than may be, so that the parser says that it is too long.
    let limit = MAX_POLICY_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file)
            .map_err(failed)?
            .take(limit)
            .read_to_end(&mut bytes)
    }
    .map_err(failed)?;
    String::from_utf8(bytes)
        .map_err(|_| Exit::policy_refused(format!("{}: $: not UTF-8", file.display())))
}

/// The policy of a file; an empty one means no restriction.
fn parse(file: &Path) -> Result<Option<Policy>, Exit> {
    let text = read(file)?;
    Policy::parse_field(&text).map_err(|error| {
        let mut words = format!("{} has mistakes:", file.display());
        for problem in error.problems() {
            words.push_str(&format!("\n  {problem}"));
        }
        if error.left_out() > 0 {
            words.push_str(&format!("\n  and {} more", error.left_out()));
        }
        Exit::policy_refused(words)
    })
}

fn check(file: &Path, mode: FilterMode, as_json: bool) -> Result<(), Exit> {
    let policy = parse(file)?;
    let Some(policy) = policy else {
        return if as_json {
            say(&json!({"rules": 0, "default_action": "allow", "warnings": []}).to_string())
        } else {
            say("The file is empty, which means no restriction.")
        };
    };
    let warnings: Vec<String> = policy
        .warnings(mode, &Surroundings::default())
        .iter()
        .map(ToString::to_string)
        .collect();
    if as_json {
        return say(&json!({
            "rules": policy.rules().len(),
            "default_action": policy.default_action().to_string(),
            "canonical": policy.to_canonical_json(),
            "warnings": warnings,
        })
        .to_string());
    }
    let mut words = format!(
        "The policy is sound: {} rules, then {}.",
        policy.rules().len(),
        policy.default_action()
    );
    for warning in warnings {
        words.push_str(&format!("\nWarning: {warning}."));
    }
    say(&words)
}

fn explain(file: &Path, target: &str, mode: FilterMode, as_json: bool) -> Result<(), Exit> {
    let policy = parse(file)?.unwrap_or_else(Policy::unrestricted);
    let subject = Subject::parse(target)
        .map_err(|error| Exit::words(format!("{target:?} is no name and no address: {error}")))?;
    let explained = policy.explain(&subject, mode, &Surroundings::default());
    if as_json {
        say(&json!({
            "target": explained.subject.to_string(),
            "action": explained.verdict.action.to_string(),
            "rule": explained.rule.map(|rule| rule.0),
            "layer": match explained.layer {
                hotcell_policy::Layer::Name => "name",
                hotcell_policy::Layer::Address => "packet",
            },
            "mode": mode.to_string(),
            "words": explained.words,
        })
        .to_string())?;
    } else {
        let by = match explained.rule {
            Some(rule) => format!("by {rule}"),
            None => format!("by no rule ({})", explained.verdict.why),
        };
        let verdict = match explained.verdict.action {
            Action::Allow => "allow",
            Action::Deny => "deny",
        };
        say(&format!(
            "{verdict}  {}  {by}, at the {}\n{}",
            explained.subject, explained.layer, explained.words
        ))?;
    }
    match explained.verdict.action {
        Action::Allow => Ok(()),
        Action::Deny => Err(Exit::denied()),
    }
}
