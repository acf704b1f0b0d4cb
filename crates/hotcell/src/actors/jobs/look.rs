//! One look at the jobs of a lease, and what is written down of it.

use std::{collections::HashMap, sync::Mutex};

use hotcell_agent_proto::{JobState as AgentState, JobStatus};
use hotcell_core::{
    job::{JobRecord, JobState, JobTail, JobTails},
    model::{Actor, AuditRow},
};
use hotcell_runtime::{OutputStream, Sandbox, SandboxError};
use hotcell_store::StoreError;
use hotcell_types::{
    JobId,
    limits::{JOB_OVERDUE_MS, JOB_TAIL_BYTES},
};

use crate::actors::{
    context::Context,
    live::{LiveLease, lock},
};

/// How a job ended, as it is to be written down.
pub(crate) struct Ending {
    pub(crate) state: JobState,
    /// Why, for `Failed` and `Lost`.
    pub(crate) reason: Option<String>,
    /// What the agent said of it last.
    pub(crate) status: Option<JobStatus>,
    /// Who asked for it, when somebody did.
    pub(crate) actor: Actor,
    pub(crate) request: Option<String>,
}

impl Ending {
    /// As the agent tells it.
    pub(crate) fn told(status: JobStatus) -> Option<Self> {
        let state = match status.state {
            AgentState::Running => return None,
            AgentState::Exited => JobState::Exited,
            AgentState::Stopped => JobState::Stopped,
            AgentState::TimedOut => JobState::TimedOut,
        };
        Some(Self {
            state,
            reason: None,
            status: Some(status),
            actor: Actor::System,
            request: None,
        })
    }

    pub(crate) fn untold(state: JobState, reason: impl Into<String>) -> Self {
        Self {
            state,
            reason: Some(reason.into()),
            status: None,
            actor: Actor::System,
            request: None,
        }
    }
}

/// Writes down how a job ended, once; its record as it is then, if there is one.
///
/// # Errors
/// The store cannot be written.
pub(crate) async fn settle(
    context: &Context,
    job: &JobId,
    ending: Ending,
    tails: Option<JobTails>,
) -> Result<Option<JobRecord>, StoreError> {
    let (id, at) = (job.clone(), context.clock.now());
    let settled = context
        .store
        .write::<_, StoreError, _>(move |tx| {
            let Some(mut record) = tx.job(&id)? else {
                return Ok(None);
            };
            if record.state.has_ended() {
                return Ok(Some(record));
            }
            record.state = ending.state;
            record.reason = ending.reason.clone();
            record.ended_at = Some(at);
            if let Some(status) = &ending.status {
                record.exit_code = status.exit_code;
                record.signal.clone_from(&status.signal);
                record.stdout_bytes = status.stdout_bytes;
                record.stderr_bytes = status.stderr_bytes;
                record.duration_ms = Some(status.duration_ms);
            } else if record.state == JobState::Lost {
                record.duration_ms = Some(at.millis_since(record.created_at));
            }
            tx.put_job(&record)?;
            if let Some(tails) = &tails {
                tx.put_job_tails(&id, tails)?;
            }
            tx.audit(AuditRow {
                at,
                actor: ending.actor.clone(),
                action: "job.ended".into(),
                subject: format!("job/{id}"),
                fields: vec!["state".into()],
                request: ending.request.clone(),
            })?;
            Ok(Some(record))
        })
        .await?;
    if let Some(record) = &settled {
        // Idleness counts from here.
        if let Some(live) = context.live.get(&record.workspace, &record.chat)
            && live.id == record.lease
        {
            live.door.touch();
        }
        tracing::info!(job = %record.id, lease = %record.lease, state = ?record.state, "the job has ended");
    }
    Ok(settled)
}

/// The end of each output stream of a job.
///
/// # Errors
/// The sandbox does not say.
pub(crate) async fn fetch_tails(
    sandbox: &dyn Sandbox,
    status: &JobStatus,
) -> Result<JobTails, SandboxError> {
    let tail = async |stream, total: u64| {
        if total == 0 {
            return Ok(JobTail::default());
        }
        let from = total.saturating_sub(JOB_TAIL_BYTES);
        let piece = sandbox
            .job_output(&status.job, stream, from, JOB_TAIL_BYTES)
            .await?;
        let mut bytes = piece.bytes.to_vec();
        bytes.truncate(usize::try_from(JOB_TAIL_BYTES).unwrap_or(usize::MAX));
        Ok::<_, SandboxError>(JobTail {
            offset: piece.offset,
            bytes,
        })
    };
    Ok(JobTails {
        stdout: tail(OutputStream::Stdout, status.stdout_bytes).await?,
        stderr: tail(OutputStream::Stderr, status.stderr_bytes).await?,
    })
}

