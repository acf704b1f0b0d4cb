//! Where a supervised actor is to be found, through all its restarts.

use std::{fmt, sync::Arc, time::Duration};

use ractor::{ActorRef, ActorStatus, Message, RpcReplyPort};
use tokio::sync::watch;

use crate::call::{CallError, call};

/// Leads to the present incarnation of an actor. Cheap to clone.
///
/// Actors hold these and ids, never names: names are global to the process.
pub struct Address<M> {
    current: Arc<watch::Sender<Option<ActorRef<M>>>>,
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self {
            current: self.current.clone(),
        }
    }
}

impl<M> fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Address")
    }
}

impl<M: Message> Default for Address<M> {
    fn default() -> Self {
        Self::new()
    }
}

fn is_alive<M>(actor: &ActorRef<M>) -> bool {
    actor.get_status() < ActorStatus::Stopping
}

impl<M: Message> Address<M> {
    /// An address that leads nowhere yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            current: Arc::new(watch::Sender::new(None)),
        }
    }

    /// Leads to this actor from now on.
    pub fn set(&self, actor: ActorRef<M>) {
        self.current.send_replace(Some(actor));
    }

    /// The actor, when it is alive now.
    #[must_use]
    pub fn get(&self) -> Option<ActorRef<M>> {
        self.current.borrow().clone().filter(is_alive)
    }

    /// The actor, as soon as it is alive.
    ///
    /// # Errors
    /// [`CallError::TimedOut`] when that takes longer than `timeout_ms`.
    pub async fn wait(&self, timeout_ms: u64) -> Result<ActorRef<M>, CallError> {
        let mut changes = self.current.subscribe();
        let alive = changes.wait_for(|actor| actor.as_ref().is_some_and(is_alive));
        match tokio::time::timeout(Duration::from_millis(timeout_ms), alive).await {
            Ok(Ok(actor)) => actor.clone().ok_or(CallError::Gone),
            Ok(Err(_)) => Err(CallError::Gone),
            Err(_) => Err(CallError::TimedOut { timeout_ms }),
        }
    }

    /// Sends a message, when the actor is alive.
    ///
    /// # Errors
    /// [`CallError::Gone`].
    pub fn cast(&self, message: M) -> Result<(), CallError> {
        let actor = self.get().ok_or(CallError::Gone)?;
        actor.send_message(message).map_err(|_| CallError::Gone)
    }

    /// Asks the actor, when it is alive, and waits for its answer, at most `timeout_ms`.
    ///
    /// # Errors
    /// The actor is gone or did not answer in time.
    pub async fn call<T: Send + 'static>(
        &self,
        question: impl FnOnce(RpcReplyPort<T>) -> M,
        timeout_ms: u64,
    ) -> Result<T, CallError> {
        let actor = self.get().ok_or(CallError::Gone)?;
        call(&actor, question, timeout_ms).await
    }
}
