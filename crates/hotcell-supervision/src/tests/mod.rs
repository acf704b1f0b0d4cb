//! Tests of the supervisor, on a paused clock.

mod calls;
mod lifecycle;
mod machine;
mod order;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hotcell_types::IdSource;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

use crate::{
    Address, Backoff, ChildSpec, ChildState, ChildStatus, RestartBudget, SupervisorHandle, reply,
};

/// Jitter that is always the whole spread, so that delays are the nominal ones.
pub(crate) struct NoJitter;

impl IdSource for NoJitter {
    fn bits(&self) -> u128 {
        u128::MAX
    }
}

pub(crate) fn no_jitter() -> Arc<dyn IdSource> {
    Arc::new(NoJitter)
}

/// What happened, in order, and how long after the test began.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<(u64, String)>>>);

impl Journal {
    pub(crate) fn note(&self, started: tokio::time::Instant, what: impl Into<String>) {
        let at_ms = u64::try_from(started.elapsed().as_millis()).unwrap();
        self.0.lock().unwrap().push((at_ms, what.into()));
    }

    pub(crate) fn all(&self) -> Vec<(u64, String)> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.all().into_iter().map(|(_, what)| what).collect()
    }

    pub(crate) fn times_of(&self, wanted: &str) -> Vec<u64> {
        self.all()
            .into_iter()
            .filter(|(_, what)| what == wanted)
            .map(|(at, _)| at)
            .collect()
    }
}

/// What an incarnation does in its `pre_start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Well,
    Fail,
    Panic,
    Hang,
}

/// An actor that does what tests tell it.
pub(crate) struct Puppet {
    pub(crate) name: String,
    pub(crate) began: tokio::time::Instant,
    pub(crate) journal: Journal,
    pub(crate) stop_takes_ms: u64,
}

#[derive(Debug)]
pub(crate) enum Order {
    Panic,
    Fail,
    Stop,
    Hang,
    Who(RpcReplyPort<u64>),
    AnswerAfter(u64, RpcReplyPort<&'static str>),
    DropPort(RpcReplyPort<()>),
}

static INCARNATIONS: AtomicU64 = AtomicU64::new(1);

#[ractor::async_trait]
impl Actor for Puppet {
    type Msg = Order;
    type State = u64;
    type Arguments = Start;

    async fn pre_start(
        &self,
        _myself: ActorRef<Order>,
        start: Start,
    ) -> Result<u64, ActorProcessingErr> {
        self.journal
            .note(self.began, format!("{} starts", self.name));
        match start {
            Start::Well => Ok(INCARNATIONS.fetch_add(1, Ordering::Relaxed)),
            Start::Fail => Err("no luck".into()),
            Start::Panic => panic!("pre_start panics"),
            Start::Hang => std::future::pending().await,
        }
    }

    async fn handle(
        &self,
        myself: ActorRef<Order>,
        order: Order,
        incarnation: &mut u64,
    ) -> Result<(), ActorProcessingErr> {
        match order {
            Order::Panic => panic!("as told"),
            Order::Fail => return Err("an error as told".into()),
            Order::Stop => myself.stop(None),
            Order::Hang => std::future::pending().await,
            Order::Who(port) => reply(port, *incarnation),
            Order::AnswerAfter(delay_ms, port) => {
                tokio::time::sleep(Duration::from_millis(delay_ms)).await;
                reply(port, "here");
            }
            Order::DropPort(port) => drop(port),
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Order>,
        _incarnation: &mut u64,
    ) -> Result<(), ActorProcessingErr> {
        self.journal
            .note(self.began, format!("{} stopping", self.name));
        tokio::time::sleep(Duration::from_millis(self.stop_takes_ms)).await;
        self.journal
            .note(self.began, format!("{} stopped", self.name));
        Ok(())
    }
}

/// A stage for one test.
pub(crate) struct Stage {
    pub(crate) began: tokio::time::Instant,
    pub(crate) journal: Journal,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            began: tokio::time::Instant::now(),
            journal: Journal::default(),
        }
    }

    /// A puppet whose starts go as `starts` says, and well after that.
    pub(crate) fn puppet(&self, name: &str, starts: &[Start]) -> (ChildSpec, Address<Order>) {
        self.slow_puppet(name, starts, 0)
    }

    pub(crate) fn slow_puppet(
        &self,
        name: &str,
        starts: &[Start],
        stop_takes_ms: u64,
    ) -> (ChildSpec, Address<Order>) {
        let starts: Mutex<VecDeque<Start>> = Mutex::new(starts.iter().copied().collect());
        let (began, journal, of_puppet) = (self.began, self.journal.clone(), name.to_owned());
        let (spec, address) = ChildSpec::actor(name, move || {
            let start = starts.lock().unwrap().pop_front().unwrap_or(Start::Well);
            let puppet = Puppet {
                name: of_puppet.clone(),
                began,
                journal: journal.clone(),
                stop_takes_ms,
            };
            (puppet, start)
        });
        let spec = spec
            .backoff(Backoff {
                min_ms: 100,
                max_ms: 1_000,
                factor: 2,
            })
            .budget(RestartBudget {
                max_restarts: 5,
                within_ms: 60_000,
            });
        (spec, address)
    }
}

pub(crate) async fn who(address: &Address<Order>) -> u64 {
    let actor = address.wait(60_000).await.unwrap();
    crate::call(&actor, Order::Who, 1_000).await.unwrap()
}

pub(crate) async fn status_of(supervisor: &SupervisorHandle, id: &str) -> Option<ChildStatus> {
    let all = supervisor.status().await.unwrap();
    all.into_iter().find(|child| child.id == id)
}

/// Waits until a child's state is as wanted. Time is paused, so this takes no real time.
pub(crate) async fn until(
    supervisor: &SupervisorHandle,
    id: &str,
    wanted: impl Fn(&ChildState) -> bool,
) -> ChildStatus {
    tokio::time::timeout(Duration::from_secs(600), async {
        loop {
            if let Some(status) = status_of(supervisor, id).await
                && wanted(&status.state)
            {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the child never came into the wanted state")
}
