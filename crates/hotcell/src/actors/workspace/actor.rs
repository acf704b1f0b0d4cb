//! Messages in, tasks out.

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use hotcell_core::model::LeaseRecord;
use hotcell_store::StoreError;
use hotcell_supervision::{AddError, reply};
use hotcell_types::{ChatId, WorkspaceId, limits};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::JoinSet;

use super::{
    effects::{self, AdmitError},
    msg::{LeasePort, WorkspaceMsg},
};
use crate::{
    actors::{
        context::Context,
        lease::Origin,
        live::{LiveLease, Slot},
    },
    handles::{AcquireError, Caller},
};

/// The actor of one workspace.
pub(crate) struct WorkspaceActor;

/// What a workspace's actor is started with.
#[derive(Clone)]
pub(crate) struct WorkspaceArguments {
    pub(crate) context: Arc<Context>,
    pub(crate) workspace: WorkspaceId,
    /// Whether there was an incarnation before.
    pub(crate) begun: Arc<AtomicBool>,
}

/// A call that waits for its chat's lease.
struct Waiting {
    caller: Box<Caller>,
    port: LeasePort,
}

/// What one actor knows.
pub(crate) struct WorkspaceActorState {
    context: Arc<Context>,
    workspace: WorkspaceId,
    tasks: JoinSet<()>,
    /// Chats whose lease is being admitted, and who waits for it; the first one's admission it is.
    admitting: HashMap<ChatId, Vec<Waiting>>,
    /// Chats whose admission was tried again after leases without an actor were adopted.
    retried: HashSet<ChatId>,
    /// Who waits until the store's leases were adopted.
    adopting: Vec<Waiting>,
    is_adopting: bool,
}

#[ractor::async_trait]
impl Actor for WorkspaceActor {
    type Msg = WorkspaceMsg;
    type State = WorkspaceActorState;
    type Arguments = WorkspaceArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<WorkspaceMsg>,
        args: WorkspaceArguments,
    ) -> Result<WorkspaceActorState, ActorProcessingErr> {
        let mut state = WorkspaceActorState {
            context: Arc::clone(&args.context),
            workspace: args.workspace.clone(),
            tasks: JoinSet::new(),
            admitting: HashMap::new(),
            retried: HashSet::new(),
            adopting: Vec::new(),
            is_adopting: false,
        };
        state.later(&myself, limits::WORKSPACE_IDLE_MS, WorkspaceMsg::Rest);
        if args.begun.swap(true, Ordering::AcqRel) {
            // A crashed one's successor: what that had just admitted may have no actor.
            state.find(&myself, Origin::FoundLater);
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<WorkspaceMsg>,
        message: WorkspaceMsg,
        state: &mut WorkspaceActorState,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            WorkspaceMsg::Acquire(caller, port) => state.acquire(&myself, Waiting { caller, port }),
            WorkspaceMsg::Admitted(chat, result) => state.admitted(&myself, chat, result),
            WorkspaceMsg::Started(chat, result) => state.started(&chat, result),
            WorkspaceMsg::Found(records, origin) => {
                for record in records {
                    state.adopt(&myself, record, origin);
                }
                state.is_adopting = false;
                for waiting in std::mem::take(&mut state.adopting) {
                    state.acquire(&myself, waiting);
                }
            }
            WorkspaceMsg::AdoptThese(records, port) => {
                let origin = Origin::FoundAtBoot;
                let adopted = records
                    .into_iter()
                    .filter_map(|record| state.adopt(&myself, record, origin))
                    .collect();
                reply(port, adopted);
            }
            WorkspaceMsg::Panicked => return Err("a task of the workspace panicked".into()),
            #[cfg(test)]
            WorkspaceMsg::Crash => panic!("told to"),
            WorkspaceMsg::Rest => {
                let is_at_rest = state.admitting.is_empty()
                    && !state.is_adopting
                    && !state.context.live.has_any(&state.workspace);
                if is_at_rest {
                    state.context.crew.forget_workspace(&state.workspace);
                    myself.stop(None);
                } else {
                    state.later(&myself, limits::WORKSPACE_IDLE_MS, WorkspaceMsg::Rest);
                }
            }
        }
        Ok(())
    }
}

impl WorkspaceActorState {
    fn task(
        &mut self,
        myself: &ActorRef<WorkspaceMsg>,
        work: impl Future<Output = WorkspaceMsg> + Send + 'static,
    ) {
        let myself = myself.clone();
        self.tasks.spawn(async move {
            let message = AssertUnwindSafe(work).catch_unwind().await;
            // The actor is gone: what was written is found by its successor.
            let _ = myself.cast(message.unwrap_or(WorkspaceMsg::Panicked));
        });
    }

