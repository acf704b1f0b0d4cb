//! The slow effects: each runs in a task and comes back as a message.
//!
//! Calls that change the sandbox hold the lease's engine lock, so that a removal never overtakes
//! the creation that it undoes. Every one of them has a time limit, after which it is dropped
//! and counts as failed.

use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use hotcell_agent_proto::JobState;
use hotcell_core::{
    lease::{Attempt, Event, Loss, Seen},
    model::{AuditRow, LeaseRecord},
};
use hotcell_runtime::{
    Labels, Runtime, RuntimeError, Sandbox, SandboxEnd, SandboxError, SandboxSpec, VolumeMount,
};
use hotcell_store::StoreError;
use hotcell_types::limits;
use ractor::ActorRef;
use tokio::{
    sync::Mutex,
    task::{AbortHandle, JoinSet},
};

use super::msg::LeaseMsg;
use crate::actors::{
    context::Context,
    jobs::{self, Losses},
    live::LiveLease,
};

/// The first pause before a write is repeated that failed for a reason that may pass; it doubles.
const WRITE_RETRY_MIN: Duration = Duration::from_millis(200);
/// The longest such pause.
const WRITE_RETRY_MAX: Duration = Duration::from_secs(10);

/// A write of the record.
pub(super) struct Write {
    pub(super) attempt: Attempt,
    pub(super) record: LeaseRecord,
    pub(super) audit: Option<AuditRow>,
}

/// What the tasks of one lease's actor share.
pub(super) struct Effects {
    context: Arc<Context>,
    live: Arc<LiveLease>,
    myself: ActorRef<LeaseMsg>,
    engine: Arc<Mutex<()>>,
    tasks: JoinSet<()>,
    agent: Option<AbortHandle>,
    watch: Option<AbortHandle>,
    writes: VecDeque<Write>,
    writing: bool,
}

impl Effects {
    pub(super) fn new(
        context: Arc<Context>,
        live: Arc<LiveLease>,
        myself: ActorRef<LeaseMsg>,
    ) -> Self {
        Self {
            context,
            live,
            myself,
            engine: Arc::default(),
            tasks: JoinSet::new(),
            agent: None,
            watch: None,
            writes: VecDeque::new(),
            writing: false,
        }
    }

    /// Forgets tasks that are done.
    pub(super) fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    /// Runs `work` and sends what it says; a panic in it is a failed effect, not a lost one.
    fn spawn(
        &mut self,
        attempt: Attempt,
        work: impl Future<Output = LeaseMsg> + Send + 'static,
    ) -> AbortHandle {
        let myself = self.myself.clone();
        self.tasks.spawn(async move {
            let message = AssertUnwindSafe(work).catch_unwind().await;
            let message = message.unwrap_or_else(|_| {
                let reason = "a task of the lease panicked".to_owned();
                LeaseMsg::Failed(
                    attempt,
                    RuntimeError::Failed {
                        action: "run an effect",
                        reason,
                    },
                )
            });
            // The actor is gone: its successor finds out by itself.
            let _ = myself.cast(message);
        })
    }

    /// Runs a call that changes the sandbox, after those before it.
    fn engine<F>(
        &mut self,
        attempt: Attempt,
        limit_ms: u64,
        done: fn(Attempt) -> Event,
        call: impl FnOnce(Arc<Context>, Arc<dyn Runtime>) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), RuntimeError>> + Send + 'static,
    {
        let (context, engine) = (Arc::clone(&self.context), Arc::clone(&self.engine));
        self.spawn(attempt, async move {
            let _turn = engine.lock().await;
            let result = async {
                let runtime = context.profile.runtime()?;
                within(limit_ms, call(context, runtime)).await
            };
            match result.await {
                Ok(()) => LeaseMsg::Happened(done(attempt)),
                Err(error) => LeaseMsg::Failed(attempt, error),
            }
        });
    }

