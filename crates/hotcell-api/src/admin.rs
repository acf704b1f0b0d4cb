//! What operators read and change.

use hotcell_types::{CredentialId, LeaseId, OrganizationId, ProfileId, UnixMillis, WorkspaceId};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    lease::Engine,
    quota::{PutQuotas, Quotas},
};

/// Tells a field that is absent (keep) from one that is `null` (clear).
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

/// The one switch for the whole deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deployment {
    /// Whether any sandbox may run; off until an operator says so.
    pub enabled: bool,
    /// The profile of organizations that have none of their own.
    #[schema(value_type = Option<String>)]
    pub default_profile: Option<ProfileId>,
    /// Whether the server's environment forces everything off, whatever `enabled` says.
    pub forced_off: bool,
    /// Whether the server's environment locks profiles and settings.
    pub config_locked: bool,
}

/// Changes the deployment; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutDeployment {
    /// Whether any sandbox may run.
    #[serde(default)]
    #[schema(nullable = false)]
    pub enabled: Option<bool>,
    /// The profile of organizations that have none of their own; `null` for none.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub default_profile: Option<Option<ProfileId>>,
}

/// Who owns workspaces and backend credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Organization {
    /// Its id.
    #[schema(value_type = String)]
    pub id: OrganizationId,
    /// What people call it.
    pub name: String,
    /// Whether its workspaces may run code.
    pub enabled: bool,
    /// Its own profile; the deployment's default when `null`.
    #[schema(value_type = Option<String>)]
    pub profile: Option<ProfileId>,
    /// When it was made, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub created_at_ms: UnixMillis,
    /// Whether the configuration declares it: it is then changed there and nowhere else.
    pub declared: bool,
}

/// Makes or changes an organization; what is absent stays, at first: its id as the name, off, no profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutOrganization {
    /// What people call it; 1 to 200 characters.
    #[serde(default)]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// Whether its workspaces may run code.
    #[serde(default)]
    #[schema(nullable = false)]
    pub enabled: Option<bool>,
    /// Its own profile; `null` for the deployment's default.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub profile: Option<Option<ProfileId>>,
}

/// One page of organizations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrganizationList {
    /// In the order of their ids.
    pub organizations: Vec<Organization>,
    /// What to give as `after` for the next page; `null` on the last.
    pub next: Option<String>,
}

/// A workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspace {
    /// Its id, unique in the deployment.
    #[schema(value_type = String)]
    pub id: WorkspaceId,
    /// Its organization.
    #[schema(value_type = String)]
    pub organization: OrganizationId,
    /// What people call it.
    pub name: String,
    /// Whether its members may run code.
    pub enabled: bool,
    /// What it may use.
    pub quotas: Quotas,
    /// When it was made, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub created_at_ms: UnixMillis,
    /// Whether the configuration declares it: it is then changed there and nowhere else.
    pub declared: bool,
}

/// Makes or changes a workspace; what is absent stays, at first: its id as the name, off, the default quotas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutWorkspace {
    /// Its organization: needed at first, never changed after.
    #[serde(default)]
    #[schema(value_type = Option<String>, nullable = false)]
    pub organization: Option<OrganizationId>,
    /// What people call it; 1 to 200 characters.
    #[serde(default)]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// Whether its members may run code.
    #[serde(default)]
    #[schema(nullable = false)]
    pub enabled: Option<bool>,
    /// What it may use; what is absent in it stays. A change binds the next sandbox and ends none.
    #[serde(default)]
    #[schema(nullable = false)]
    pub quotas: Option<PutQuotas>,
}

/// One page of workspaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceList {
    /// In the order of their ids.
    pub workspaces: Vec<Workspace>,
    /// What to give as `after` for the next page; `null` on the last.
    pub next: Option<String>,
}

/// Which page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// `next` of the page before.
    #[serde(default)]
    #[param(nullable = false)]
    pub after: Option<String>,
    /// Rows in the page: 1 to 1,000; 100 when absent.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    pub limit: Option<usize>,
}

/// Which page of the workspaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WorkspacesQuery {
    /// Only those of this organization.
    #[serde(default)]
    #[param(value_type = Option<String>, nullable = false)]
    pub organization: Option<OrganizationId>,
    /// `next` of the page before.
    #[serde(default)]
    #[param(nullable = false)]
    pub after: Option<String>,
    /// Rows in the page: 1 to 1,000; 100 when absent.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    pub limit: Option<usize>,
}

/// What a chat backend signs with, without its secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Credential {
    /// `Hotcell-Key`.
    #[schema(value_type = String, example = "ck_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub key: CredentialId,
    /// The organization whose workspaces it may act for.
    #[schema(value_type = String)]
    pub organization: OrganizationId,
    /// When it was made, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub created_at_ms: UnixMillis,
    /// When each of its one or two live secrets was issued, newest first.
    #[schema(value_type = Vec<u64>)]
    pub secrets_issued_at_ms: Vec<UnixMillis>,
}

