//! The restart machine alone.

use proptest::prelude::*;

use crate::{Backoff, RestartBudget, RestartMachine, Verdict};

const BACKOFF: Backoff = Backoff {
    min_ms: 100,
    max_ms: 1_500,
    factor: 2,
};
const BUDGET: RestartBudget = RestartBudget {
    max_restarts: 6,
    within_ms: 10_000,
};

fn delays(machine: &mut RestartMachine, runs_ms: &[u64], jitter: f64) -> Vec<Option<u64>> {
    runs_ms
        .iter()
        .map(|ran_ms| match machine.failed(*ran_ms, jitter) {
            Verdict::RestartIn { delay_ms } => Some(delay_ms),
            Verdict::GiveUp => None,
        })
        .collect()
}

#[test]
fn delays_double_up_to_the_longest_and_then_the_budget_is_used_up() {
    let mut machine = RestartMachine::new(BACKOFF, BUDGET);
    let wanted = [100, 200, 400, 800, 1_500, 1_500]
        .map(Some)
        .into_iter()
        .chain([None, None])
        .collect::<Vec<_>>();
    assert_eq!(delays(&mut machine, &[0; 8], 1.0), wanted);
    machine.forgive();
    assert_eq!(delays(&mut machine, &[0, 0], 0.0), [Some(50), Some(100)]);
}

#[test]
fn a_calm_window_restores_the_budget_and_the_first_delay() {
    let mut machine = RestartMachine::new(BACKOFF, BUDGET);
    assert_eq!(
        delays(&mut machine, &[0, 0, 0, 9_999, 10_000, 0], 1.0),
        [
            Some(100),
            Some(200),
            Some(400),
            Some(800),
            Some(100),
            Some(200)
        ]
    );
}

#[test]
fn failures_that_are_far_apart_never_use_the_budget_up() {
    let mut machine = RestartMachine::new(BACKOFF, BUDGET);
    // Six restarts in ten seconds of being up are allowed, and this makes five.
    let verdicts = delays(&mut machine, &[2_000; 50], 1.0);
    assert!(verdicts.iter().all(Option::is_some));
}

proptest! {
    #[test]
    fn a_delay_is_between_half_and_all_of_the_nominal_one(
        runs in proptest::collection::vec(0..20_000_u64, 1..40),
        jitter in 0.0..=1.0_f64,
    ) {
        let mut full = RestartMachine::new(BACKOFF, BUDGET);
        let mut some = RestartMachine::new(BACKOFF, BUDGET);
        for ran_ms in runs {
            match (full.failed(ran_ms, 1.0), some.failed(ran_ms, jitter)) {
                (Verdict::RestartIn { delay_ms: nominal }, Verdict::RestartIn { delay_ms }) => {
                    prop_assert!(nominal <= BACKOFF.max_ms);
                    prop_assert!(nominal / 2 <= delay_ms && delay_ms <= nominal);
                }
                (left, right) => prop_assert_eq!(left, right),
            }
        }
    }

    #[test]
    fn a_child_that_always_fails_at_once_is_given_up_whatever_the_backoff(
        min_ms in 0..100_000_u64, max_ms in 0..1_000_000_u64, factor in 0..10_u32, restarts in 0..20_u32,
    ) {
        let backoff = Backoff { min_ms, max_ms, factor };
        let budget = RestartBudget { max_restarts: restarts, within_ms: 1_000 };
        let mut machine = RestartMachine::new(backoff, budget);
        for _ in 0..restarts {
            prop_assert_ne!(machine.failed(0, 0.5), Verdict::GiveUp);
        }
        prop_assert_eq!(machine.failed(0, 0.5), Verdict::GiveUp);
    }
}
