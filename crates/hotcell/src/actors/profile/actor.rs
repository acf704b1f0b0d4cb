//! Messages in, tasks out.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use hotcell_runtime::{Check, CheckStatus, Runtime, RuntimeError};
use hotcell_supervision::reply;
use hotcell_types::limits;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::task::{AbortHandle, JoinSet};

use super::{OpenRuntime, ProfileMsg, checks, sweep};
use crate::{actors::context::Context, handles::ProfileState};

/// The first pause before an engine that could not be opened is tried again; it doubles.
const OPEN_RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest such pause.
const OPEN_RETRY_MAX: Duration = Duration::from_secs(60);

/// The actor of one profile.
pub(crate) struct ProfileActor;

/// What a profile's actor is started with.
#[derive(Clone)]
pub(crate) struct ProfileArguments {
    pub(crate) context: Arc<Context>,
    pub(crate) open: OpenRuntime,
}

/// What one actor knows.
pub(crate) struct ProfileActorState {
    context: Arc<Context>,
    open: OpenRuntime,
    runtime: Option<Arc<dyn Runtime>>,
    tasks: JoinSet<()>,
    pause: Duration,
    checking: bool,
    sweeping: bool,
    awaiting_check: Vec<RpcReplyPort<()>>,
    awaiting_sweep: Vec<RpcReplyPort<()>>,
    next_check: Option<AbortHandle>,
    next_sweep: Option<AbortHandle>,
}

