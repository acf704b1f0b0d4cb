//! When to start a child again, decided without a clock.

use std::collections::VecDeque;

/// Which exits of a child are followed by a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Every exit.
    Permanent,
    /// Failures only: a panic, an error, a kill, a failed start. A normal stop is the end.
    Transient,
    /// None.
    Temporary,
}

/// How long to wait before a restart: `min_ms · factor^n`, at most `max_ms`, of which between half and all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub min_ms: u64,
    /// The longest delay.
    pub max_ms: u64,
    /// What each further failure multiplies the delay by.
    pub factor: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            min_ms: 100,
            max_ms: 30_000,
            factor: 2,
        }
    }
}

/// How many restarts a child may need.
///
/// The window counts the time in which the child was up, not the delays before restarts, so
/// that a child that always fails at once uses its budget up whatever the backoff is. A child that was up for a
/// whole window begins with a full budget and the first delay again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartBudget {
    /// This many restarts.
    pub max_restarts: u32,
    /// Within this much time of being up.
    pub within_ms: u64,
}

impl Default for RestartBudget {
    fn default() -> Self {
        Self {
            max_restarts: 5,
            within_ms: 60_000,
        }
    }
}

/// What to do about a child that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Start it again after this delay.
    RestartIn {
        /// The delay.
        delay_ms: u64,
    },
    /// It is faulted.
    GiveUp,
}

/// The memory of one child's failures.
#[derive(Debug, Clone)]
pub struct RestartMachine {
    backoff: Backoff,
    budget: RestartBudget,
    /// All the time that the child was up.
    up_ms: u64,
    /// What [`Self::up_ms`] was at each restart within the window.
    restarts: VecDeque<u64>,
    /// Failures since the last calm window.
    streak: u32,
}

impl RestartMachine {
    /// A child that has not failed yet.
    #[must_use]
    pub fn new(backoff: Backoff, budget: RestartBudget) -> Self {
        Self {
            backoff,
            budget,
            up_ms: 0,
            restarts: VecDeque::new(),
            streak: 0,
        }
    }

    /// The child failed after it was up for `ran_ms`. `jitter` is from 0 to 1.
    pub fn failed(&mut self, ran_ms: u64, jitter: f64) -> Verdict {
        self.up_ms = self.up_ms.saturating_add(ran_ms);
        if ran_ms >= self.budget.within_ms {
            self.streak = 0;
            self.restarts.clear();
        }
        let window = self.budget.within_ms;
        while self
            .restarts
            .front()
            .is_some_and(|at| self.up_ms - at >= window)
        {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= self.budget.max_restarts as usize {
            return Verdict::GiveUp;
        }
        self.restarts.push_back(self.up_ms);
        let factor = u64::from(self.backoff.factor).saturating_pow(self.streak);
        let nominal_ms = self
            .backoff
            .min_ms
            .saturating_mul(factor)
            .min(self.backoff.max_ms);
        self.streak = self.streak.saturating_add(1);
        let half_ms = nominal_ms / 2;
        // Below 2^53 a delay is exact as a float; no delay is anywhere near.
        let spread_ms = ((nominal_ms - half_ms) as f64 * jitter.clamp(0.0, 1.0)).round() as u64;
        Verdict::RestartIn {
            delay_ms: half_ms + spread_ms,
        }
    }

    /// Somebody retries a faulted child: a full budget again.
    pub fn forgive(&mut self) {
        self.restarts.clear();
        self.streak = 0;
    }
}
