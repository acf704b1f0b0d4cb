//! Follows the jobs of running sandboxes, so that what they were is known when they are gone.
//!
//! ```text
//!   start ── intent in the store ── agent ── Running ──┐
//!   a lease's agent answers (start, wake, next daemon) ┴─► one follower per lease with live jobs:
//!        every second: what the store has × what the agent has
//!          it runs        the sandbox counts as used; the end of its output is remembered here
//!          it ended       its end and the end of its output are written down
//!          unknown there  it never started (Failed), or was lost
//!   the lease goes idle or ends ── the same change of the store ends its live jobs as lost
//! ```
//!
//! The agent keeps the whole output while the sandbox runs; what stays afterwards is the last
//! `limits::JOB_TAIL_BYTES` of each stream.

mod look;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hotcell_core::{
    job::JobTails,
    model::{Actor, AuditRow, EndReason, LeaseRecord, LeaseState},
};
use hotcell_runtime::Sandbox;
use hotcell_store::{StoreError, Tx};
use hotcell_types::{JobId, LeaseId, limits};
use tokio::{sync::Notify, task::JoinSet};

pub(crate) use look::{Ending, fetch_tails, settle};

use super::{
    context::Context,
    live::{LiveLease, lock},
};

/// What is followed of one lease.
#[derive(Default)]
struct Followed {
    /// Counts how often somebody asked for it to be followed.
    asked: AtomicU64,
    wake: Notify,
    /// The ends of the outputs of jobs that run, as they were last seen.
    seen: Mutex<HashMap<JobId, JobTails>>,
    runs: Mutex<bool>,
}

/// Who follows which jobs.
#[derive(Default)]
pub(crate) struct JobBook {
    followed: Mutex<HashMap<LeaseId, Arc<Followed>>>,
    /// Jobs that their agent is being asked for right now.
    starting: Mutex<HashSet<JobId>>,
    tasks: Mutex<JoinSet<()>>,
}

/// Says that a job's start is on its way, as long as it lives.
pub(crate) struct StartInFlight {
    context: Arc<Context>,
    job: JobId,
}

impl StartInFlight {
    pub(crate) fn new(context: &Arc<Context>, job: JobId) -> Self {
        lock(&context.jobs.starting).insert(job.clone());
        Self {
            context: Arc::clone(context),
            job,
        }
    }
}

impl Drop for StartInFlight {
    fn drop(&mut self) {
        lock(&self.context.jobs.starting).remove(&self.job);
    }
}

impl JobBook {
    fn is_starting(&self, job: &JobId) -> bool {
        lock(&self.starting).contains(job)
    }

    /// Follows the live jobs of a lease until there are none.
    pub(crate) fn follow(context: &Arc<Context>, live: &Arc<LiveLease>) {
        if context.is_leaving() {
            return;
        }
        let book = &context.jobs;
        let followed = Arc::clone(lock(&book.followed).entry(live.id.clone()).or_default());
        let mut runs = lock(&followed.runs);
        followed.asked.fetch_add(1, Ordering::AcqRel);
        followed.wake.notify_one();
        if std::mem::replace(&mut *runs, true) {
            return;
        }
        let task = follow(Arc::clone(context), Arc::clone(live), Arc::clone(&followed));
        let mut tasks = lock(&book.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// What was last seen of the output of a lease's jobs.
    fn seen(&self, lease: &LeaseId) -> HashMap<JobId, JobTails> {
        lock(&self.followed)
            .get(lease)
            .map(|followed| lock(&followed.seen).clone())
            .unwrap_or_default()
    }

    /// Forgets a lease that is over.
    pub(crate) fn forget(&self, lease: &LeaseId) {
        lock(&self.followed).remove(lease);
    }

    /// Stops following. The next daemon goes on with it.
    pub(crate) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
    }
}

async fn follow(context: Arc<Context>, live: Arc<LiveLease>, followed: Arc<Followed>) {
    let pause = Duration::from_millis(limits::JOB_POLL_INTERVAL_MS);
    let mut end = live.end();
    loop {
        let asked = followed.asked.load(Ordering::Acquire);
        let any_left = match look::look(&context, &live, &followed.seen).await {
            Ok(any_left) => any_left,
            Err(error) => {
                tracing::warn!(lease = %live.id, %error, "the jobs of the lease cannot be followed now");
                true
            }
        };
        if !any_left {
            let mut runs = lock(&followed.runs);
            if followed.asked.load(Ordering::Acquire) == asked {
                *runs = false;
                return;
            }
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = followed.wake.notified() => {}
            _ = end.wait_for(Option::is_some) => {
                // Its last words are written down with the lease's end.
                *lock(&followed.runs) = false;
                return;
            }
        }
    }
}

/// Whether a lease has jobs whose end is not written down.
pub(crate) fn any_live(context: &Context, lease: &LeaseId) -> bool {
    let live = context.store.read_now(|view| view.live_jobs(lease));
    live.is_ok_and(|live| !live.is_empty())
}

/// How the end of a lease is named in a job that it took along.
pub(crate) fn lost_to(record: &LeaseRecord) -> &'static str {
    match (&record.end, record.state) {
        (Some(EndReason::Requested), _) => "requested",
        (Some(EndReason::HardTimeLimit), _) => "hard_time_limit",
        (Some(EndReason::StartFailed(_)), _) => "start_failed",
        (Some(EndReason::OutOfMemory), _) => "out_of_memory",
        (Some(EndReason::RuntimeRestarted), _) => "runtime_restarted",
        (None, LeaseState::Idle) => "sandbox_stopped",
        (Some(EndReason::SandboxLost) | None, _) => "sandbox_lost",
    }
}

/// The part of a lease's write that ends its jobs, when that write stops or ends its sandbox.
pub(crate) struct Losses {
    record: LeaseRecord,
    seen: HashMap<JobId, JobTails>,
}

impl Losses {
    /// What the write of `record` will end.
    pub(crate) fn of(context: &Context, record: &LeaseRecord) -> Option<Self> {
        let ends = matches!(record.state, LeaseState::Idle | LeaseState::Ending);
        ends.then(|| Self {
            record: record.clone(),
            seen: context.jobs.seen(&record.id),
        })
    }

    /// Ends them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn write(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let Self { record, seen } = self;
        let at = record.changed_at;
        for job in tx.lose_jobs(&record.id, lost_to(record), at, seen)? {
            tx.audit(AuditRow {
                at,
                actor: Actor::System,
                action: "job.ended".into(),
                subject: format!("job/{job}"),
                fields: vec!["state".into(), "reason".into()],
                request: None,
            })?;
        }
        Ok(())
    }
}

/// Once more takes the ends of the outputs of jobs that the end of their lease has just ended,
/// while their sandbox still answers.
pub(crate) async fn refresh(context: &Context, lease: &LeaseId, sandbox: &dyn Sandbox) {
    let jobs: Vec<JobId> = context.jobs.seen(lease).into_keys().collect();
    for job in jobs {
        let Ok(status) = sandbox.job(&job).await else {
            continue;
        };
        let Ok(tails) = fetch_tails(sandbox, &status).await else {
            continue;
        };
        let kept = context
            .store
            .write::<_, StoreError, _>(move |tx| match tx.job(&job)? {
                Some(_) => tx.put_job_tails(&job, &tails),
                None => Ok(()),
            });
        if let Err(error) = kept.await {
            tracing::warn!(%lease, %error, "the last output of a job cannot be kept");
        }
    }
}
