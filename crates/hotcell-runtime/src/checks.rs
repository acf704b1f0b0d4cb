//! Preflight checks: what an operator sees when a runtime is tested.

use std::io;

use serde::{Deserialize, Serialize};

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Pass,
    /// Works, but the operator should know.
    Warn,
    /// Sandboxes cannot be run like this.
    Fail,
}

/// One preflight check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its stable id, such as `runtime.oci`.
    pub id: String,
    /// What was found.
    pub status: CheckStatus,
    /// What was found, in words.
    pub message: String,
    /// What to do about it; empty when it passed.
    pub fix: String,
}

impl Check {
    /// `network.forwarding`, by whether the host forwards IPv4. Only a warning: sandboxes without a
    /// network do not need it, and without it filtered ones reach nothing, which is no danger.
    #[must_use]
    pub fn forwarding(forwards: io::Result<bool>) -> Self {
        const ID: &str = "network.forwarding";
        const FIX: &str =
            "set net.ipv4.ip_forward = 1 in a file of /etc/sysctl.d and run `sysctl --system`";
        match forwards {
            Ok(true) => Self::pass(ID, "the host forwards IPv4"),
            Ok(false) => Self::warn(
                ID,
                "the host forwards no IPv4: sandboxes with a filtered network reach nothing",
                FIX,
            ),
            Err(error) => Self::warn(ID, error.to_string(), FIX),
        }
    }

    /// A check that passed.
    #[must_use]
    pub fn pass(id: &str, message: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            status: CheckStatus::Pass,
            message: message.into(),
            fix: String::new(),
        }
    }

    /// A check that warns.
    #[must_use]
    pub fn warn(id: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            status: CheckStatus::Warn,
            message: message.into(),
            fix: fix.into(),
        }
    }

    /// A check that failed.
    #[must_use]
    pub fn fail(id: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            status: CheckStatus::Fail,
            message: message.into(),
            fix: fix.into(),
        }
    }
}

/// Fails unless the part `<!-- PART: begin -->` … `<!-- PART: end -->` of the operator's page
/// `docs/operating/preflight.md` lists exactly these checks, by id and what is checked. For the tests of
/// whoever makes them.
///
/// # Panics
/// When it does not, or cannot be read.
#[cfg(any(feature = "conformance", feature = "fake"))]
pub fn assert_listed(part: &str, checks: &[(&str, &str)]) {
    const PAGE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/operating/preflight.md"
    );
    let page =
        std::fs::read_to_string(PAGE).unwrap_or_else(|error| panic!("no operator's page: {error}"));
    let table = page
        .split_once(&format!("<!-- {part}: begin -->"))
        .and_then(|(_, rest)| rest.split_once(&format!("<!-- {part}: end -->")))
        .map_or_else(|| panic!("the page has no part {part}"), |(table, _)| table);
    let listed: Vec<(&str, &str)> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(id, rest)| (id, rest.split(" | ").next().unwrap_or_default()))
        .collect();
    assert_eq!(listed, checks, "the operator's page lists other checks");
}
