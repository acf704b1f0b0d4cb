//! What HTTP sees of the actors: plain async functions, never an actor's address.

use std::{sync::Arc, time::Duration};

use hotcell_core::model::{Actor, EndReason, LeaseRecord};
use hotcell_runtime::{Check, CheckStatus, RuntimeError, Sandbox};
use hotcell_supervision::CallError;
use hotcell_types::{
    ChatId, LeaseId, OrganizationId, ProfileId, RequestId, Role, UnixMillis, UserId, WorkspaceId,
    limits,
};
use tokio::time::Instant;

mod views;

pub use views::{Component, LeaseView, ProfileState, ProfileView, WarmView};

pub use crate::jobs::{JobError, JobPiece, Jobs};
pub use hotcell_core::gate::Denial;
pub use hotcell_store::StoreError;

use crate::actors::{
    admission::pass_gate,
    context::Context,
    lease::{AskedBy, LeaseMsg},
    live::{Hold, LiveLease},
    profile::ProfileMsg,
    workspace::WorkspaceMsg,
};
use crate::{
    config::NetworkConfig,
    egress::{EventPage, EventQuery},
};

/// Who calls, for which chat. Already authenticated.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The organization of the credential.
    pub organization: OrganizationId,
    /// The workspace that is acted for.
    pub workspace: WorkspaceId,
    /// The chat.
    pub chat: ChatId,
    /// The member.
    pub user: UserId,
    /// The member's role, as the backend says.
    pub role: Role,
    /// Who is audited.
    pub actor: Actor,
    /// The request, for audit and journal.
    pub request: RequestId,
}

/// Why there is no sandbox for a call.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// The gate said no.
    #[error("code execution is denied: {}", .0.name())]
    Denied(Denial),
    /// Another member's lease holds this chat: a sandbox mounts one member's files.
    #[error("this chat's sandbox belongs to another user")]
    LeaseOfAnotherUser,
    /// The member's files in the workspace are being deleted.
    #[error("the member's files are being deleted")]
    BeingDeleted,
    /// The daemon holds as many sandboxes as it may.
    #[error("all {limit} sandboxes of this daemon are taken")]
    Busy {
        /// `max_sandboxes`.
        limit: usize,
    },
    /// As many calls wait for one sandbox, or for one workspace's, as may.
    #[error("{limit} calls wait already")]
    TooManyWaiting {
        /// `limits::MAX_WAITING_CALLS`.
        limit: usize,
    },
    /// The sandbox did not become ready in time.
    #[error("the sandbox did not start within {timeout_ms} ms")]
    StartTimedOut {
        /// The limit, in milliseconds.
        timeout_ms: u64,
    },
    /// The engine could not make or start it.
    #[error("the sandbox did not start")]
    StartFailed(#[source] RuntimeError),
    /// The profile's engine cannot be used now; the words say why.
    #[error("the runtime is not available: {0}")]
    RuntimeUnavailable(String),
    /// The lease ended while this call waited for it.
    #[error("the sandbox ended while the call waited for it")]
    LeaseEnded(EndReason),
    /// The daemon is shutting down.
    #[error("the daemon is shutting down")]
    ShuttingDown,
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] StoreError),
    /// A bug, in words for the journal.
    #[error("internal error: {0}")]
    Internal(String),
}

/// A running sandbox in the hands of one call. Holding it counts as activity: the lease does not
/// go idle. Wrap it in an `Arc` to share it.
pub struct ActiveSandbox {
    /// Its lease.
    pub lease: LeaseId,
    /// Whether it was made or started again for this call.
    pub fresh: bool,
    /// The way in.
    pub sandbox: Arc<dyn Sandbox>,
    hold: Hold,
}

impl std::fmt::Debug for ActiveSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveSandbox")
            .field("lease", &self.lease)
            .field("fresh", &self.fresh)
            .finish_non_exhaustive()
    }
}

impl ActiveSandbox {
    pub(crate) fn new(fresh: bool, sandbox: Arc<dyn Sandbox>, hold: Hold) -> Self {
        Self {
            lease: hold.lease().id.clone(),
            fresh,
            sandbox,
            hold,
        }
    }

