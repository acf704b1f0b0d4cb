//! The protocol between the daemon and the agent in a sandbox, version 1.
//!
//! The agent is PID 1 of the sandbox and listens on TCP port [`AGENT_PORT`]. It speaks
//! HTTP/1.1. Every request is signed as in `docs/api/signing.md` with the lease's agent key
//! (in hex) as the secret and the lease id as `Hotcell-Key`; the agent answers 401 to
//! anything else, remembers nonces, and never starts a connection itself.
//!
//! The daemon trusts nothing that comes back: user code runs under the same user id as the
//! agent and may replace every answer. All lengths are therefore bounded on the reading side.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/health` | – | [`Health`] |
//! | `POST /v1/exec` | [`ExecRequest`] | `200`, then [`frame`]s until one [`ExecExit`] or [`AgentError`] |
//! | `POST /v1/restart` | – | ends every call and job, forgets the shell state; [`Restarted`] |
//! | `POST /v1/jobs` | [`JobRequest`] | [`JobStatus`] |
//! | `GET /v1/jobs` | – | [`JobList`] |
//! | `GET /v1/jobs/{id}` | – | [`JobStatus`] |
//! | `GET /v1/jobs/{id}/output?stream=&offset=&limit=` | – | raw bytes; `Hotcell-Offset` is the offset of the first, `Hotcell-Total` what the job has written so far |
//! | `DELETE /v1/jobs/{id}` | – | [`JobStatus`] after its process tree is gone |
//! | `GET /v1/files?path=&beneath=` | – | the file's bytes; `Hotcell-File` is its [`FileInfo`] as JSON; one that a link puts outside the directory `beneath` is not found |
//! | `PUT /v1/files?path=&mode=&mtime_ms=` | raw bytes | [`FileInfo`]; parents are made, the file replaces its predecessor whole |
//! | `DELETE /v1/files?path=` | – | `204`; removes a file, or a directory with all in it |
//! | `GET /v1/stat?path=` | – | [`FileInfo`], of a link itself |
//! | `GET /v1/list?path=&after=&limit=` | – | [`Listing`], in byte order of names |
//! | `GET /v1/disk` | – | [`DiskUsage`] |
//! | `POST /v1/stdio` | [`StdioRequest`] in the header `Hotcell-Stdio`, `Upgrade: hotcell-stdio` | `101`, then the process's stdin and [`frame`]s of its stdout, stderr and exit |
//!
//! A failure before the first frame is a JSON [`AgentError`] with the status of its code.
//!
//! **Calls.** The text of a shell command is written to a file and run as `bash FILE`; it is
//! never spliced into another shell text. stdin is empty. A call ends when its shell ends:
//! what the shell left in the background goes on, is counted in
//! [`ExecExit::still_running`], and its later output is drained and thrown away. When the time
//! is up the whole process tree of the call gets TERM and, [`KILL_GRACE_MS`] later, KILL;
//! nothing of other calls is touched. When the connection of a call is lost its tree is ended
//! the same way. Of each stream the first [`OUTPUT_HEAD_BYTES`] are sent as they come and the
//! last [`OUTPUT_TAIL_BYTES`] are sent at the end; between them only progress is sent.
//!
//! [`KILL_GRACE_MS`]: hotcell_types::limits::KILL_GRACE_MS
//! [`OUTPUT_HEAD_BYTES`]: hotcell_types::limits::OUTPUT_HEAD_BYTES
//! [`OUTPUT_TAIL_BYTES`]: hotcell_types::limits::OUTPUT_TAIL_BYTES

pub mod error;
pub mod exec;
pub mod files;
pub mod frame;
pub mod job;

pub use error::{AgentError, AgentErrorCode};
pub use exec::{Command, ExecExit, ExecProgress, ExecRequest, StdioRequest, Stream};
pub use files::{DiskUsage, FileInfo, FileKind, Listing, MountUsage};
pub use frame::{Frame, FrameDecoder, FrameError};
pub use job::{JobList, JobRequest, JobState, JobStatus};

use hotcell_types::JobId;
use serde::{Deserialize, Serialize};

/// The version spoken here. A peer that names another is refused.
pub const PROTOCOL_VERSION: u32 = 1;
/// The TCP port that the agent listens on inside its sandbox.
pub const AGENT_PORT: u16 = 8888;
/// Environment variable with the agent key in hex. The agent reads it and re-executes
/// itself without it before it starts anything, so that it is in nobody's `/proc`.
pub const KEY_VARIABLE: &str = "HOTCELL_AGENT_KEY";
/// Environment variable with the lease id, which must be the `Hotcell-Key` of every request.
pub const LEASE_VARIABLE: &str = "HOTCELL_LEASE";
/// Environment variable with the address to listen on, `IP:PORT`; `0.0.0.0:8888` when absent.
pub const LISTEN_VARIABLE: &str = "HOTCELL_AGENT_LISTEN";
/// Environment variable with the directory that commands start in and call their home;
/// `/workspace` when absent. For tests, which run the agent outside a sandbox.
pub const WORKSPACE_VARIABLE: &str = "HOTCELL_AGENT_WORKSPACE";
/// Environment variable with the directory for the agent's own files; [`RUN_PATH`] when absent.
pub const RUN_VARIABLE: &str = "HOTCELL_AGENT_RUN";
/// Where the agent stands in every sandbox, read-only.
pub const AGENT_PATH: &str = "/.hotcell/agent";
/// A small tmpfs for the agent's own files: command texts and shell state.
pub const RUN_PATH: &str = "/run/hotcell";

/// `GET /v1/health`: the agent is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The agent's [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// The agent's release.
    pub version: String,
    /// Whether the image has a `bash` that the agent can run.
    pub bash: bool,
    /// Read-only mounts that turned out to be writable: none in a sound sandbox.
    pub writable_read_only_mounts: Vec<String>,
    /// Calls that run now.
    pub calls: u32,
    /// Jobs that run now.
    pub jobs: Vec<JobId>,
}

/// `POST /v1/restart`: how much was ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarted {
    /// Processes that were ended.
    pub ended: u32,
}
