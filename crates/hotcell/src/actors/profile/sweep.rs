//! Compares what the engine has with what the store knows.
//!
//! | the store says       | the engine has a sandbox              | it has none, or it does not run |
//! |----------------------|---------------------------------------|---------------------------------|
//! | the lease lives      | its actor looks after it              | the lease is told to look       |
//! | the lease has ended  | a leftover of a crash: removed        | –                               |
//! | nothing              | left alone, and the operator is told  | –                               |
//!
//! What the store has never heard of is never touched: the store may be older than the sandbox,
//! restored from a backup, and then the sandbox may hold somebody's work.

use std::{collections::HashMap, sync::Arc, time::Duration};

use hotcell_core::model::LeaseState;
use hotcell_runtime::{ObservedState, Runtime};
use hotcell_types::limits;

use crate::actors::{context::Context, lease::LeaseMsg};

/// One sweep. What an operator should know.
pub(crate) async fn sweep(context: &Arc<Context>, runtime: &dyn Runtime) -> Vec<String> {
    let limit = Duration::from_millis(limits::ENGINE_LIST_TIMEOUT_MS);
    // Taken first: a lease that is admitted from now on is no business of this sweep.
    let live = context.live.all();
    let observed = match tokio::time::timeout(limit, runtime.list()).await {
        Ok(Ok(observed)) => observed,
        Ok(Err(error)) => return vec![error.to_string()],
        Err(_) => return vec!["the runtime does not list its sandboxes in time".into()],
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
    let mut unknown = 0_usize;
    for sandbox in &observed {
        let id = sandbox.lease.clone();
        let record = context.store.read(move |view| view.lease(&id)).await;
        match record {
            Ok(Some(record)) if record.state == LeaseState::Ended => {
                let limit = Duration::from_millis(limits::ENGINE_END_TIMEOUT_MS);
                let removed = tokio::time::timeout(limit, runtime.remove(&sandbox.lease)).await;
                match removed {
                    Ok(Ok(())) => {
                        let filter = context.egress.remove(context, &sandbox.lease).await;
                        if let Err(error) = filter {
                            tracing::warn!(lease = %sandbox.lease, %error, "its filter stays");
                        }
                        tracing::info!(lease = %sandbox.lease, "removed what an ended lease left behind");
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(lease = %sandbox.lease, %error, "what an ended lease left behind cannot be removed");
                    }
                    Err(_) => {
                        tracing::warn!(lease = %sandbox.lease, "what an ended lease left behind is not removed in time");
                    }
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                tracing::warn!(
                    lease = %sandbox.lease,
                    "the runtime has a sandbox of this installation that the store does not know; it is left alone"
                );
                unknown += 1;
            }
            Err(error) => return vec![error.to_string()],
        }
    }
    context.crew.retry_leases(&context.live.all()).await;
    context.egress.retry_guards(context).await;
    forget_old(context).await;
    if unknown == 0 {
        Vec::new()
    } else {
        vec![format!(
            "the runtime has {unknown} sandboxes of this installation that the store does not know; \
             if the store was restored from a backup, look at them before you remove them"
        )]
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
