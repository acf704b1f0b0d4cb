//! The transitions.

use hotcell_types::UnixMillis;

use super::{
    Attempt, Effect, Event, LeaseLimits, Loss, RETRY_MAX_MS, RETRY_MIN_MS, REWATCH_MS, Refusal,
    Seen, Timer,
};
use crate::model::{EndReason, LeaseRecord, LeaseState};

/// What a start is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The record, then a start of the stopped sandbox.
    Recording,
    /// The record, then the agent of a sandbox that runs already.
    RecordingRunning,
    Creating,
    Starting,
    Answering,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waiting for an observation, or for the time of the next one.
    Reconciling,
    Starting(Step),
    /// `asking`: it went unused and is being asked for jobs.
    Running {
        asking: bool,
    },
    /// `recorded`: the record says Idle and the runtime is at it.
    Stopping {
        recorded: bool,
    },
    Idle,
    /// Writing down that it ends.
    EndRecording,
    /// Collecting what is ready in it, before it is removed.
    Sweeping,
    Removing,
    /// Writing down that it is over.
    EndedRecording,
    Ended,
}

/// The machine of one lease. See the module's doc.
#[derive(Debug, Clone)]
pub struct LeaseMachine {
    limits: LeaseLimits,
    created_at: UnixMillis,
    /// What the record says, or will say once the write in flight is done.
    recorded: LeaseState,
    end: Option<EndReason>,
    phase: Phase,
    attempt: Attempt,
    /// Numbers of its own: a watch runs beside everything else.
    watches: u64,
    watch: Option<Attempt>,
    /// Whether a call waits.
    wanted: bool,
    /// Whether the start in progress runs a sandbox that did not run before.
    fresh: bool,
    /// Whether it is swept before it is removed.
    sweep: bool,
    /// What a sandbox that is missing was lost to.
    missing: EndReason,
    failures: u32,
}

impl LeaseMachine {
    /// The machine of a lease whose record is in the store. Nothing happens before
    /// [`Event::Recorded`] or [`Event::Resumed`].
    #[must_use]
    pub fn new(record: &LeaseRecord, limits: LeaseLimits) -> Self {
        Self {
            limits,
            created_at: record.created_at,
            recorded: record.state,
            end: record.end.clone(),
            phase: Phase::Reconciling,
            attempt: Attempt(0),
            watches: 0,
            watch: None,
            wanted: false,
            fresh: true,
            // One that was ending when the daemon went away may not have been swept yet.
            sweep: record.end == Some(EndReason::HardTimeLimit),
            missing: EndReason::SandboxLost,
            failures: 0,
        }
    }

