//! The way into a fake sandbox.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use hotcell_agent_proto::{
    AgentError, AgentErrorCode, Command, DiskUsage, ExecExit, ExecRequest, FileInfo, Health,
    JobRequest, JobStatus, Listing, PROTOCOL_VERSION, StdioRequest,
};
use hotcell_types::{AgentKey, JobId, LeaseId, SandboxPath, limits};
use sha2::{Digest, Sha256};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, sleep_until},
};

use crate::{
    ByteStream, ExecEvent, ExecStream, JobOutput, OutputStream, Sandbox, SandboxError, Stdio,
    fake::{
        Effect, FakeRuntime,
        files::Content,
        lock,
        shell::{Call, Plan},
        unit::{CallGuard, Run, Shell, Unit},
    },
};

/// A fake sandbox from outside. It breaks when its run ends, as a real one does.
pub struct FakeSandbox {
    runtime: FakeRuntime,
    lease: LeaseId,
    unit: Arc<Unit>,
    key: AgentKey,
}

impl FakeSandbox {
    pub(super) fn new(
        runtime: FakeRuntime,
        lease: LeaseId,
        unit: Arc<Unit>,
        key: AgentKey,
    ) -> Self {
        Self {
            runtime,
            lease,
            unit,
            key,
        }
    }

    /// The run, once its agent is up and takes our key.
    fn run(&self) -> Result<Arc<Run>, SandboxError> {
        let run = self
            .unit
            .running()
            .ok_or_else(|| SandboxError::Lost("the sandbox does not run".into()))?;
        let delay = self.runtime.script(|script| script.ready_delay);
        if run.since.elapsed() < delay {
            return Err(SandboxError::Lost("connection refused".into()));
        }
        if run.key != self.key {
            let error = AgentError::new(AgentErrorCode::Unauthorized, "not this lease's key");
            return Err(error.into());
        }
        Ok(run)
    }

    /// Runs an effect between its hooks.
    async fn call<T>(
        &self,
        effect: Effect,
        run: impl FnOnce(Arc<Run>) -> Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        let lost = |error: crate::RuntimeError| SandboxError::Lost(error.to_string());
        self.runtime
            .around(effect, Some(&self.lease), async || {
                Ok(self.run().and_then(run))
            })
            .await
            .map_err(lost)?
    }

    /// The shell that a command starts in.
    fn shell(
        &self,
        run: &Run,
        command: &Command,
        cwd: Option<&str>,
        env: &BTreeMap<String, String>,
    ) -> Result<(String, Shell), AgentError> {
        let (text, mut shell) = match command {
            Command::Shell(text) => (text.clone(), lock(&run.shell).clone()),
            Command::Program(words) => (words.join(" "), Shell::default()),
        };
        if text.len() > limits::MAX_COMMAND_BYTES {
            return Err(AgentError::new(
                AgentErrorCode::BadRequest,
                "the command is too long",
            ));
        }
        if let Some(cwd) = cwd {
            if !lock(&self.unit.files).is_directory(cwd) {
                let message = format!("{cwd} is no directory");
                return Err(AgentError::new(AgentErrorCode::BadCwd, message));
            }
            cwd.clone_into(&mut shell.cwd);
        }
        for (name, value) in env {
            if name.len() + value.len() + 1 > limits::MAX_ENV_VAR_BYTES {
                let message = format!("{name} is longer than the kernel takes");
                return Err(AgentError::new(AgentErrorCode::EnvTooLarge, message));
            }
            shell.env.insert(name.clone(), value.clone());
        }
        Ok((text, shell))
    }
}

fn events(call: Call) -> ExecStream {
    Box::pin(stream::unfold(call, |mut call| async move {
        let event = call.next().await?;
        Some((event, call))
    }))
}

fn busy() -> AgentError {
    AgentError::new(AgentErrorCode::Busy, "too many calls run")
}