    pub(super) fn create(&mut self, attempt: Attempt, record: &LeaseRecord) {
        let (record, live) = (record.clone(), Arc::clone(&self.live));
        let limit_ms = self.context.limits.start_timeout_ms;
        self.engine(
            attempt,
            limit_ms,
            Event::SandboxCreated,
            |context, runtime| async move {
                let mut result = create(&context, &*runtime, &live, &record).await;
                if matches!(result, Err(RuntimeError::NoSuchImage(_))) {
                    // The name may mean another image by now.
                    context.profile.forget_image();
                    result = create(&context, &*runtime, &live, &record).await;
                }
                result?;
                // Before anything runs in it.
                context.egress.ensure(&context, &record).await
            },
        );
    }

    pub(super) fn start(&mut self, attempt: Attempt) {
        let (lease, record) = (self.live.id.clone(), self.live.record());
        let limit_ms = self.context.limits.start_timeout_ms;
        self.engine(
            attempt,
            limit_ms,
            Event::SandboxStarted,
            |context, runtime| async move {
                context.egress.ensure(&context, &record).await?;
                // A volume of one that was idle may have been unmounted.
                volumes_of(&context, &record).await?;
                let key = context.store.agent_key(&lease);
                runtime.start(&lease, &key).await
            },
        );
    }

    pub(super) fn stop(&mut self, attempt: Attempt) {
        let lease = self.live.id.clone();
        self.engine(
            attempt,
            limits::ENGINE_END_TIMEOUT_MS,
            Event::SandboxStopped,
            |_, runtime| async move { runtime.stop(&lease).await },
        );
    }

    pub(super) fn remove(&mut self, attempt: Attempt) {
        let lease = self.live.id.clone();
        self.engine(
            attempt,
            limits::ENGINE_END_TIMEOUT_MS,
            Event::SandboxRemoved,
            |context, runtime| async move {
                context.live.pool.forget(&lease);
                match runtime.remove(&lease).await {
                    Ok(()) | Err(RuntimeError::NoSuchSandbox) => {}
                    result => return result,
                }
                // Only now: without a sandbox there is nothing to let through.
                context.egress.remove(&context, &lease).await
            },
        );
    }

    pub(super) fn observe(&mut self, attempt: Attempt) {
        let (context, lease) = (Arc::clone(&self.context), self.live.id.clone());
        let engine = Arc::clone(&self.engine);
        self.spawn(attempt, async move {
            // At boot it may still be being opened.
            context.profile.tried().await;
            // What runs now would change what is seen.
            let _turn = engine.lock().await;
            match context.profile.observe(&lease).await {
                Ok(seen) => LeaseMsg::Happened(Event::Observed(attempt, seen)),
                Err(error) => LeaseMsg::Failed(attempt, error),
            }
        });
    }

    pub(super) fn await_agent(&mut self, attempt: Attempt) {
        let (context, lease) = (Arc::clone(&self.context), self.live.id.clone());
        let record = self.live.record();
        let task = self.spawn(attempt, async move {
            let answer = async {
                let runtime = context.profile.runtime()?;
                // One that is adopted runs already: its rules are in the kernel.
                context.egress.ensure(&context, &record).await?;
                let key = context.store.agent_key(&lease);
                let sandbox = runtime.sandbox(&lease, &key)?;
                let ready = sandbox.ready(context.limits.start_timeout_ms).await;
                ready.map_err(agent_failure)?;
                Ok(sandbox)
            };
            match answer.await {
                Ok(sandbox) => LeaseMsg::Answered(attempt, sandbox),
                Err(error) => LeaseMsg::Failed(attempt, error),
            }
        });
        if let Some(older) = self.agent.replace(task) {
            older.abort();
        }
    }

    /// Stops waiting for the agent: its sandbox is about to go.
    pub(super) fn forget_agent(&mut self) {
        if let Some(task) = self.agent.take() {
            task.abort();
        }
    }

