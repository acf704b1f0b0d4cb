//! The actors of the daemon. `crew.rs` draws the tree.
//!
//! ```text
//!   handles ──► workspace actor ──admits──► lease actor ──effects──► Runtime, Sandbox
//!      │                                        │                        ▲
//!      └──── live leases: door, record ◄────────┘        profile actor ──┘ opens, checks, sweeps
//! ```
//!
//! An actor decides; what takes time runs in its task set and comes back as a message. What
//! others need to see of an actor it puts into shared state ([`live`], [`profile`]), so that the
//! way of a call to a running sandbox crosses no mailbox.

pub(crate) mod admission;
mod boot;
pub(crate) mod context;
pub(crate) mod crew;
pub(crate) mod egress;
pub(crate) mod jobs;
pub(crate) mod lease;
pub(crate) mod live;
pub(crate) mod profile;
mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod warm;
pub(crate) mod workspace;

pub use boot::{Appliance, BootError, Parts, default_profile};
pub(crate) use live::lock;
pub use profile::OpenRuntime;
pub use sweep::FinalSweep;
