//! Sandboxes that the engine has and the store has never heard of: after the store was restored from
//! a backup, for instance. Nobody removes them but an operator who says so.

use std::time::Duration;

use hotcell_core::model::{Actor, AuditRow};
use hotcell_runtime::RuntimeError;
use hotcell_store::StoreError;
use hotcell_types::{LeaseId, ProfileId, RequestId, limits};

use crate::{actors::profile::ProfileMsg, handles::Sandboxes};

/// Why unknown sandboxes were not removed.
#[derive(Debug, thiserror::Error)]
pub enum UnknownError {
    /// There is no such profile.
    #[error("there is no such profile")]
    NoSuchProfile,
    /// One of those that were named is not unknown: the store has its lease, or the engine has none.
    #[error("{0} is no unknown sandbox")]
    Known(LeaseId),
    /// The engine failed.
    #[error("the engine failed")]
    Engine(#[from] RuntimeError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl Sandboxes {
    /// Removes sandboxes that the store has never heard of; all or none are looked at before the
    /// first is removed. What the last sweep found counts.
    ///
    /// # Errors
    /// See [`UnknownError`]. Those before the one that failed are removed.
    pub async fn remove_unknown(
        &self,
        profile: &ProfileId,
        leases: Vec<LeaseId>,
        (actor, request): (Actor, RequestId),
    ) -> Result<(), UnknownError> {
        let context = self.context();
        if context.profile.id != *profile {
            return Err(UnknownError::NoSuchProfile);
        }
        let runtime = context.profile.runtime()?;
        let unknown = context.profile.view().unknown;
        for lease in &leases {
            let is_known = context.store.read_now(|view| view.lease(lease))?.is_some();
            if is_known || !unknown.contains(lease) {
                return Err(UnknownError::Known(lease.clone()));
            }
        }
        for lease in leases {
            let row = AuditRow {
                at: context.clock.now(),
                actor: actor.clone(),
                action: "sandbox.removed".into(),
                subject: format!("sandbox/{lease}"),
                fields: Vec::new(),
                request: Some(request.to_string()),
            };
            context
                .store
                .write::<_, StoreError, _>(move |tx| tx.audit(row).map(drop))
                .await?;
            let limit = Duration::from_millis(limits::ENGINE_END_TIMEOUT_MS);
            let removed = tokio::time::timeout(limit, runtime.remove(&lease)).await;
            match removed {
                Ok(Ok(()) | Err(RuntimeError::NoSuchSandbox)) => {
                    tracing::info!(%lease, "an unknown sandbox was removed as asked");
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {
                    return Err(UnknownError::Engine(RuntimeError::Failed {
                        action: "remove a sandbox",
                        reason: format!("nothing came back within {} ms", limit.as_millis()),
                    }));
                }
            }
        }
        // What is left is shown at once.
        let question = |port| ProfileMsg::Sweep(Some(port));
        let swept = context
            .profile
            .actor
            .call(question, limits::ENGINE_LIST_TIMEOUT_MS);
        if let Err(error) = swept.await {
            tracing::info!(%error, "the sweep afterwards did not run");
        }
        Ok(())
    }
}
