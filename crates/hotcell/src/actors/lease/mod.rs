//! One actor per lease: it runs the machine of `hotcell_core::lease` and its effects.
//!
//! ```text
//!   mailbox ──► machine.apply(event) ──► effects
//!      ▲                                   │ at once: door, waiters, timers
//!      │                                   │ in order, one at a time: writes of the record
//!      └────────── events ◄────────────────┘ in tasks: engine calls, the agent, the watch
//! ```
//!
//! The actor holds nothing that a restart needs: when it crashes, its successor reads the record
//! and looks at the runtime. Bytes of commands never pass through here; calls hold the door of
//! the lease (`live.rs`) instead.

mod actor;
mod effects;
mod msg;

pub(crate) use actor::{LeaseActor, LeaseArguments, Origin};
pub(crate) use effects::seen;
pub(crate) use msg::{AskedBy, LeaseMsg};
