//! Deletions that are under way.

use hotcell_types::{UnixMillis, UserId, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A workspace, or a member of one, that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deletion {
    /// The workspace.
    #[schema(value_type = String)]
    pub workspace: WorkspaceId,
    /// The member; `null` when the whole workspace goes.
    #[schema(value_type = Option<String>)]
    pub user: Option<UserId>,
    /// When that was asked for, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub requested_at_ms: UnixMillis,
}

/// What is being deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletionList {
    /// By workspace.
    pub deletions: Vec<Deletion>,
}
