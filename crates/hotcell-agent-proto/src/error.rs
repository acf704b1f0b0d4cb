//! Failures that are no exit code.

use serde::{Deserialize, Serialize};

/// What kind of failure it is; stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentErrorCode {
    /// The request is not signed with this lease's key.
    Unauthorized,
    /// The request is malformed or over a limit.
    BadRequest,
    /// The working directory does not exist or is no directory.
    BadCwd,
    /// The named user does not exist in the image, or is not the sandbox's user.
    NoSuchUser,
    /// One environment variable is longer than the kernel takes.
    EnvTooLarge,
    /// The image has no `bash`.
    NoBash,
    /// The process could not be started.
    SpawnFailed,
    /// So many calls, jobs or processes run that no more can start.
    Busy,
    /// No such file, directory, job or route.
    NotFound,
    /// A directory, FIFO, socket or device where a regular file must be.
    NotARegularFile,
    /// The sandbox user may not do that.
    PermissionDenied,
    /// No space or quota left.
    DiskFull,
    /// Anything else that the operating system refused.
    Io,
    /// The process that runs the call died under it, or the agent itself is at fault.
    Internal,
}

impl AgentErrorCode {
    /// The HTTP status that carries it.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Unauthorized => 401,
            Self::BadRequest | Self::BadCwd | Self::NoSuchUser | Self::EnvTooLarge => 400,
            Self::NotFound => 404,
            Self::NotARegularFile => 409,
            Self::PermissionDenied => 403,
            Self::Busy => 429,
            Self::DiskFull => 507,
            Self::NoBash | Self::SpawnFailed | Self::Io | Self::Internal => 500,
        }
    }
}

/// A failure, as the agent reports it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct AgentError {
    /// What kind.
    pub code: AgentErrorCode,
    /// A sentence for people.
    pub message: String,
}

impl AgentError {
    /// A failure of this kind.
    #[must_use]
    pub fn new(code: AgentErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// What an operating system error on `what` means.
    #[must_use]
    pub fn from_io(what: &str, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let code = match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => AgentErrorCode::NotFound,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                AgentErrorCode::PermissionDenied
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => AgentErrorCode::DiskFull,
            ErrorKind::IsADirectory => AgentErrorCode::NotARegularFile,
            _ => AgentErrorCode::Io,
        };
        Self::new(code, format!("{what}: {error}"))
    }
}
