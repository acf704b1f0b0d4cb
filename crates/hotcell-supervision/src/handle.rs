//! What others hold of a supervisor.

use hotcell_types::limits;
use ractor::RpcReplyPort;

use crate::{
    address::Address, call::CallError, spec::ChildSpec, status::ChildStatus, supervisor::Message,
};

/// Why a child was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There is a child with this id, perhaps a faulted one.
    #[error("there is already a child {0}")]
    Exists(String),
    /// There are as many children as there may be.
    #[error("there are already {limit} children, which is the limit")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The supervisor did not answer.
    #[error("the supervisor did not answer")]
    Call(#[source] CallError),
}

/// Reaches a supervisor, through its restarts.
#[derive(Debug, Clone)]
pub struct SupervisorHandle {
    pub(crate) address: Address<Message>,
}

impl SupervisorHandle {
    /// Adds a child and starts it. Once it has finished by itself it is forgotten; a faulted one
    /// stays until it is retried or removed.
    ///
    /// # Errors
    /// The id is taken, there are too many, or the supervisor did not answer.
    pub async fn add(&self, spec: ChildSpec) -> Result<(), AddError> {
        let question = |port| Message::Add(Box::new(spec), port);
        self.ask(question).await.map_err(AddError::Call)?
    }

    /// Stops a child, waits for its `post_stop`, and forgets it. Whether there was one.
    ///
    /// # Errors
    /// The supervisor is gone, or the child takes longer to stop than it may take to be killed.
    pub async fn remove(&self, id: &str) -> Result<bool, CallError> {
        let id = id.to_owned();
        let timeout_ms = limits::MAX_CHILD_STOP_MS;
        let question = |port| Message::Remove(id, port);
        self.address.call(question, timeout_ms).await
    }

    /// Starts a faulted or backing-off child at once, with a full budget. Whether there was one.
    ///
    /// # Errors
    /// The supervisor did not answer.
    pub async fn retry(&self, id: &str) -> Result<bool, CallError> {
        let id = id.to_owned();
        self.ask(|port| Message::Retry(id, port)).await
    }

    /// Every child, in the order in which they were added.
    ///
    /// # Errors
    /// The supervisor did not answer.
    pub async fn status(&self) -> Result<Vec<ChildStatus>, CallError> {
        self.ask(Message::Status).await
    }

    /// Waits until every child that the supervisor was made with was started once.
    ///
    /// # Errors
    /// The supervisor is gone, or that takes longer than `timeout_ms`.
    pub async fn started(&self, timeout_ms: u64) -> Result<(), CallError> {
        let supervisor = self.address.wait(timeout_ms).await?;
        crate::call::call(&supervisor, Message::AwaitStarted, timeout_ms).await
    }

    /// Stops the children in reverse order, each awaited, and then the supervisor.
    pub async fn stop(&self) {
        let Some(supervisor) = self.address.get() else {
            return;
        };
        // It stops by itself: every child has its own timeout.
        let stopping = supervisor.stop_and_wait(None, None);
        if stopping.await.is_err() {
            // Somebody else is stopping it.
            let _ = supervisor.wait(None).await;
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(RpcReplyPort<T>) -> Message,
    ) -> Result<T, CallError> {
        self.address
            .call(question, limits::SUPERVISOR_CALL_TIMEOUT_MS)
            .await
    }
}
