//! Expected failures of engines and sandboxes.

use hotcell_agent_proto::AgentError;

/// An engine could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RuntimeError {
    /// The engine itself cannot be used: binary missing, socket gone, no permission.
    #[error("the runtime is not available: {0}")]
    Unavailable(String),
    /// The image is not in the store.
    #[error("the image {0} is not there")]
    NoSuchImage(String),
    /// The image cannot be run, for instance since it has no bash.
    #[error("the image {image} cannot be used: {reason}")]
    BadImage {
        /// Which.
        image: String,
        /// Why.
        reason: String,
    },
    /// The runtime cannot give what the specification asks for.
    #[error("this runtime cannot give {what}: {reason}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why it cannot be had.
        reason: String,
    },
    /// The network filter cannot be installed, so the sandbox is not made.
    #[error("egress cannot be enforced: {0}")]
    EgressUnenforceable(String),
    /// The host's disk is full.
    #[error("the disk of the host is full: {0}")]
    DiskFull(String),
    /// No such sandbox.
    #[error("no such sandbox")]
    NoSuchSandbox,
    /// The sandbox was made but its agent did not come up.
    #[error("the sandbox did not start: {0}")]
    StartFailed(String),
    /// The engine refused or failed.
    #[error("the runtime failed to {action}: {reason}")]
    Failed {
        /// What was being done.
        action: &'static str,
        /// What it said.
        reason: String,
    },
}

/// A sandbox did not answer as it should.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SandboxError {
    /// The sandbox cannot be reached or went away in the middle.
    #[error("the sandbox is gone: {0}")]
    Lost(String),
    /// It answered something that the protocol does not allow.
    #[error("the sandbox answered nonsense: {0}")]
    Protocol(String),
    /// It did not answer in time.
    #[error("the sandbox did not answer within {0} ms")]
    Timeout(u64),
    /// The agent refused.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// More than the caller's limit came.
    #[error("more than {0} bytes came")]
    TooLarge(u64),
}
