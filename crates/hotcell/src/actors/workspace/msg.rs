//! What a workspace's actor can be told.

use std::sync::Arc;

use hotcell_core::model::LeaseRecord;
use hotcell_types::ChatId;
use ractor::RpcReplyPort;

use super::effects::AdmitError;
use crate::{
    actors::{
        lease::Origin,
        live::{LiveLease, Slot},
    },
    handles::{AcquireError, Caller},
};

/// Where a chat's lease is sent to.
pub(crate) type LeasePort = RpcReplyPort<Result<Arc<LiveLease>, AcquireError>>;

/// What a workspace's actor can be told.
pub(crate) enum WorkspaceMsg {
    /// Take over the leases that were found when the daemon started.
    AdoptThese(Vec<LeaseRecord>, RpcReplyPort<Vec<Arc<LiveLease>>>),
    /// Find or make the lease of a chat.
    Acquire(Box<Caller>, LeasePort),
    /// From its task: what became of an admission.
    Admitted(ChatId, Result<(LeaseRecord, Slot), AdmitError>),
    /// From its task: the lease's actor stands, or cannot be started.
    Started(ChatId, Result<Arc<LiveLease>, String>),
    /// From its task: leases of the store that have no actor.
    Found(Vec<LeaseRecord>, Origin),
    /// From its task: it panicked, so that its result will never come.
    Panicked,
    /// Panic, to see what happens then.
    #[cfg(test)]
    Crash,
    /// Perhaps there is nothing left to do.
    Rest,
}
