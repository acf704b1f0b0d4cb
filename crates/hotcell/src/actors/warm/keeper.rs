//! Who fills the pool, one sandbox after the other, and removes what nobody will claim.

use std::{collections::HashSet, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use hotcell_runtime::{ImageRef, NetworkMode, ObservedState, Runtime, RuntimeError, WarmSpec};
use hotcell_types::{LeaseId, limits};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::{task::JoinSet, time::Instant};

use super::Pool;
use crate::actors::context::Context;

/// The first pause after a failure; it doubles.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest such pause.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long the pool is left as it is after a change.
const REFILL_PAUSE: Duration = Duration::from_millis(300);

/// What a keeper can be told.
pub(crate) enum KeeperMsg {
    /// Look what is missing and what is too much.
    Look,
    /// Look whether what is ready still runs, and what it should.
    Review,
    /// From its task: a sandbox was made, or not.
    Made(LeaseId, Result<ImageRef, RuntimeError>),
    /// From its task: a sandbox was removed, or not.
    Removed(LeaseId, Result<(), RuntimeError>),
    /// From its task: these are of no use any more.
    Reviewed(Vec<LeaseId>),
    /// From its task: it panicked, so that its result will never come.
    Panicked,
}

/// The actor that keeps the pool of one profile.
pub(crate) struct KeeperActor;

/// What a keeper is started with.
#[derive(Clone)]
pub(crate) struct KeeperArguments {
    pub(crate) context: Arc<Context>,
}

/// What one actor knows.
pub(crate) struct KeeperState {
    context: Arc<Context>,
    pool: Arc<Pool>,
    /// What changes sandboxes; awaited when the daemon leaves.
    work: JoinSet<()>,
    /// What only waits.
    clocks: JoinSet<()>,
    making: bool,
    removing: HashSet<LeaseId>,
    pause: Duration,
    /// Nothing is made before.
    not_before: Instant,
}

#[ractor::async_trait]
impl Actor for KeeperActor {
    type Msg = KeeperMsg;
    type State = KeeperState;
    type Arguments = KeeperArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<KeeperMsg>,
        KeeperArguments { context }: KeeperArguments,
    ) -> Result<KeeperState, ActorProcessingErr> {
        let pool = Arc::clone(&context.live.pool);
        pool.condemn_unfinished();
        let mut clocks = JoinSet::new();
        let (of_changes, to, of_profile) =
            (Arc::clone(&pool), myself.clone(), Arc::clone(&context));
        clocks.spawn(async move {
            of_profile.profile.tried().await;
            while to.cast(KeeperMsg::Look).is_ok() {
                of_changes.changed.notified().await;
                // The call that has just claimed one has the processors first.
                tokio::time::sleep(REFILL_PAUSE).await;
            }
        });
        let to = myself.clone();
        clocks.spawn(async move {
            let pause = Duration::from_millis(limits::WARM_REVIEW_MS);
            while to.cast(KeeperMsg::Review).is_ok() {
                tokio::time::sleep(pause).await;
            }
        });
        Ok(KeeperState {
            context,
            pool,
            work: JoinSet::new(),
            clocks,
            making: false,
            removing: HashSet::new(),
            pause: RETRY_MIN,
            not_before: Instant::now(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<KeeperMsg>,
        message: KeeperMsg,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        while state.work.try_join_next().is_some() {}
        while state.clocks.try_join_next().is_some() {}
        match message {
            KeeperMsg::Look => {}
            KeeperMsg::Review => state.review(&myself),
            KeeperMsg::Made(lease, result) => state.made(&myself, &lease, result),
            KeeperMsg::Removed(lease, result) => {
                state.removing.remove(&lease);
                match result {
                    Ok(()) => state.pool.forget(&lease),
                    Err(error) => {
                        tracing::warn!(%lease, %error, "a sandbox of the pool cannot be removed yet");
                        state.later(&myself);
                    }
                }
            }
            KeeperMsg::Reviewed(useless) => {
                for lease in &useless {
                    state.pool.condemn(lease);
                }
            }
            KeeperMsg::Panicked => return Err("a task of the pool's keeper panicked".into()),
        }
        state.look(&myself);
        Ok(())
    }

    /// A daemon that leaves takes along what nobody has claimed: no call would find it.
    async fn post_stop(
        &self,
        _: ActorRef<KeeperMsg>,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        state.clocks.shutdown().await;
        let limit = Duration::from_millis(limits::WARM_STOP_TIMEOUT_MS);
        let ending = async {
            while state.work.join_next().await.is_some() {}
            state.pool.condemn_all();
            let Ok(runtime) = state.context.profile.runtime() else {
                return;
            };
            for lease in state.pool.condemned() {
                match runtime.remove_unclaimed(&lease).await {
                    Ok(()) => state.pool.forget(&lease),
                    Err(error) => tracing::warn!(%lease, %error, "a sandbox of the pool stays"),
                }
            }
        };
        if tokio::time::timeout(limit, ending).await.is_err() {
            tracing::warn!("sandboxes of the pool stay; the next daemon removes them");
        }
        Ok(())
    }
}

impl KeeperState {
    fn work(
        &mut self,
        myself: &ActorRef<KeeperMsg>,
        work: impl Future<Output = KeeperMsg> + Send + 'static,
    ) {
        let myself = myself.clone();
        self.work.spawn(async move {
            let message = AssertUnwindSafe(work).catch_unwind().await;
            // The actor is gone: its successor condemns what was begun.
            let _ = myself.cast(message.unwrap_or(KeeperMsg::Panicked));
        });
    }

    /// Looks again after the pause, which doubles.
    fn later(&mut self, myself: &ActorRef<KeeperMsg>) {
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY_MAX);
        let (myself, until) = (myself.clone(), self.not_before);
        self.clocks.spawn(async move {
            tokio::time::sleep_until(until).await;
            let _ = myself.cast(KeeperMsg::Look);
        });
    }

    fn look(&mut self, myself: &ActorRef<KeeperMsg>) {
        let paused = Instant::now() < self.not_before;
        if self.context.is_leaving() || paused || !self.pool.has_begun() {
            return;
        }
        let Ok(runtime) = self.context.profile.runtime() else {
            return;
        };
        for lease in self.pool.condemned() {
            if self.removing.insert(lease.clone()) {
                let runtime = Arc::clone(&runtime);
                self.work(myself, async move {
                    let removal = runtime.remove_unclaimed(&lease);
                    let result = within(limits::ENGINE_END_TIMEOUT_MS, removal).await;
                    KeeperMsg::Removed(lease, result)
                });
            }
        }
        // Where no code may run nobody will claim one.
        let forced_off = self.context.switches.forced_off;
        if self.making || forced_off || self.pool.missing() == 0 {
            return;
        }
        // Never one that a call could want: it would be given up at once.
        let Some(slot) = self.context.live.spare_slot() else {
            return;
        };
        self.making = true;
        let lease = LeaseId::from_bits(self.context.ids.bits());
        self.pool.making(lease.clone(), slot);
        let context = Arc::clone(&self.context);
        self.work(myself, async move {
            let result = make(&context, &*runtime, &lease).await;
            if matches!(result, Err(RuntimeError::NoSuchImage(_))) {
                context.profile.forget_image();
            }
            KeeperMsg::Made(lease, result)
        });
    }

    fn made(
        &mut self,
        myself: &ActorRef<KeeperMsg>,
        lease: &LeaseId,
        result: Result<ImageRef, RuntimeError>,
    ) {
        self.making = false;
        match result {
            Ok(image) => {
                self.pause = RETRY_MIN;
                self.pool.set_problem(None);
                self.pool.made(lease, image);
            }
            Err(error) => {
                tracing::warn!(%lease, %error, "no sandbox could be made ahead");
                self.pool.set_problem(Some(error.to_string()));
                self.pool.condemn(lease);
                self.later(myself);
            }
        }
    }

    fn review(&mut self, myself: &ActorRef<KeeperMsg>) {
        let ready = self.pool.ready();
        let Ok(runtime) = self.context.profile.runtime() else {
            return;
        };
        if ready.is_empty() {
            return;
        }
        let context = Arc::clone(&self.context);
        self.work(myself, async move {
            let reviewed = useless(&context, &*runtime, ready).await;
            KeeperMsg::Reviewed(reviewed.unwrap_or_else(|error| {
                tracing::info!(%error, "the pool cannot be looked at");
                Vec::new()
            }))
        });
    }
}

async fn make(
    context: &Context,
    runtime: &dyn Runtime,
    lease: &LeaseId,
) -> Result<ImageRef, RuntimeError> {
    let image = context.profile.image().await?;
    let key = context.store.agent_key(lease);
    let spec = WarmSpec {
        installation: context.store.installation(),
        lease: lease.clone(),
        image: image.clone(),
        resources: context.allowed.resource_class.resources(),
        scratch_bytes: context.scratch_bytes,
        // Not one packet passes before the filter of its lease is installed, which is when it is claimed.
        network: match context.egress.network.filtered {
            true => NetworkMode::Filtered,
            false => NetworkMode::None,
        },
        agent_key: key.clone(),
    };
    within(context.limits.start_timeout_ms, async {
        runtime.warm(&spec).await?;
        let ready = runtime.sandbox(lease, &key)?;
        let ready = ready.ready(context.limits.start_timeout_ms).await;
        ready.map_err(|error| RuntimeError::StartFailed(error.to_string()))
    })
    .await?;
    Ok(image)
}

/// Those of the ready ones that do not run any more, or run another image than they should.
async fn useless(
    context: &Context,
    runtime: &dyn Runtime,
    ready: Vec<(LeaseId, Option<ImageRef>)>,
) -> Result<Vec<LeaseId>, RuntimeError> {
    let image = Some(context.profile.image().await?);
    let listing = within(limits::ENGINE_LIST_TIMEOUT_MS, runtime.list()).await?;
    let usable: HashSet<LeaseId> = listing
        .into_iter()
        .filter(|seen| seen.unclaimed && seen.state == ObservedState::Running)
        .map(|seen| seen.lease)
        .collect();
    let useless = ready
        .into_iter()
        .filter(|(lease, of)| *of != image || !usable.contains(lease));
    Ok(useless.map(|(lease, _)| lease).collect())
}

async fn within<T>(
    limit_ms: u64,
    work: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let limit = Duration::from_millis(limit_ms);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        Err(RuntimeError::Failed {
            action: "answer",
            reason: format!("nothing came back within {limit_ms} ms"),
        })
    })
}