#[ractor::async_trait]
impl Actor for ProfileActor {
    type Msg = ProfileMsg;
    type State = ProfileActorState;
    type Arguments = ProfileArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<ProfileMsg>,
        args: ProfileArguments,
    ) -> Result<ProfileActorState, ActorProcessingErr> {
        myself.cast(ProfileMsg::Open)?;
        Ok(ProfileActorState {
            // A predecessor may have opened it already.
            runtime: args.context.profile.runtime().ok(),
            context: args.context,
            open: args.open,
            tasks: JoinSet::new(),
            pause: OPEN_RETRY_MIN,
            checking: false,
            sweeping: false,
            awaiting_check: Vec::new(),
            awaiting_sweep: Vec::new(),
            next_check: None,
            next_sweep: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<ProfileMsg>,
        message: ProfileMsg,
        state: &mut ProfileActorState,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            ProfileMsg::Open => match state.runtime.clone() {
                Some(runtime) => state.opened(&myself, runtime),
                None => {
                    let open = (state.open)();
                    state.task(&myself, async move { ProfileMsg::Opened(open.await) });
                }
            },
            ProfileMsg::Opened(Ok(runtime)) => state.opened(&myself, runtime),
            ProfileMsg::Opened(Err(error)) => state.failed(&myself, &error),
            ProfileMsg::Panicked => return Err("a task of the profile panicked".into()),
            ProfileMsg::Check(asked_by) => state.check(&myself, asked_by),
            ProfileMsg::Checked(checks) => state.checked(&myself, checks),
            ProfileMsg::Sweep(asked_by) => state.sweep(&myself, asked_by),
            ProfileMsg::Swept(swept) => {
                state.sweeping = false;
                let profile = &state.context.profile;
                profile.update(|status| {
                    status.warnings = swept.warnings;
                    if let Some(unknown) = swept.unknown {
                        status.unknown = unknown;
                    }
                });
                for asked_by in state.awaiting_sweep.drain(..) {
                    reply(asked_by, ());
                }
                state.schedule_sweep(&myself);
            }
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<ProfileMsg>,
        state: &mut ProfileActorState,
    ) -> Result<(), ActorProcessingErr> {
        state.tasks.shutdown().await;
        if let Some(runtime) = state.runtime.take() {
            let limit = Duration::from_millis(limits::PROFILE_SETTLE_TIMEOUT_MS);
            if tokio::time::timeout(limit, runtime.settle()).await.is_err() {
                tracing::warn!("the runtime has not cleared its probe away; the next start will");
            }
        }
        Ok(())
    }
}

impl ProfileActorState {
    fn task(
        &mut self,
        myself: &ActorRef<ProfileMsg>,
        work: impl Future<Output = ProfileMsg> + Send + 'static,
    ) -> AbortHandle {
        let myself = myself.clone();
        self.tasks.spawn(async move {
            let message = AssertUnwindSafe(work).catch_unwind().await;
            // The actor is gone: its successor begins anew.
            let _ = myself.cast(message.unwrap_or(ProfileMsg::Panicked));
        })
    }

    fn later(
        &mut self,
        myself: &ActorRef<ProfileMsg>,
        after_ms: u64,
        message: ProfileMsg,
    ) -> AbortHandle {
        self.task(myself, async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            message
        })
    }

    /// The next sweep comes one interval from now, however the last one came about.
    fn schedule_sweep(&mut self, myself: &ActorRef<ProfileMsg>) {
        let next = self.later(myself, limits::SWEEP_INTERVAL_MS, ProfileMsg::Sweep(None));
        if let Some(older) = self.next_sweep.replace(next) {
            older.abort();
        }
    }

    fn opened(&mut self, myself: &ActorRef<ProfileMsg>, runtime: Arc<dyn Runtime>) {
        let facts = runtime.facts();
        tracing::info!(
            profile = %self.context.profile.id,
            kind = facts.kind,
            engine = facts.engine,
            "the runtime is open"
        );
        self.pause = OPEN_RETRY_MIN;
        self.runtime = Some(Arc::clone(&runtime));
        self.context.profile.update(|status| {
            status.runtime = Some(runtime);
            status.state = ProfileState::Active;
        });
        self.check(myself, None);
        self.schedule_sweep(myself);
    }

    fn failed(&mut self, myself: &ActorRef<ProfileMsg>, error: &RuntimeError) {
        let profile = &self.context.profile;
        tracing::warn!(profile = %profile.id, %error, "the runtime cannot be opened");
        // The words of `Unavailable` are shown behind "the runtime is not available".
        let reason = match error {
            RuntimeError::Unavailable(reason) => reason.clone(),
            error => error.to_string(),
        };
        profile.update(|status| status.state = ProfileState::Faulted { reason });
        let pause = self.pause;
        self.pause = (pause * 2).min(OPEN_RETRY_MAX);
        self.later(
            myself,
            u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            ProfileMsg::Open,
        );
    }

    fn check(&mut self, myself: &ActorRef<ProfileMsg>, asked_by: Option<RpcReplyPort<()>>) {
        // Without an engine there is nothing to check; dropping the port says so.
        let Some(runtime) = self.runtime.clone() else {
            return;
        };
        if self.awaiting_check.len() < limits::MAX_PREFLIGHT_WAITERS {
            self.awaiting_check.extend(asked_by);
        }
        if !self.checking {
            self.checking = true;
            let context = Arc::clone(&self.context);
            self.task(myself, async move {
                let mut found = runtime.preflight().await;
                found.extend(context.egress.preflight().await);
                found.extend(checks::of_daemon(&context).await);
                ProfileMsg::Checked(found)
            });
        }
    }

    fn checked(&mut self, myself: &ActorRef<ProfileMsg>, checks: Vec<Check>) {
        self.checking = false;
        let now = self.context.clock.now();
        let failed = checks.iter().any(|it| it.status == CheckStatus::Fail);
        let again_ms = if failed {
            limits::PREFLIGHT_RETRY_MS
        } else {
            limits::PREFLIGHT_INTERVAL_MS
        };
        self.context.profile.update(|status| {
            status.checks = checks;
            status.checked_at = Some(now);
        });
        for asked_by in self.awaiting_check.drain(..) {
            reply(asked_by, ());
        }
        let next = self.later(myself, again_ms, ProfileMsg::Check(None));
        if let Some(older) = self.next_check.replace(next) {
            older.abort();
        }
    }

    fn sweep(&mut self, myself: &ActorRef<ProfileMsg>, asked_by: Option<RpcReplyPort<()>>) {
        let Some(runtime) = self.runtime.clone() else {
            return;
        };
        if self.awaiting_sweep.len() < limits::MAX_PREFLIGHT_WAITERS {
            self.awaiting_sweep.extend(asked_by);
        }
        if !self.sweeping {
            self.sweeping = true;
            let context = Arc::clone(&self.context);
            self.task(myself, async move {
                ProfileMsg::Swept(sweep::sweep(&context, &*runtime).await)
            });
        }
    }
}
