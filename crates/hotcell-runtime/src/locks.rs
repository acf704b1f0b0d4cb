//! One lock per lease: effects on one sandbox happen one after the other, in every runtime.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use hotcell_types::LeaseId;
use tokio::sync::OwnedMutexGuard;

/// The locks of all leases that are in use now.
#[derive(Debug, Default)]
pub struct LeaseLocks {
    held: Mutex<HashMap<LeaseId, Arc<tokio::sync::Mutex<()>>>>,
}

impl LeaseLocks {
    /// Waits until nothing else works on this lease.
    pub async fn lock(&self, lease: &LeaseId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            // A lock that only this map knows is free: nobody holds it or waits for it.
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(held.entry(lease.clone()).or_default())
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn free_locks_are_forgotten_and_held_ones_are_not() {
        let locks = LeaseLocks::default();
        let one = LeaseId::from_bits(1);
        let held = locks.lock(&one).await;
        for bits in 2..20 {
            drop(locks.lock(&LeaseId::from_bits(bits)).await);
        }
        assert!(locks.held.lock().unwrap().len() <= 2);
        let mut second = Box::pin(locks.lock(&one));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(held);
        second.await;
    }
}
