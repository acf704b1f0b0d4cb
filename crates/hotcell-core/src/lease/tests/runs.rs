//! Runs of arbitrary length: whatever happens in whatever order, promises hold.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// One step of a run: which pending thing happens, and how.
#[derive(Debug, Clone)]
enum Move {
    Call,
    EndAsked,
    Suspect,
    /// A pending slow effect succeeds (by index), with what the runtime would show.
    Succeeds(prop::sample::Index, u8),
    Fails(prop::sample::Index),
    /// A result that was already reported comes once more.
    Repeats(prop::sample::Index),
    Fires(prop::sample::Index),
    Dies(u8),
}

fn a_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => Just(Move::Call),
        1 => Just(Move::EndAsked),
        1 => Just(Move::Suspect),
        12 => (any::<prop::sample::Index>(), 0..3_u8).prop_map(|(i, s)| Move::Succeeds(i, s)),
        3 => any::<prop::sample::Index>().prop_map(Move::Fails),
        2 => any::<prop::sample::Index>().prop_map(Move::Repeats),
        3 => any::<prop::sample::Index>().prop_map(Move::Fires),
        1 => (0..3_u8).prop_map(Move::Dies),
    ]
}

/// The world around a machine: what is pending, which timers are set, how many calls wait.
struct World {
    machine: LeaseMachine,
    pending: Vec<Effect>,
    reported: Vec<Event>,
    timers: BTreeSet<Timer>,
    waiting: usize,
    watch: Option<Attempt>,
    retired: usize,
    door_shut: bool,
}

impl World {
    fn feed(&mut self, event: Event) {
        let was_ended = self.machine.state() == Ended && self.machine.is_settled();
        let effects = self.machine.apply(event.clone(), NOW);
        for effect in effects {
            if was_ended {
                assert!(
                    matches!(effect, Effect::RefuseWaiters(_)),
                    "Ended is final, but {event:?} caused {effect:?}"
                );
            }
            match effect {
                Effect::SetTimer(timer, _) => {
                    self.timers.insert(timer);
                }
                Effect::ClearTimer(timer) => {
                    self.timers.remove(&timer);
                }
                Effect::AdmitWaiters { .. } => {
                    assert!(!self.door_shut, "a shut door opened");
                    self.waiting = 0;
                }
                Effect::RefuseWaiters(_) => self.waiting = 0,
                Effect::WatchSandbox(watch) => self.watch = Some(watch),
                Effect::ShutDoor(_) => self.door_shut = true,
                Effect::Retire => self.retired += 1,
                slow => self.pending.push(slow),
            }
        }
        let machine = &self.machine;
        assert_eq!(machine.has_waiters(), self.waiting > 0, "{machine:?}");
        if self.waiting > 0 {
            let bounded = self.timers.contains(&Timer::Start);
            assert!(bounded, "calls wait without a limit: {machine:?}");
        }
        if machine.state() == Starting && machine.end().is_none() && self.pending.is_empty() {
            let bounded =
                self.timers.contains(&Timer::Start) || self.timers.contains(&Timer::Retry);
            assert!(bounded, "a start without a limit: {machine:?}");
        }
        assert!(self.retired <= 1);
        assert_eq!(
            self.retired == 1,
            machine.state() == Ended && machine.is_settled()
        );
    }

    fn step(&mut self, step: &Move) {
        match step {
            Move::Call => {
                self.waiting += 1;
                self.feed(Event::CallArrived);
            }
            Move::EndAsked => self.feed(Event::EndRequested),
            Move::Suspect => self.feed(Event::Suspected),
            Move::Succeeds(index, seen) => {
                if self.pending.is_empty() {
                    return;
                }
                let effect = self.pending.remove(index.index(self.pending.len()));
                let seen = [Seen::Running, Seen::Stopped, Seen::Nothing][usize::from(*seen)];
                let event = success(&effect, seen).unwrap();
                self.reported.push(event.clone());
                self.feed(event);
            }
            Move::Fails(index) => {
                // A record that cannot be written ends the actor, not the machine.
                let failing: Vec<usize> = (0..self.pending.len())
                    .filter(|i| {
                        !matches!(
                            self.pending[*i],
                            Effect::WriteRecord { .. } | Effect::CloseDoor(_)
                        )
                    })
                    .collect();
                if failing.is_empty() {
                    return;
                }
                let effect = self.pending.remove(failing[index.index(failing.len())]);
                let attempt = match effect {
                    Effect::Observe(a)
                    | Effect::CreateSandbox(a)
                    | Effect::StartSandbox(a)
                    | Effect::AwaitAgent(a)
                    | Effect::AskForJobs(a)
                    | Effect::SweepSandbox(a)
                    | Effect::StopSandbox(a)
                    | Effect::RemoveSandbox(a) => a,
                    other => panic!("{other:?} is not slow"),
                };
                self.feed(Event::EffectFailed(attempt, "broken".into()));
            }
            Move::Repeats(index) => {
                if self.reported.is_empty() {
                    return;
                }
                let event = self.reported[index.index(self.reported.len())].clone();
                let before = format!("{:?}", self.machine);
                self.feed(event);
                assert_eq!(
                    before,
                    format!("{:?}", self.machine),
                    "a stale result counted"
                );
            }
            Move::Fires(index) => {
                let timers: Vec<Timer> = self.timers.iter().copied().collect();
                if timers.is_empty() {
                    return;
                }
                let timer = timers[index.index(timers.len())];
                self.timers.remove(&timer);
                self.fire(timer);
            }
            Move::Dies(how) => {
                if let Some(watch) = self.watch.take() {
                    let loss = [Loss::OutOfMemory, Loss::Died, Loss::EngineLost][usize::from(*how)];
                    self.feed(Event::SandboxEnded(watch, loss));
                }
            }
        }
    }

    fn fire(&mut self, timer: Timer) {
        let event = match timer {
            Timer::Start => Event::StartLimitReached,
            Timer::Idle => Event::IdleLimitReached,
            Timer::Hard => Event::HardLimitReached,
            Timer::Retry => Event::RetryDue,
            Timer::Rewatch => Event::RewatchDue,
        };
        self.feed(event);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens in whatever order: calls that wait have a limit, a shut door stays
    /// shut, stale results change nothing, Ended is final, and from anywhere the lease can end.
    #[test]
    fn no_order_of_events_breaks_a_promise(
        recorded in prop::sample::select(vec![Starting, Running, Idle, Ending]),
        fresh in any::<bool>(),
        moves in prop::collection::vec(a_move(), 0..60),
    ) {
        let mut world = World {
            machine: machine(recorded),
            pending: Vec::new(),
            reported: Vec::new(),
            timers: BTreeSet::new(),
            waiting: 0,
            watch: None,
            retired: 0,
            door_shut: false,
        };
        world.feed(if fresh && recorded == Starting {
            Event::Recorded
        } else {
            Event::Resumed { at_boot: !fresh }
        });
        for step in &moves {
            world.step(step);
        }
        // Everything left goes well, and somebody asks for the end: it comes.
        world.feed(Event::EndRequested);
        for _ in 0..100 {
            if let Some(effect) = world.pending.pop() {
                let event = success(&effect, Seen::Nothing).unwrap();
                world.feed(event);
            } else if world.timers.remove(&Timer::Retry) {
                world.feed(Event::RetryDue);
            }
        }
        prop_assert_eq!(world.machine.state(), Ended);
        prop_assert_eq!(world.retired, 1);
        prop_assert_eq!(world.waiting, 0);
    }
}