    fn later(&mut self, myself: &ActorRef<WorkspaceMsg>, after_ms: u64, message: WorkspaceMsg) {
        self.task(myself, async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            message
        });
    }

    fn acquire(&mut self, myself: &ActorRef<WorkspaceMsg>, waiting: Waiting) {
        if self.context.is_leaving() {
            return reply(waiting.port, Err(AcquireError::ShuttingDown));
        }
        let chat = waiting.caller.chat.clone();
        let is_admitting = self.admitting.contains_key(&chat);
        if let Some(live) = self.context.live.get(&self.workspace, &chat)
            && !is_admitting
        {
            self.retried.remove(&chat);
            if live.has_begun() {
                return reply(waiting.port, Ok(live));
            }
            // A predecessor of this actor crashed just before it started that of the lease.
            self.start(myself, live, Origin::FoundLater);
            return self.await_admission(&chat, waiting);
        }
        if self.is_adopting && !is_admitting {
            return push(&mut self.adopting, waiting);
        }
        if is_admitting {
            return self.await_admission(&chat, waiting);
        }
        let caller = waiting.caller.clone();
        self.admitting.insert(chat.clone(), vec![waiting]);
        let context = Arc::clone(&self.context);
        self.task(myself, async move {
            WorkspaceMsg::Admitted(chat, effects::admit(context, caller).await)
        });
    }

    fn await_admission(&mut self, chat: &ChatId, waiting: Waiting) {
        push(self.admitting.entry(chat.clone()).or_default(), waiting);
    }

    fn admitted(
        &mut self,
        myself: &ActorRef<WorkspaceMsg>,
        chat: ChatId,
        result: Result<(LeaseRecord, Slot), AdmitError>,
    ) {
        match result {
            Ok((record, slot)) => {
                self.retried.remove(&chat);
                let live = Arc::new(LiveLease::new(record, slot));
                self.context.live.insert(Arc::clone(&live));
                self.start(myself, live, Origin::Admitted);
            }
            // The store knows a lease that has no actor: somebody crashed in between.
            Err(AdmitError::Store(StoreError::ChatHasLiveLease(_)))
                if self.retried.insert(chat.clone()) =>
            {
                let waiting = self.admitting.remove(&chat).unwrap_or_default();
                self.adopting.extend(waiting);
                self.find(myself, Origin::FoundLater);
            }
            Err(error) => {
                self.retried.remove(&chat);
                let waiting = self.admitting.remove(&chat).unwrap_or_default();
                let mut waiting = waiting.into_iter();
                if let Some(first) = waiting.next() {
                    reply(first.port, Err(error.into()));
                }
                // The refusal was the first one's, who may have another role.
                for waiting in waiting {
                    self.acquire(myself, waiting);
                }
            }
        }
    }

    /// Starts the actor of a lease that is in the map already.
    fn start(&mut self, myself: &ActorRef<WorkspaceMsg>, live: Arc<LiveLease>, origin: Origin) {
        self.admitting.entry(live.chat.clone()).or_default();
        let context = Arc::clone(&self.context);
        self.task(myself, async move {
            let started = context.crew.start_lease(&context, &live, origin).await;
            let chat = live.chat.clone();
            let result = match started {
                // It runs already: a predecessor of this actor started it.
                Ok(()) | Err(AddError::Exists(_)) => Ok(live),
                Err(error) => {
                    context.live.remove(&live);
                    Err(error.to_string())
                }
            };
            WorkspaceMsg::Started(chat, result)
        });
    }

    fn started(&mut self, chat: &ChatId, result: Result<Arc<LiveLease>, String>) {
        for waiting in self.admitting.remove(chat).unwrap_or_default() {
            reply(
                waiting.port,
                match &result {
                    Ok(live) => Ok(Arc::clone(live)),
                    Err(words) => Err(AcquireError::Internal(words.clone())),
                },
            );
        }
    }

    fn adopt(
        &mut self,
        myself: &ActorRef<WorkspaceMsg>,
        record: LeaseRecord,
        origin: Origin,
    ) -> Option<Arc<LiveLease>> {
        // A chat that has a lease here, or is about to, has outrun what was read.
        let known = self.context.live.get(&self.workspace, &record.chat);
        if known.is_some() || self.admitting.contains_key(&record.chat) {
            return None;
        }
        tracing::info!(lease = %record.id, state = ?record.state, "adopting a lease of the store");
        let live = Arc::new(LiveLease::new(record, self.context.live.force_slot()));
        self.context.live.insert(Arc::clone(&live));
        self.start(myself, Arc::clone(&live), origin);
        Some(live)
    }

    fn find(&mut self, myself: &ActorRef<WorkspaceMsg>, origin: Origin) {
        if self.is_adopting {
            return;
        }
        self.is_adopting = true;
        let store = self.context.store.clone();
        let workspace = self.workspace.clone();
        self.task(myself, async move {
            let records = store.read(|view| view.leases()).await;
            let mut records = records.unwrap_or_else(|error| {
                tracing::error!(%error, "the leases of the store cannot be read");
                Vec::new()
            });
            records.retain(|record| record.workspace == workspace);
            WorkspaceMsg::Found(records, origin)
        });
    }
}

fn push(queue: &mut Vec<Waiting>, waiting: Waiting) {
    if queue.len() < limits::MAX_WAITING_CALLS {
        queue.push(waiting);
    } else {
        let limit = limits::MAX_WAITING_CALLS;
        reply(waiting.port, Err(AcquireError::TooManyWaiting { limit }));
    }
}
