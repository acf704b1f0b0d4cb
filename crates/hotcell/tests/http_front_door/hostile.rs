//! An engine whose sandboxes lie about their files and their output.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hotcell_agent_proto::{
    Command, DiskUsage, ExecExit, ExecRequest, FileInfo, FileKind, Health, JobRequest, JobStatus,
    Listing, StdioRequest, Stream as OutputStream,
};
use hotcell_runtime::{
    ByteStream, Check, ExecEvent, ExecStream, Facts, ImageInfo, JobOutput, Observed, Runtime,
    RuntimeError, Sandbox, SandboxEnd, SandboxError, SandboxSpec, Stats, Stdio, fake::FakeRuntime,
};
use hotcell_types::{AgentKey, JobId, LeaseId, SandboxPath};

/// The engine.
pub(crate) struct Hostile(FakeRuntime);

pub(crate) fn hostile(fake: FakeRuntime) -> Arc<dyn Runtime> {
    Arc::new(Hostile(fake))
}

#[async_trait]
impl Runtime for Hostile {
    fn facts(&self) -> Facts {
        self.0.facts()
    }
    async fn preflight(&self) -> Vec<Check> {
        self.0.preflight().await
    }
    async fn images(&self) -> Result<Vec<ImageInfo>, RuntimeError> {
        self.0.images().await
    }
    async fn create(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        self.0.create(spec).await
    }
    async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Result<(), RuntimeError> {
        self.0.start(lease, key).await
    }
    async fn stop(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.0.stop(lease).await
    }
    async fn remove(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.0.remove(lease).await
    }
    async fn list(&self) -> Result<Vec<Observed>, RuntimeError> {
        self.0.list().await
    }
    async fn wait(&self, lease: &LeaseId) -> Result<SandboxEnd, RuntimeError> {
        self.0.wait(lease).await
    }
    async fn stats(&self, lease: &LeaseId) -> Result<Stats, RuntimeError> {
        self.0.stats(lease).await
    }
    fn sandbox(&self, lease: &LeaseId, key: &AgentKey) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        Ok(Arc::new(Liar(self.0.sandbox(lease, key)?)))
    }
}

struct Liar(Arc<dyn Sandbox>);

fn info(bytes: u64) -> FileInfo {
    FileInfo {
        name: "x".into(),
        name_hex: None,
        kind: FileKind::File,
        bytes,
        mode: 0o644,
        mtime_ms: 0,
    }
}

fn repeated(byte: u8, bytes: u64) -> ByteStream {
    const CHUNK: u64 = 1 << 20;
    let chunk = Bytes::from(vec![byte; CHUNK as usize]);
    let count = bytes.div_ceil(CHUNK);
    Box::pin(stream::iter(0..count).map(move |index| {
        let left = bytes - index * CHUNK;
        Ok(chunk.slice(..left.min(CHUNK) as usize))
    }))
}

fn exit(stdout: u64) -> ExecExit {
    ExecExit {
        exit_code: Some(0),
        signal: None,
        timed_out: false,
        stdout_bytes: stdout,
        stderr_bytes: 0,
        stdout_dropped_bytes: 0,
        stderr_dropped_bytes: 0,
        still_running: 0,
        duration_ms: 1,
        notes: Vec::new(),
    }
}

#[async_trait]
impl Sandbox for Liar {
    async fn ready(&self, timeout_ms: u64) -> Result<Health, SandboxError> {
        self.0.ready(timeout_ms).await
    }

    /// `raw HEX…` prints bytes, each word in a piece of its own; `flood` prints a gigabyte.
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream, SandboxError> {
        let Command::Shell(text) = &request.command else {
            return self.0.exec(request).await;
        };
        if let Some(words) = text.strip_prefix("raw ") {
            let mut events = Vec::new();
            for word in words.split_whitespace() {
                let bytes = Bytes::from(hex::decode(word).unwrap());
                events.push(Ok(ExecEvent::Output(OutputStream::Stdout, bytes.clone())));
                events.push(Ok(ExecEvent::Output(OutputStream::Stderr, bytes)));
            }
            events.push(Ok(ExecEvent::Exit(exit(0))));
            return Ok(Box::pin(stream::iter(events)));
        }
        if text == "flood" {
            let bytes = 1 << 30;
            let pieces = repeated(b'x', bytes)
                .map(|piece| piece.map(|bytes| ExecEvent::Output(OutputStream::Stdout, bytes)));
            let end = stream::iter([Ok(ExecEvent::Exit(exit(bytes)))]);
            return Ok(Box::pin(pieces.chain(end)));
        }
        self.0.exec(request).await
    }

    async fn restart(&self) -> Result<u32, SandboxError> {
        self.0.restart().await
    }
    async fn start_job(&self, request: JobRequest) -> Result<JobStatus, SandboxError> {
        self.0.start_job(request).await
    }
    async fn jobs(&self) -> Result<Vec<JobStatus>, SandboxError> {
        self.0.jobs().await
    }
    async fn job(&self, job: &JobId) -> Result<JobStatus, SandboxError> {
        self.0.job(job).await
    }
    async fn job_output(
        &self,
        job: &JobId,
        stream: OutputStream,
        offset: u64,
        limit: u64,
    ) -> Result<JobOutput, SandboxError> {
        self.0.job_output(job, stream, offset, limit).await
    }
    async fn stop_job(&self, job: &JobId) -> Result<JobStatus, SandboxError> {
        self.0.stop_job(job).await
    }

    /// `grows` says 1 MiB and gives 1 GiB, `shrinks` says 1 MiB and gives half, `mibN…` has N MiB.
    async fn read_file(&self, path: &SandboxPath) -> Result<(FileInfo, ByteStream), SandboxError> {
        let name = path.file_name().unwrap();
        let stem = name.as_str().split('.').next().unwrap();
        const MIB: u64 = 1 << 20;
        match stem {
            "grows" => Ok((info(MIB), repeated(b'g', 1024 * MIB))),
            "shrinks" => Ok((info(MIB), repeated(b's', MIB / 2))),
            "breaks" => Ok((
                info(MIB),
                Box::pin(
                    repeated(b'b', MIB / 2)
                        .chain(stream::iter([Err(SandboxError::Lost("cut".into()))])),
                ),
            )),
            _ => match stem
                .strip_prefix("mib")
                .and_then(|n| n.split('-').next()?.parse::<u64>().ok())
            {
                Some(mib) => Ok((info(mib * MIB), repeated(b'm', mib * MIB))),
                None => self.0.read_file(path).await,
            },
        }
    }

    async fn write_file(
        &self,
        path: &SandboxPath,
        mode: u32,
        bytes: u64,
        sha256_hex: &str,
        content: ByteStream,
    ) -> Result<FileInfo, SandboxError> {
        self.0
            .write_file(path, mode, bytes, sha256_hex, content)
            .await
    }
    async fn remove_file(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.0.remove_file(path).await
    }
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.0.stat(path).await
    }
    async fn list(
        &self,
        path: &SandboxPath,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, SandboxError> {
        self.0.list(path, after, limit).await
    }
    async fn disk(&self) -> Result<DiskUsage, SandboxError> {
        self.0.disk().await
    }
    async fn stdio(&self, request: StdioRequest) -> Result<Stdio, SandboxError> {
        self.0.stdio(request).await
    }
}
