//! What doors without a sandbox ask of the gate, and what operators look at.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hotcell_core::{
    gate::{Denial, Quota},
    model::{EndReason, LeaseState},
};
use hotcell_store::StoreError;
use hotcell_types::{WorkspaceId, limits};

use crate::{
    actors::admission,
    handles::{AcquireError, Caller, Sandboxes},
    metrics::{Metrics, Moment},
    switches::Switches,
};

/// Every state that a lease can be in, by name.
const STATES: [(LeaseState, &str); 4] = [
    (LeaseState::Starting, "starting"),
    (LeaseState::Running, "running"),
    (LeaseState::Idle, "idle"),
    (LeaseState::Ending, "ending"),
];

impl Sandboxes {
    /// Keeps a refusal for the operator.
    pub(crate) fn record_denial(&self, caller: &Caller, denial: Denial) {
        self.context.denials.record(caller, denial);
    }

    /// The same refusal, kept for the operator when it is one of the gate.
    pub(crate) fn recorded<T>(
        &self,
        caller: &Caller,
        result: Result<T, AcquireError>,
    ) -> Result<T, AcquireError> {
        if let Err(AcquireError::Denied(denial)) = &result {
            self.record_denial(caller, *denial);
        }
        result
    }

    /// Whether the gate lets the caller bring files in. Which profile a sandbox would get does
    /// not matter yet.
    ///
    /// # Errors
    /// The gate says no, or the store fails.
    pub(crate) fn may_bring_files(&self, caller: &Caller) -> Result<(), AcquireError> {
        let context = &*self.context;
        let passed = context
            .store
            .read_now(|view| admission::pass_gate(context, view, caller))
            .map_err(AcquireError::Store)?;
        match passed {
            Ok(_) | Err(Denial::Profile) => Ok(()),
            Err(denial) => self.recorded(caller, Err(AcquireError::Denied(denial))),
        }
    }

    /// Whether the caller's role may change things; no switch matters for that.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn needs_editor(&self, caller: &Caller) -> Result<(), AcquireError> {
        if caller.role.may_run_code() {
            return Ok(());
        }
        self.recorded(caller, Err(AcquireError::Denied(Denial::Role)))
    }

    /// Whether a job of at most `max_seconds` may start now, the workspace's quota included. The
    /// transaction that records the job asks again, with [`admission::pass_job_gate`].
    ///
    /// # Errors
    /// The gate says no, or the store fails.
    pub fn admit_job(&self, caller: &Caller, max_seconds: u64) -> Result<(), AcquireError> {
        let context = &*self.context;
        let passed = context
            .store
            .read_now(|view| admission::pass_job_gate(context, view, caller, max_seconds))
            .map_err(AcquireError::Store)?;
        let passed = passed.map(drop).map_err(AcquireError::Denied);
        self.recorded(caller, passed)
    }

    /// Writes down the refusals that are still in memory, so that the store has all of them.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn write_denials(&self) -> Result<(), StoreError> {
        self.context.denials.flush().await
    }

    /// What the environment forces.
    #[must_use]
    pub fn switches(&self) -> Switches {
        self.context.switches
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.context.metrics
    }

    /// Why a call got no sandbox, for the count of failed starts.
    pub(crate) fn is_failed_start(error: &AcquireError) -> bool {
        match error {
            AcquireError::StartTimedOut { .. }
            | AcquireError::StartFailed(_)
            | AcquireError::RuntimeUnavailable(_)
            | AcquireError::Internal(_) => true,
            AcquireError::LeaseEnded(reason) => *reason != EndReason::Requested,
            AcquireError::Denied(_)
            | AcquireError::BeingDeleted
            | AcquireError::LeaseOfAnotherUser
            | AcquireError::Busy { .. }
            | AcquireError::TooManyWaiting { .. }
            | AcquireError::ShuttingDown
            | AcquireError::Store(_) => false,
        }
    }

    /// What is true now, for `/metrics`. Quotas only for eyes that may see workspaces.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn moment(&self, with_quotas: bool) -> Result<Moment, StoreError> {
        let context = Arc::clone(&self.context);
        let mut of_state = [0_u64; STATES.len()];
        let mut workspaces: BTreeMap<WorkspaceId, ()> = BTreeMap::new();
        for live in context.live.all() {
            let record = live.record();
            if let Some(index) = STATES.iter().position(|(state, _)| *state == record.state) {
                of_state[index] += 1;
            }
            workspaces.insert(record.workspace, ());
        }
        let warm = context.live.pool.view();
        let mut moment = Moment {
            warm: (warm.wanted as u64, warm.ready as u64),
            leases: STATES.iter().map(|(_, name)| *name).zip(of_state).collect(),
            quotas: Vec::new(),
            store_waiting: context.store.waiting() as u64,
        };
        if with_quotas {
            let now = context.clock.now();
            moment.quotas = context
                .store
                .read(move |view| {
                    let mut rows = Vec::new();
                    for workspace in workspaces.keys().take(limits::MAX_PAGE_ROWS) {
                        let usage = view.quota_usage(workspace, now)?;
                        let quotas = &usage.quotas;
                        for (quota, used, limit) in [
                            (Quota::MaxConcurrent, usage.live, quotas.max_concurrent),
                            (
                                Quota::MaxJobsPerHour,
                                usage.admitted_in_hour,
                                quotas.max_jobs_per_hour,
                            ),
                            (
                                Quota::MaxArtifactBytesPerDay,
                                usage.stored_bytes_today,
                                quotas.max_artifact_bytes_per_day,
                            ),
                        ] {
                            rows.push((workspace.to_string(), quota.name(), used, limit));
                        }
                    }
                    Ok(rows)
                })
                .await?;
        }
        Ok(moment)
    }

    /// Whether the root of the supervision tree answers within `timeout_ms`: the round that the
    /// watchdog of the service manager stands for.
    pub async fn is_alive(&self, timeout_ms: u64) -> bool {
        let limit = Duration::from_millis(timeout_ms);
        let answered = tokio::time::timeout(limit, self.context.crew.round_trip()).await;
        answered.is_ok_and(|answered| answered)
    }
}
