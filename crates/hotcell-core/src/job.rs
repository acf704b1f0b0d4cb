//! Jobs: commands that outlive the call that started them, as they are written down.
//!
//! ```text
//!   intent ──► Starting ──the agent has it──► Running ──► Exited · Stopped · TimedOut
//!                 │                              │
//!                 └─ it never ran: Failed        └─ its sandbox is gone, or forgot it: Lost
//! ```
//!
//! The record is written before the agent is asked, and a job that has ended never changes again.

use hotcell_types::{ChatId, JobId, LeaseId, OrganizationId, UnixMillis, UserId, WorkspaceId};

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Written down; the agent has been or will be asked for it.
    Starting,
    /// It runs.
    Running,
    /// It ended by itself; its exit code or signal says how.
    Exited,
    /// It was stopped by request.
    Stopped,
    /// It ran for as long as it may, and was ended.
    TimedOut,
    /// It could not be started; the reason says why.
    Failed,
    /// Its sandbox went away under it; the reason says why.
    Lost,
}

impl JobState {
    /// Whether it will not change any more.
    #[must_use]
    pub fn has_ended(self) -> bool {
        !matches!(self, Self::Starting | Self::Running)
    }
}

/// One job of one chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Its id; never a process id.
    pub id: JobId,
    /// The organization of its workspace.
    pub organization: OrganizationId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Its chat.
    pub chat: ChatId,
    /// Who started it.
    pub user: UserId,
    /// The lease whose sandbox runs it.
    pub lease: LeaseId,
    /// Where it stands.
    pub state: JobState,
    /// How long it may run, in milliseconds.
    pub max_ms: u64,
    /// When it was written down.
    pub created_at: UnixMillis,
    /// When it ended, once it has.
    pub ended_at: Option<UnixMillis>,
    /// The exit code, as a shell would show it, once it has ended by itself or by a signal.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<String>,
    /// Why it failed or was lost.
    pub reason: Option<String>,
    /// Bytes that it wrote to stdout, as far as is known.
    pub stdout_bytes: u64,
    /// Bytes that it wrote to stderr, as far as is known.
    pub stderr_bytes: u64,
    /// How long it ran, in milliseconds, once it has ended.
    pub duration_ms: Option<u64>,
}

/// The end of one output stream of a job, kept after its sandbox is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobTail {
    /// The offset of the first byte that is kept.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl JobTail {
    /// The offset after the last byte that is kept.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// A piece from `offset` on, or from the first byte that is kept; at most `limit` bytes. With
    /// the offset that it really begins at.
    #[must_use]
    pub fn read(&self, offset: u64, limit: usize) -> (u64, &[u8]) {
        let offset = offset.clamp(self.offset, self.end());
        let start = usize::try_from(offset - self.offset).unwrap_or(usize::MAX);
        let rest = &self.bytes[start.min(self.bytes.len())..];
        (offset, &rest[..rest.len().min(limit)])
    }
}

/// What is kept of a job's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobTails {
    /// Of stdout.
    pub stdout: JobTail,
    /// Of stderr.
    pub stderr: JobTail,
}

/// How long a job may run: the shortest of what was asked for, what its profile and what its
/// workspace allow, in milliseconds.
#[must_use]
pub fn ceiling_ms(asked_ms: Option<u64>, profile_ms: u64, workspace_ms: u64) -> u64 {
    let allowed_ms = profile_ms.min(workspace_ms);
    asked_ms.map_or(allowed_ms, |asked_ms| asked_ms.min(allowed_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_limit_holds() {
        for (asked, profile, workspace, expected) in [
            (None, 9, 20, 9),
            (Some(5), 9, 20, 5),
            (Some(30), 9, 20, 9),
            (Some(20), 9, 7, 7),
            (None, 9, 7, 7),
        ] {
            assert_eq!(ceiling_ms(asked, profile, workspace), expected);
        }
    }

    #[test]
    fn a_tail_is_read_by_true_offsets() {
        let tail = JobTail {
            offset: 5,
            bytes: b"56789".to_vec(),
        };
        assert_eq!(tail.read(0, 100), (5, &b"56789"[..]));
        assert_eq!(tail.read(7, 2), (7, &b"78"[..]));
        assert_eq!(tail.read(10, 2), (10, &b""[..]));
        assert_eq!(tail.read(99, 2), (10, &b""[..]));
    }
}
