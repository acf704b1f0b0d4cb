//! Admission: the one transaction that makes a lease.

use std::sync::Arc;

use hotcell_core::{
    gate::Denial,
    model::{AuditRow, LeaseRecord},
};
use hotcell_store::{NewLease, StoreError};
use hotcell_types::LeaseId;

use crate::{
    actors::{admission, context::Context, live::Slot},
    handles::{AcquireError, Caller},
};

/// Why a lease was not admitted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdmitError {
    /// The gate said no.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The member's files are being deleted.
    #[error("the member's files are being deleted")]
    BeingDeleted,
    /// The daemon holds as many sandboxes as it may.
    #[error("all {0} sandboxes of this daemon are taken")]
    Busy(usize),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<AdmitError> for AcquireError {
    fn from(error: AdmitError) -> Self {
        match error {
            AdmitError::Denied(denial) => Self::Denied(denial),
            AdmitError::BeingDeleted => Self::BeingDeleted,
            AdmitError::Busy(limit) => Self::Busy { limit },
            AdmitError::Store(error) => Self::Store(error),
        }
    }
}

/// Makes the record of a new lease and takes its slot, if the gate lets it through. The slot is
/// the last thing that is taken: whoever a quota refuses keeps nobody else out.
pub(super) async fn admit(
    context: Arc<Context>,
    caller: Box<Caller>,
) -> Result<(LeaseRecord, Slot), AdmitError> {
    // One that runs already, if there is any, with the id that it was made with.
    let warm = context.live.pool.take();
    let new = NewLease {
        id: match &warm {
            Some(warm) => warm.lease().clone(),
            None => LeaseId::from_bits(context.ids.bits()),
        },
        chat: caller.chat.clone(),
        user: caller.user.clone(),
        class: context.allowed.resource_class,
    };
    let now = context.clock.now();
    let store = context.store.clone();
    let (is_warm, live) = (warm.is_some(), Arc::clone(&context));
    let admitted = store
        .write::<_, AdmitError, _>(move |tx| {
            if tx
                .deletion(&caller.workspace, Some(&caller.user))?
                .is_some()
            {
                return Err(AdmitError::BeingDeleted);
            }
            let record = match tx.admit_lease(&admission::ask(&context, &caller), &new, now)? {
                Ok(record) => record,
                // No error: what the store learnt about the clock is kept.
                Err(denial) => return Ok(Err(denial)),
            };
            let slot = match is_warm {
                // It has its place.
                true => context.live.has_room().then_some(None),
                false => context.live.admit().map(Some),
            };
            let slot = slot.ok_or_else(|| AdmitError::Busy(context.live.limit()))?;
            tx.audit(AuditRow {
                at: now,
                actor: caller.actor.clone(),
                action: "lease.admitted".into(),
                subject: format!("lease/{}", record.id),
                fields: vec!["state".into()],
                request: Some(caller.request.to_string()),
            })?;
            Ok(Ok((record, slot)))
        })
        .await;
    let admitted = admitted.and_then(|gated| gated.map_err(AdmitError::from));
    match admitted {
        Ok((record, slot)) => {
            // It is one of the two, by construction.
            let slot = slot.or_else(|| warm?.admitted());
            Ok((record, slot.unwrap_or_else(|| live.live.force_slot())))
        }
        Err(error) => {
            // A store that fails may have written the id down all the same: that one is given up.
            if !matches!(error, AdmitError::Store(_))
                && let Some(warm) = warm
            {
                warm.put_back();
            }
            Err(error)
        }
    }
}
