//! The children of one supervisor: what happens to them, and what is done about it.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use hotcell_types::{IdSource, limits};
use ractor::{ActorCell, ActorId, ActorRef, RactorErr, RpcReplyPort};
use tokio::time::Instant;

use crate::{
    call::reply,
    handle::AddError,
    restart::{Restart, RestartMachine, Verdict},
    spec::ChildSpec,
    status::{ChildState, ChildStatus},
    supervisor::Message,
};

enum Phase {
    Starting,
    Running {
        cell: ActorCell,
        since: Instant,
    },
    BackingOff {
        delay_ms: u64,
    },
    Faulted {
        reason: String,
    },
    Stopping {
        cell: ActorCell,
        waiting: Vec<RpcReplyPort<bool>>,
    },
    Finished,
}

struct Child {
    spec: ChildSpec,
    phase: Phase,
    machine: RestartMachine,
    /// The number of its last start; a timer of an earlier one is stale.
    attempt: u64,
    restarts: u64,
    last_failure: Option<String>,
    /// Its place among its siblings: starts go up, stops go down.
    place: u64,
    /// Added later: forgotten once it is finished.
    dynamic: bool,
}

/// What a supervisor knows.
pub struct State {
    name: String,
    jitter: Arc<dyn IdSource>,
    children: HashMap<String, Child>,
    /// Which child an actor is.
    by_actor: HashMap<ActorId, String>,
    next_place: u64,
    /// Counts the starts of all children, so that a child that was removed and added again does not
    /// repeat the numbers of its predecessor.
    attempts: u64,
}

/// What ractor gives as the reason of the exit of an actor that was killed.
pub(crate) const KILLED: &str = "killed";

/// How a child came to its end.
pub(crate) enum Exit {
    Normal,
    Failed(String),
}

impl State {
    pub(crate) fn new(name: String, jitter: Arc<dyn IdSource>) -> Self {
        Self {
            name,
            jitter,
            children: HashMap::new(),
            by_actor: HashMap::new(),
            next_place: 0,
            attempts: 0,
        }
    }

    /// The delay before a start is over.
    pub(crate) async fn backed_off(&mut self, myself: &ActorRef<Message>, id: &str, attempt: u64) {
        let Some(child) = self.children.get_mut(id) else {
            return;
        };
        if child.attempt == attempt && matches!(child.phase, Phase::BackingOff { .. }) {
            child.restarts += 1;
            self.start_child(myself, id).await;
        }
    }

    /// Stops every child, the last one first, each awaited.
    pub(crate) async fn stop_all(&mut self) {
        for id in self.ids_in_order().into_iter().rev() {
            let Some(child) = self.children.remove(&id) else {
                continue;
            };
            if let Phase::Running { cell, .. } | Phase::Stopping { cell, .. } = child.phase {
                stop_or_kill(cell, child.spec.stop_timeout_ms).await;
            }
        }
    }

    pub(crate) fn insert(&mut self, spec: ChildSpec, dynamic: bool) -> Result<(), AddError> {
        if self.children.contains_key(&spec.id) {
            return Err(AddError::Exists(spec.id));
        }
        let limit = limits::MAX_SUPERVISED_CHILDREN;
        if self.children.len() >= limit {
            return Err(AddError::TooMany { limit });
        }
        let child = Child {
            machine: RestartMachine::new(spec.backoff, spec.budget),
            phase: Phase::Starting,
            attempt: 0,
            restarts: 0,
            last_failure: None,
            place: self.next_place,
            dynamic,
            spec,
        };
        self.next_place += 1;
        self.children.insert(child.spec.id.clone(), child);
        Ok(())
    }

    pub(crate) fn ids_in_order(&self) -> Vec<String> {
        let mut children: Vec<_> = self.children.values().collect();
        children.sort_unstable_by_key(|child| child.place);
        children
            .into_iter()
            .map(|child| child.spec.id.clone())
            .collect()
    }

    pub(crate) async fn start_child(&mut self, myself: &ActorRef<Message>, id: &str) {
        let Some(child) = self.children.get_mut(id) else {
            return;
        };
        self.attempts += 1;
        child.attempt = self.attempts;
        child.phase = Phase::Starting;
        let started = child.spec.run_start(myself.get_cell()).await;
        match started {
            Ok(cell) => {
                self.by_actor.insert(cell.get_id(), id.to_owned());
                child.phase = Phase::Running {
                    cell,
                    since: Instant::now(),
                };
            }
            Err(error) => {
                self.kill_strays(myself);
                self.failed(myself, id, 0, error.to_string());
            }
        }
    }

    /// A start that timed out may have linked an actor that nobody knows.
    fn kill_strays(&self, myself: &ActorRef<Message>) {
        for cell in myself.get_children() {
            if !self.by_actor.contains_key(&cell.get_id()) {
                cell.kill();
            }
        }
    }

