//! Whether the store can be written, found out by writing it.
//!
//! The answer is good for [`limits::STORE_CHECK_MS`], and whoever asks meanwhile shares it: `/readyz` is
//! open to everybody, and must not be a way to keep the disk busy.

use std::time::Duration;

use hotcell_store::StoreError;
use hotcell_types::limits;
use tokio::{sync::Mutex, time::Instant};

use crate::actors::context::Context;

/// The last answer and when it was found.
#[derive(Default)]
pub(crate) struct StoreCheck(Mutex<Option<(Instant, Result<(), String>)>>);

impl StoreCheck {
    /// Whether the store takes writes; if not, why.
    pub(crate) async fn check(&self, context: &Context) -> Result<(), String> {
        let mut last = self.0.lock().await;
        let still_good = Duration::from_millis(limits::STORE_CHECK_MS);
        if let Some((at, answer)) = &*last
            && at.elapsed() < still_good
        {
            return answer.clone();
        }
        let now = context.clock.now();
        let limit = Duration::from_millis(limits::ACTOR_CALL_TIMEOUT_MS);
        let write = context
            .store
            .write::<(), StoreError, _>(move |tx| tx.probe(now));
        let answer = match tokio::time::timeout(limit, write).await {
            Ok(written) => written.map_err(|error| error.to_string()),
            Err(_) => Err("a write takes too long".to_owned()),
        };
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}
