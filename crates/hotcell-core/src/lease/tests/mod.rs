//! The lease's table of decisions, row by row; [`runs`] has rows in any order.

mod runs;

use hotcell_types::{LeaseId, ResourceClass, UnixMillis};

use super::*;
use crate::model::{LeaseRecord, LeaseState::*};

const LIMITS: LeaseLimits = LeaseLimits {
    start_timeout_ms: 90_000,
    idle_timeout_ms: 600_000,
    hard_timeout_ms: 3_600_000,
};
const NOW: UnixMillis = UnixMillis(1_000_000);

fn record(state: LeaseState) -> LeaseRecord {
    LeaseRecord {
        id: LeaseId::from_bits(7),
        organization: "o".parse().unwrap(),
        workspace: "w".parse().unwrap(),
        chat: "c".parse().unwrap(),
        user: "u".parse().unwrap(),
        profile: "default".parse().unwrap(),
        resource_class: ResourceClass::Medium,
        state,
        created_at: NOW,
        changed_at: NOW,
        end: None,
    }
}

fn machine(state: LeaseState) -> LeaseMachine {
    LeaseMachine::new(&record(state), LIMITS)
}

/// The result that a slow effect reports when it goes well.
fn success(effect: &Effect, seen: Seen) -> Option<Event> {
    Some(match effect {
        Effect::WriteRecord { attempt, .. } => Event::RecordWritten(*attempt),
        Effect::Observe(attempt) => Event::Observed(*attempt, seen),
        Effect::CreateSandbox(attempt) => Event::SandboxCreated(*attempt),
        Effect::StartSandbox(attempt) => Event::SandboxStarted(*attempt),
        Effect::AwaitAgent(attempt) => Event::AgentAnswered(*attempt),
        Effect::AskForJobs(attempt) => Event::JobsAnswered(*attempt, false),
        Effect::SweepSandbox(attempt) => Event::SandboxSwept(*attempt),
        Effect::CloseDoor(attempt) => Event::DoorClosed(*attempt),
        Effect::StopSandbox(attempt) => Event::SandboxStopped(*attempt),
        Effect::RemoveSandbox(attempt) => Event::SandboxRemoved(*attempt),
        _ => return None,
    })
}

/// Runs every effect to a good end and returns all of them in order.
fn settle(machine: &mut LeaseMachine, event: Event, seen: Seen) -> Vec<Effect> {
    let mut all = Vec::new();
    let mut events = vec![event];
    while let Some(event) = events.pop() {
        for effect in machine.apply(event, NOW) {
            events.extend(success(&effect, seen));
            all.push(effect);
        }
        assert!(all.len() < 100, "it does not settle: {all:?}");
    }
    all
}

fn writes(effects: &[Effect]) -> Vec<LeaseState> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::WriteRecord { state, .. } => Some(*state),
            _ => None,
        })
        .collect()
}

fn has(effects: &[Effect], wanted: impl Fn(&Effect) -> bool) -> bool {
    effects.iter().any(wanted)
}

fn running() -> LeaseMachine {
    let mut machine = machine(Starting);
    settle(&mut machine, Event::Recorded, Seen::Nothing);
    assert_eq!(machine.state(), Running);
    machine
}

fn idle() -> LeaseMachine {
    let mut machine = running();
    settle(&mut machine, Event::IdleLimitReached, Seen::Running);
    assert_eq!(machine.state(), Idle);
    machine
}

#[test]
fn a_new_lease_starts_and_lets_its_calls_in() {
    let mut machine = machine(Starting);
    let first = machine.apply(Event::Recorded, NOW);
    assert_eq!(
        first,
        [
            Effect::SetTimer(Timer::Hard, 3_600_000),
            Effect::SetTimer(Timer::Start, 90_000),
            Effect::CreateSandbox(Attempt(1)),
        ]
    );
    assert_eq!(machine.apply(Event::CallArrived, NOW), []);
    assert!(machine.has_waiters());
    let rest = settle(
        &mut machine,
        Event::SandboxCreated(Attempt(1)),
        Seen::Nothing,
    );
    assert!(has(&rest, |e| *e == Effect::AdmitWaiters { fresh: true }));
    assert_eq!(writes(&rest), [Running]);
    assert!(!machine.has_waiters());
    assert_eq!(
        machine.apply(Event::CallArrived, NOW),
        [Effect::AdmitWaiters { fresh: false }]
    );
}