    /// Where the lease stands, as it is or is about to be written down.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        self.recorded
    }

    /// Why it ends, once it does.
    #[must_use]
    pub fn end(&self) -> Option<&EndReason> {
        self.end.as_ref()
    }

    /// Whether it stands where it can stay: running, idle or over.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(
            self.phase,
            Phase::Running { .. } | Phase::Idle | Phase::Ended
        )
    }

    /// Whether a call waits that was neither let in nor sent away.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.wanted
    }

    fn next(&mut self) -> Attempt {
        self.attempt.0 += 1;
        self.attempt
    }

    /// Takes what happened and says what to do, in order.
    pub fn apply(&mut self, event: Event, now: UnixMillis) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.on(event, now, &mut effects);
        effects
    }

    fn on(&mut self, event: Event, now: UnixMillis, out: &mut Vec<Effect>) {
        match event {
            Event::Recorded => self.begin(now, None, out),
            Event::Resumed { at_boot } => self.begin(now, Some(at_boot), out),
            Event::CallArrived => self.call_arrived(out),
            Event::EndRequested => self.end_with(EndReason::Requested, None, out),
            Event::HardLimitReached => self.end_with(EndReason::HardTimeLimit, None, out),
            Event::StartLimitReached => self.start_limit_reached(out),
            Event::IdleLimitReached => {
                if self.phase == (Phase::Running { asking: false }) {
                    self.phase = Phase::Running { asking: true };
                    out.push(Effect::AskForJobs(self.next()));
                }
            }
            Event::Suspected => {
                if matches!(self.phase, Phase::Running { asking: false } | Phase::Idle) {
                    out.push(Effect::Observe(self.next()));
                }
            }
            Event::RetryDue => self.retry(out),
            Event::RewatchDue => {
                if self.is_watched() && self.watch.is_none() {
                    self.watch_sandbox(out);
                }
            }
            Event::SandboxEnded(watch, loss) => {
                if self.watch == Some(watch) {
                    self.watch = None;
                    self.sandbox_ended(loss, out);
                }
            }
            Event::WatchFailed(watch) => {
                if self.watch == Some(watch) {
                    self.watch = None;
                    out.push(Effect::SetTimer(Timer::Rewatch, REWATCH_MS));
                }
            }
            Event::RecordWritten(attempt)
            | Event::Observed(attempt, _)
            | Event::SandboxCreated(attempt)
            | Event::SandboxStarted(attempt)
            | Event::AgentAnswered(attempt)
            | Event::SandboxStopped(attempt)
            | Event::SandboxRemoved(attempt)
            | Event::JobsAnswered(attempt, _)
            | Event::SandboxSwept(attempt)
            | Event::DoorClosed(attempt)
            | Event::CallBegan(attempt)
            | Event::EffectFailed(attempt, _)
                if attempt != self.attempt => {}
            Event::EffectFailed(_, words) => self.effect_failed(words, out),
            result => self.done(result, out),
        }
    }

    /// The expected result of the latest slow effect.
    fn done(&mut self, event: Event, out: &mut Vec<Effect>) {
        match (self.phase, event) {
            (Phase::Reconciling, Event::Observed(_, seen)) => self.converge(seen, out),
            (Phase::Running { asking: false }, Event::Observed(_, seen))
                if seen != Seen::Running =>
            {
                self.end_with(EndReason::SandboxLost, None, out);
            }
            (Phase::Idle, Event::Observed(_, seen)) => {
                self.phase = Phase::Reconciling;
                self.converge(seen, out);
            }
            (Phase::Starting(Step::Recording), Event::RecordWritten(_)) => self.start(out),
            (Phase::Starting(Step::RecordingRunning), Event::RecordWritten(_)) => {
                self.await_agent(out);
            }
            (Phase::Starting(Step::Creating), Event::SandboxCreated(_)) => self.start(out),
            (Phase::Starting(Step::Starting), Event::SandboxStarted(_)) => self.await_agent(out),
            (Phase::Starting(Step::Answering), Event::AgentAnswered(_)) => self.run(out),
            (Phase::Running { asking: true }, Event::JobsAnswered(_, true)) => {
                self.phase = Phase::Running { asking: false };
                out.push(Effect::SetTimer(Timer::Idle, self.limits.idle_timeout_ms));
            }
            (Phase::Running { asking: true }, Event::JobsAnswered(_, false)) => {
                // With the door still open: who comes now need not wait for it.
                out.push(Effect::SweepSandbox(self.next()));
            }
            (Phase::Running { asking: true }, Event::SandboxSwept(_)) => {
                out.push(Effect::CloseDoor(self.next()));
            }
            (Phase::Running { asking: true }, Event::CallBegan(_)) => {
                self.phase = Phase::Running { asking: false };
                out.push(Effect::SetTimer(Timer::Idle, self.limits.idle_timeout_ms));
            }
            (Phase::Running { asking: true }, Event::DoorClosed(_)) => {
                // Written down before the engine is asked: a sandbox that is found stopped with
                // a record that says Running would count as lost.
                self.phase = Phase::Stopping { recorded: false };
                self.unwatch(out);
                self.write(LeaseState::Idle, out);
            }
            (Phase::Stopping { recorded: false }, Event::RecordWritten(_)) => self.stop(out),
            (Phase::Stopping { recorded: true }, Event::SandboxStopped(_)) => self.go_idle(out),
            (Phase::EndRecording, Event::RecordWritten(_)) => self.sweep_or_remove(out),
            (Phase::Sweeping, Event::SandboxSwept(_)) => self.remove(out),
            (Phase::Removing, Event::SandboxRemoved(_)) => {
                self.phase = Phase::EndedRecording;
                self.write(LeaseState::Ended, out);
            }
            (Phase::EndedRecording, Event::RecordWritten(_)) => {
                self.phase = Phase::Ended;
                out.push(Effect::Retire);
            }
            // Such as the record of a lease that runs: nothing waits for it.
            _ => {}
        }
    }

    fn begin(&mut self, now: UnixMillis, resumed: Option<bool>, out: &mut Vec<Effect>) {
        if self.phase != Phase::Reconciling || self.attempt != Attempt(0) {
            return;
        }
        if resumed == Some(true) {
            self.missing = EndReason::RuntimeRestarted;
        }
        let left_ms = self.limits.ends_at(self.created_at).millis_since(now);
        // A clock that was set back since must not give it more than it could ever have had.
        let left_ms = left_ms.min(self.limits.hard_timeout_ms);
        match self.recorded {
            LeaseState::Ended => {
                self.phase = Phase::Ended;
                self.attempt.0 += 1;
                out.push(Effect::Retire);
            }
            LeaseState::Ending => self.sweep_or_remove(out),
            LeaseState::Starting if resumed.is_none() => {
                out.push(Effect::SetTimer(Timer::Hard, left_ms));
                self.arm_start(out);
                self.create(out);
            }
            _ => {
                out.push(Effect::SetTimer(Timer::Hard, left_ms));
                out.push(Effect::Observe(self.next()));
            }
        }
    }

    /// The table in the module's doc.
    fn converge(&mut self, seen: Seen, out: &mut Vec<Effect>) {
        self.failures = 0;
        match (self.recorded, seen) {
            (LeaseState::Starting, Seen::Running) => {
                self.arm_start(out);
                self.await_agent(out);
            }
            (LeaseState::Starting, Seen::Stopped | Seen::Nothing) => {
                self.arm_start(out);
                self.create(out);
            }
            (LeaseState::Running, Seen::Running) => {
                self.fresh = false;
                self.arm_start(out);
                self.await_agent(out);
            }
            (LeaseState::Idle, Seen::Running) if self.wanted => {
                self.fresh = false;
                self.arm_start(out);
                self.phase = Phase::Starting(Step::RecordingRunning);
                self.write(LeaseState::Starting, out);
            }
            (LeaseState::Idle, Seen::Running) => self.stop(out),
            (LeaseState::Idle, Seen::Stopped) => self.go_idle(out),
            (LeaseState::Running, Seen::Stopped | Seen::Nothing)
            | (LeaseState::Idle, Seen::Nothing) => {
                self.end_with(self.missing.clone(), None, out);
            }
            (LeaseState::Ending | LeaseState::Ended, _) => self.remove(out),
        }
    }

    fn call_arrived(&mut self, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::Running { .. } => out.push(Effect::AdmitWaiters { fresh: false }),
            Phase::Starting(_) => self.wanted = true,
            Phase::Reconciling | Phase::Stopping { .. } => {
                if !self.wanted {
                    self.wanted = true;
                    self.arm_start(out);
                }
            }
            Phase::Idle => {
                self.wanted = true;
                self.wake(out);
            }
            Phase::EndRecording
            | Phase::Sweeping
            | Phase::Removing
            | Phase::EndedRecording
            | Phase::Ended => {
                let why = self.end.clone().unwrap_or(EndReason::SandboxLost);
                out.push(Effect::RefuseWaiters(Refusal::Ended(why)));
            }
        }
    }

    fn start_limit_reached(&mut self, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::Starting(_) => {
                let words = format!(
                    "it was not ready within {} ms",
                    self.limits.start_timeout_ms
                );
                let reason = self.start_failure(words);
                self.end_with(reason, Some(Refusal::StartTimedOut), out);
            }
            // What became of the sandbox is not known: the lease stays, the calls do not.
            Phase::Reconciling | Phase::Stopping { .. } if self.wanted => {
                self.wanted = false;
                out.push(Effect::RefuseWaiters(Refusal::StartTimedOut));
            }
            _ => {}
        }
    }

    fn effect_failed(&mut self, words: String, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::Starting(_) => {
                let refusal = Refusal::StartFailed(words.clone());
                let reason = self.start_failure(words);
                self.end_with(reason, Some(refusal), out);
            }
            // An agent that cannot answer has no job worth keeping the sandbox for.
            Phase::Running { asking: true } => out.push(Effect::CloseDoor(self.next())),
            Phase::Sweeping => self.remove(out),
            Phase::Reconciling | Phase::Removing => self.set_retry(out),
            Phase::Stopping { recorded: true } => {
                self.phase = Phase::Reconciling;
                self.set_retry(out);
            }
            // An observation on suspicion: the next sweep asks again.
            Phase::Running { asking: false } | Phase::Idle => {}
            Phase::Stopping { recorded: false }
            | Phase::EndRecording
            | Phase::EndedRecording
            | Phase::Ended => {}
        }
    }

    fn retry(&mut self, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::Reconciling => out.push(Effect::Observe(self.next())),
            Phase::Removing => self.remove(out),
            _ => {}
        }
    }

    fn sandbox_ended(&mut self, loss: Loss, out: &mut Vec<Effect>) {
        match self.phase {
            Phase::Running { .. } => self.end_with(loss.reason(), None, out),
            Phase::Starting(_) if self.fresh => {
                let words = loss.words().to_owned();
                let refusal = Refusal::StartFailed(words.clone());
                self.end_with(EndReason::StartFailed(words), Some(refusal), out);
            }
            Phase::Starting(_) => self.end_with(loss.reason(), None, out),
            _ => {}
        }
    }

    /// A start that failed; a sandbox that ran before and cannot be reached now is a lost one.
    fn start_failure(&self, words: String) -> EndReason {
        if self.fresh {
            EndReason::StartFailed(words)
        } else {
            EndReason::SandboxLost
        }
    }

    fn end_with(&mut self, reason: EndReason, refusal: Option<Refusal>, out: &mut Vec<Effect>) {
        if matches!(
            self.phase,
            Phase::EndRecording
                | Phase::Sweeping
                | Phase::Removing
                | Phase::EndedRecording
                | Phase::Ended
        ) {
            return;
        }
        // One that idles was swept before it was stopped, and one that was lost has nothing to give.
        self.sweep = reason == EndReason::HardTimeLimit && self.recorded == LeaseState::Running;
        self.phase = Phase::EndRecording;
        self.end = Some(reason.clone());
        self.failures = 0;
        out.push(Effect::ShutDoor(reason.clone()));
        if std::mem::take(&mut self.wanted) {
            let refusal = refusal.unwrap_or(Refusal::Ended(reason));
            out.push(Effect::RefuseWaiters(refusal));
        }
        for timer in [Timer::Start, Timer::Idle, Timer::Hard, Timer::Retry] {
            out.push(Effect::ClearTimer(timer));
        }
        self.unwatch(out);
        self.write(LeaseState::Ending, out);
    }

    fn arm_start(&mut self, out: &mut Vec<Effect>) {
        out.push(Effect::SetTimer(Timer::Start, self.limits.start_timeout_ms));
    }

    fn set_retry(&mut self, out: &mut Vec<Effect>) {
        let pause_ms = RETRY_MIN_MS
            .saturating_mul(1_u64 << self.failures.min(16))
            .min(RETRY_MAX_MS);
        self.failures = self.failures.saturating_add(1);
        out.push(Effect::SetTimer(Timer::Retry, pause_ms));
    }

    fn write(&mut self, state: LeaseState, out: &mut Vec<Effect>) {
        self.recorded = state;
        out.push(Effect::WriteRecord {
            attempt: self.next(),
            state,
            end: self.end.clone(),
        });
    }

    fn create(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Starting(Step::Creating);
        out.push(Effect::CreateSandbox(self.next()));
    }

    fn start(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Starting(Step::Starting);
        out.push(Effect::StartSandbox(self.next()));
    }

    fn await_agent(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Starting(Step::Answering);
        self.watch_sandbox(out);
        out.push(Effect::AwaitAgent(self.next()));
    }

    fn run(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Running { asking: false };
        self.wanted = false;
        self.missing = EndReason::SandboxLost;
        out.push(Effect::ClearTimer(Timer::Start));
        out.push(Effect::AdmitWaiters { fresh: self.fresh });
        out.push(Effect::SetTimer(Timer::Idle, self.limits.idle_timeout_ms));
        if self.recorded != LeaseState::Running {
            self.write(LeaseState::Running, out);
        }
    }

    fn stop(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Stopping { recorded: true };
        out.push(Effect::StopSandbox(self.next()));
    }

    fn go_idle(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Idle;
        self.failures = 0;
        self.missing = EndReason::SandboxLost;
        if self.wanted {
            self.wake(out);
        }
    }

    fn wake(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Starting(Step::Recording);
        self.fresh = true;
        self.arm_start(out);
        self.write(LeaseState::Starting, out);
    }

    fn sweep_or_remove(&mut self, out: &mut Vec<Effect>) {
        if std::mem::take(&mut self.sweep) {
            self.phase = Phase::Sweeping;
            out.push(Effect::SweepSandbox(self.next()));
        } else {
            self.remove(out);
        }
    }

    fn remove(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Removing;
        out.push(Effect::RemoveSandbox(self.next()));
    }

    fn is_watched(&self) -> bool {
        matches!(
            self.phase,
            Phase::Running { .. } | Phase::Starting(Step::Answering)
        )
    }

    fn watch_sandbox(&mut self, out: &mut Vec<Effect>) {
        self.watches += 1;
        let watch = Attempt(self.watches);
        self.watch = Some(watch);
        out.push(Effect::WatchSandbox(watch));
    }

    fn unwatch(&mut self, out: &mut Vec<Effect>) {
        self.watch = None;
        out.push(Effect::ClearTimer(Timer::Rewatch));
        out.push(Effect::ClearTimer(Timer::Idle));
    }
}
