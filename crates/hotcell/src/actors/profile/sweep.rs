//! Compares what the engine has with what the store knows.
//!
//! | the store says       | the engine has a sandbox              | it has none, or it does not run |
//! |----------------------|---------------------------------------|---------------------------------|
//! | the lease lives      | its actor looks after it              | the lease is told to look       |
//! | the lease has ended  | a leftover of a crash: removed        | –                               |
//! | nothing              | left alone, and the operator is asked | –                               |
//!
//! What was made ahead and is unclaimed is nobody's work: without a live lease, and unless it is of this
//! daemon's pool, it is removed whatever the store says.
//!
//! What the store has never heard of is never touched: the store may be older than the sandbox,
//! restored from a backup, and then the sandbox may hold somebody's work. A store that may be older
//! cannot be trusted about what has ended either, so nothing at all is removed until the operator
//! has said what is to become of the unknown ones (`unknown.rs`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use hotcell_core::model::LeaseState;
use hotcell_runtime::{ObservedState, Runtime};
use hotcell_types::{LeaseId, limits};

use crate::actors::{context::Context, lease::LeaseMsg};

/// What a sweep found.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// What an operator should know.
    pub(crate) warnings: Vec<String>,
    /// The sandboxes that the store has never heard of; `None` when nobody could say.
    pub(crate) unknown: Option<Vec<LeaseId>>,
}

impl Swept {
    fn failed(reason: impl Into<String>) -> Self {
        Self {
            warnings: vec![reason.into()],
            unknown: None,
        }
    }
}

/// One sweep.
pub(crate) async fn sweep(context: &Arc<Context>, runtime: &dyn Runtime) -> Swept {
    let limit = Duration::from_millis(limits::ENGINE_LIST_TIMEOUT_MS);
    // Taken first: a lease that is admitted from now on is no business of this sweep.
    let live = context.live.all();
    let observed = match tokio::time::timeout(limit, runtime.list()).await {
        Ok(Ok(observed)) => observed,
        Ok(Err(error)) => return Swept::failed(error.to_string()),
        Err(_) => return Swept::failed("the runtime does not list its sandboxes in time"),
    };
    let states: HashMap<_, _> = observed.iter().map(|s| (&s.lease, s.state)).collect();
    for lease in live {
        let state = states.get(&lease.id).copied();
        let suspicious = match lease.record().state {
            LeaseState::Running => state != Some(ObservedState::Running),
            LeaseState::Idle => {
                !matches!(state, Some(ObservedState::Stopped | ObservedState::Created))
            }
            LeaseState::Starting | LeaseState::Ending | LeaseState::Ended => false,
        };
        if suspicious {
            // It looks for itself: by now it may be right.
            let _ = lease.address.cast(LeaseMsg::Suspect);
        }
    }
    let (mut unknown, mut ended) = (Vec::new(), Vec::new());
    for sandbox in &observed {
        // Asked before the store: an id leaves the pool after it was written down there.
        let is_of_pool = context.live.pool.knows(&sandbox.lease);
        let id = sandbox.lease.clone();
        let record = context.store.read(move |view| view.lease(&id)).await;
        match record {
            Ok(Some(record)) if sandbox.unclaimed && record.state != LeaseState::Ended => {}
            Ok(_) if sandbox.unclaimed => {
                if !is_of_pool {
                    remove_unclaimed(runtime, &sandbox.lease).await;
                }
            }
            Ok(Some(record)) if record.state == LeaseState::Ended => ended.push(&sandbox.lease),
            Ok(Some(_)) => {}
            Ok(None) => unknown.push(sandbox.lease.clone()),
            Err(error) => return Swept::failed(error.to_string()),
        }
    }
    if unknown.is_empty() {
        for lease in ended {
            remove_leftover(context, runtime, lease).await;
        }
        context.egress.sweep_leftovers(context, runtime).await;
    }
    context.crew.retry_leases(&context.live.all()).await;
    context.egress.retry_guards(context).await;
    forget_old(context).await;
    let warnings = if unknown.is_empty() {
        Vec::new()
    } else {
        tracing::warn!(
            ?unknown,
            "the runtime has sandboxes of this installation that the store does not know; nothing is swept until an operator decides"
        );
        vec![format!(
            "the runtime has {} sandboxes of this installation that the store does not know, as after \
             it was restored from a backup; nothing is swept until you decide: \
             `hotcell sandbox unknown` lists them, `hotcell sandbox remove-unknown` removes them",
            unknown.len()
        )]
    };
    Swept {
        warnings,
        unknown: Some(unknown),
    }
}

/// Removes what an earlier daemon made ahead.
async fn remove_unclaimed(runtime: &dyn Runtime, lease: &LeaseId) {
    let limit = Duration::from_millis(limits::ENGINE_END_TIMEOUT_MS);
    match tokio::time::timeout(limit, runtime.remove_unclaimed(lease)).await {
        Ok(Ok(())) => tracing::info!(%lease, "removed a sandbox that nobody has claimed"),
        Ok(Err(error)) => {
            tracing::warn!(%lease, %error, "a sandbox that nobody has claimed cannot be removed");
        }
        Err(_) => {
            tracing::warn!(%lease, "a sandbox that nobody has claimed is not removed in time")
        }
    }
}

/// Removes what an ended lease left behind.
async fn remove_leftover(context: &Arc<Context>, runtime: &dyn Runtime, lease: &LeaseId) {
    let limit = Duration::from_millis(limits::ENGINE_END_TIMEOUT_MS);
    match tokio::time::timeout(limit, runtime.remove(lease)).await {
        Ok(Ok(())) => {
            if let Err(error) = context.egress.remove(context, lease).await {
                tracing::warn!(%lease, %error, "its filter stays");
            }
            tracing::info!(%lease, "removed what an ended lease left behind");
        }
        Ok(Err(error)) => {
            tracing::warn!(%lease, %error, "what an ended lease left behind cannot be removed");
        }
        Err(_) => {
            tracing::warn!(%lease, "what an ended lease left behind is not removed in time");
        }
    }
}

/// Forgets leases that ended long ago.
async fn forget_old(context: &Arc<Context>) {
    let before = context
        .clock
        .now()
        .0
        .saturating_sub(limits::ENDED_LEASE_RETENTION_MS);
    let before = hotcell_types::UnixMillis(before);
    let old = context
        .store
        .read(move |view| Ok(!view.ended_leases(Some(before), 1)?.is_empty()))
        .await;
    if matches!(old, Ok(true)) {
        let forgotten = context
            .store
            .write(move |tx| tx.forget_ended_leases(before, limits::MAX_PAGE_ROWS))
            .await;
        if let Err(error) = forgotten {
            tracing::warn!(%error, "old leases cannot be forgotten");
        }
    }
}
