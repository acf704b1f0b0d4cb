//! What the gate refused, as operators see it.

use hotcell_types::{ChatId, OrganizationId, ResourceClass, UnixMillis, UserId, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::user::MemberRole;

/// One refusal of the gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Denial {
    /// When, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub at_ms: UnixMillis,
    /// What said no: `deployment`, `organization`, `workspace`, `role`, `profile`, or `quota:` and the quota's name.
    pub denial: String,
    /// The quota's limit then, when it is a count or, of `quota:max_job_seconds`, seconds.
    pub limit: Option<u64>,
    /// The quota's limit then, in bytes.
    pub limit_bytes: Option<u64>,
    /// The quota's limit then, a resource class.
    #[schema(value_type = Option<String>)]
    pub limit_class: Option<ResourceClass>,
    /// The organization of the credential.
    #[schema(value_type = String)]
    pub organization: OrganizationId,
    /// The workspace that was acted for.
    #[schema(value_type = String)]
    pub workspace: WorkspaceId,
    /// The chat.
    #[schema(value_type = String)]
    pub chat: ChatId,
    /// The member.
    #[schema(value_type = String)]
    pub user: UserId,
    /// The member's role, as the backend said.
    pub role: MemberRole,
    /// The request that was refused.
    pub request_id: Option<String>,
}

/// One page of the denials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DenialPage {
    /// Newest first. The last 10,000 are remembered.
    pub denials: Vec<Denial>,
    /// What to give as `after` for the next page; `null` on the last.
    pub next: Option<String>,
}

/// Which denials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DenialsQuery {
    /// Only of this workspace.
    #[serde(default)]
    #[param(value_type = Option<String>, nullable = false)]
    pub workspace: Option<WorkspaceId>,
    /// Only with this name, such as `quota:max_concurrent`.
    #[serde(default)]
    #[param(nullable = false)]
    pub name: Option<String>,
    /// `next` of the page before.
    #[serde(default)]
    #[param(nullable = false)]
    pub after: Option<String>,
    /// Rows in the page: 1 to 1,000; 100 when absent.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    pub limit: Option<usize>,
}
