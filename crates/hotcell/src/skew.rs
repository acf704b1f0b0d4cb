//! How far the clocks of chat backends are from ours: `auth.clock_skew`.
//!
//! ```text
//!   0 s ─────────── 30 s ──────────────────── 60 s ──────────►
//!     nothing           told as a warning         refused
//! ```
//!
//! Only what came with a right signature is measured, so nobody can make a warning about another. Several
//! hosts may sign with one key: the farthest clock of the last while counts, and is forgotten when it did
//! not come back.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use hotcell_runtime::Check;
use hotcell_types::{CredentialId, UnixMillis, limits};

use crate::actors::lock;

/// The id of the check that tells of them.
pub(crate) const CHECK: &str = "auth.clock_skew";

#[derive(Debug, Clone, Copy)]
struct Measured {
    /// The client's clock less ours.
    seconds: i64,
    at: UnixMillis,
}

impl Measured {
    fn is_fresh(&self, now: UnixMillis) -> bool {
        // Both ways: a step of our own clock must not keep it for ever.
        now.0.abs_diff(self.at.0) <= limits::CLOCK_SKEW_MEMORY_MS
    }
}

/// The clocks that are off. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct ClockSkew {
    off: Arc<Mutex<HashMap<CredentialId, Measured>>>,
}

impl ClockSkew {
    /// A request that was signed rightly at `stamp` (seconds since 1970) came.
    pub(crate) fn measure(&self, client: &CredentialId, stamp: u64, now: UnixMillis) {
        let ours = now.seconds();
        let Ok(distance) = i64::try_from(ours.abs_diff(stamp)) else {
            return;
        };
        if distance.unsigned_abs() < limits::CLOCK_SKEW_WARNING_SECONDS {
            return;
        }
        let new = Measured {
            seconds: if stamp < ours { -distance } else { distance },
            at: now,
        };
        let mut off = lock(&self.off);
        off.retain(|_, measured| measured.is_fresh(now));
        let has_room = off.len() < limits::MAX_SKEWED_CLIENTS;
        match off.get_mut(client) {
            Some(old) if old.seconds.unsigned_abs() > new.seconds.unsigned_abs() => {}
            Some(old) => *old = new,
            None if has_room => {
                off.insert(client.clone(), new);
            }
            None => {}
        }
    }

    /// What an operator is told.
    pub(crate) fn check(&self, now: UnixMillis) -> Check {
        let mut off: Vec<(CredentialId, i64)> = lock(&self.off)
            .iter()
            .filter(|(_, measured)| measured.is_fresh(now))
            .map(|(client, measured)| (client.clone(), measured.seconds))
            .collect();
        off.sort_by(|(a, left), (b, right)| {
            let farthest = right.unsigned_abs().cmp(&left.unsigned_abs());
            farthest.then_with(|| a.cmp(b))
        });
        let Some((client, seconds)) = off.first() else {
            return Check::pass(
                CHECK,
                format!(
                    "no backend's clock is {} s off or more",
                    limits::CLOCK_SKEW_WARNING_SECONDS
                ),
            );
        };
        let way = if *seconds < 0 { "behind" } else { "ahead of" };
        let others = match off.len() - 1 {
            0 => String::new(),
            count => format!(
                "; {count} more are {} s off or more",
                limits::CLOCK_SKEW_WARNING_SECONDS
            ),
        };
        Check::warn(
            CHECK,
            format!(
                "the clock of the backend with the key {client} is {} s {way} ours{others}",
                seconds.unsigned_abs()
            ),
            format!(
                "let both hosts follow a time service: beyond {} s its requests are refused with clock_skew",
                limits::MAX_CLOCK_SKEW_SECONDS
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use hotcell_runtime::CheckStatus;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_800_000_000_900);

    fn told(stamps: &[(u128, i64)], later_ms: u64) -> Check {
        let skew = ClockSkew::default();
        for (client, seconds) in stamps {
            let stamp = NOW.seconds().checked_add_signed(*seconds).unwrap();
            skew.measure(&CredentialId::from_bits(*client), stamp, NOW);
        }
        skew.check(UnixMillis(NOW.0 + later_ms))
    }

    #[test]
    fn half_a_minute_is_told_both_ways_with_its_figure() {
        for seconds in [-29, 0, 29] {
            assert_eq!(told(&[(1, seconds)], 0).status, CheckStatus::Pass);
        }
        for (seconds, words) in [(-30, "30 s behind"), (30, "30 s ahead"), (59, "59 s ahead")] {
            let check = told(&[(1, seconds)], 0);
            assert_eq!(
                (check.id.as_str(), check.status),
                (CHECK, CheckStatus::Warn)
            );
            assert!(check.message.contains(words), "{}", check.message);
        }
    }

    #[test]
    fn the_farthest_counts_and_is_forgotten() {
        let of = [(1, 40), (1, -55), (1, 31), (2, 33)];
        let check = told(&of, 0);
        assert!(
            check
                .message
                .contains(&format!("{} is 55 s behind", CredentialId::from_bits(1))),
            "{}",
            check.message
        );
        assert!(check.message.contains("1 more"), "{}", check.message);
        let later = told(&of, limits::CLOCK_SKEW_MEMORY_MS + 1);
        assert_eq!(later.status, CheckStatus::Pass);
    }

    #[test]
    fn a_thousand_and_one_clocks_are_not_kept() {
        let skew = ClockSkew::default();
        for number in 0..=limits::MAX_SKEWED_CLIENTS {
            let client = CredentialId::from_bits(number as u128);
            skew.measure(&client, NOW.seconds() + 45, NOW);
        }
        assert_eq!(lock(&skew.off).len(), limits::MAX_SKEWED_CLIENTS);
        // A stamp of any size does no harm.
        skew.measure(&CredentialId::from_bits(0), u64::MAX, NOW);
        assert_eq!(skew.check(NOW).status, CheckStatus::Warn);
    }
}