    /// Waits up to five seconds for the runtime to say why a sandbox that was lost in a call is
    /// gone. `None` when it is not gone, or nobody knows yet.
    pub async fn why_lost(&self) -> Option<EndReason> {
        let mut end = self.hold.lease().end();
        let limit = Duration::from_millis(limits::WHY_LOST_TIMEOUT_MS);
        let known = tokio::time::timeout(limit, end.wait_for(Option::is_some)).await;
        known.ok()?.ok()?.clone()
    }
}

/// The sandboxes of this daemon. Cheap to clone.
#[derive(Clone)]
pub struct Sandboxes {
    pub(crate) context: Arc<Context>,
}

impl Sandboxes {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    pub(crate) fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    #[cfg(test)]
    pub(crate) fn context_for_tests(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    /// The jobs in them.
    #[must_use]
    pub fn jobs(&self) -> Jobs {
        Jobs::new(Arc::clone(&self.context), self.clone())
    }

    /// Passes the gate, finds or makes the chat's lease (concurrent first calls share one) and
    /// waits until it is ready.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn acquire(&self, caller: &Caller) -> Result<ActiveSandbox, AcquireError> {
        let (asked, asked_at) = (Instant::now(), self.context.clock.now());
        let acquired = self.pass_and_acquire(caller).await;
        let metrics = &self.context.metrics;
        match &acquired {
            Ok(active) => {
                tracing::Span::current().record("lease", active.lease.as_str());
                if active.fresh {
                    let lease = active.hold.lease();
                    let is_new = lease.record().created_at >= asked_at;
                    let kind = match (is_new, lease.is_claimed()) {
                        (true, true) => "warm",
                        (true, false) => "cold",
                        (false, _) => "wake",
                    };
                    metrics.started(kind, asked.elapsed());
                }
            }
            Err(error) if Self::is_failed_start(error) => metrics.start_failed(),
            Err(_) => {}
        }
        self.recorded(caller, acquired)
    }

    async fn pass_and_acquire(&self, caller: &Caller) -> Result<ActiveSandbox, AcquireError> {
        let context = &*self.context;
        if context.is_leaving() {
            return Err(AcquireError::ShuttingDown);
        }
        // Every call passes it, since a switch may have been turned off a moment ago.
        context
            .store
            .read_now(|view| pass_gate(context, view, caller))
            .map_err(AcquireError::Store)?
            .map_err(AcquireError::Denied)?;
        if let Some(live) = context.live.get(&caller.workspace, &caller.chat)
            && live.user == caller.user
            && let Some((sandbox, hold)) = live.enter()
        {
            return Ok(ActiveSandbox::new(false, sandbox, hold));
        }
        let timeout_ms = context.limits.start_timeout_ms;
        let limit = Duration::from_millis(timeout_ms + limits::ACQUIRE_GRACE_MS);
        let waited = tokio::time::timeout(limit, Box::pin(self.acquire_slowly(caller))).await;
        waited.unwrap_or(Err(AcquireError::StartTimedOut { timeout_ms }))
    }