#[test]
fn an_unused_sandbox_is_stopped_and_the_next_call_wakes_it() {
    let mut machine = running();
    let stop = settle(&mut machine, Event::IdleLimitReached, Seen::Running);
    let write = stop
        .iter()
        .position(|e| matches!(e, Effect::WriteRecord { state: Idle, .. }));
    let engine = stop
        .iter()
        .position(|e| matches!(e, Effect::StopSandbox(_)));
    assert!(write < engine, "the intent comes first: {stop:?}");
    let wake = settle(&mut machine, Event::CallArrived, Seen::Stopped);
    assert_eq!(writes(&wake), [Starting, Running]);
    assert!(has(&wake, |e| matches!(e, Effect::StartSandbox(_))));
    assert!(!has(&wake, |e| matches!(e, Effect::CreateSandbox(_))));
    assert!(has(&wake, |e| *e == Effect::AdmitWaiters { fresh: true }));
}

#[test]
fn a_job_or_a_call_keeps_an_unused_sandbox_running() {
    let mut machine = running();
    let ask = machine.apply(Event::IdleLimitReached, NOW);
    let [Effect::AskForJobs(attempt)] = ask[..] else {
        panic!("{ask:?}")
    };
    assert_eq!(
        machine.apply(Event::JobsAnswered(attempt, true), NOW),
        [Effect::SetTimer(Timer::Idle, 600_000)]
    );
    let ask = machine.apply(Event::IdleLimitReached, NOW);
    let [Effect::AskForJobs(attempt)] = ask[..] else {
        panic!("{ask:?}")
    };
    let sweep = machine.apply(Event::JobsAnswered(attempt, false), NOW);
    let [Effect::SweepSandbox(attempt)] = sweep[..] else {
        panic!("{sweep:?}")
    };
    assert_eq!(
        machine.apply(Event::CallArrived, NOW),
        [Effect::AdmitWaiters { fresh: false }],
        "the door stays open while it is swept"
    );
    let close = machine.apply(Event::SandboxSwept(attempt), NOW);
    let [Effect::CloseDoor(attempt)] = close[..] else {
        panic!("{close:?}")
    };
    assert_eq!(
        machine.apply(Event::CallBegan(attempt), NOW),
        [Effect::SetTimer(Timer::Idle, 600_000)]
    );
    assert_eq!(machine.state(), Running);
}

#[test]
fn a_failed_start_ends_the_lease_and_says_why() {
    for (results, failed) in [(0, "create"), (1, "start"), (2, "await")] {
        let mut machine = machine(Starting);
        let mut effects = machine.apply(Event::Recorded, NOW);
        machine.apply(Event::CallArrived, NOW);
        for _ in 0..results {
            let event = effects.iter().find_map(|e| success(e, Seen::Nothing));
            effects = machine.apply(event.unwrap(), NOW);
        }
        let attempt = machine_attempt(&effects);
        let after = settle(
            &mut machine,
            Event::EffectFailed(attempt, failed.into()),
            Seen::Nothing,
        );
        assert!(has(&after, |e| {
            *e == Effect::RefuseWaiters(Refusal::StartFailed(failed.into()))
        }));
        assert_eq!(writes(&after), [Ending, Ended]);
        assert!(has(&after, |e| matches!(e, Effect::RemoveSandbox(_))));
        assert!(has(&after, |e| *e == Effect::Retire));
        assert_eq!(machine.end(), Some(&EndReason::StartFailed(failed.into())));
    }
}

fn machine_attempt(effects: &[Effect]) -> Attempt {
    effects
        .iter()
        .rev()
        .find_map(|effect| match effect {
            Effect::CreateSandbox(a) | Effect::StartSandbox(a) | Effect::AwaitAgent(a) => Some(*a),
            _ => None,
        })
        .unwrap()
}

