//! Admission: the one transaction that makes a lease.

use std::sync::Arc;

use hotcell_core::{
    gate::{self, Admission, Denial, GateFacts},
    model::{AuditRow, LeaseRecord, LeaseState},
};
use hotcell_store::{Snapshot, StoreError};
use hotcell_types::{LeaseId, ProfileId};

use crate::{
    actors::{context::Context, live::Slot},
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
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<AdmitError> for AcquireError {
    fn from(error: AdmitError) -> Self {
        match error {
            AdmitError::Denied(denial) => Self::Denied(denial),
            AdmitError::BeingDeleted => Self::BeingDeleted,
            AdmitError::Store(error) => Self::Store(error),
        }
    }
}

/// Passes the gate with what is written down now.
///
/// # Errors
/// The gate says no, or the store cannot be read.
pub(crate) fn pass_gate(
    view: &Snapshot<'_>,
    caller: &Caller,
    profile: &ProfileId,
) -> Result<Result<Admission, Denial>, StoreError> {
    let deployment = view.deployment()?;
    let organization = view.organization(&caller.organization)?;
    let workspace = view.workspace(&caller.workspace)?;
    Ok(gate::admit(&GateFacts {
        deployment: Some(&deployment),
        organization: organization.as_ref(),
        workspace: workspace.as_ref(),
        role: caller.role,
        // Whether its engine is open is another question, with an answer of its own.
        active_profiles: std::slice::from_ref(profile),
    }))
}

/// Makes the record of a new lease, if the gate lets it through. The slot comes back with it.
pub(super) async fn admit(
    context: Arc<Context>,
    caller: Box<Caller>,
    slot: Slot,
) -> Result<(LeaseRecord, Slot), AdmitError> {
    let id = LeaseId::from_bits(context.ids.bits());
    let now = context.clock.now();
    let profile = context.profile.id.clone();
    let resource_class = context.allowed.resource_class;
    let record = context
        .store
        .write::<LeaseRecord, AdmitError, _>(move |tx| {
            let admission = pass_gate(tx, &caller, &profile)??;
            if tx
                .deletion(&caller.workspace, Some(&caller.user))?
                .is_some()
            {
                return Err(AdmitError::BeingDeleted);
            }
            let record = LeaseRecord {
                id,
                organization: caller.organization.clone(),
                workspace: caller.workspace.clone(),
                chat: caller.chat.clone(),
                user: caller.user.clone(),
                profile: admission.profile,
                resource_class,
                state: LeaseState::Starting,
                created_at: now,
                changed_at: now,
                end: None,
            };
            tx.put_lease(&record)?;
            tx.audit(AuditRow {
                at: now,
                actor: caller.actor.clone(),
                action: "lease.admitted".into(),
                subject: format!("lease/{}", record.id),
                fields: vec!["state".into()],
                request: Some(caller.request.to_string()),
            })?;
            Ok(record)
        })
        .await?;
    Ok((record, slot))
}
