//! The lease machine: what to do next with one chat's sandbox.
//!
//! ```text
//!            admission                              the next call
//!                │            ┌───────────────────────────────────────────────┐
//!                ▼            ▼                                               │
//!            ┌─ Starting ───────────────────────────┐                         │
//!            │ recording → creating → starting →    │   unused for the idle   │
//!            │ awaiting the agent                   ├─► Running ──► Stopping ─► Idle
//!            └───┬──────────────────────────────────┘      │           │      │
//!                │ failed, or the start limit              │ lost,     │      │
//!                │                                         │ hard limit, asked to end
//!                ▼                                         ▼           ▼      ▼
//!              Ending: recording → removing → recording the end ──────────► Ended
//! ```
//!
//! Before a sandbox is stopped for going unused, and before one that ran into the hard limit is removed,
//! it is *swept*: what it has ready for the chat is collected. A sweep never keeps a sandbox alive:
//! one that fails is over.
//!
//! There is one more phase, *Reconciling*: after a restart of the daemon, a crash of the lease's
//! actor, or a failed stop, all that counts is the durable record and what the runtime shows.
//!
//! | record   | runtime shows running        | stopped or half-made  | nothing              |
//! |----------|------------------------------|-----------------------|----------------------|
//! | Starting | await the agent              | create, start         | create, start        |
//! | Running  | await the agent (adopt it)   | end: lost             | end: lost            |
//! | Idle     | stop (adopt if a call waits) | Idle                  | end: lost            |
//! | Ending   | remove                       | remove                | remove               |
//!
//! How it is driven: [`LeaseMachine::apply`] takes what happened and returns what to do, in
//! order. Whoever runs the effects reports each slow one back with the [`Attempt`] it was given;
//! a result of any attempt but the latest is stale and changes nothing. Writes of the record
//! are to be made in the order they come. Every effect may be repeated without harm.

mod machine;
#[cfg(test)]
mod tests;

use hotcell_types::UnixMillis;

use crate::model::{EndReason, LeaseState};

pub use machine::LeaseMachine;

/// The times that bound a lease, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLimits {
    /// How long a start may take, from the first call that waits until the agent answers.
    pub start_timeout_ms: u64,
    /// How long a sandbox may be unused before it is stopped.
    pub idle_timeout_ms: u64,
    /// How long a lease may live at all, from its admission.
    pub hard_timeout_ms: u64,
}

impl LeaseLimits {
    /// When a lease that was admitted at `created_at` ends at the latest.
    #[must_use]
    pub fn ends_at(&self, created_at: UnixMillis) -> UnixMillis {
        created_at.plus_millis(self.hard_timeout_ms)
    }
}

/// The first pause before a failed observation, stop or removal is tried again; it doubles.
pub const RETRY_MIN_MS: u64 = 500;
/// The longest such pause.
pub const RETRY_MAX_MS: u64 = 30_000;
/// The pause before a failed watch is set up again.
pub const REWATCH_MS: u64 = 1_000;

/// Numbers a slow effect, so that its result can be told from an older one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// Where the runtime says the sandbox stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Its processes run.
    Running,
    /// It is there and does not run: stopped, never started or half-made.
    Stopped,
    /// There is none.
    Nothing,
}

/// How a sandbox ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It used more memory than it has.
    OutOfMemory,
    /// It died or was killed from outside.
    Died,
    /// The engine lost it, for instance in a restart.
    EngineLost,
}

impl Loss {
    fn reason(self) -> EndReason {
        match self {
            Self::OutOfMemory => EndReason::OutOfMemory,
            Self::Died => EndReason::SandboxLost,
            Self::EngineLost => EndReason::RuntimeRestarted,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::OutOfMemory => "the sandbox ran out of memory while it started",
            Self::Died => "the sandbox ended while it started",
            Self::EngineLost => "the runtime lost the sandbox while it started",
        }
    }
}

