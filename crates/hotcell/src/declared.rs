//! Makes what the configuration declares so, when the daemon starts.

use hotcell_core::declared::Declarations;
use hotcell_store::{DeclareError, Reconciled, Store};
use hotcell_types::UnixMillis;

/// One change of the store, with its audit rows; tells the journal what was changed.
///
/// # Errors
/// It contradicts what is stored, or the store failed. Nothing was changed then.
pub(crate) async fn reconcile(
    store: &Store,
    declarations: &Declarations,
    at: UnixMillis,
) -> Result<(), DeclareError> {
    let wanted = declarations.clone();
    let Reconciled {
        changed,
        released,
        being_deleted,
    } = store.write(move |tx| tx.reconcile(&wanted, at)).await?;
    for object in changed {
        tracing::info!(key = object.key(), "{object} is as it is declared");
    }
    for object in released {
        tracing::info!(
            key = object.key(),
            "{object} is no longer declared: it stays as it is and can be changed"
        );
    }
    for workspace in being_deleted {
        tracing::warn!(
            %workspace,
            "a workspace is declared and is being deleted: it is made anew at the next start after that"
        );
    }
    Ok(())
}
