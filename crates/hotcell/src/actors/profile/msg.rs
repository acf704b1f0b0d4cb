//! What a profile's actor can be told.

use std::sync::Arc;

use hotcell_runtime::{Check, Runtime, RuntimeError};
use ractor::RpcReplyPort;

use super::sweep::Swept;

/// What a profile's actor can be told.
pub(crate) enum ProfileMsg {
    /// From itself: open the engine.
    Open,
    /// From its task: it is open, or not.
    Opened(Result<Arc<dyn Runtime>, RuntimeError>),
    /// Run the preflight; whoever asks is told when it is done.
    Check(Option<RpcReplyPort<()>>),
    /// From its task: what the preflight found.
    Checked(Vec<Check>),
    /// Compare what the engine has with what we know; whoever asks is told when it is done.
    Sweep(Option<RpcReplyPort<()>>),
    /// From its task: what a sweep found.
    Swept(Swept),
    /// From its task: it panicked, so that its result will never come.
    Panicked,
}