/// What a timer is for. One of each kind is set at most; setting it again replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// Fires when calls have waited for too long: [`Event::StartLimitReached`].
    Start,
    /// Fires once no call has held the sandbox for that long, counted from when it was set at
    /// the earliest: [`Event::IdleLimitReached`].
    Idle,
    /// Fires when the lease has lived long enough: [`Event::HardLimitReached`].
    Hard,
    /// Fires when something that failed is to be tried again: [`Event::RetryDue`].
    Retry,
    /// Fires when a failed watch is to be set up again: [`Event::RewatchDue`].
    Rewatch,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The lease was admitted and its record committed; nothing was asked of the engine yet.
    Recorded,
    /// The lease was found in the store, by a new daemon or a new actor.
    Resumed {
        /// Whether the daemon has just started: what is missing then was lost in a restart.
        at_boot: bool,
    },
    /// A call waits for the sandbox.
    CallArrived,
    /// The record is durable.
    RecordWritten(Attempt),
    /// The runtime showed where the sandbox stands.
    Observed(Attempt, Seen),
    /// The sandbox was made.
    SandboxCreated(Attempt),
    /// Its processes run.
    SandboxStarted(Attempt),
    /// Its agent answered.
    AgentAnswered(Attempt),
    /// It was stopped.
    SandboxStopped(Attempt),
    /// It was removed.
    SandboxRemoved(Attempt),
    /// The agent said whether any job runs.
    JobsAnswered(Attempt, bool),
    /// What was ready in it for the chat is collected, as far as it could be.
    SandboxSwept(Attempt),
    /// No call held the door, and it is closed: no call can begin any more.
    DoorClosed(Attempt),
    /// A call held the door, or had just left, so that it stayed open.
    CallBegan(Attempt),
    /// A slow effect failed; the words say why.
    EffectFailed(Attempt, String),
    /// The sandbox that is watched ended by itself.
    SandboxEnded(Attempt, Loss),
    /// The runtime could not watch it.
    WatchFailed(Attempt),
    /// A sweep did not find at the runtime what should be there.
    Suspected,
    /// [`Timer::Start`].
    StartLimitReached,
    /// [`Timer::Idle`].
    IdleLimitReached,
    /// [`Timer::Hard`].
    HardLimitReached,
    /// [`Timer::Retry`].
    RetryDue,
    /// [`Timer::Rewatch`].
    RewatchDue,
    /// Somebody asked for the end.
    EndRequested,
}

/// Why calls that wait are sent away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// They waited for as long as a start may take.
    StartTimedOut,
    /// The sandbox could not be made or started; the words say why.
    StartFailed(String),
    /// The lease ends, or has ended.
    Ended(EndReason),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write the record with this state, durably, then report [`Event::RecordWritten`].
    WriteRecord {
        /// Its number.
        attempt: Attempt,
        /// The state to write.
        state: LeaseState,
        /// Why it ends, with `Ending` and `Ended`.
        end: Option<EndReason>,
    },
    /// Ask the runtime where the sandbox stands.
    Observe(Attempt),
    /// Make it.
    CreateSandbox(Attempt),
    /// Run it.
    StartSandbox(Attempt),
    /// Wait until its agent answers.
    AwaitAgent(Attempt),
    /// Report when it ends. A newer watch replaces an older one; watches count on their own.
    WatchSandbox(Attempt),
    /// Ask its agent whether a job runs.
    AskForJobs(Attempt),
    /// Collect what is ready in it for the chat.
    SweepSandbox(Attempt),
    /// Close the door unless a call holds it or held it within the idle limit, and report which.
    CloseDoor(Attempt),
    /// Stop it.
    StopSandbox(Attempt),
    /// Remove it.
    RemoveSandbox(Attempt),
    /// Set a timer.
    SetTimer(Timer, u64),
    /// Forget a timer.
    ClearTimer(Timer),
    /// Open the door and let every waiting call in.
    AdmitWaiters {
        /// Whether the sandbox was made or started for them.
        fresh: bool,
    },
    /// Send every waiting call away.
    RefuseWaiters(Refusal),
    /// Shut the door for good; calls that hold it learn why.
    ShutDoor(EndReason),
    /// It is over: forget the lease.
    Retire,
}
