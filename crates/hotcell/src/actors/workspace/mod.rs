//! One actor per active workspace: it admits the leases of its chats.
//!
//! ```text
//!   first call of a chat ──► one transaction: gate, quotas, record, slot, audit row ──► lease actor
//!                    │                        ▲
//!   calls beside it ─┴─ wait for the same ────┘
//! ```
//!
//! It is started on demand and goes when its workspace has no lease for a minute. It alone adds
//! leases of its workspace, so a chat never gets two. What it needs after a crash is in the
//! store: its successor adopts every lease that has no actor.

mod actor;
mod effects;
mod msg;

pub(crate) use actor::{WorkspaceActor, WorkspaceArguments};
pub(crate) use msg::WorkspaceMsg;
