//! The last look into a sandbox before it is stopped or removed.

use std::sync::Arc;

use async_trait::async_trait;
use hotcell_core::model::LeaseRecord;
use hotcell_runtime::Sandbox;

/// Collects what is ready in a sandbox for its chat. Whoever calls bounds it in time; what it has
/// collected until then stays.
#[async_trait]
pub trait FinalSweep: Send + Sync {
    /// How many files were collected. Idempotent: what the chat has already is not collected again.
    async fn sweep(&self, lease: &LeaseRecord, sandbox: Arc<dyn Sandbox>) -> usize;
}
