//! Remembers which nonces were used, for as long as a replay could still pass the clock check.

use std::collections::{HashSet, VecDeque};

use hotcell_types::limits::{MAX_CLOCK_SKEW_SECONDS, MAX_NONCES};

/// Why a nonce is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NonceError {
    /// This key used this nonce before.
    #[error("this request was already received")]
    Replayed,
    /// So many requests came in the last two minutes that no more can be remembered.
    #[error("too many requests to remember")]
    Full,
}

/// Nonces by key, forgotten two windows after they were seen.
///
/// A request stamped `t` passes the clock check until `t + 60 s`, and may arrive as early as
/// `t - 60 s`; so a nonce seen at `s` must be kept until `s + 120 s`.
#[derive(Debug)]
pub struct NonceCache {
    seen: HashSet<String>,
    order: VecDeque<(u64, String)>,
    capacity: usize,
}

impl Default for NonceCache {
    fn default() -> Self {
        Self::with_capacity(MAX_NONCES)
    }
}

impl NonceCache {
    /// How long a nonce is remembered, in seconds.
    pub const RETENTION_SECONDS: u64 = 2 * MAX_CLOCK_SKEW_SECONDS + 1;

    /// A cache that remembers at most this many.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            seen: HashSet::new(),
            order: VecDeque::new(),
            capacity,
        }
    }

    /// Takes a nonce, once.
    ///
    /// # Errors
    /// [`NonceError::Replayed`] the second time, [`NonceError::Full`] when no more fit: failing
    /// closed, since forgetting one early would let a replay pass.
    pub fn take(&mut self, key: &str, nonce: &str, now_seconds: u64) -> Result<(), NonceError> {
        while self
            .order
            .front()
            .is_some_and(|(seen_at, _)| seen_at + Self::RETENTION_SECONDS < now_seconds)
        {
            if let Some((_, entry)) = self.order.pop_front() {
                self.seen.remove(&entry);
            }
        }
        // Neither part can hold a colon, so the pair is unambiguous.
        let entry = format!("{key}:{nonce}");
        if self.seen.contains(&entry) {
            return Err(NonceError::Replayed);
        }
        if self.seen.len() >= self.capacity {
            return Err(NonceError::Full);
        }
        self.seen.insert(entry.clone());
        self.order.push_back((now_seconds, entry));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_good_once_per_key_and_for_long_enough() {
        let mut cache = NonceCache::with_capacity(3);
        assert_eq!(cache.take("a", "n", 1000), Ok(()));
        assert_eq!(cache.take("a", "n", 1000), Err(NonceError::Replayed));
        assert_eq!(cache.take("b", "n", 1000), Ok(()));
        assert_eq!(cache.take("a", "n", 1121), Err(NonceError::Replayed));
        assert_eq!(cache.take("a", "n", 1122), Ok(()));
    }

    #[test]
    fn a_full_cache_refuses_rather_than_forgets() {
        let mut cache = NonceCache::with_capacity(1);
        assert_eq!(cache.take("a", "n", 0), Ok(()));
        assert_eq!(cache.take("a", "m", 0), Err(NonceError::Full));
        assert_eq!(cache.take("a", "m", 200), Ok(()));
    }
}