#[async_trait]
impl Sandbox for FakeSandbox {
    async fn ready(&self, timeout_ms: u64) -> Result<Health, SandboxError> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        if let Some(run) = self.unit.running() {
            let delay = self.runtime.script(|script| script.ready_delay);
            sleep_until((run.since + delay).min(deadline)).await;
        }
        let health = self.call(Effect::Ready, |run| {
            Ok(Health {
                protocol: PROTOCOL_VERSION,
                version: env!("CARGO_PKG_VERSION").into(),
                bash: true,
                writable_read_only_mounts: Vec::new(),
                calls: run.calls.load(Ordering::Relaxed),
                jobs: run.jobs.running(),
            })
        });
        match health.await {
            // Nobody answers until the time is up.
            Err(SandboxError::Lost(_)) => {
                sleep_until(deadline).await;
                Err(SandboxError::Timeout(timeout_ms))
            }
            health => health,
        }
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecStream, SandboxError> {
        self.call(Effect::Exec, |run| {
            if let Some(user) = &request.user {
                let message = format!("there is no user {user}");
                return Err(AgentError::new(AgentErrorCode::NoSuchUser, message).into());
            }
            if request.restart {
                run.restart();
            }
            let (text, shell) =
                self.shell(&run, &request.command, request.cwd.as_deref(), &request.env)?;
            let guard = CallGuard::new(&run).ok_or_else(busy)?;
            let plan = Plan {
                text,
                shell,
                keeps_shell: matches!(request.command, Command::Shell(_)),
                whole_output: false,
                timeout_ms: request.timeout_ms,
                guard: Some(guard),
            };
            Ok(events(Call::new(Arc::clone(&self.unit), run, plan)))
        })
        .await
    }

    async fn restart(&self) -> Result<u32, SandboxError> {
        self.call(Effect::Restart, |run| Ok(run.restart())).await
    }

