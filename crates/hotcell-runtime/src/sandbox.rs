//! The way into a running sandbox.

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use hotcell_agent_proto::{
    DiskUsage, ExecExit, ExecProgress, ExecRequest, FileInfo, Health, JobRequest, JobStatus,
    Listing, StdioRequest,
};
use hotcell_types::{JobId, SandboxPath};

use crate::SandboxError;

pub use hotcell_agent_proto::Stream as OutputStream;

/// What a running call says.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecEvent {
    /// A piece of output, in order within its stream. When bytes were dropped, the tail follows the head; the exit says how many are missing between.
    Output(OutputStream, Bytes),
    /// Counters; at least every five seconds.
    Progress(ExecProgress),
    /// The end; nothing comes after it.
    Exit(ExecExit),
}

/// The events of one call. Dropping it ends the call and its process tree.
pub type ExecStream = Pin<Box<dyn Stream<Item = Result<ExecEvent, SandboxError>> + Send>>;

/// The bytes of a file. An `Err` item means that the rest will not come.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, SandboxError>> + Send>>;

/// A process whose stdin and stdout the caller holds.
pub struct Stdio {
    /// Its stdin; shutting it down is end-of-file for the process.
    pub stdin: Pin<Box<dyn tokio::io::AsyncWrite + Send>>,
    /// Its output and its end.
    pub output: ExecStream,
}

/// A piece of a job's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutput {
    /// The offset of the first byte.
    pub offset: u64,
    /// What the job has written to this stream so far.
    pub total: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// One running sandbox, through its agent. Cheap to clone behind an `Arc`; calls run at once.
#[async_trait]
pub trait Sandbox: Send + Sync + 'static {
    /// Waits until the agent answers, at most `timeout_ms`, and checks its protocol version.
    async fn ready(&self, timeout_ms: u64) -> Result<Health, SandboxError>;

    /// Runs a command.
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream, SandboxError>;

    /// Ends every call and job and forgets the shell state. Returns how many processes ended.
    async fn restart(&self) -> Result<u32, SandboxError>;

    /// Starts a job; the same id again returns the job that has it.
    async fn start_job(&self, request: JobRequest) -> Result<JobStatus, SandboxError>;

    /// Every job that the agent still knows.
    async fn jobs(&self) -> Result<Vec<JobStatus>, SandboxError>;

    /// One job.
    async fn job(&self, job: &JobId) -> Result<JobStatus, SandboxError>;

    /// A piece of a job's output from `offset` on, at most `limit` bytes.
    async fn job_output(
        &self,
        job: &JobId,
        stream: OutputStream,
        offset: u64,
        limit: u64,
    ) -> Result<JobOutput, SandboxError>;

    /// Ends a job's process tree.
    async fn stop_job(&self, job: &JobId) -> Result<JobStatus, SandboxError>;

    /// Opens a regular file. The stream never gives more than `FileInfo::bytes`. Links are followed
    /// as far as they stay in the [directory](SandboxPath::directory) that the path lies in; what
    /// they lead out of is not found.
    async fn read_file(&self, path: &SandboxPath) -> Result<(FileInfo, ByteStream), SandboxError>;

    /// Writes a file whole or not at all; parents are made. `bytes` and their SHA-256 (hex) are
    /// known ahead.
    async fn write_file(
        &self,
        path: &SandboxPath,
        mode: u32,
        bytes: u64,
        sha256_hex: &str,
        content: ByteStream,
    ) -> Result<FileInfo, SandboxError>;

    /// Removes a file, or a directory with all in it.
    async fn remove_file(&self, path: &SandboxPath) -> Result<(), SandboxError>;

    /// What a path is, links themselves included.
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError>;

    /// One page of a directory, in byte order, after the name `after`.
    async fn list(
        &self,
        path: &SandboxPath,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, SandboxError>;

    /// How full its writable places are.
    async fn disk(&self) -> Result<DiskUsage, SandboxError>;

    /// Starts a process whose stdin and stdout the caller holds.
    async fn stdio(&self, request: StdioRequest) -> Result<Stdio, SandboxError>;
}
