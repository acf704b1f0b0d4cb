//! Supervision of actors.
//!
//! ```text
//!             start                      exit that is to be restarted
//!  Starting ────────▶ Running ───────────────────────────────▶ BackingOff ──┐
//!     ▲  │                │ exit that is not                       │        │ budget used up
//!     │  │ fails          ▼                                        │        ▼
//!     │  └──────────▶ BackingOff / Faulted        Finished         │     Faulted{reason}
//!     │                                                            │        │ retry()
//!     └──────────────────── after the delay ───────────────────────┘        │
//!     └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - One bad child never takes its siblings down: a [`Supervisor`] outlives every exit of every
//!   child. It restarts with exponential backoff and jitter, and gives up when the
//!   [`RestartBudget`] is used up; the child is then faulted, with its reason, until somebody
//!   retries it.
//! - Children start in order and stop in reverse, each awaited until its `post_stop` is done.
//! - A child whose `pre_start` fails, panics or hangs counts as failed like any other.
//! - Everything has an attempt number or an actor id; what comes from an attempt that is over is ignored.
//!
//! [`Address`] is how others reach a child: it always leads to the present incarnation.
//! [`reply`] and [`call`] are the only ways in which actors answer and are asked.

mod address;
mod call;
mod children;
mod handle;
mod restart;
mod spec;
mod status;
mod supervisor;

#[cfg(test)]
mod tests;

pub use address::Address;
pub use call::{CallError, call, reply};
pub use handle::{AddError, SupervisorHandle};
pub use restart::{Backoff, Restart, RestartBudget, RestartMachine, Verdict};
pub use spec::{ChildSpec, StartError};
pub use status::{ChildState, ChildStatus};
pub use supervisor::{Message as SupervisorMessage, Supervisor};
