//! Asking an actor, and answering.

use std::time::Duration;

use ractor::{ActorRef, Message, RpcReplyPort, rpc::CallResult};

/// Why a question got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The actor did not answer in time. It may still do what it was asked.
    #[error("the actor did not answer within {timeout_ms} ms")]
    TimedOut {
        /// How long it had.
        timeout_ms: u64,
    },
    /// The actor is not there, or went away before it answered.
    #[error("the actor is gone")]
    Gone,
}

/// Asks an actor and waits for its answer, at most `timeout_ms`.
///
/// # Errors
/// The actor is gone or did not answer in time.
pub async fn call<M: Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    question: impl FnOnce(RpcReplyPort<T>) -> M,
    timeout_ms: u64,
) -> Result<T, CallError> {
    let timeout = Duration::from_millis(timeout_ms);
    match actor.call(question, Some(timeout)).await {
        Ok(CallResult::Success(answer)) => Ok(answer),
        Ok(CallResult::Timeout) => Err(CallError::TimedOut { timeout_ms }),
        Ok(CallResult::SenderError) | Err(_) => Err(CallError::Gone),
    }
}

/// Answers a question. A caller who has stopped waiting is no error of the actor.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that knows what to do when the caller is gone: nothing"
)]
pub fn reply<T>(port: RpcReplyPort<T>, answer: T) {
    if port.send(answer).is_err() {
        tracing::debug!("an answer came too late for its caller");
    }
}