/// Compares what the store has of a lease's jobs with what its agent has. Whether any is left
/// that has not ended.
///
/// # Errors
/// The store failed; what the sandbox does not say is asked for again.
pub(super) async fn look(
    context: &Context,
    live: &LiveLease,
    seen: &Mutex<HashMap<JobId, JobTails>>,
) -> Result<bool, StoreError> {
    let id = live.id.clone();
    let records = context.store.read_now(|view| view.live_jobs(&id))?;
    if records.is_empty() {
        return Ok(false);
    }
    let Some(sandbox) = live.door.sandbox() else {
        return Ok(true);
    };
    let Ok(told) = sandbox.jobs().await else {
        // Whether it is lost is for the runtime to say.
        return Ok(true);
    };
    let now = context.clock.now();
    for record in records {
        if context.jobs.is_starting(&record.id) {
            continue;
        }
        let Some(status) = told.iter().find(|status| status.job == record.id).cloned() else {
            let ending = match record.state {
                JobState::Starting => {
                    Ending::untold(JobState::Failed, "it was interrupted before it began")
                }
                _ => Ending::untold(JobState::Lost, "sandbox_stopped"),
            };
            settle(context, &record.id, ending, None).await?;
            continue;
        };
        if status.state == AgentState::Running {
            // A job at work is use, and idleness counts from its end.
            live.door.touch();
            runs(context, &record).await?;
            let due = record.created_at.plus_millis(record.max_ms);
            if now > due.plus_millis(JOB_OVERDUE_MS) {
                overdue(context, &*sandbox, &record).await?;
                continue;
            }
            remember(&*sandbox, &status, seen).await;
            continue;
        }
        let Ok(tails) = fetch_tails(&*sandbox, &status).await else {
            return Ok(true);
        };
        if let Some(ending) = Ending::told(status) {
            settle(context, &record.id, ending, Some(tails)).await?;
            lock(seen).remove(&record.id);
        }
    }
    stop_strays(context, &*sandbox, &told).await?;
    let left = context.store.read_now(|view| view.live_jobs(&id))?;
    Ok(!left.is_empty())
}

/// It was written down as an intent by somebody who did not get to hear that it runs.
async fn runs(context: &Context, record: &JobRecord) -> Result<(), StoreError> {
    if record.state != JobState::Starting {
        return Ok(());
    }
    let id = record.id.clone();
    context
        .store
        .write(move |tx| match tx.job(&id)? {
            Some(mut record) if record.state == JobState::Starting => {
                record.state = JobState::Running;
                tx.put_job(&record)
            }
            _ => Ok(()),
        })
        .await
}

async fn remember(
    sandbox: &dyn Sandbox,
    status: &JobStatus,
    seen: &Mutex<HashMap<JobId, JobTails>>,
) {
    let is_known = lock(seen).get(&status.job).is_some_and(|tails| {
        tails.stdout.end() >= status.stdout_bytes && tails.stderr.end() >= status.stderr_bytes
    });
    if !is_known && let Ok(tails) = fetch_tails(sandbox, status).await {
        lock(seen).insert(status.job.clone(), tails);
    }
}

/// The agent keeps the ceiling; one that does not is not trusted with it for ever.
async fn overdue(
    context: &Context,
    sandbox: &dyn Sandbox,
    record: &JobRecord,
) -> Result<(), StoreError> {
    tracing::warn!(job = %record.id, lease = %record.lease, "a job ran past its ceiling and is stopped");
    if let Ok(status) = sandbox.stop_job(&record.id).await
        && status.state != AgentState::Running
    {
        let tails = fetch_tails(sandbox, &status).await.ok();
        if let Some(mut ending) = Ending::told(status) {
            ending.state = JobState::TimedOut;
            settle(context, &record.id, ending, tails).await?;
        }
    }
    Ok(())
}

/// Stops what runs although it is written down as over: its start was given up before the agent
/// heard of it.
async fn stop_strays(
    context: &Context,
    sandbox: &dyn Sandbox,
    told: &[JobStatus],
) -> Result<(), StoreError> {
    for status in told {
        if status.state != AgentState::Running || context.jobs.is_starting(&status.job) {
            continue;
        }
        let record = context.store.read_now(|view| view.job(&status.job))?;
        if record.is_some_and(|record| record.state.has_ended()) {
            // One that cannot be stopped now is seen again.
            let _ = sandbox.stop_job(&status.job).await;
        }
    }
    Ok(())
}