    pub(super) fn watch(&mut self, watch: Attempt) {
        let (context, lease) = (Arc::clone(&self.context), self.live.id.clone());
        let myself = self.myself.clone();
        // Not through `spawn`: watches are numbered on their own.
        let task = self.tasks.spawn(async move {
            let end = async { context.profile.runtime()?.wait(&lease).await };
            let event = match AssertUnwindSafe(end).catch_unwind().await {
                Ok(Ok(SandboxEnd::OutOfMemory)) => Event::SandboxEnded(watch, Loss::OutOfMemory),
                Ok(Ok(SandboxEnd::Exited | SandboxEnd::Stopped)) => {
                    Event::SandboxEnded(watch, Loss::Died)
                }
                Ok(Ok(SandboxEnd::Lost)) => Event::SandboxEnded(watch, Loss::EngineLost),
                Ok(Err(RuntimeError::NoSuchSandbox)) => Event::SandboxEnded(watch, Loss::Died),
                Ok(Err(_)) | Err(_) => Event::WatchFailed(watch),
            };
            let _ = myself.cast(LeaseMsg::Happened(event));
        });
        if let Some(older) = self.watch.replace(task) {
            older.abort();
        }
    }

    pub(super) fn ask_for_jobs(&mut self, attempt: Attempt, sandbox: Option<Arc<dyn Sandbox>>) {
        let (context, lease) = (Arc::clone(&self.context), self.live.id.clone());
        self.spawn(attempt, async move {
            let asked = async {
                let sandbox = sandbox.ok_or(RuntimeError::NoSuchSandbox)?;
                sandbox.jobs().await.map_err(agent_failure)
            };
            match asked.await {
                Ok(jobs) => {
                    let running = jobs.iter().any(|job| job.state == JobState::Running);
                    // One that has ended is awake until its end is written down.
                    let running = running || jobs::any_live(&context, &lease);
                    LeaseMsg::Happened(Event::JobsAnswered(attempt, running))
                }
                Err(error) => LeaseMsg::Failed(attempt, error),
            }
        });
    }

    /// Collects what is ready in the sandbox. Never fails: what cannot be had is not had.
    pub(super) fn sweep(&mut self, attempt: Attempt, record: &LeaseRecord) {
        let (context, record) = (Arc::clone(&self.context), record.clone());
        self.spawn(attempt, async move {
            let limit = Duration::from_millis(limits::FINAL_SWEEP_TIMEOUT_MS);
            let swept = tokio::time::timeout(limit, sweep(&context, &record)).await;
            match swept {
                Ok(Ok(0)) => {}
                Ok(Ok(files)) => {
                    tracing::info!(lease = %record.id, files, "collected what was ready")
                }
                Ok(Err(error)) => {
                    tracing::info!(lease = %record.id, %error, "nothing could be collected")
                }
                Err(_) => {
                    tracing::warn!(lease = %record.id, "not everything was collected in time")
                }
            }
            LeaseMsg::Happened(Event::SandboxSwept(attempt))
        });
    }

    /// Writes a record, after those before it.
    pub(super) fn write(&mut self, write: Write) {
        self.writes.push_back(write);
        self.write_next();
    }

    /// One write is done.
    pub(super) fn wrote(&mut self) {
        self.writing = false;
        self.write_next();
    }

    fn write_next(&mut self) {
        if self.writing {
            return;
        }
        let Some(write) = self.writes.pop_front() else {
            return;
        };
        self.writing = true;
        let (context, live) = (Arc::clone(&self.context), Arc::clone(&self.live));
        let losses = Losses::of(&context, &write.record).map(Arc::new);
        let Write {
            attempt,
            record,
            audit,
        } = write;
        self.spawn(attempt, async move {
            let mut pause = WRITE_RETRY_MIN;
            loop {
                let (row, audit) = (record.clone(), audit.clone());
                let losses = losses.clone();
                let result = context
                    .store
                    .write::<(), StoreError, _>(move |tx| {
                        tx.put_lease(&row)?;
                        if let Some(losses) = &losses {
                            losses.write(tx)?;
                        }
                        if let Some(audit) = audit.clone() {
                            tx.audit(audit)?;
                        }
                        Ok(())
                    })
                    .await;
                match result {
                    Err(error) if error.is_transient() => {
                        tracing::warn!(lease = %record.id, %error, "the lease cannot be written down yet");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(WRITE_RETRY_MAX);
                    }
                    result => {
                        if result.is_ok() {
                            live.set_record(record);
                        }
                        return LeaseMsg::Wrote(attempt, result);
                    }
                }
            }
        });
    }
}

