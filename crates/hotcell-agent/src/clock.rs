//! The one place that reads wall-clock time.

use hotcell_types::{Clock, UnixMillis};

/// The system's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMillis {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let millis = u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
        UnixMillis(seconds.saturating_mul(1000).saturating_add(millis))
    }
}
