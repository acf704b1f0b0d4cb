//! What a supervisor says about its children.

/// Where a child stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildState {
    /// It has not been started yet, or is being started.
    Starting,
    /// It is up.
    Running {
        /// For how long.
        up_ms: u64,
    },
    /// It failed and will be started again.
    BackingOff {
        /// How long after its failure.
        delay_ms: u64,
    },
    /// It failed more often than its budget allows. Nothing happens until it is retried or removed.
    Faulted {
        /// Its last failure.
        reason: String,
    },
    /// It is being stopped.
    Stopping,
    /// It is over and will not be started again.
    Finished,
}

/// One child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildStatus {
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub state: ChildState,
    /// How often it was started again.
    pub restarts: u64,
    /// What its last failure was, when there was one.
    pub last_failure: Option<String>,
}

impl ChildStatus {
    /// Whether it is up.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.state, ChildState::Running { .. })
    }

    /// Why it is faulted, when it is.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        match &self.state {
            ChildState::Faulted { reason } => Some(reason),
            _ => None,
        }
    }
}