async fn within<T>(
    limit_ms: u64,
    work: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let limit = Duration::from_millis(limit_ms);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        Err(RuntimeError::Failed {
            action: "answer",
            reason: format!("nothing came back within {limit_ms} ms"),
        })
    })
}

fn agent_failure(error: SandboxError) -> RuntimeError {
    RuntimeError::StartFailed(error.to_string())
}

async fn sweep(context: &Arc<Context>, record: &LeaseRecord) -> Result<usize, RuntimeError> {
    // At boot it may still be being opened.
    context.profile.tried().await;
    let runtime = context.profile.runtime()?;
    let sandbox = runtime.sandbox(&record.id, &context.store.agent_key(&record.id))?;
    jobs::refresh(context, &record.id, &*sandbox).await;
    match &context.final_sweep {
        Some(sweep) => Ok(sweep.sweep(record, sandbox).await),
        None => Ok(0),
    }
}

async fn create(
    context: &Arc<Context>,
    runtime: &dyn Runtime,
    live: &LiveLease,
    record: &LeaseRecord,
) -> Result<(), RuntimeError> {
    let mounts = volumes_of(context, record).await?;
    let spec = SandboxSpec {
        labels: Labels {
            installation: context.store.installation(),
            lease: record.id.clone(),
            workspace: record.workspace.clone(),
            chat: record.chat.clone(),
        },
        image: context.profile.image().await?,
        resources: record.resource_class.resources(),
        scratch_bytes: context.scratch_bytes,
        mounts,
        network: context.egress.pin(context, record).await?,
        agent_key: context.store.agent_key(&record.id),
    };
    if claim(context, runtime, &spec).await {
        live.set_claimed();
        return Ok(());
    }
    // Of one that could not be claimed nothing is left afterwards.
    let created = runtime.create(&spec).await;
    context.live.pool.forget(&record.id);
    if let Err(RuntimeError::EgressUnenforceable(reason)) = &created {
        context.egress.tell_refused(record, reason);
    }
    created
}

/// Claims the sandbox that was made ahead for this lease, if there is one. Whatever goes wrong, the
/// lease is started cold.
async fn claim(context: &Context, runtime: &dyn Runtime, spec: &SandboxSpec) -> bool {
    let lease = &spec.labels.lease;
    if !context.live.pool.is_taken(lease) {
        return false;
    }
    match within(limits::WARM_CLAIM_TIMEOUT_MS, runtime.claim(spec)).await {
        Ok(()) => {
            context.live.pool.forget(lease);
            context.metrics.claimed("warm");
            true
        }
        Err(error) => {
            tracing::warn!(%lease, %error, "a warm sandbox cannot be claimed; a cold one is made");
            context.metrics.claimed("cold");
            false
        }
    }
}

/// The volumes of a lease, there and mounted.
async fn volumes_of(
    context: &Context,
    record: &LeaseRecord,
) -> Result<Vec<VolumeMount>, RuntimeError> {
    let volumes = context.volumes.clone();
    let of = record.clone();
    let mounts = tokio::task::spawn_blocking(move || volumes.mounts_for(&of));
    match mounts.await {
        Ok(Ok(mounts)) => Ok(mounts),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::StorageFull => {
            Err(RuntimeError::DiskFull(error.to_string()))
        }
        Ok(Err(error)) => Err(no_volumes(&error)),
        Err(error) => Err(no_volumes(&error)),
    }
}

fn no_volumes(error: &dyn std::error::Error) -> RuntimeError {
    RuntimeError::Failed {
        action: "make the volumes of the sandbox",
        reason: error.to_string(),
    }
}

/// What the machine needs to know of what the runtime shows.
pub(crate) fn seen(state: Option<hotcell_runtime::ObservedState>) -> Seen {
    use hotcell_runtime::ObservedState::{Created, Running, Stopped};
    match state {
        Some(Running) => Seen::Running,
        Some(Created | Stopped) => Seen::Stopped,
        None => Seen::Nothing,
    }
}