    pub(crate) fn exited(&mut self, myself: &ActorRef<Message>, actor: ActorId, exit: Exit) {
        // An actor that is no child's present incarnation is of no interest.
        let Some(id) = self.by_actor.remove(&actor) else {
            return;
        };
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        match std::mem::replace(&mut child.phase, Phase::Finished) {
            Phase::Stopping { waiting, .. } => {
                self.children.remove(&id);
                for port in waiting {
                    reply(port, true);
                }
            }
            Phase::Running { since, .. } => {
                let ran_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                match (exit, child.spec.restart) {
                    (Exit::Failed(reason), _) => self.failed(myself, &id, ran_ms, reason),
                    (Exit::Normal, Restart::Permanent) => {
                        self.failed(myself, &id, ran_ms, "it stopped by itself".to_owned());
                    }
                    (Exit::Normal, Restart::Transient | Restart::Temporary) => {
                        if child.dynamic {
                            self.children.remove(&id);
                        }
                    }
                }
            }
            other => child.phase = other,
        }
    }

    fn failed(&mut self, myself: &ActorRef<Message>, id: &str, ran_ms: u64, reason: String) {
        let jitter = unit(self.jitter.bits());
        let Some(child) = self.children.get_mut(id) else {
            return;
        };
        child.last_failure = Some(reason.clone());
        let verdict = match child.spec.restart {
            Restart::Permanent | Restart::Transient => child.machine.failed(ran_ms, jitter),
            Restart::Temporary => Verdict::GiveUp,
        };
        match verdict {
            Verdict::RestartIn { delay_ms } => {
                tracing::warn!(
                    supervisor = self.name,
                    child = id,
                    reason,
                    delay_ms,
                    "a child failed and will be started again"
                );
                child.phase = Phase::BackingOff { delay_ms };
                let (id, attempt) = (id.to_owned(), child.attempt);
                myself.send_after(Duration::from_millis(delay_ms), move || {
                    Message::BackedOff { id, attempt }
                });
            }
            Verdict::GiveUp => {
                tracing::error!(
                    supervisor = self.name,
                    child = id,
                    reason,
                    restarts = child.restarts,
                    "a child is faulted"
                );
                if let Some(on_fault) = &child.spec.on_fault {
                    let called = catch_unwind(AssertUnwindSafe(|| on_fault(&reason)));
                    if called.is_err() {
                        tracing::error!(child = id, "what was to be told of the fault panicked");
                    }
                }
                if child.dynamic && child.spec.restart == Restart::Temporary {
                    self.children.remove(id);
                } else {
                    child.phase = Phase::Faulted { reason };
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, id: &str, port: RpcReplyPort<bool>) {
        let Some(child) = self.children.get_mut(id) else {
            return reply(port, false);
        };
        match std::mem::replace(&mut child.phase, Phase::Finished) {
            Phase::Running { cell, .. } => {
                // The exit comes back as a supervision event.
                tokio::spawn(stop_or_kill(cell.clone(), child.spec.stop_timeout_ms));
                child.phase = Phase::Stopping {
                    cell,
                    waiting: vec![port],
                };
            }
            Phase::Stopping { cell, mut waiting } => {
                waiting.push(port);
                child.phase = Phase::Stopping { cell, waiting };
            }
            _ => {
                self.children.remove(id);
                reply(port, true);
            }
        }
    }

    pub(crate) async fn retry(&mut self, myself: &ActorRef<Message>, id: &str) -> bool {
        match self.children.get_mut(id) {
            Some(child) => match child.phase {
                Phase::Faulted { .. } | Phase::BackingOff { .. } => {
                    child.machine.forgive();
                    child.restarts += 1;
                    self.start_child(myself, id).await;
                    true
                }
                _ => false,
            },
            None => false,
        }
    }

    pub(crate) fn status(&self) -> Vec<ChildStatus> {
        let mut children: Vec<_> = self.children.values().collect();
        children.sort_unstable_by_key(|child| child.place);
        children.into_iter().map(Child::status).collect()
    }
}

impl Child {
    fn status(&self) -> ChildStatus {
        ChildStatus {
            id: self.spec.id.clone(),
            state: match &self.phase {
                Phase::Starting => ChildState::Starting,
                Phase::Running { since, .. } => ChildState::Running {
                    up_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
                },
                Phase::BackingOff { delay_ms } => ChildState::BackingOff {
                    delay_ms: *delay_ms,
                },
                Phase::Faulted { reason } => ChildState::Faulted {
                    reason: reason.clone(),
                },
                Phase::Stopping { .. } => ChildState::Stopping,
                Phase::Finished => ChildState::Finished,
            },
            restarts: self.restarts,
            last_failure: self.last_failure.clone(),
        }
    }
}

/// From 0 to 1, from random bits: the 53 that a float holds.
fn unit(bits: u128) -> f64 {
    const BITS: u32 = 53;
    ((bits >> (u128::BITS - BITS)) as f64) / (1_u64 << BITS) as f64
}

/// Stops an actor, awaits its `post_stop`, and kills it when that takes too long.
async fn stop_or_kill(cell: ActorCell, timeout_ms: u64) {
    let timeout = Duration::from_millis(timeout_ms);
    let stopped = match cell.stop_and_wait(None, Some(timeout)).await {
        Ok(()) => true,
        Err(RactorErr::Timeout) => false,
        // It is on its way out already.
        Err(_) => cell.wait(Some(timeout)).await.is_ok(),
    };
    if stopped {
        return;
    }
    tracing::warn!(actor = %cell.get_id(), timeout_ms, "an actor did not stop in time and is killed");
    // A kill ends at the actor's next await; one that never awaits cannot be helped.
    if cell.kill_and_wait(Some(timeout)).await.is_err() {
        tracing::error!(actor = %cell.get_id(), "an actor could not be killed");
    }
}
