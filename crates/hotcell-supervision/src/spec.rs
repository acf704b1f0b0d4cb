//! What a supervisor needs to know about a child.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use hotcell_types::limits;
use ractor::{Actor, ActorCell, SpawnErr};

use crate::{
    address::Address,
    restart::{Backoff, Restart, RestartBudget},
};

/// Why a child did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Its `pre_start` failed or panicked, or it could not be spawned.
    #[error("it did not start: {0}")]
    Failed(String),
    /// It did not start in time.
    #[error("it did not start within {timeout_ms} ms")]
    TimedOut {
        /// How long it had.
        timeout_ms: u64,
    },
}

type Start = dyn Fn(ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>> + Send + Sync;
type OnFault = dyn Fn(&str) + Send + Sync;

/// How to start a child, and what to do when it exits.
#[derive(Clone)]
pub struct ChildSpec {
    pub(crate) id: String,
    pub(crate) start: Arc<Start>,
    pub(crate) restart: Restart,
    pub(crate) backoff: Backoff,
    pub(crate) budget: RestartBudget,
    pub(crate) start_timeout_ms: u64,
    pub(crate) stop_timeout_ms: u64,
    pub(crate) on_fault: Option<Arc<OnFault>>,
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("id", &self.id)
            .field("restart", &self.restart)
            .field("backoff", &self.backoff)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

impl ChildSpec {
    /// A child whose start is `start`, which spawns an actor linked to the given supervisor and
    /// returns it. Permanent, with the default backoff, budget and timeouts.
    pub fn new<F>(
        id: impl Into<String>,
        start: impl Fn(ActorCell) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<ActorCell, SpawnErr>> + Send + 'static,
    {
        Self {
            id: id.into(),
            start: Arc::new(move |supervisor| start(supervisor).boxed()),
            restart: Restart::Permanent,
            backoff: Backoff::default(),
            budget: RestartBudget::default(),
            start_timeout_ms: limits::CHILD_START_TIMEOUT_MS,
            stop_timeout_ms: limits::CHILD_STOP_TIMEOUT_MS,
            on_fault: None,
        }
    }

    /// A child that is an actor, with an address that follows it. `make` gives the actor and its arguments, for each start anew.
    pub fn actor<A: Actor>(
        id: impl Into<String>,
        make: impl Fn() -> (A, A::Arguments) + Send + Sync + 'static,
    ) -> (Self, Address<A::Msg>) {
        let address = Address::new();
        let spec = Self::actor_at(id, address.clone(), make);
        (spec, address)
    }

    /// The same, at an address that exists already: for actors that know each other.
    pub fn actor_at<A: Actor>(
        id: impl Into<String>,
        address: Address<A::Msg>,
        make: impl Fn() -> (A, A::Arguments) + Send + Sync + 'static,
    ) -> Self {
        Self::new(id, move |supervisor| {
            let (actor, arguments) = make();
            let address = address.clone();
            async move {
                let (child, _) = A::spawn_linked(None, actor, arguments, supervisor).await?;
                address.set(child.clone());
                Ok(child.get_cell())
            }
        })
    }

    /// Its id, unique among the children of one supervisor.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Which exits are followed by a restart.
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// How long to wait before restarts.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How many restarts it may need.
    #[must_use]
    pub fn budget(mut self, budget: RestartBudget) -> Self {
        self.budget = budget;
        self
    }

    /// How long its start (its `pre_start`) may take. The supervisor does nothing else meanwhile.
    #[must_use]
    pub fn start_timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.start_timeout_ms = timeout_ms;
        self
    }

    /// How long it may take to stop (the message it is handling and its `post_stop`) before it is killed.
    #[must_use]
    pub fn stop_timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.stop_timeout_ms = timeout_ms;
        self
    }

    /// Called with the reason when it becomes faulted. Must not block.
    #[must_use]
    pub fn on_fault(mut self, on_fault: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_fault = Some(Arc::new(on_fault));
        self
    }

    /// Starts it once. Whatever `start` does, this returns.
    pub(crate) async fn run_start(&self, supervisor: ActorCell) -> Result<ActorCell, StartError> {
        let timeout_ms = self.start_timeout_ms;
        let start = &self.start;
        let started = match catch_unwind(AssertUnwindSafe(|| start(supervisor))) {
            Ok(future) => {
                let caught = AssertUnwindSafe(future).catch_unwind();
                match tokio::time::timeout(Duration::from_millis(timeout_ms), caught).await {
                    Ok(started) => started,
                    Err(_) => return Err(StartError::TimedOut { timeout_ms }),
                }
            }
            Err(payload) => Err(payload),
        };
        match started {
            Ok(Ok(child)) => Ok(child),
            Ok(Err(error)) => Err(StartError::Failed(start_failure(&error))),
            Err(_) => Err(StartError::Failed("starting it panicked".to_owned())),
        }
    }
}

fn start_failure(error: &SpawnErr) -> String {
    match error {
        SpawnErr::StartupFailed(error) => error.to_string(),
        error => error.to_string(),
    }
}