/// A credential with its newest secret. The only answer that ever shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedCredential {
    /// The credential.
    #[serde(flatten)]
    pub credential: Credential,
    /// The new secret: the text is the HMAC key as it stands. It cannot be shown again.
    pub secret: String,
}

/// The credentials of an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CredentialList {
    /// In the order of their keys.
    pub credentials: Vec<Credential>,
}

/// One row of the audit trail: names of what changed, never values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditRow {
    /// When, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub at_ms: UnixMillis,
    /// Who: `operator`, `local_operator`, `system`, or `backend:` and the credential's key.
    pub actor: String,
    /// What was done, such as `workspace.updated`.
    pub action: String,
    /// To what, such as `workspace/w1`.
    pub subject: String,
    /// The names of the fields that changed.
    pub fields: Vec<String>,
    /// The request that caused it, when one did.
    pub request_id: Option<String>,
}

/// Which rows of the audit trail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Only what this one did: `operator`, `local_operator`, `system`, or `backend:` and a credential's key.
    #[serde(default)]
    #[param(nullable = false)]
    pub actor: Option<String>,
    /// Only actions that begin with this, such as `workspace.`.
    #[serde(default)]
    #[param(nullable = false)]
    pub action: Option<String>,
    /// Only about this, such as `workspace/w1`.
    #[serde(default)]
    #[param(nullable = false)]
    pub subject: Option<String>,
    /// Only at this time or after it, in milliseconds since the Unix epoch.
    #[serde(default)]
    #[param(value_type = Option<u64>, nullable = false)]
    pub since_ms: Option<UnixMillis>,
    /// Only before this time, in milliseconds since the Unix epoch.
    #[serde(default)]
    #[param(value_type = Option<u64>, nullable = false)]
    pub until_ms: Option<UnixMillis>,
    /// `next` of the page before.
    #[serde(default)]
    #[param(nullable = false)]
    pub after: Option<String>,
    /// Rows in the page: 1 to 1,000; 100 when absent. A filtered page may have fewer and still a next one.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    pub limit: Option<usize>,
}

/// One page of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// Newest first.
    pub rows: Vec<AuditRow>,
    /// What to give as `after` for the next page; `null` on the last.
    pub next: Option<String>,
}

/// What a preflight check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// Its stable id.
    pub id: String,
    /// What was found.
    pub status: CheckStatus,
    /// What was found, in words.
    pub message: String,
    /// What to do about it; empty when it passed.
    pub fix: String,
}

/// Where a runtime profile stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProfileState {
    /// Its engine is being opened.
    Starting,
    /// Its engine is open.
    Active,
    /// Its engine cannot be opened; tried again with growing pauses.
    Faulted,
}

/// A runtime profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Profile {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ProfileId,
    /// Where it stands.
    pub state: ProfileState,
    /// Why it is faulted.
    pub faulted_reason: Option<String>,
    /// Its engine, while that is open.
    pub engine: Option<Engine>,
    /// The last preflight.
    pub checks: Vec<Check>,
    /// When that ran, in milliseconds since the Unix epoch.
    #[schema(value_type = Option<u64>)]
    pub checked_at_ms: Option<UnixMillis>,
    /// Sandboxes of this installation that the engine has and the store has never heard of, as
    /// after the store was restored from a backup. While there are any, nothing is swept; `POST
    /// …/unknown-sandboxes/remove` removes those that you name.
    #[schema(value_type = Vec<String>)]
    pub unknown_sandboxes: Vec<LeaseId>,
    /// Its sandboxes that were made ahead, for the first calls of chats.
    pub warm: WarmPool,
    /// Whether the configuration declares it: it is then changed there and nowhere else.
    pub declared: bool,
}

/// Sandboxes that run already and are nobody's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmPool {
    /// How many there should be.
    pub wanted: usize,
    /// How many can be claimed now.
    pub ready: usize,
    /// Why the last one could not be made, until one can.
    pub problem: Option<String>,
}

/// Which unknown sandboxes to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveUnknown {
    /// Their ids, as the profile lists them.
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 1000)]
    pub leases: Vec<LeaseId>,
}

/// The runtime profiles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileList {
    /// In the order of their ids.
    pub profiles: Vec<Profile>,
}

/// A part of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Component {
    /// Such as `store` or `profile/default`.
    pub name: String,
    /// Whether it can do its work.
    pub ok: bool,
    /// More, in words; also a warning about a part that is `ok`.
    pub detail: Option<String>,
}

/// Whether the server can do its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// Whether every part can.
    pub ready: bool,
    /// The parts.
    pub components: Vec<Component>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_keeps_and_null_clears() {
        let parse = |text: &str| serde_json::from_str::<PutOrganization>(text);
        assert_eq!(parse("{}").unwrap().profile, None);
        assert_eq!(parse(r#"{"profile":null}"#).unwrap().profile, Some(None));
        assert!(matches!(
            parse(r#"{"profile":"p1"}"#).unwrap().profile,
            Some(Some(_))
        ));
        assert!(parse(r#"{"profile":"../p"}"#).is_err());
        assert!(parse(r#"{"enabld":true}"#).is_err());
    }
}
