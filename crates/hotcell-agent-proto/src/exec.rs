//! Calls: one command, its output, its end.

use std::collections::BTreeMap;

use hotcell_types::CallId;
use serde::{Deserialize, Serialize};

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// The text of a bash script, in the chat's shell: working directory and exported
    /// environment come from the call before and are kept for the next.
    Shell(String),
    /// A program and its arguments, without a shell and without the chat's shell state.
    Program(Vec<String>),
}

/// `POST /v1/exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The daemon's name for this call.
    pub call: CallId,
    /// What to run.
    pub command: Command,
    /// Where to run it; `None`: where the call before ended, at first `/workspace`.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Who runs it; `None`: the sandbox user, the only one there is.
    #[serde(default)]
    pub user: Option<String>,
    /// Environment on top of the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How long it may run, in milliseconds.
    pub timeout_ms: u64,
    /// Forget the shell state and end what still runs from earlier calls, first.
    #[serde(default)]
    pub restart: bool,
}

/// `POST /v1/stdio`: a process whose stdin and stdout the caller holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdioRequest {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Where to run it; `/workspace` when absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Environment on top of the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A running call's counters, sent when nothing else was for a while.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecProgress {
    /// Bytes written to stdout so far, sent or not.
    pub stdout_bytes: u64,
    /// Bytes written to stderr so far, sent or not.
    pub stderr_bytes: u64,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecExit {
    /// What the shell would put into `$?`: the exit code, or 128 and the signal's number.
    /// `None` when the time ran out.
    pub exit_code: Option<i32>,
    /// The signal that ended it, such as `SIGSEGV`.
    pub signal: Option<String>,
    /// Whether its time ran out.
    pub timed_out: bool,
    /// Bytes written to stdout.
    pub stdout_bytes: u64,
    /// Bytes written to stderr.
    pub stderr_bytes: u64,
    /// Bytes of stdout between head and tail that were thrown away.
    pub stdout_dropped_bytes: u64,
    /// Bytes of stderr between head and tail that were thrown away.
    pub stderr_dropped_bytes: u64,
    /// Processes of this call that still run in the background.
    pub still_running: u32,
    /// How long it took inside the sandbox, in milliseconds.
    pub duration_ms: u64,
    /// What the caller should know, in words.
    pub notes: Vec<String>,
}
