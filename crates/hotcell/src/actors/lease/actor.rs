//! Messages in, effects out.

use std::{collections::HashMap, sync::Arc, time::Duration};

use hotcell_core::{
    lease::{Effect, Event, LeaseMachine, Refusal, Timer},
    model::{Actor as Who, AuditRow, EndReason, LeaseRecord, LeaseState},
};
use hotcell_runtime::{RuntimeError, Sandbox};
use hotcell_supervision::reply;
use hotcell_types::limits;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{
    effects::{Effects, Write},
    msg::{AskedBy, LeaseMsg, Waiter},
};
use crate::{
    actors::{context::Context, jobs::JobBook, live::LiveLease},
    handles::{AcquireError, ActiveSandbox},
};

/// The actor of one lease.
pub(crate) struct LeaseActor;

/// What a lease's actor is started with, the first time and after a crash.
#[derive(Clone)]
pub(crate) struct LeaseArguments {
    pub(crate) context: Arc<Context>,
    pub(crate) live: Arc<LiveLease>,
    pub(crate) origin: Origin,
}

/// How this actor comes to its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Just admitted.
    Admitted,
    /// Found in the store when the daemon started.
    FoundAtBoot,
    /// Found in the store later: somebody crashed.
    FoundLater,
}

/// What one actor knows.
pub(crate) struct LeaseActorState {
    context: Arc<Context>,
    live: Arc<LiveLease>,
    origin: Origin,
    machine: LeaseMachine,
    record: LeaseRecord,
    waiters: Vec<Waiter>,
    sandbox: Option<Arc<dyn Sandbox>>,
    last_failure: Option<RuntimeError>,
    asked_by: Option<AskedBy>,
    effects: Effects,
    timers: HashMap<Timer, (u64, AbortHandle)>,
    timer_tasks: JoinSet<()>,
    timer_number: u64,
    idle_ms: u64,
}