#[test]
fn a_start_that_takes_too_long_ends_the_lease() {
    let mut machine = machine(Starting);
    machine.apply(Event::Recorded, NOW);
    machine.apply(Event::CallArrived, NOW);
    let after = machine.apply(Event::StartLimitReached, NOW);
    assert!(after.contains(&Effect::RefuseWaiters(Refusal::StartTimedOut)));
    assert_eq!(machine.state(), Ending);
}

#[test]
fn a_sandbox_that_ends_by_itself_ends_the_lease_with_the_reason() {
    for (loss, reason) in [
        (Loss::OutOfMemory, EndReason::OutOfMemory),
        (Loss::Died, EndReason::SandboxLost),
        (Loss::EngineLost, EndReason::RuntimeRestarted),
    ] {
        let mut machine = running();
        let after = settle(
            &mut machine,
            Event::SandboxEnded(Attempt(1), loss),
            Seen::Nothing,
        );
        assert!(after.contains(&Effect::ShutDoor(reason.clone())));
        assert_eq!(machine.end(), Some(&reason));
        assert_eq!(machine.state(), Ended);
        // An older watch says nothing about this sandbox.
        let mut machine = running();
        assert_eq!(
            machine.apply(Event::SandboxEnded(Attempt(0), loss), NOW),
            []
        );
    }
}

#[test]
fn the_end_comes_from_every_state_and_is_final() {
    for (mut machine, what) in [
        (machine(Starting), "new"),
        (running(), "running"),
        (idle(), "idle"),
    ] {
        let after = settle(&mut machine, Event::HardLimitReached, Seen::Running);
        assert_eq!(writes(&after), [Ending, Ended], "{what}");
        assert_eq!(machine.end(), Some(&EndReason::HardTimeLimit));
        assert_eq!(machine.apply(Event::EndRequested, NOW), []);
        assert_eq!(
            machine.apply(Event::CallArrived, NOW),
            [Effect::RefuseWaiters(Refusal::Ended(
                EndReason::HardTimeLimit
            ))]
        );
    }
}

#[test]
fn only_a_running_sandbox_that_reached_its_hard_limit_is_swept_at_the_end() {
    let swept = |effects: &[Effect]| has(effects, |e| matches!(e, Effect::SweepSandbox(_)));
    for (mut machine, event, expected) in [
        (running(), Event::HardLimitReached, true),
        (running(), Event::EndRequested, false),
        (idle(), Event::HardLimitReached, false),
    ] {
        let end = settle(&mut machine, event.clone(), Seen::Running);
        assert_eq!(swept(&end), expected, "{event:?}: {end:?}");
        assert_eq!(writes(&end), [Ending, Ended]);
    }
    // One that the daemon left ending is swept, if it can be, and removed in any case.
    let ending = LeaseRecord {
        end: Some(EndReason::HardTimeLimit),
        ..record(Ending)
    };
    let mut machine = LeaseMachine::new(&ending, LIMITS);
    let sweep = machine.apply(Event::Resumed { at_boot: true }, NOW);
    let [Effect::SweepSandbox(attempt)] = sweep[..] else {
        panic!("{sweep:?}")
    };
    let end = settle(
        &mut machine,
        Event::EffectFailed(attempt, "it is not there".into()),
        Seen::Nothing,
    );
    assert!(has(&end, |e| matches!(e, Effect::RemoveSandbox(_))));
    assert_eq!(writes(&end), [Ended]);
}

