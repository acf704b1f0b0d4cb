//! The warm pool: sandboxes of the profile that run already and are nobody's.
//!
//! ```text
//!   keeper ──makes──► Making ──► Ready ──admission──► Taken ──claim, or a cold start──► forgotten
//!      ▲                 └─────────┴────── Condemned ──removed─────────────────────────────►
//!      └── looks when the pool changes, and now and then
//! ```
//!
//! A sandbox of the pool has the id of the lease that it may become. An admission takes a ready one
//! and its id; the lease's own effect claims it, where it would otherwise create one. Whatever goes
//! wrong there, the lease is started cold: no call fails because of the pool.
//!
//! Each has a place of `max_sandboxes`, and gives it up to a call that finds none. Workspaces' quotas
//! know of none of them. The pool is in memory alone: what an earlier daemon left is found by the
//! engine's own mark and removed in the first sweep.

mod keeper;
mod pool;

pub(crate) use keeper::{KeeperActor, KeeperArguments};
pub(crate) use pool::Pool;
