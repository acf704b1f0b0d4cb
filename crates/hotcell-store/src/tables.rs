//! The tables of the file, and how their keys are built.
//!
//! Every table maps bytes to bytes. Keys are ids, or ids joined by `/` (which no id holds), or a
//! big-endian number, so that the order of the bytes is the order that listings want.

use hotcell_types::{ChatId, LeaseId, OrganizationId, OutputId, UnixMillis, WorkspaceId};
use redb::TableDefinition;

/// A redb table of this crate.
pub(crate) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// One table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Table { $($(#[$doc])* $name,)* }

        impl Table {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            pub(crate) const fn definition(self) -> Definition {
                match self { $(Self::$name => TableDefinition::new($text),)* }
            }
        }
    };
}

tables! {
    /// Facts about the file itself: schema, installation, master secret.
    Meta = "meta",
    /// How many rows of some kinds there are, so that limits cost one lookup.
    Counters = "counters",
    /// organization → its DTO
    Organizations = "organizations",
    /// workspace → its DTO
    Workspaces = "workspaces",
    /// organization/workspace → nothing
    WorkspacesOfOrganization = "workspaces_of_organization",
    /// credential → its DTO, secrets sealed
    Credentials = "credentials",
    /// organization/credential → nothing
    CredentialsOfOrganization = "credentials_of_organization",
    /// organization → the DTO of its network policy
    NetworkPolicies = "network_policies",
    /// kind/id → the mark of an object that the configuration declares
    Declarations = "declarations",
    /// lease → the DTO of the filter that it was created with
    LeaseFilters = "lease_filters",
    /// SHA-256 in hexadecimal → the text of a policy, as it was typed; counted
    PolicyTexts = "policy_texts",
    /// lease → its DTO
    Leases = "leases",
    /// workspace/lease → nothing, for each lease that has not ended
    LiveLeases = "live_leases",
    /// workspace/chat → the chat's newest lease
    LeaseOfChat = "lease_of_chat",
    /// time of the end, lease → nothing
    EndedLeases = "ended_leases",
    /// output → its DTO
    Outputs = "outputs",
    /// workspace/chat/time,output → nothing
    OutputsOfChat = "outputs_of_chat",
    /// row number, counted up → its DTO
    Audit = "audit",
    /// job → its DTO
    Jobs = "jobs",
    /// job → what is kept of its output, once it has ended
    JobTails = "job_tails",
    /// workspace/chat/time,job → nothing
    JobsOfChat = "jobs_of_chat",
    /// lease/job → nothing, for each job that has not ended
    LiveJobs = "live_jobs",
    /// workspace, or workspace/user → the DTO of its deletion
    Deletions = "deletions",
    /// workspace → what an operator set of its quotas
    Quotas = "quotas",
    /// workspace → where its admissions begin and end
    AdmissionHeads = "admission_heads",
    /// workspace/number → when a sandbox was admitted
    Admissions = "admissions",
    /// workspace/UTC day → bytes of collected files that were stored on it
    OutputDays = "output_days",
    /// denial number, counted up → its DTO
    Denials = "denials",
    /// workspace/idempotency key → its DTO
    IdempotencyKeys = "idempotency_keys",
    /// time, workspace/idempotency key → nothing
    IdempotencyAges = "idempotency_ages",
}

/// The single row of [`Table::Meta`] kinds.
pub(crate) mod meta_key {
    pub(crate) const SCHEMA: &[u8] = b"schema";
    pub(crate) const INSTALLATION: &[u8] = b"installation";
    pub(crate) const MASTER: &[u8] = b"master";
    pub(crate) const DEPLOYMENT: &[u8] = b"deployment";
    pub(crate) const NEXT_AUDIT: &[u8] = b"next_audit";
    pub(crate) const NEXT_DENIAL: &[u8] = b"next_denial";
    /// When somebody last made sure that the store can be written.
    pub(crate) const PROBE: &[u8] = b"probe";
    /// The number of the last batch, which tells after a failed commit whether it is there.
    pub(crate) const BATCH: &[u8] = b"batch";
}

/// A range of keys: from here on, up to but not including there.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Option<Vec<u8>>,
}

impl Span {
    pub(crate) fn all() -> Self {
        Self {
            from: Vec::new(),
            to: None,
        }
    }

    /// Every key below `prefix/`: `0` is the byte after `/`.
    pub(crate) fn below(prefix: &str) -> Self {
        Self {
            from: format!("{prefix}/").into_bytes(),
            to: Some(format!("{prefix}0").into_bytes()),
        }
    }

    pub(crate) fn before(to: impl Into<Vec<u8>>) -> Self {
        Self {
            from: Vec::new(),
            to: Some(to.into()),
        }
    }
}

pub(crate) fn joined(left: &str, right: &str) -> String {
    format!("{left}/{right}")
}

pub(crate) fn chat_key(workspace: &WorkspaceId, chat: &ChatId) -> String {
    joined(workspace.as_str(), chat.as_str())
}

/// Sixteen hexadecimal characters, so that the text order is the time order.
pub(crate) fn output_key(
    workspace: &WorkspaceId,
    chat: &ChatId,
    at: UnixMillis,
    output: &OutputId,
) -> String {
    format!("{workspace}/{chat}/{:016x}{output}", at.0)
}

/// The output at the end of [`output_key`].
pub(crate) fn output_of_key(key: &[u8]) -> Option<OutputId> {
    let text = std::str::from_utf8(key).ok()?;
    text.rsplit('/').next()?.get(16..)?.parse().ok()
}

pub(crate) fn ended_key(at: UnixMillis, lease: &LeaseId) -> Vec<u8> {
    [&at.0.to_be_bytes()[..], lease.as_str().as_bytes()].concat()
}

pub(crate) fn lease_of_ended_key(key: &[u8]) -> Option<LeaseId> {
    std::str::from_utf8(key.get(8..)?).ok()?.parse().ok()
}

/// Names of rows in [`Table::Counters`].
pub(crate) mod counter {
    use super::{ChatId, OrganizationId, WorkspaceId};

    pub(crate) const ORGANIZATIONS: &str = "organizations";
    pub(crate) const WORKSPACES: &str = "workspaces";
    pub(crate) const LIVE_LEASES: &str = "live_leases";

    /// Leases of one workspace that have not ended: what `max_concurrent` is compared with.
    pub(crate) fn live_leases_of(workspace: &WorkspaceId) -> String {
        format!("live_leases/{workspace}")
    }

    pub(crate) fn idempotency_keys(workspace: &WorkspaceId) -> String {
        format!("idempotency_keys/{workspace}")
    }

    pub(crate) fn credentials(organization: &OrganizationId) -> String {
        format!("credentials/{organization}")
    }

    /// How many rows refer to the text of a policy.
    pub(crate) fn policy_text(sha256: &str) -> String {
        format!("policy_texts/{sha256}")
    }

    pub(crate) fn outputs(workspace: &WorkspaceId, chat: &ChatId) -> String {
        format!("outputs/{workspace}/{chat}")
    }
}

/// A key as text, for messages.
pub(crate) fn show(table: Table, key: &[u8]) -> String {
    match (table, <[u8; 8]>::try_from(key)) {
        (Table::Audit | Table::Denials, Ok(number)) => u64::from_be_bytes(number).to_string(),
        _ => String::from_utf8_lossy(key).into_owned(),
    }
}
