//! How long this side waits for an agent.

use std::time::Duration;

use hotcell_types::limits;

/// How long to wait for what. The default holds the limits of `hotcell_types::limits`; tests
/// against a peer that never answers use shorter ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For the head and the rest of an answer that needs no work.
    pub answer: Duration,
    /// For an answer that ends processes or removes trees.
    pub slow_answer: Duration,
    /// For the next frame of a call.
    pub silence: Duration,
    /// For the next piece of a file.
    pub content: Duration,
    /// For the end of a call, beyond its own time limit and the kill grace.
    pub exec_backstop: Duration,
    /// How long an unused connection is kept.
    pub idle_connection: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_millis(limits::AGENT_CONNECT_TIMEOUT_MS),
            answer: Duration::from_millis(limits::AGENT_ANSWER_TIMEOUT_MS),
            slow_answer: Duration::from_millis(limits::AGENT_SLOW_ANSWER_TIMEOUT_MS),
            silence: Duration::from_millis(limits::AGENT_SILENCE_MS),
            content: Duration::from_millis(limits::BODY_IDLE_TIMEOUT_MS),
            exec_backstop: Duration::from_millis(limits::AGENT_EXEC_BACKSTOP_MS),
            idle_connection: Duration::from_millis(limits::AGENT_IDLE_CONNECTION_MS),
        }
    }
}

/// A duration in the whole milliseconds that errors carry.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
