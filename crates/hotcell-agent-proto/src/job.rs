//! Jobs: commands that outlive the request that started them.

use std::collections::BTreeMap;

use hotcell_types::JobId;
use serde::{Deserialize, Serialize};

use crate::exec::Command;

/// `POST /v1/jobs`. The id is the daemon's; the same id again returns the job that has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The daemon's id for it; not a process id.
    pub job: JobId,
    /// What to run. A shell job starts from the chat's shell state but does not change it.
    pub command: Command,
    /// Where to run it; `None`: where the last call ended.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Environment on top of the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How long it may run, in milliseconds.
    pub timeout_ms: u64,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It runs.
    Running,
    /// It ended by itself; see its exit code or signal.
    Exited,
    /// It was stopped by request.
    Stopped,
    /// Its time ran out.
    TimedOut,
}

/// A job as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its id.
    pub job: JobId,
    /// Where it stands.
    pub state: JobState,
    /// As [`ExecExit::exit_code`](crate::ExecExit::exit_code), once it has ended.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<String>,
    /// Bytes written to stdout so far.
    pub stdout_bytes: u64,
    /// Bytes written to stderr so far.
    pub stderr_bytes: u64,
    /// Bytes of stdout that are no longer kept, from the start.
    pub stdout_forgotten_bytes: u64,
    /// Bytes of stderr that are no longer kept, from the start.
    pub stderr_forgotten_bytes: u64,
    /// How long it has run, in milliseconds.
    pub duration_ms: u64,
}

/// `GET /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// Every job that the agent still knows, oldest first.
    pub jobs: Vec<JobStatus>,
}
