//! The day's bytes of collected files.

use hotcell_core::{
    gate::{self, Denial},
    model::OutputRecord,
};
use hotcell_store::{StoreError, Tx};
use hotcell_types::UnixMillis;

use super::{
    App,
    error::{ApiError, denied},
};
use crate::handles::Caller;

/// Why collected files were not stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotStored {
    /// The day's bytes are used up.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Refuses before anything is read when the day has no byte left.
pub(super) fn room_today(app: &App, caller: &Caller) -> Result<(), ApiError> {
    let now = app.clock.now();
    let (left, quotas) = app.store.read_now(|view| {
        let left = view.output_bytes_left(&caller.workspace, now)?;
        Ok((left, view.quotas(&caller.workspace)?))
    })?;
    if left > 0 {
        return Ok(());
    }
    let full = quotas.max_artifact_bytes_per_day;
    // Nobody knows yet how large the files are: at least one byte.
    gate::admit_outputs(&quotas, full, 1, now).map_err(|denial| {
        app.sandboxes.record_denial(caller, denial);
        denied(denial)
    })
}

/// Takes the files from the day, in the transaction that records them.
pub(super) fn take(
    tx: &mut Tx<'_>,
    records: &[OutputRecord],
    now: UnixMillis,
) -> Result<(), NotStored> {
    let Some(first) = records.first() else {
        return Ok(());
    };
    let bytes = records.iter().map(|record| record.bytes).sum();
    Ok(tx.admit_outputs(&first.workspace, bytes, now)??)
}
