//! What the gate refused, on its way into the store.
//!
//! ```text
//!   refusal ──► pending, in memory ──► at most half a second later, all in one write ──► store
//!                                          ▲
//!                    an operator who looks, or a shutdown, has it written at once
//! ```
//! A refusal must cost the backend nothing and the disk little, whoever repeats it in a loop: so
//! it is not written in the call's own way. A crash loses the refusals of half a second.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hotcell_core::gate::{Denial, DenialRecord};
use hotcell_store::{Store, StoreError};
use hotcell_types::{Clock, limits};

use crate::{actors::lock, handles::Caller, metrics::Metrics};

/// Keeps refusals for the operator. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Denials {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    pending: Mutex<VecDeque<DenialRecord>>,
    /// Whether somebody will write what is pending.
    is_due: AtomicBool,
    /// One writes at a time, so that rows stay in their order.
    writing: tokio::sync::Mutex<()>,
}

impl Denials {
    pub(crate) fn new(store: Store, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                clock,
                metrics,
                pending: Mutex::default(),
                is_due: AtomicBool::new(false),
                writing: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Keeps a refusal.
    pub(crate) fn record(&self, caller: &Caller, denial: Denial) {
        let inner = &self.inner;
        inner.metrics.denied(denial.name());
        let record = DenialRecord {
            at: inner.clock.now(),
            organization: caller.organization.clone(),
            workspace: caller.workspace.clone(),
            chat: caller.chat.clone(),
            user: caller.user.clone(),
            role: caller.role,
            name: String::new(),
            limit: None,
            request: Some(caller.request.to_string()),
        };
        self.push([record.of(denial)]);
        self.write_soon();
    }

    fn push(&self, records: impl IntoIterator<Item = DenialRecord>) {
        let mut pending = lock(&self.inner.pending);
        pending.extend(records);
        let lost = pending.len().saturating_sub(limits::MAX_PENDING_DENIALS);
        pending.drain(..lost);
        self.inner.metrics.denials_lost(lost as u64);
    }

    fn write_soon(&self) {
        if self.inner.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let denials = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(limits::DENIAL_FLUSH_MS)).await;
            denials.inner.is_due.store(false, Ordering::Release);
            if let Err(error) = denials.flush().await {
                tracing::warn!(%error, "denials cannot be written down yet");
                denials.write_soon_unless(&error);
            }
        });
    }

    fn write_soon_unless(&self, error: &StoreError) {
        if error.is_transient() {
            self.write_soon();
        }
    }

    /// Writes everything that is pending.
    ///
    /// # Errors
    /// The store cannot be written; it stays pending then.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let _turn = self.inner.writing.lock().await;
        let records: Vec<DenialRecord> = lock(&self.inner.pending).drain(..).collect();
        if records.is_empty() {
            return Ok(());
        }
        let records = Arc::new(records);
        let to_write = Arc::clone(&records);
        let written = self.inner.store.write(move |tx| tx.put_denials(&to_write));
        written.await.inspect_err(|_| {
            let mut later: Vec<DenialRecord> = lock(&self.inner.pending).drain(..).collect();
            let mut all = Arc::unwrap_or_clone(records);
            all.append(&mut later);
            self.push(all);
        })
    }
}
