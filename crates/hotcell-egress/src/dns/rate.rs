//! How many questions a sandbox may ask.

use std::time::Duration;

use tokio::time::Instant;

/// Leave to ask: fills up steadily to one second's worth.
pub(super) struct Bucket {
    per_second: u32,
    millionths: u64,
    filled_at: Instant,
}

impl Bucket {
    const ONE: u64 = 1_000_000;

    /// A full one.
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        Self {
            per_second,
            millionths: u64::from(per_second) * Self::ONE,
            filled_at: now,
        }
    }

    /// Takes leave for one question, if there is any.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(self.filled_at).as_micros();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let full = u64::from(self.per_second) * Self::ONE;
        let gained = passed.saturating_mul(self.per_second.into());
        self.millionths = self.millionths.saturating_add(gained).min(full);
        // What is less than a microsecond is not lost, however often somebody asks.
        self.filled_at += Duration::from_micros(passed);
        match self.millionths.checked_sub(Self::ONE) {
            Some(left) => {
                self.millionths = left;
                true
            }
            None => false,
        }
    }
}
