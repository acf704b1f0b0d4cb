//! What a lease's actor can be told.

use std::sync::Arc;

use hotcell_core::{
    lease::{Attempt, Event, Timer},
    model::Actor,
};
use hotcell_runtime::{RuntimeError, Sandbox};
use hotcell_store::StoreError;
use hotcell_types::RequestId;
use ractor::RpcReplyPort;

use crate::handles::{AcquireError, ActiveSandbox};

/// Where a call's sandbox is sent to.
pub(crate) type Waiter = RpcReplyPort<Result<ActiveSandbox, AcquireError>>;

/// Who asked for a lease's end.
#[derive(Debug, Clone)]
pub(crate) struct AskedBy {
    pub(crate) actor: Actor,
    pub(crate) request: Option<RequestId>,
}

/// What a lease's actor can be told.
pub(crate) enum LeaseMsg {
    /// From itself, first of all: read the record and go on from there.
    Begin,
    /// A call waits for the sandbox.
    Call(Waiter),
    /// Somebody asks for the end.
    End(AskedBy),
    /// The runtime did not show what it should.
    Suspect,
    /// From its effects: what happened.
    Happened(Event),
    /// From its effects: the engine failed.
    Failed(Attempt, RuntimeError),
    /// From its effects: the agent answers through this.
    Answered(Attempt, Arc<dyn Sandbox>),
    /// From its effects: the record is written, or cannot be.
    Wrote(Attempt, Result<(), StoreError>),
    /// From its timers. The number tells a timer from the one that it replaced.
    Fired(Timer, u64),
    /// Panic, to see what happens then.
    #[cfg(test)]
    Crash,
}
