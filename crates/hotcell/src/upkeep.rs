//! Forgetting what is past its time: audit rows, ended leases, idempotency keys.

use std::{sync::Arc, time::Duration};

use hotcell_store::{Store, StoreError};
use hotcell_types::{Clock, UnixMillis, limits};
use tokio_util::sync::CancellationToken;

use crate::{handles::Sandboxes, volumes::Volumes};

/// What was forgotten in one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub(crate) audit_rows: usize,
    pub(crate) leases: usize,
    pub(crate) idempotency_keys: usize,
}

/// Forgets every [`limits::FORGET_INTERVAL_MS`] until it is told to stop.
pub(crate) async fn run(store: Store, clock: Arc<dyn Clock>, stopping: CancellationToken) {
    loop {
        match forget(&store, clock.now(), &stopping).await {
            Ok(Forgotten {
                audit_rows: 0,
                leases: 0,
                idempotency_keys: 0,
            }) => {}
            Ok(forgotten) => tracing::info!(?forgotten, "forgot what was past its time"),
            Err(error) => tracing::warn!(%error, "what is past its time cannot be forgotten"),
        }
        let pause = Duration::from_millis(limits::FORGET_INTERVAL_MS);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopping.cancelled() => return,
        }
    }
}

/// Unmounts volumes that nobody uses, every [`limits::VOLUME_RELEASE_INTERVAL_MS`], until it is told to
/// stop.
pub(crate) async fn release_volumes(
    volumes: Volumes,
    sandboxes: Sandboxes,
    stopping: CancellationToken,
) {
    let context = sandboxes.context();
    loop {
        let pause = Duration::from_millis(limits::VOLUME_RELEASE_INTERVAL_MS);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopping.cancelled() => return,
        }
        let (volumes, context) = (volumes.clone(), Arc::clone(&context));
        let released = tokio::task::spawn_blocking(move || {
            volumes.release(|| {
                let live = context.live.all();
                live.iter()
                    .map(|lease| (lease.workspace.clone(), lease.user.clone()))
                    .collect()
            })
        });
        match released.await {
            Ok(Ok(0)) => {}
            Ok(Ok(released)) => tracing::debug!(released, "unmounted volumes"),
            Ok(Err(error)) => tracing::warn!(%error, "volumes cannot be unmounted"),
            Err(error) => tracing::warn!(%error, "volumes cannot be unmounted"),
        }
    }
}

/// Forgets everything that is past its time, a page at a time: other changes go between.
pub(crate) async fn forget(
    store: &Store,
    now: UnixMillis,
    stopping: &CancellationToken,
) -> Result<Forgotten, StoreError> {
    let ago = move |millis: u64| UnixMillis(now.0.saturating_sub(millis));
    let page = limits::MAX_PAGE_ROWS;
    let mut forgotten = Forgotten::default();
    let mut is_over = false;
    while !is_over && !stopping.is_cancelled() {
        let (audit_rows, leases, idempotency_keys) = store
            .write(move |tx| {
                Ok::<_, StoreError>((
                    tx.forget_audit(ago(limits::AUDIT_RETENTION_MS), page)?,
                    tx.forget_ended_leases(ago(limits::ENDED_LEASE_RETENTION_MS), page)?,
                    tx.forget_idempotency(now, page)?,
                ))
            })
            .await?;
        forgotten.audit_rows += audit_rows;
        forgotten.leases += leases;
        forgotten.idempotency_keys += idempotency_keys;
        is_over = [audit_rows, leases, idempotency_keys]
            .into_iter()
            .all(|rows| rows < page);
    }
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use hotcell_core::model::{Actor, AuditRow};
    use hotcell_store::{AuditFilter, StoreKey};

    use super::*;
    use crate::clock::{SystemClock, SystemIds};

    #[tokio::test]
    async fn old_rows_go_in_pages_and_young_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(
            &dir.path().join("store.redb"),
            StoreKey::new([7; 32]),
            Arc::new(SystemClock),
            Arc::new(SystemIds),
        )
        .unwrap();
        let now = UnixMillis(limits::AUDIT_RETENTION_MS + 1_000_000);
        let old = limits::MAX_PAGE_ROWS + 500;
        store
            .write::<(), StoreError, _>(move |tx| {
                for number in 0..old + 3 {
                    let at = if number < old { 999_999 } else { 1_000_000 };
                    tx.audit(AuditRow {
                        at: UnixMillis(at),
                        actor: Actor::System,
                        action: "x.y".into(),
                        subject: "z".into(),
                        fields: Vec::new(),
                        request: None,
                    })?;
                }
                Ok(())
            })
            .await
            .unwrap();
        let forgotten = forget(&store, now, &CancellationToken::new())
            .await
            .unwrap();
        assert_eq!(forgotten.audit_rows, old);
        let filter = AuditFilter {
            limit: 100,
            ..AuditFilter::default()
        };
        let (rows, _) = store.read_now(|view| view.audit_page(&filter)).unwrap();
        assert_eq!(rows.len(), 3);
        let again = forget(&store, now, &CancellationToken::new())
            .await
            .unwrap();
        assert_eq!(again, Forgotten::default());
    }
}
