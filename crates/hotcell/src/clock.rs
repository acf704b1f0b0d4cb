//! The one place that reads the system's clock and its randomness.

use std::time::{SystemTime, UNIX_EPOCH};

use hotcell_types::{Clock, IdSource, UnixMillis};

/// The wall clock of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the injected Clock that everything else reads"
    )]
    fn now(&self) -> UnixMillis {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A generator that is seeded by the kernel and cannot be guessed.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemIds;

impl IdSource for SystemIds {
    fn bits(&self) -> u128 {
        rand::random()
    }
}
