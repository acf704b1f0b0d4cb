//! The directories that every sandbox sees.

use serde::{Deserialize, Serialize};

/// The lease's own scratch directory, bounded in size; also the sandbox user's home.
pub const WORKSPACE_PATH: &str = "/workspace";
/// What is gone with the sandbox, bounded in size too.
pub const TMP_PATH: &str = "/tmp";
/// The user id that everything in a sandbox runs as.
pub const SANDBOX_UID: u32 = 1000;
/// The group id that everything in a sandbox runs as.
pub const SANDBOX_GID: u32 = 1000;

/// A volume that is mounted into sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
    /// Skills of the workspace; read-only.
    Skills,
    /// Files the user attached to this chat; read-only.
    UploadedFiles,
    /// The user's own files in this workspace; survives the chat.
    UserData,
    /// Files shared by the workspace; survives the chat.
    WorkspaceData,
}

impl VolumeKind {
    /// All of them, in mount order.
    pub const ALL: [Self; 4] = [
        Self::Skills,
        Self::UploadedFiles,
        Self::UserData,
        Self::WorkspaceData,
    ];

    /// Where a sandbox sees it.
    #[must_use]
    pub const fn mount_path(self) -> &'static str {
        match self {
            Self::Skills => "/mnt/skills",
            Self::UploadedFiles => "/mnt/uploaded-files",
            Self::UserData => "/mnt/user-data",
            Self::WorkspaceData => "/mnt/workspace-data",
        }
    }

    /// Whether a sandbox may only read it.
    #[must_use]
    pub const fn read_only(self) -> bool {
        matches!(self, Self::Skills | Self::UploadedFiles)
    }
}
