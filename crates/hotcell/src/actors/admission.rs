//! The one gate that every door to a sandbox passes.
//!
//! | door | passes |
//! |---|---|
//! | any call into a sandbox, the wake of an idle one, a retry | [`pass_gate`] |
//! | a new sandbox | `Tx::admit_lease`, with what [`ask`] makes of the caller |
//! | a job | [`pass_job_gate`], in the transaction that records it |
//! | collected files | `Tx::admit_outputs`, in the transaction that records them |

use hotcell_core::gate::{Admission, Denial};
use hotcell_store::{GateAsk, Snapshot, StoreError};

use super::context::Context;
use crate::handles::Caller;

/// What a caller asks of the gate.
pub(crate) fn ask<'a>(context: &'a Context, caller: &'a Caller) -> GateAsk<'a> {
    GateAsk {
        forced_off: context.switches.forced_off,
        organization: &caller.organization,
        workspace: &caller.workspace,
        role: caller.role,
        // Whether its engine is open is another question, with an answer of its own.
        active_profiles: std::slice::from_ref(&context.profile.id),
    }
}

/// Passes the gate with what is written down now.
///
/// # Errors
/// The store cannot be read. The refusal is the inner result.
pub(crate) fn pass_gate(
    context: &Context,
    view: &Snapshot<'_>,
    caller: &Caller,
) -> Result<Result<Admission, Denial>, StoreError> {
    view.pass_gate(&ask(context, caller))
}

/// Passes the gate for a job of at most `max_seconds`. A transaction is a view too: ask inside
/// the one that records the job.
///
/// # Errors
/// The store cannot be read. The refusal is the inner result.
pub(crate) fn pass_job_gate(
    context: &Context,
    view: &Snapshot<'_>,
    caller: &Caller,
    max_seconds: u64,
) -> Result<Result<Admission, Denial>, StoreError> {
    view.admit_job(&ask(context, caller), max_seconds)
}
