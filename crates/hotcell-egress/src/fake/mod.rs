//! The edges of a filter in memory: deterministic, and shared by clones as a kernel is shared by a
//! daemon and its successor.

mod ask;
mod firewall;
mod host;
mod mortal;
mod upstream;

pub use ask::ask;
pub use firewall::{FakeFirewall, FirewallCall, FirewallHook};
pub use host::FakeHost;
pub use upstream::FakeUpstream;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a test that panicked elsewhere must not hide its own message behind this one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
