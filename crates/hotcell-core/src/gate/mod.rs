//! The gate: whether a member of a workspace may run code now, on which profile, and how much.
//!
//! ```text
//!  deployment ──▶ organization ──▶ workspace ──▶ role ──▶ profile ──▶ quotas ──▶ admitted
//!   not forced     exists,          exists, of    runs     one is      of what is
//!   off, enabled?  enabled?         it, enabled?  code?    active?     asked for
//! ```
//! The first level that says no names the denial. A level that is missing says no: the gate
//! fails closed.
//!
//! Every door to a sandbox passes [`admit`]. What takes something of a quota passes one of
//! [`admit_lease`], [`admit_job`] and [`admit_outputs`] as well, in the transaction that records
//! what was taken. A quota that was lowered refuses the next one and never ends what runs.

mod quota;
mod record;
#[cfg(test)]
mod tests;

pub use quota::{
    DAY_MS, Exceeded, HOUR_MS, LeaseUsage, Quota, QuotaSettings, QuotaValue, Quotas, next_day,
    utc_day,
};
pub use record::DenialRecord;

use hotcell_types::{ProfileId, ResourceClass, Role, UnixMillis};

use crate::model::{Deployment, Organization, Workspace};

/// What the gate looks at.
#[derive(Debug, Clone, Copy)]
pub struct GateFacts<'a> {
    /// Whether the server's environment forces everything off.
    pub forced_off: bool,
    /// The deployment; absent when nobody has set it up.
    pub deployment: Option<&'a Deployment>,
    /// The organization that the caller acts for.
    pub organization: Option<&'a Organization>,
    /// The workspace that the caller named.
    pub workspace: Option<&'a Workspace>,
    /// The member's role in it.
    pub role: Role,
    /// The profiles that can take sandboxes now.
    pub active_profiles: &'a [ProfileId],
}

/// The gate said yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The profile that the sandbox is made with.
    pub profile: ProfileId,
}

/// The gate said no: which level did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Denial {
    /// The server's environment forces everything off.
    #[error(
        "code execution is forced off by the server's environment; whoever runs the server can take HOTCELL_ENABLED=false away"
    )]
    ForcedOff,
    /// The deployment's switch is off.
    #[error("code execution is switched off for this deployment; an operator can switch it on")]
    Deployment,
    /// The organization is unknown or its switch is off.
    #[error("code execution is switched off for this organization; an operator can switch it on")]
    Organization,
    /// The workspace is unknown, belongs to another organization, or its switch is off.
    #[error("code execution is switched off for this workspace; an operator can switch it on")]
    Workspace,
    /// The member's role does not carry `code_execution:run`.
    #[error("this member's role may not run code; it takes the role editor, admin or owner")]
    Role,
    /// Neither the organization nor the deployment names a profile that is active.
    #[error("no runtime profile is active for this organization; an operator can activate one")]
    Profile,
    /// A quota of the workspace is used up, or is smaller than what was asked for.
    #[error(transparent)]
    Quota(Exceeded),
}

impl Denial {
    /// Every stable name, in the order of the gate.
    pub const NAMES: [&str; 10] = [
        "deployment",
        "organization",
        "workspace",
        "role",
        "profile",
        Quota::MaxConcurrent.denial(),
        Quota::MaxResourceClass.denial(),
        Quota::MaxJobSeconds.denial(),
        Quota::MaxArtifactBytesPerDay.denial(),
        Quota::MaxJobsPerHour.denial(),
    ];

    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForcedOff | Self::Deployment => "deployment",
            Self::Organization => "organization",
            Self::Workspace => "workspace",
            Self::Role => "role",
            Self::Profile => "profile",
            Self::Quota(exceeded) => exceeded.quota.denial(),
        }
    }

    /// The quota that refused, when one did.
    #[must_use]
    pub const fn exceeded(self) -> Option<Exceeded> {
        match self {
            Self::Quota(exceeded) => Some(exceeded),
            _ => None,
        }
    }
}

impl From<Exceeded> for Denial {
    fn from(exceeded: Exceeded) -> Self {
        Self::Quota(exceeded)
    }
}

/// Whether code may run, and on which profile: the organization's own, else the deployment's default.
///
/// # Errors
/// The first level that says no.
pub fn admit(facts: &GateFacts<'_>) -> Result<Admission, Denial> {
    if facts.forced_off {
        return Err(Denial::ForcedOff);
    }
    let deployment = facts
        .deployment
        .filter(|deployment| deployment.enabled)
        .ok_or(Denial::Deployment)?;
    let organization = facts
        .organization
        .filter(|organization| organization.enabled)
        .ok_or(Denial::Organization)?;
    facts
        .workspace
        .filter(|workspace| workspace.enabled && workspace.organization == organization.id)
        .ok_or(Denial::Workspace)?;
    if !facts.role.may_run_code() {
        return Err(Denial::Role);
    }
    organization
        .profile
        .as_ref()
        .or(deployment.default_profile.as_ref())
        .filter(|profile| facts.active_profiles.contains(profile))
        .map(|profile| Admission {
            profile: profile.clone(),
        })
        .ok_or(Denial::Profile)
}

/// Whether a new sandbox may be made: the gate, then the quotas that it takes from.
///
/// # Errors
/// The first level that says no; `max_concurrent` before `max_resource_class` before
/// `max_jobs_per_hour`.
pub fn admit_lease(
    facts: &GateFacts<'_>,
    quotas: &Quotas,
    usage: LeaseUsage,
    class: ResourceClass,
    now: UnixMillis,
) -> Result<Admission, Denial> {
    let admission = admit(facts)?;
    quotas.allow_lease(usage, class, now)?;
    Ok(admission)
}

/// Whether a job of this length may start in a sandbox that is there.
///
/// # Errors
/// The first level that says no.
pub fn admit_job(
    facts: &GateFacts<'_>,
    quotas: &Quotas,
    max_seconds: u64,
) -> Result<Admission, Denial> {
    let admission = admit(facts)?;
    quotas.allow_job(max_seconds)?;
    Ok(admission)
}

/// Whether collected files of this size may be stored, when `stored_bytes` were today.
///
/// The levels before the quota were passed by the call that collects them: a switch that is
/// turned off meanwhile does not take away what was made.
///
/// # Errors
/// `max_artifact_bytes_per_day`.
pub fn admit_outputs(
    quotas: &Quotas,
    stored_bytes: u64,
    bytes: u64,
    now: UnixMillis,
) -> Result<(), Denial> {
    Ok(quotas.allow_outputs(stored_bytes, bytes, now)?)
}