    async fn start_job(&self, request: JobRequest) -> Result<JobStatus, SandboxError> {
        self.call(Effect::StartJob, |run| {
            let (text, shell) =
                self.shell(&run, &request.command, request.cwd.as_deref(), &request.env)?;
            let call = || {
                let plan = Plan {
                    text,
                    shell,
                    keeps_shell: false,
                    whole_output: true,
                    timeout_ms: request.timeout_ms,
                    guard: None,
                };
                Call::new(Arc::clone(&self.unit), Arc::clone(&run), plan)
            };
            Ok(run.jobs.start(&request.job, call)?)
        })
        .await
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>, SandboxError> {
        self.call(Effect::Read, |run| Ok(run.jobs.all())).await
    }

    async fn job(&self, job: &JobId) -> Result<JobStatus, SandboxError> {
        self.call(Effect::Read, |run| Ok(run.jobs.status(job)?))
            .await
    }

    async fn job_output(
        &self,
        job: &JobId,
        stream: OutputStream,
        offset: u64,
        limit: u64,
    ) -> Result<JobOutput, SandboxError> {
        self.call(Effect::Read, |run| {
            Ok(run.jobs.output(job, stream, offset, limit)?)
        })
        .await
    }

    async fn stop_job(&self, job: &JobId) -> Result<JobStatus, SandboxError> {
        self.call(Effect::StopJob, |run| Ok(run.jobs.stop(job)?))
            .await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<(FileInfo, ByteStream), SandboxError> {
        self.call(Effect::Read, |_| {
            let (info, content) = lock(&self.unit.files).read_beneath(path)?;
            Ok((info, pieces(content)))
        })
        .await
    }

    async fn write_file(
        &self,
        path: &SandboxPath,
        mode: u32,
        bytes: u64,
        sha256_hex: &str,
        mut content: ByteStream,
    ) -> Result<FileInfo, SandboxError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = content.next().await {
            whole.extend_from_slice(&piece?);
            if whole.len() as u64 > bytes {
                return Err(SandboxError::TooLarge(bytes));
            }
        }
        self.call(Effect::WriteFile, |_| {
            let whole = whole.freeze();
            if whole.len() as u64 != bytes || hex::encode(Sha256::digest(&whole)) != sha256_hex {
                let message = "the content is not what was announced";
                return Err(AgentError::new(AgentErrorCode::BadRequest, message).into());
            }
            Ok(lock(&self.unit.files).write(path.as_str(), whole, mode)?)
        })
        .await
    }

    async fn remove_file(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.call(Effect::RemoveFile, |_| {
            Ok(lock(&self.unit.files).remove(path.as_str())?)
        })
        .await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.call(Effect::Read, |_| {
            Ok(lock(&self.unit.files).stat(path.as_str())?)
        })
        .await
    }

    async fn list(
        &self,
        path: &SandboxPath,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, SandboxError> {
        let limit = limit.clamp(1, limits::MAX_PAGE_ROWS);
        self.call(Effect::Read, |_| {
            Ok(lock(&self.unit.files).list(path.as_str(), after, limit)?)
        })
        .await
    }

    async fn disk(&self) -> Result<DiskUsage, SandboxError> {
        self.call(Effect::Read, |_| Ok(lock(&self.unit.files).disk()))
            .await
    }

    async fn stdio(&self, request: StdioRequest) -> Result<Stdio, SandboxError> {
        self.call(Effect::Stdio, |run| {
            let guard = CallGuard::new(&run).ok_or_else(busy)?;
            let (ours, theirs) = tokio::io::duplex(limits::MAX_FRAME_BYTES);
            let output = if request.program.first().is_some_and(|word| word == "cat") {
                echo(run, theirs, guard)
            } else {
                let plan = Plan {
                    text: request.program.join(" "),
                    shell: Shell::default(),
                    keeps_shell: false,
                    whole_output: true,
                    timeout_ms: limits::MAX_COMMAND_TIMEOUT_MS,
                    guard: Some(guard),
                };
                events(Call::new(Arc::clone(&self.unit), run, plan))
            };
            Ok(Stdio {
                stdin: Box::pin(ours),
                output,
            })
        })
        .await
    }
}

/// The content of a file, piece by piece, holes as zeros.
fn pieces(content: Content) -> ByteStream {
    let zeros = Bytes::from(vec![0; limits::MAX_FRAME_BYTES]);
    Box::pin(stream::unfold(content, move |content| {
        let piece = match content {
            Content::Bytes(mut bytes) if !bytes.is_empty() => {
                let piece = bytes.split_to(bytes.len().min(limits::MAX_FRAME_BYTES));
                Some((Ok(piece), Content::Bytes(bytes)))
            }
            Content::Zeros(left) if left > 0 => {
                let size = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
                Some((Ok(zeros.slice(..size)), Content::Zeros(left - size as u64)))
            }
            _ => None,
        };
        std::future::ready(piece)
    }))
}

/// A process that gives back its input.
fn echo(run: Arc<Run>, stdin: tokio::io::DuplexStream, guard: CallGuard) -> ExecStream {
    let started = Instant::now();
    let state = Some((run, stdin, guard, 0_u64));
    Box::pin(stream::unfold(state, move |state| async move {
        let (run, mut stdin, guard, total) = state?;
        let mut piece = BytesMut::with_capacity(limits::MAX_FRAME_BYTES);
        let mut end = run.end.subscribe();
        let read = tokio::select! {
            read = stdin.read_buf(&mut piece) => read,
            _ = end.wait_for(Option::is_some) => {
                let lost = SandboxError::Lost("the sandbox ended".into());
                return Some((Err(lost), None));
            }
        };
        match read {
            Ok(read) if read > 0 => {
                let event = ExecEvent::Output(OutputStream::Stdout, piece.freeze());
                Some((Ok(event), Some((run, stdin, guard, total + read as u64))))
            }
            _ => {
                let exit = ExecExit {
                    exit_code: Some(0),
                    signal: None,
                    timed_out: false,
                    stdout_bytes: total,
                    stderr_bytes: 0,
                    stdout_dropped_bytes: 0,
                    stderr_dropped_bytes: 0,
                    still_running: 0,
                    duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                    notes: Vec::new(),
                };
                Some((Ok(ExecEvent::Exit(exit)), None))
            }
        }
    }))
}