#[test]
fn reconciling_follows_the_table() {
    use Seen::{Nothing, Running as Runs, Stopped};
    let lost = Some(EndReason::RuntimeRestarted);
    for (recorded, seen, state, end, created) in [
        (Starting, Runs, Running, None, false),
        (Starting, Stopped, Running, None, true),
        (Starting, Nothing, Running, None, true),
        (Running, Runs, Running, None, false),
        (Running, Stopped, Ended, lost.clone(), false),
        (Running, Nothing, Ended, lost.clone(), false),
        (Idle, Runs, Idle, None, false),
        (Idle, Stopped, Idle, None, false),
        (Idle, Nothing, Ended, lost.clone(), false),
        (Ending, Runs, Ended, None, false),
        (Ending, Stopped, Ended, None, false),
        (Ending, Nothing, Ended, None, false),
        (Ended, Nothing, Ended, None, false),
    ] {
        let mut machine = machine(recorded);
        let effects = settle(&mut machine, Event::Resumed { at_boot: true }, seen);
        let row = format!("{recorded:?} × {seen:?}: {effects:?}");
        assert_eq!(machine.state(), state, "{row}");
        assert_eq!(machine.end(), end.as_ref(), "{row}");
        assert!(machine.is_settled(), "{row}");
        let creates = has(&effects, |e| matches!(e, Effect::CreateSandbox(_)));
        assert_eq!(creates, created, "{row}");
        let removes = has(&effects, |e| matches!(e, Effect::RemoveSandbox(_)));
        assert_eq!(removes, recorded != Ended && state == Ended, "{row}");
        let adopts = has(&effects, |e| matches!(e, Effect::AdmitWaiters { .. }));
        assert_eq!(adopts, state == Running, "{row}");
    }
}

#[test]
fn an_adopted_sandbox_that_does_not_answer_counts_as_lost() {
    let mut machine = machine(Running);
    machine.apply(Event::Resumed { at_boot: true }, NOW);
    machine.apply(Event::Observed(Attempt(1), Seen::Running), NOW);
    let after = machine.apply(Event::EffectFailed(Attempt(2), "no answer".into()), NOW);
    assert!(after.contains(&Effect::ShutDoor(EndReason::SandboxLost)));
}

#[test]
fn an_engine_that_is_down_is_asked_again_and_does_not_hold_calls_for_ever() {
    let mut machine = machine(Idle);
    machine.apply(Event::Resumed { at_boot: true }, NOW);
    let waits = machine.apply(Event::CallArrived, NOW);
    assert_eq!(waits, [Effect::SetTimer(Timer::Start, 90_000)]);
    let mut attempt = Attempt(1);
    for pause_ms in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        let failed = machine.apply(Event::EffectFailed(attempt, "down".into()), NOW);
        assert_eq!(failed, [Effect::SetTimer(Timer::Retry, pause_ms)]);
        let again = machine.apply(Event::RetryDue, NOW);
        attempt.0 += 1;
        assert_eq!(again, [Effect::Observe(attempt)]);
    }
    assert_eq!(
        machine.apply(Event::StartLimitReached, NOW),
        [Effect::RefuseWaiters(Refusal::StartTimedOut)]
    );
    // The lease itself is still there once the engine is back.
    settle(
        &mut machine,
        Event::Observed(attempt, Seen::Stopped),
        Seen::Stopped,
    );
    assert_eq!(machine.state(), Idle);
}

#[test]
fn a_lease_older_than_its_hard_limit_ends_at_once_after_a_restart() {
    let mut machine = machine(Running);
    let late = NOW.plus_millis(LIMITS.hard_timeout_ms + 5);
    let effects = machine.apply(Event::Resumed { at_boot: true }, late);
    assert_eq!(effects[0], Effect::SetTimer(Timer::Hard, 0));
}

/// LC-05: while a daemon runs its timers count, and the wall clock does not; at its start the record does.
#[test]
fn a_step_of_the_clock_moves_the_hard_limit_by_the_step_at_most_and_only_at_a_restart() {
    let hour = 3_600_000;
    let hard = LIMITS.hard_timeout_ms;
    for (now, left) in [
        (NOW.0 + 1_000, hard - 1_000),
        (NOW.0 + 1_000 + hour, (hard - 1_000).saturating_sub(hour)),
        // Set back: never more than a whole limit from now on.
        (NOW.0 - 900_000, hard),
        (0, hard),
        (u64::MAX, 0),
    ] {
        let mut machine = machine(Idle);
        let effects = machine.apply(Event::Resumed { at_boot: true }, UnixMillis(now));
        assert_eq!(effects[0], Effect::SetTimer(Timer::Hard, left), "{now}");
    }
}
