//! Jobs, as HTTP sees them: started, listed, read and stopped.
//!
//! ```text
//!   start: allowed? ── acquire the sandbox (the gate) ── intent in the store (the gate again, the
//!          ceiling) ── agent ── Running in the store ── answer
//!   read:  the agent, while the sandbox runs; afterwards what the follower kept (actors/jobs)
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hotcell_agent_proto::{AgentErrorCode, Command, JobRequest, JobState as AgentState};
use hotcell_core::{
    job::{self, JobRecord, JobState},
    model::{Actor, AuditRow, EndReason, LeaseState},
};
use hotcell_runtime::{OutputStream, Sandbox, SandboxError};
use hotcell_store::StoreError;
use hotcell_types::{ChatId, JobId, LeaseId, RequestId, WorkspaceId, limits};
use tokio::time::Instant;

use crate::{
    actors::{
        admission::pass_job_gate,
        context::Context,
        jobs::{Ending, JobBook, StartInFlight, fetch_tails, settle},
        live::LiveLease,
    },
    handles::{AcquireError, ActiveSandbox, Caller, Denial, Sandboxes},
};

/// Why a job was not started, found or stopped.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The profile allows no jobs.
    #[error("jobs are off on this profile")]
    Off,
    /// It was to run for longer than it may.
    #[error("a job may run for {ceiling_ms} ms")]
    TooLong {
        /// The ceiling, in milliseconds.
        ceiling_ms: u64,
    },
    /// There is none with this id in this chat.
    #[error("there is no such job")]
    Unknown,
    /// There is no sandbox for it.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The sandbox did not start or stop it.
    #[error("the sandbox did not do it")]
    Sandbox {
        /// Why.
        #[source]
        error: SandboxError,
        /// The sandbox, when it was held.
        active: Option<Box<ActiveSandbox>>,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl From<Denial> for JobError {
    fn from(denial: Denial) -> Self {
        Self::Acquire(AcquireError::Denied(denial))
    }
}

/// A piece of a job's output.
#[derive(Debug, Clone)]
pub struct JobPiece {
    /// The job as it is now.
    pub job: JobRecord,
    /// The offset of the first byte.
    pub offset: u64,
    /// What the job has written to this stream so far, as far as is known.
    pub total: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// The jobs of this daemon. Cheap to clone.
#[derive(Clone)]
pub struct Jobs {
    context: Arc<Context>,
    sandboxes: Sandboxes,
}

/// What a job asks of its workspace's quota: one that asks for nothing gets what there is.
fn seconds(asked_ms: Option<u64>) -> u64 {
    asked_ms.map_or(0, |asked_ms| asked_ms.div_ceil(1_000))
}

impl Jobs {
    pub(crate) fn new(context: Arc<Context>, sandboxes: Sandboxes) -> Self {
        Self { context, sandboxes }
    }

    /// Starts a job in the caller's chat, whose sandbox is made first if there is none. Runs to its
    /// end once it has begun: put it into a task of its own.
    ///
    /// # Errors
    /// See [`JobError`]. A job that did not start stays in the list, as `Failed`.
    pub async fn start(
        &self,
        caller: &Caller,
        command: String,
        asked_ms: Option<u64>,
    ) -> Result<JobRecord, JobError> {
        let context = &self.context;
        if !context.allowed.jobs {
            return Err(JobError::Off);
        }
        let ceiling_ms = context.allowed.max_job_ms;
        if asked_ms.is_some_and(|asked_ms| asked_ms > ceiling_ms) {
            return Err(JobError::TooLong { ceiling_ms });
        }
        // Before there is a sandbox for it; what counts is asked again where it is written down.
        let seconds = seconds(asked_ms);
        let passed = context
            .store
            .read_now(|view| pass_job_gate(context, view, caller, seconds))?;
        passed.map_err(|denial| self.denied(caller, denial))?;
        let active = self.sandboxes.acquire(caller).await?;
        let id = JobId::from_bits(context.ids.bits());
        let in_flight = StartInFlight::new(context, id.clone());
        let record =
            self.intend(caller, &active, id, asked_ms)
                .await
                .map_err(|error| match error {
                    JobError::Acquire(AcquireError::Denied(denial)) => self.denied(caller, denial),
                    error => error,
                })?;
        let request = JobRequest {
            job: record.id.clone(),
            command: Command::Shell(command),
            cwd: None,
            env: std::collections::BTreeMap::new(),
            timeout_ms: record.max_ms,
        };
        let started = active.sandbox.start_job(request).await;
        let result = match started {
            // A very short one has ended by now: the follower writes down how.
            Ok(_) => self.running(record).await,
            Err(error) => {
                let reason = match &error {
                    SandboxError::Agent(error) => error.to_string(),
                    _ => "the sandbox did not answer".to_owned(),
                };
                let ending = Ending::untold(JobState::Failed, reason);
                // Without a record of it the follower finds out.
                if let Err(error) = settle(context, &record.id, ending, None).await {
                    tracing::warn!(job = %record.id, %error, "a failed start cannot be written down now");
                }
                Err(JobError::Sandbox {
                    error,
                    active: None,
                })
            }
        };
        drop(in_flight);
        if let Some(live) = self.live(&caller.workspace, &caller.chat, &active.lease) {
            JobBook::follow(context, &live);
        }
        result.map_err(|error| match error {
            JobError::Sandbox { error, .. } => JobError::Sandbox {
                error,
                active: Some(Box::new(active)),
            },
            error => error,
        })
    }

    /// Keeps a refusal for the operator.
    fn denied(&self, caller: &Caller, denial: Denial) -> JobError {
        self.sandboxes.record_denial(caller, denial);
        AcquireError::Denied(denial).into()
    }

    /// Writes the intent down, if the gate lets it through.
    async fn intend(
        &self,
        caller: &Caller,
        active: &ActiveSandbox,
        id: JobId,
        asked_ms: Option<u64>,
    ) -> Result<JobRecord, JobError> {
        let context = Arc::clone(&self.context);
        let (caller, lease, now) = (caller.clone(), active.lease.clone(), context.clock.now());
        let store = context.store.clone();
        store
            .write::<_, JobError, _>(move |tx| {
                pass_job_gate(&context, tx, &caller, seconds(asked_ms))??;
                let workspace_ms = tx.quotas(&caller.workspace)?.max_job_seconds * 1_000;
                // The end of its lease, which would take it along, may just have been written.
                let held = tx.lease(&lease)?;
                let lives = |state| matches!(state, LeaseState::Starting | LeaseState::Running);
                if !held.as_ref().is_some_and(|held| lives(held.state)) {
                    let why = held.and_then(|held| held.end);
                    let why = why.unwrap_or(EndReason::SandboxLost);
                    return Err(AcquireError::LeaseEnded(why).into());
                }
                let record = JobRecord {
                    id: id.clone(),
                    organization: caller.organization.clone(),
                    workspace: caller.workspace.clone(),
                    chat: caller.chat.clone(),
                    user: caller.user.clone(),
                    lease: lease.clone(),
                    state: JobState::Starting,
                    max_ms: job::ceiling_ms(asked_ms, context.allowed.max_job_ms, workspace_ms),
                    created_at: now,
                    ended_at: None,
                    exit_code: None,
                    signal: None,
                    reason: None,
                    stdout_bytes: 0,
                    stderr_bytes: 0,
                    duration_ms: None,
                };
                tx.put_job(&record)?;
                tx.audit(AuditRow {
                    at: now,
                    actor: caller.actor.clone(),
                    action: "job.started".into(),
                    subject: format!("job/{id}"),
                    fields: vec!["state".into(), "max_ms".into()],
                    request: Some(caller.request.to_string()),
                })?;
                Ok(record)
            })
            .await
    }

    async fn running(&self, mut record: JobRecord) -> Result<JobRecord, JobError> {
        record.state = JobState::Running;
        let written = record.clone();
        let kept = self
            .context
            .store
            .write::<_, StoreError, _>(move |tx| {
                let now = tx.job(&written.id)?;
                match now {
                    // Its lease may have ended in between and taken it along.
                    Some(now) if now.state.has_ended() => Ok(now),
                    _ => tx.put_job(&written).map(|()| written),
                }
            })
            .await?;
        Ok(kept)
    }

    fn live(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        lease: &LeaseId,
    ) -> Option<Arc<LiveLease>> {
        let live = self.context.live.get(workspace, chat)?;
        (live.id == *lease).then_some(live)
    }

    /// The sandbox that runs a job, or ran it and still does.
    fn sandbox(&self, job: &JobRecord) -> Option<Arc<dyn Sandbox>> {
        self.live(&job.workspace, &job.chat, &job.lease)?
            .door
            .sandbox()
    }

    /// The jobs of a chat, the newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
    ) -> Result<Vec<JobRecord>, JobError> {
        let (workspace, chat) = (workspace.clone(), chat.clone());
        let store = &self.context.store;
        Ok(store
            .read(move |view| view.jobs_of_chat(&workspace, &chat))
            .await?)
    }

    fn record(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        job: &JobId,
    ) -> Result<JobRecord, JobError> {
        let record = self.context.store.read_now(|view| view.job(job))?;
        record
            .filter(|record| record.workspace == *workspace && record.chat == *chat)
            .ok_or(JobError::Unknown)
    }

    /// One job of a chat, as it is now.
    ///
    /// # Errors
    /// There is none of this id, or the store failed.
    pub async fn get(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        job: &JobId,
    ) -> Result<JobRecord, JobError> {
        let record = self.record(workspace, chat, job)?;
        if record.state != JobState::Running {
            return Ok(record);
        }
        let Some(sandbox) = self.sandbox(&record) else {
            return Ok(record);
        };
        match sandbox.job(job).await {
            Ok(status) if status.state == AgentState::Running => Ok(JobRecord {
                stdout_bytes: status.stdout_bytes,
                stderr_bytes: status.stderr_bytes,
                ..record
            }),
            Ok(status) => {
                let Ok(tails) = fetch_tails(&*sandbox, &status).await else {
                    return Ok(record);
                };
                let Some(ending) = Ending::told(status) else {
                    return Ok(record);
                };
                let settled = settle(&self.context, job, ending, Some(tails)).await?;
                settled.ok_or(JobError::Unknown)
            }
            // What became of it is for the follower to find out.
            Err(_) => Ok(record),
        }
    }

    /// A piece of a job's output from `offset` on, at most `limit` bytes. When there is none yet,
    /// waits up to `wait_ms` for some, or for the job's end. Once the sandbox is gone, only the end
    /// of the output is left: then `offset` of the answer says where it begins.
    ///
    /// # Errors
    /// There is no such job, the sandbox does not answer, or the store failed.
    pub async fn output(
        &self,
        (workspace, chat, job): (&WorkspaceId, &ChatId, &JobId),
        stream: OutputStream,
        offset: u64,
        limit: u64,
        wait_ms: u64,
    ) -> Result<JobPiece, JobError> {
        let limit = limit.min(limits::MAX_JOB_READ_BYTES);
        let until = Instant::now() + Duration::from_millis(wait_ms.min(limits::MAX_JOB_WAIT_MS));
        loop {
            // First how it stands, then what there is: so an ended job's piece is complete.
            let record = self.get(workspace, chat, job).await?;
            let piece = self.piece(&record, stream, offset, limit).await?;
            let is_over = record.state.has_ended() && piece.total <= offset;
            if !piece.bytes.is_empty() || is_over || Instant::now() >= until {
                return Ok(piece);
            }
            let pause = Duration::from_millis(limits::JOB_WAIT_POLL_MS);
            tokio::time::sleep_until((Instant::now() + pause).min(until)).await;
        }
    }

    async fn piece(
        &self,
        record: &JobRecord,
        stream: OutputStream,
        offset: u64,
        limit: u64,
    ) -> Result<JobPiece, JobError> {
        if let Some(sandbox) = self.sandbox(record) {
            match sandbox.job_output(&record.id, stream, offset, limit).await {
                Ok(output) => {
                    return Ok(JobPiece {
                        job: record.clone(),
                        offset: output.offset,
                        total: output.total,
                        bytes: output.bytes,
                    });
                }
                Err(SandboxError::Agent(error)) if error.code == AgentErrorCode::NotFound => {}
                Err(error) if !record.state.has_ended() => {
                    return Err(JobError::Sandbox {
                        error,
                        active: None,
                    });
                }
                Err(_) => {}
            }
        }
        let tails = self
            .context
            .store
            .read_now(|view| view.job_tails(&record.id))?;
        let tails = tails.unwrap_or_default();
        let (tail, written) = match stream {
            OutputStream::Stdout => (tails.stdout, record.stdout_bytes),
            OutputStream::Stderr => (tails.stderr, record.stderr_bytes),
        };
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let (from, bytes) = tail.read(offset, most);
        Ok(JobPiece {
            job: record.clone(),
            offset: from,
            total: written.max(tail.end()),
            bytes: Bytes::copy_from_slice(bytes),
        })
    }

    /// Stops a job and all its processes, and says how it ended. Stopping one that has ended
    /// changes nothing.
    ///
    /// # Errors
    /// There is no such job, the sandbox does not answer, or the store failed.
    pub async fn stop(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        job: &JobId,
        (actor, request): (Actor, RequestId),
    ) -> Result<JobRecord, JobError> {
        let record = self.get(workspace, chat, job).await?;
        if record.state.has_ended() {
            return Ok(record);
        }
        let Some(sandbox) = self.sandbox(&record) else {
            // It is on its way to lost.
            return Ok(record);
        };
        let failed = |error| JobError::Sandbox {
            error,
            active: None,
        };
        let status = match sandbox.stop_job(job).await {
            Ok(status) => status,
            Err(SandboxError::Agent(error)) if error.code == AgentErrorCode::NotFound => {
                return Ok(record);
            }
            Err(error) => return Err(failed(error)),
        };
        let tails = fetch_tails(&*sandbox, &status).await.ok();
        let Some(mut ending) = Ending::told(status) else {
            // It cannot be killed yet; its status shows that it runs.
            return Ok(record);
        };
        ending.actor = actor;
        ending.request = Some(request.to_string());
        let settled = settle(&self.context, job, ending, tails).await?;
        settled.ok_or(JobError::Unknown)
    }
}