#[ractor::async_trait]
impl Actor for LeaseActor {
    type Msg = LeaseMsg;
    type State = LeaseActorState;
    type Arguments = LeaseArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<LeaseMsg>,
        args: LeaseArguments,
    ) -> Result<LeaseActorState, ActorProcessingErr> {
        let record = args.live.record();
        let machine = LeaseMachine::new(&record, args.context.limits);
        // A predecessor may have got further than the arguments say.
        let origin = args.live.first_origin(args.origin);
        args.live.set_fault(None);
        myself.cast(LeaseMsg::Begin)?;
        Ok(LeaseActorState {
            effects: Effects::new(Arc::clone(&args.context), Arc::clone(&args.live), myself),
            context: args.context,
            live: args.live,
            origin,
            machine,
            record,
            waiters: Vec::new(),
            sandbox: None,
            last_failure: None,
            asked_by: None,
            timers: HashMap::new(),
            timer_tasks: JoinSet::new(),
            timer_number: 0,
            idle_ms: 0,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<LeaseMsg>,
        message: LeaseMsg,
        state: &mut LeaseActorState,
    ) -> Result<(), ActorProcessingErr> {
        state.effects.reap();
        while state.timer_tasks.try_join_next().is_some() {}
        match message {
            LeaseMsg::Begin => state.begin(&myself)?,
            LeaseMsg::Call(waiter) if state.waiters.len() >= limits::MAX_WAITING_CALLS => {
                let limit = limits::MAX_WAITING_CALLS;
                reply(waiter, Err(AcquireError::TooManyWaiting { limit }));
            }
            LeaseMsg::Call(waiter) if !state.live.take_place(&state.context.live) => {
                let limit = state.context.live.limit();
                reply(waiter, Err(AcquireError::Busy { limit }));
            }
            LeaseMsg::Call(waiter) => {
                state.waiters.push(waiter);
                state.feed(&myself, Event::CallArrived);
            }
            LeaseMsg::End(asked_by) => {
                state.asked_by.get_or_insert(asked_by);
                state.feed(&myself, Event::EndRequested);
            }
            LeaseMsg::Suspect => state.feed(&myself, Event::Suspected),
            LeaseMsg::Happened(event) => state.feed(&myself, event),
            LeaseMsg::Failed(attempt, error) => {
                tracing::info!(lease = %state.live.id, %error, "an effect of the lease failed");
                let words = error.to_string();
                state.last_failure = Some(error);
                state.feed(&myself, Event::EffectFailed(attempt, words));
            }
            LeaseMsg::Answered(attempt, sandbox) => {
                state.sandbox = Some(sandbox);
                state.feed(&myself, Event::AgentAnswered(attempt));
                // Those that an earlier start, or an earlier daemon, left.
                if state.context.allowed.jobs || state.origin != Origin::Admitted {
                    JobBook::follow(&state.context, &state.live);
                }
            }
            LeaseMsg::Wrote(attempt, result) => {
                state.effects.wrote();
                // Only a lost store or a bug comes to here; a full disk is waited for.
                result?;
                state.feed(&myself, Event::RecordWritten(attempt));
            }
            LeaseMsg::Fired(timer, number) => state.fired(&myself, timer, number),
            #[cfg(test)]
            LeaseMsg::Crash => panic!("told to"),
        }
        Ok(())
    }
}

impl LeaseActorState {
    fn begin(&mut self, myself: &ActorRef<LeaseMsg>) -> Result<(), ActorProcessingErr> {
        let event = match self.origin {
            Origin::Admitted => Event::Recorded,
            Origin::FoundAtBoot => Event::Resumed { at_boot: true },
            Origin::FoundLater => Event::Resumed { at_boot: false },
        };
        if self.origin == Origin::FoundLater {
            let id = self.live.id.clone();
            let record = self.context.store.read_now(|view| view.lease(&id))?;
            let Some(record) = record else {
                // Forgotten, so it was over long ago.
                self.run(myself, Effect::Retire);
                return Ok(());
            };
            self.machine = LeaseMachine::new(&record, self.context.limits);
            self.live.set_record(record.clone());
            self.record = record;
        }
        if let Some(reason) = self.record.end.clone() {
            self.live.shut(reason);
        }
        self.feed(myself, event);
        Ok(())
    }

    fn feed(&mut self, myself: &ActorRef<LeaseMsg>, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            tracing::trace!(lease = %self.live.id, ?event, "event");
            for effect in self.machine.apply(event, self.context.clock.now()) {
                tracing::trace!(lease = %self.live.id, ?effect, "effect");
                events.extend(self.run(myself, effect));
            }
        }
        if self.machine.is_settled() {
            // A stopped sandbox has no place among those that run; the call that wakes it takes one.
            if self.machine.state() == LeaseState::Idle {
                self.live.give_place_back();
            }
            self.live.set_settled();
        }
    }

    /// Runs one effect. One that is done at once returns its event.
    fn run(&mut self, myself: &ActorRef<LeaseMsg>, effect: Effect) -> Option<Event> {
        match effect {
            Effect::WriteRecord {
                attempt,
                state,
                end,
            } => {
                self.record.state = state;
                self.record.end = end;
                self.record.changed_at = self.context.clock.now();
                let audit = (state == LeaseState::Ending).then(|| self.audit_row());
                self.effects.write(Write {
                    attempt,
                    record: self.record.clone(),
                    audit,
                });
            }
            Effect::Observe(attempt) => self.effects.observe(attempt),
            Effect::CreateSandbox(attempt) => self.effects.create(attempt, &self.record),
            Effect::StartSandbox(attempt) => self.effects.start(attempt),
            Effect::AwaitAgent(attempt) => self.effects.await_agent(attempt),
            Effect::WatchSandbox(watch) => self.effects.watch(watch),
            Effect::AskForJobs(attempt) => {
                self.effects.ask_for_jobs(attempt, self.sandbox.clone());
            }
            Effect::CloseDoor(attempt) => {
                let idle = Duration::from_millis(self.idle_ms);
                return Some(if self.live.door.close_if_unused_for(idle) {
                    self.sandbox = None;
                    Event::DoorClosed(attempt)
                } else {
                    Event::CallBegan(attempt)
                });
            }
            Effect::SweepSandbox(attempt) => self.effects.sweep(attempt, &self.record),
            Effect::StopSandbox(attempt) => self.effects.stop(attempt),
            Effect::RemoveSandbox(attempt) => self.effects.remove(attempt),
            Effect::SetTimer(timer, after_ms) => {
                if timer == Timer::Idle {
                    self.live.door.touch();
                    self.idle_ms = after_ms;
                }
                self.arm(myself, timer, Duration::from_millis(after_ms));
            }
            Effect::ClearTimer(timer) => self.disarm(timer),
            Effect::AdmitWaiters { fresh } => self.admit(fresh),
            Effect::RefuseWaiters(refusal) => self.refuse(&refusal),
            Effect::ShutDoor(reason) => {
                tracing::info!(lease = %self.live.id, ?reason, "the lease ends");
                self.sandbox = None;
                self.effects.forget_agent();
                self.live.shut(reason);
            }
            Effect::Retire => {
                self.context.live.remove(&self.live);
                self.context.jobs.forget(&self.live.id);
                self.live.set_gone();
                myself.stop(None);
            }
        }
        None
    }

    fn audit_row(&self) -> AuditRow {
        let asked_by = self.asked_by.clone();
        let by_request = self.record.end == Some(EndReason::Requested);
        let asked_by = asked_by.filter(|_| by_request);
        AuditRow {
            at: self.record.changed_at,
            actor: asked_by.as_ref().map_or(Who::System, |by| by.actor.clone()),
            action: "lease.ended".into(),
            subject: format!("lease/{}", self.record.id),
            fields: vec!["state".into(), "end".into()],
            request: asked_by.and_then(|by| Some(by.request?.to_string())),
        }
    }

    fn admit(&mut self, fresh: bool) {
        if let Some(sandbox) = &self.sandbox {
            self.live.door.open(Arc::clone(sandbox));
        }
        for waiter in self.waiters.drain(..) {
            let answer = match self.live.enter() {
                Some((sandbox, hold)) => Ok(ActiveSandbox::new(fresh, sandbox, hold)),
                None => Err(AcquireError::Internal("the door did not open".into())),
            };
            // Whoever does not wait any more drops the answer, and leaves with it.
            reply(waiter, answer);
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        for waiter in self.waiters.drain(..) {
            let error = match refusal {
                Refusal::StartTimedOut => AcquireError::StartTimedOut {
                    timeout_ms: self.context.limits.start_timeout_ms,
                },
                Refusal::StartFailed(words) => AcquireError::StartFailed(
                    self.last_failure
                        .clone()
                        .unwrap_or_else(|| RuntimeError::StartFailed(words.clone())),
                ),
                Refusal::Ended(reason) => AcquireError::LeaseEnded(reason.clone()),
            };
            reply(waiter, Err(error));
        }
    }

    fn arm(&mut self, myself: &ActorRef<LeaseMsg>, timer: Timer, after: Duration) {
        self.disarm(timer);
        self.timer_number += 1;
        let number = self.timer_number;
        let myself = myself.clone();
        let due = Instant::now() + after;
        let task = self.timer_tasks.spawn(async move {
            tokio::time::sleep_until(due).await;
            // Nobody is there any more: then nobody needs to know.
            let _ = myself.cast(LeaseMsg::Fired(timer, number));
        });
        self.timers.insert(timer, (number, task));
    }

    fn disarm(&mut self, timer: Timer) {
        if let Some((_, task)) = self.timers.remove(&timer) {
            task.abort();
        }
    }

    fn fired(&mut self, myself: &ActorRef<LeaseMsg>, timer: Timer, number: u64) {
        if self
            .timers
            .get(&timer)
            .is_none_or(|(set, _)| *set != number)
        {
            return;
        }
        self.timers.remove(&timer);
        let event = match timer {
            Timer::Start => Event::StartLimitReached,
            Timer::Hard => Event::HardLimitReached,
            Timer::Retry => Event::RetryDue,
            Timer::Rewatch => Event::RewatchDue,
            Timer::Idle => {
                // Calls come and go without telling: see how long nobody has been inside.
                let limit = Duration::from_millis(self.idle_ms);
                let left = match self.live.door.unused_for() {
                    None => limit,
                    Some(unused) => limit.saturating_sub(unused),
                };
                if !left.is_zero() {
                    self.arm(myself, Timer::Idle, left);
                    return;
                }
                Event::IdleLimitReached
            }
        };
        self.feed(myself, event);
    }
}
