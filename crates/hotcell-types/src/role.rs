//! The roles of workspace members.

use serde::{Deserialize, Serialize};

/// A member's role, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May read.
    Viewer,
    /// May run code.
    Editor,
    /// May also manage the workspace.
    Admin,
    /// May do everything in the workspace.
    Owner,
}

impl Role {
    /// Whether this role carries `code_execution:run`.
    #[must_use]
    pub fn may_run_code(self) -> bool {
        self >= Self::Editor
    }
}
