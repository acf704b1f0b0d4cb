//! The `bash` tool.

use hotcell_types::{CallId, LeaseId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Member, MemberRole, Problem};

/// Runs a command in the chat's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BashRequest {
    /// The member that it runs for.
    pub user: Member,
    /// The text of a bash script, at most 16 MiB. Working directory and exported environment
    /// persist between the calls of a chat.
    #[schema(example = "python3 -c 'print(6*7)'")]
    pub command: String,
    /// How long it may run, in milliseconds; 120,000 when absent, at most 3,600,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3_600_000, nullable = false)]
    pub timeout_ms: Option<u64>,
    /// End what still runs from earlier calls and forget the shell's state, first.
    #[serde(default)]
    pub restart: bool,
}

/// The sandbox that a call ran in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BashLease {
    /// Its lease.
    #[schema(value_type = String, example = "ls_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: LeaseId,
    /// Whether the sandbox was made, or started again, for this call: then nothing runs in it
    /// from earlier calls.
    pub fresh: bool,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BashResult {
    /// The call's id; its events and this result stay readable under it for ten minutes.
    #[schema(value_type = String, example = "ca_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub call: CallId,
    /// What the shell would put into `$?`: the exit code, or 128 and the signal's number. `null`
    /// when the time ran out.
    pub exit_code: Option<i32>,
    /// The signal that ended the shell, such as `SIGSEGV`.
    pub signal: Option<String>,
    /// Whether the time ran out and the command was ended.
    pub timed_out: bool,
    /// Standard output as text: each invalid UTF-8 sequence and each NUL is U+FFFD. When bytes
    /// were dropped, a line `[… N bytes dropped …]` stands where they are missing.
    pub stdout: String,
    /// Standard error, in the same form.
    pub stderr: String,
    /// Bytes of standard output that were dropped between its head and its tail.
    pub stdout_dropped_bytes: u64,
    /// Bytes of standard error that were dropped between its head and its tail.
    pub stderr_dropped_bytes: u64,
    /// The kept bytes of standard output in base64; only when `stdout` is not the whole truth
    /// about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stdout_base64: Option<String>,
    /// The same for standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stderr_base64: Option<String>,
    /// Processes of this call that still run in the background.
    pub still_running: u32,
    /// How long it took inside the sandbox, in milliseconds.
    pub duration_ms: u64,
    /// What the caller should know, in words.
    pub notes: Vec<String>,
    /// The sandbox that it ran in.
    pub lease: BashLease,
}

/// How a call is read again.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CallQuery {
    /// The member's id, as the backend names them.
    #[param(value_type = String, example = "user-1", max_length = 128)]
    pub user: hotcell_types::UserId,
    /// The member's role in the workspace.
    #[param(inline)]
    pub role: MemberRole,
    /// How long to wait for the end, in milliseconds, before the answer is 202; without it the
    /// answer waits for the end. JSON only.
    #[serde(default)]
    #[param(maximum = 3_600_000, nullable = false)]
    pub wait_ms: Option<u64>,
}

/// A call that has not ended yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallRunning {
    /// The call's id.
    #[schema(value_type = String, example = "ca_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub call: CallId,
    /// Always true.
    pub running: bool,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The data of an `output` event: a piece of text; sequences are never cut between pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputPiece {
    /// Which stream.
    pub stream: StreamName,
    /// The text, in the form of [`BashResult::stdout`].
    pub text: String,
}

/// The data of a `progress` event. It has no id: a resumed stream does not repeat it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Bytes written to standard output so far, sent or not.
    pub stdout_bytes: u64,
    /// Bytes written to standard error so far, sent or not.
    pub stderr_bytes: u64,
}

/// What an event stream of a call carries; the variant is the event's name, its content the
/// event's data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "event", content = "data")]
pub enum BashEvent {
    /// The first event: the call's id.
    Call(CallRunning),
    /// A piece of output.
    Output(OutputPiece),
    /// Counters, while there is nothing else to say.
    Progress(Progress),
    /// The end; nothing comes after it.
    Result(Box<BashResult>),
    /// The end of a call that has no result; nothing comes after it.
    Problem(Box<Problem>),
}
