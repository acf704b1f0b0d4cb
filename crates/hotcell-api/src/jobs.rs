//! Jobs: commands that outlive the call that started them.

use hotcell_types::{JobId, LeaseId, UnixMillis, UserId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Member, MemberRole, bash::StreamName};

/// Starts a job in the chat's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartJob {
    /// The member that it runs for.
    pub user: Member,
    /// The text of a bash script, at most 16 MiB. It begins in the chat's working directory with
    /// its exported environment, and changes neither.
    #[schema(example = "python3 train.py > log.txt 2>&1")]
    pub command: String,
    /// How long it may run, in seconds. When absent, for as long as the profile and the workspace
    /// allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, nullable = false)]
    pub max_seconds: Option<u64>,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The sandbox is being asked for it.
    Starting,
    /// It runs.
    Running,
    /// It ended by itself; see its exit code or signal.
    Exited,
    /// It was stopped by request.
    Stopped,
    /// It ran for as long as it may, and was ended.
    TimedOut,
    /// It could not be started; `reason` says why.
    Failed,
    /// Its sandbox went away under it; `reason` says why.
    Lost,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its id.
    #[schema(value_type = String, example = "jb_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: JobId,
    /// Who started it.
    #[schema(value_type = String)]
    pub user: UserId,
    /// The lease whose sandbox runs it.
    #[schema(value_type = String, example = "ls_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub lease: LeaseId,
    /// Where it stands.
    pub state: JobState,
    /// How long it may run, in seconds.
    pub max_seconds: u64,
    /// When it was started, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub created_at_ms: UnixMillis,
    /// When it ended; `null` while it has not.
    #[schema(value_type = Option<u64>)]
    pub ended_at_ms: Option<UnixMillis>,
    /// How long it ran, in milliseconds; `null` while it has not ended.
    pub duration_ms: Option<u64>,
    /// What the shell would put into `$?`; `null` while it has not ended, and when its time ran out.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<String>,
    /// Why it failed or was lost: `requested`, `hard_time_limit`, `out_of_memory`, `sandbox_lost`,
    /// `sandbox_stopped`, `runtime_restarted`, or what went wrong at its start.
    pub reason: Option<String>,
    /// Bytes that it has written to standard output, as far as is known.
    pub stdout_bytes: u64,
    /// Bytes that it has written to standard error, as far as is known.
    pub stderr_bytes: u64,
}

/// The jobs of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The newest first. The oldest ended ones are forgotten beyond 200 in a chat, and with their
    /// lease after thirty days.
    pub jobs: Vec<Job>,
}

/// Which piece of a job's output to read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobOutputQuery {
    /// The member's id, as the backend names them.
    #[param(value_type = String, example = "user-1", max_length = 128)]
    pub user: UserId,
    /// The member's role in the workspace.
    #[param(inline)]
    pub role: MemberRole,
    /// Which stream; `stdout` when absent.
    #[serde(default)]
    #[param(inline, nullable = false)]
    pub stream: Option<StreamName>,
    /// The offset of the first byte that is wanted: 0, or `next_offset` of the piece before.
    #[serde(default)]
    #[param(nullable = false)]
    pub offset: Option<u64>,
    /// The most bytes that are wanted; 1,048,576 when absent, and at most.
    #[serde(default)]
    #[param(minimum = 1, nullable = false)]
    pub limit: Option<u64>,
    /// How long to wait for output beyond the offset, in milliseconds, when there is none yet; at
    /// most 25,000. The answer comes at once when there is some, or when the job has ended.
    #[serde(default)]
    #[param(maximum = 25_000, nullable = false)]
    pub wait_ms: Option<u64>,
}

/// A piece of a job's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobOutput {
    /// The stream.
    pub stream: StreamName,
    /// The offset of the first byte of this piece. More than was asked for when what lies before is
    /// no longer kept.
    pub offset: u64,
    /// The offset to go on from.
    pub next_offset: u64,
    /// What the job has written to this stream so far, in bytes, as far as is known.
    pub total_bytes: u64,
    /// The piece as text: each invalid UTF-8 sequence and each NUL is U+FFFD. A character is never
    /// cut between two pieces.
    pub text: String,
    /// The bytes of the piece in base64; only when `text` is not the whole truth about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub base64: Option<String>,
    /// Where the job stood just before the piece was read: once it has ended and `next_offset` is
    /// `total_bytes`, nothing more will come.
    pub state: JobState,
}