    /// Through the actors. Whoever asks must bound it in time.
    async fn acquire_slowly(&self, caller: &Caller) -> Result<ActiveSandbox, AcquireError> {
        let context = &*self.context;
        context.profile.tried().await;
        loop {
            if let Err(error) = context.profile.runtime() {
                return Err(match error {
                    RuntimeError::Unavailable(reason) => AcquireError::RuntimeUnavailable(reason),
                    error => AcquireError::StartFailed(error),
                });
            }
            let Some(live) = self.find_or_admit(caller).await? else {
                continue;
            };
            if live.is_ending() {
                // A chat has one lease at a time: the next one comes when this one is gone.
                live.gone().await;
                continue;
            }
            if live.user != caller.user {
                return Err(AcquireError::LeaseOfAnotherUser);
            }
            if let Some(reason) = live.fault() {
                return Err(AcquireError::Internal(reason));
            }
            // The lease itself keeps the limit; this one is for an actor that hangs.
            let timeout_ms = context.limits.start_timeout_ms;
            let (asked, patience_ms) = (Instant::now(), timeout_ms + limits::ACQUIRE_GRACE_MS);
            match live.address.call(LeaseMsg::Call, patience_ms).await {
                Ok(Ok(active)) => return Ok(active),
                // A start that others had waited for already: this call has time for another.
                Ok(Err(AcquireError::StartTimedOut { .. }))
                    if asked.elapsed() < Duration::from_millis(timeout_ms / 2) => {}
                // The one end that was meant for this call too.
                Ok(Err(AcquireError::LeaseEnded(EndReason::Requested))) => {
                    return Err(AcquireError::LeaseEnded(EndReason::Requested));
                }
                Ok(Err(AcquireError::LeaseEnded(_))) => {}
                Ok(Err(error)) => return Err(error),
                Err(CallError::TimedOut { .. }) => {
                    return Err(AcquireError::StartTimedOut { timeout_ms });
                }
                // Its actor crashed and will be back, or the lease is over.
                Err(CallError::Gone) => {
                    tokio::select! {
                        () = live.gone() => {}
                        _ = live.address.wait(limits::ACTOR_CALL_TIMEOUT_MS) => {}
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// The chat's lease; `None` when whoever was asked went away, and is to be asked again.
    async fn find_or_admit(&self, caller: &Caller) -> Result<Option<Arc<LiveLease>>, AcquireError> {
        let context = &self.context;
        if let Some(live) = context.live.get(&caller.workspace, &caller.chat)
            && live.has_begun()
        {
            return Ok(Some(live));
        }
        let address = context.crew.workspace(context, &caller.workspace).await;
        let address = address.map_err(|error| {
            if context.is_leaving() {
                AcquireError::ShuttingDown
            } else {
                AcquireError::Internal(error.to_string())
            }
        })?;
        let actor = address.wait(limits::ACTOR_CALL_TIMEOUT_MS).await;
        let Ok(actor) = actor else {
            return if context.is_leaving() {
                Err(AcquireError::ShuttingDown)
            } else {
                Err(AcquireError::Internal(
                    "the workspace's actor does not start".into(),
                ))
            };
        };
        let question = |port| WorkspaceMsg::Acquire(Box::new(caller.clone()), port);
        let timeout_ms = context.limits.start_timeout_ms;
        match hotcell_supervision::call(&actor, question, timeout_ms).await {
            Ok(Ok(live)) => Ok(Some(live)),
            Ok(Err(error)) => Err(error),
            Err(CallError::Gone) => {
                tokio::task::yield_now().await;
                Ok(None)
            }
            Err(CallError::TimedOut { timeout_ms }) => Err(AcquireError::Internal(format!(
                "the workspace's actor did not answer within {timeout_ms} ms"
            ))),
        }
    }

    /// The chat's lease: the live one, else the last one that ended.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn lease(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
    ) -> Result<Option<LeaseView>, AcquireError> {
        let context = &self.context;
        if let Some(live) = context.live.get(workspace, chat) {
            return Ok(Some(self.view(live.record(), Some(&live))));
        }
        let record = context
            .store
            .read_now(|view| view.newest_lease_of_chat(workspace, chat))
            .map_err(AcquireError::Store)?;
        Ok(record.map(|record| self.view(record, None)))
    }

    fn view(&self, record: LeaseRecord, live: Option<&Arc<LiveLease>>) -> LeaseView {
        let context = &self.context;
        let unused = live.and_then(|live| {
            live.door.sandbox()?;
            live.door.unused_for()
        });
        LeaseView {
            engine: context.profile.runtime().ok().map(|it| it.facts()),
            active_calls: live.map_or(0, |live| live.door.holders()),
            idle_since: unused.map(|unused| {
                let unused_ms = u64::try_from(unused.as_millis()).unwrap_or(u64::MAX);
                UnixMillis(context.clock.now().0.saturating_sub(unused_ms))
            }),
            ends_at: context.limits.ends_at(record.created_at),
            record,
        }
    }

    /// Ends the chat's lease, waits a moment for that, and says what is written down of it then;
    /// `None` when the chat never had one. Idempotent. Works whatever switch is off, but takes a
    /// role that may run code.
    ///
    /// # Errors
    /// When the role is too weak, or the store fails.
    pub async fn end(&self, caller: &Caller) -> Result<Option<LeaseView>, AcquireError> {
        self.needs_editor(caller)?;
        let context = &self.context;
        if let Some(live) = context.live.get(&caller.workspace, &caller.chat) {
            let asked_by = || {
                LeaseMsg::End(AskedBy {
                    actor: caller.actor.clone(),
                    request: Some(caller.request.clone()),
                })
            };
            if live.address.cast(asked_by()).is_err() {
                context.crew.retry_leases(std::slice::from_ref(&live)).await;
                if live
                    .address
                    .wait(limits::ACTOR_CALL_TIMEOUT_MS)
                    .await
                    .is_ok()
                {
                    // Crashed once more: the answer shows that it did not end.
                    let _ = live.address.cast(asked_by());
                }
            }
            let limit = Duration::from_millis(limits::END_TIMEOUT_MS);
            // What takes longer goes on; the answer shows how far it got.
            let _ = tokio::time::timeout(limit, live.gone()).await;
            return Ok(Some(self.view(live.record(), Some(&live))));
        }
        self.lease(&caller.workspace, &caller.chat).await
    }

    /// What `/readyz` says.
    pub async fn ready(&self) -> Vec<Component> {
        let context = &self.context;
        let store = context.store_check.check(context).await;
        let mut components = vec![Component {
            name: "store".into(),
            ok: store.is_ok(),
            detail: store.err(),
        }];
        let profile = &context.profile;
        let view = profile.view();
        let mut words: Vec<String> = match &view.state {
            ProfileState::Starting => vec!["it is being opened".into()],
            ProfileState::Active => Vec::new(),
            ProfileState::Faulted { reason } => vec![reason.clone()],
        };
        let failed = |check: &&Check| check.status == CheckStatus::Fail;
        let failed: Vec<&Check> = view.checks.iter().filter(failed).collect();
        words.extend(failed.iter().map(|c| format!("{}: {}", c.id, c.message)));
        words.extend(profile.warnings());
        components.push(Component {
            name: format!("profile/{}", profile.id),
            ok: view.state == ProfileState::Active && failed.is_empty(),
            detail: (!words.is_empty()).then(|| words.join("; ")),
        });
        if view.state == ProfileState::Active {
            let image = profile.image().await;
            components.push(Component {
                name: "image".into(),
                ok: image.is_ok(),
                detail: image.err().map(|error| error.to_string()),
            });
        }
        components.extend(context.egress.health().map(|health| Component {
            name: "egress".into(),
            ok: health.is_ok(),
            detail: health.err(),
        }));
        let faulted = context.crew.faulted().await;
        components.push(Component {
            name: "actors".into(),
            ok: faulted.is_empty(),
            detail: (!faulted.is_empty()).then(|| {
                let words = |(of, id, why): &(&str, String, String)| format!("{of}/{id}: {why}");
                faulted.iter().map(words).collect::<Vec<_>>().join("; ")
            }),
        });
        components
    }

    /// What filters did lately.
    #[must_use]
    pub fn egress_events(&self, query: &EventQuery) -> EventPage {
        self.context.egress.journal.page(query)
    }

    /// From where on [`Self::network_notes`] of a command that begins now are to be read.
    #[must_use]
    pub fn network_cursor(&self) -> u64 {
        self.context.egress.journal.last()
    }

    /// What a member should know about their sandbox's network since then.
    #[must_use]
    pub fn network_notes(&self, lease: &LeaseId, since: u64) -> Vec<String> {
        self.context.egress.journal.notes(lease, since)
    }

    /// The network of the profile.
    #[must_use]
    pub fn network(&self) -> &NetworkConfig {
        &self.context.egress.network
    }

    /// Every runtime profile.
    pub async fn profiles(&self) -> Vec<ProfileView> {
        vec![self.profile_view()]
    }

    /// Runs a profile's preflight now and says what it found; `None` when there is no such
    /// profile. Without an open engine it says why there is none.
    pub async fn check_profile(&self, profile: &ProfileId) -> Option<ProfileView> {
        let known = &self.context.profile;
        if known.id != *profile {
            return None;
        }
        let question = |port| ProfileMsg::Check(Some(port));
        let asked = known.actor.call(question, limits::PREFLIGHT_TIMEOUT_MS);
        if let Err(error) = asked.await {
            tracing::info!(%profile, %error, "the preflight did not run");
        }
        Some(self.profile_view())
    }

    fn profile_view(&self) -> ProfileView {
        let mut view = self.context.profile.view();
        // What is known of clocks is of now, not of the last preflight.
        let skew = self.context.skew.check(self.context.clock.now());
        if let Some(shown) = view.checks.iter_mut().find(|check| check.id == skew.id) {
            *shown = skew;
        }
        ProfileView {
            warm: self.context.live.pool.view(),
            ..view
        }
    }
}
