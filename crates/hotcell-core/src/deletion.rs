//! Deletions that are under way: what is written down before anything is removed.

use hotcell_types::{UnixMillis, UserId, WorkspaceId};

use crate::model::Actor;

/// A workspace, or one member of it, that is being deleted with everything that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionRecord {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// The member; the whole workspace when absent.
    pub user: Option<UserId>,
    /// Who asked for it.
    pub actor: Actor,
    /// When.
    pub requested_at: UnixMillis,
    /// The request.
    pub request: Option<String>,
}

impl DeletionRecord {
    /// What it is about, as the audit trail names it.
    #[must_use]
    pub fn subject(&self) -> String {
        match &self.user {
            Some(user) => format!("workspace/{}/user/{user}", self.workspace),
            None => format!("workspace/{}", self.workspace),
        }
    }
}
