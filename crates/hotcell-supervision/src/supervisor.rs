//! The supervisor itself.

use std::sync::Arc;

use hotcell_types::{IdSource, limits};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SpawnErr, SupervisionEvent};

use crate::{
    address::Address,
    call::reply,
    children::{Exit, KILLED, State},
    handle::{AddError, SupervisorHandle},
    spec::ChildSpec,
    status::ChildStatus,
};

/// What a supervisor can be told; use [`SupervisorHandle`].
#[derive(Debug)]
pub enum Message {
    #[doc(hidden)]
    StartAll,
    #[doc(hidden)]
    AwaitStarted(RpcReplyPort<()>),
    #[doc(hidden)]
    Add(Box<ChildSpec>, RpcReplyPort<Result<(), AddError>>),
    #[doc(hidden)]
    Remove(String, RpcReplyPort<bool>),
    #[doc(hidden)]
    Retry(String, RpcReplyPort<bool>),
    #[doc(hidden)]
    Status(RpcReplyPort<Vec<ChildStatus>>),
    #[doc(hidden)]
    BackedOff { id: String, attempt: u64 },
}

/// An actor that keeps its children running. It never stops because of a child.
#[derive(Debug)]
pub struct Supervisor;

impl Supervisor {
    /// Starts a supervisor with these children, in this order. `jitter` spreads restarts.
    ///
    /// # Errors
    /// Two children have the same id, or it could not be spawned. What the children do cannot make it fail.
    pub async fn start(
        name: impl Into<String>,
        children: Vec<ChildSpec>,
        jitter: Arc<dyn IdSource>,
    ) -> Result<SupervisorHandle, SpawnErr> {
        let arguments = Arguments {
            name: name.into(),
            children,
            jitter,
        };
        let (actor, _) = Self::spawn(None, Self, arguments).await?;
        let address = Address::new();
        address.set(actor);
        Ok(SupervisorHandle { address })
    }

    /// A supervisor as the child of another. It counts as started when its own children were started.
    pub fn child(
        id: impl Into<String>,
        children: Vec<ChildSpec>,
        jitter: Arc<dyn IdSource>,
    ) -> (ChildSpec, SupervisorHandle) {
        let id = id.into();
        let handle = SupervisorHandle {
            address: Address::new(),
        };
        let stop_timeout_ms = children
            .iter()
            .map(|child| child.stop_timeout_ms)
            .fold(limits::CHILD_STOP_TIMEOUT_MS, u64::saturating_add);
        let start_timeout_ms = children
            .iter()
            .map(|child| child.start_timeout_ms)
            .fold(limits::CHILD_START_TIMEOUT_MS, u64::saturating_add);
        let of_child = handle.clone();
        let name = id.clone();
        let spec = ChildSpec::new(id, move |parent| {
            let handle = of_child.clone();
            let arguments = Arguments {
                name: name.clone(),
                children: children.clone(),
                jitter: jitter.clone(),
            };
            async move {
                let (actor, _) = Self::spawn_linked(None, Self, arguments, parent).await?;
                handle.address.set(actor.clone());
                // It starts its children while this waits, so that the next of our siblings starts after them.
                handle
                    .started(start_timeout_ms)
                    .await
                    .map_err(|error| SpawnErr::StartupFailed(Box::new(error)))?;
                Ok(actor.get_cell())
            }
        })
        .start_timeout_ms(start_timeout_ms)
        .stop_timeout_ms(stop_timeout_ms);
        (spec, handle)
    }
}

/// What a supervisor is made of.
pub struct Arguments {
    name: String,
    children: Vec<ChildSpec>,
    jitter: Arc<dyn IdSource>,
}

#[ractor::async_trait]
impl Actor for Supervisor {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let mut state = State::new(arguments.name, arguments.jitter);
        for child in arguments.children {
            state.insert(child, false)?;
        }
        // Children are linked to a running supervisor, so they start after this.
        myself.send_message(Message::StartAll)?;
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::StartAll => {
                for id in state.ids_in_order() {
                    state.start_child(&myself, &id).await;
                }
            }
            // It is handled after StartAll.
            Message::AwaitStarted(port) => reply(port, ()),
            Message::Add(spec, port) => {
                let id = spec.id.clone();
                let added = state.insert(*spec, true);
                if added.is_ok() {
                    state.start_child(&myself, &id).await;
                }
                reply(port, added);
            }
            Message::Remove(id, port) => state.remove(&id, port),
            Message::Retry(id, port) => {
                let retried = state.retry(&myself, &id).await;
                reply(port, retried);
            }
            Message::Status(port) => reply(port, state.status()),
            Message::BackedOff { id, attempt } => state.backed_off(&myself, &id, attempt).await,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, last_state, reason) => {
                // A kill looks like a stop with this reason; a cancelled task hands no state over.
                let is_kill = reason.as_deref() == Some(KILLED) || last_state.is_none();
                let exit = if is_kill {
                    Exit::Failed(reason.unwrap_or_else(|| KILLED.to_owned()))
                } else {
                    Exit::Normal
                };
                state.exited(&myself, cell.get_id(), exit);
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                state.exited(&myself, cell.get_id(), Exit::Failed(error.to_string()));
            }
            _ => {}
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Message>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.stop_all().await;
        Ok(())
    }
}
