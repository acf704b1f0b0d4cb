//! The `bash` calls of this daemon, running and lately finished.
//!
//! ```text
//!   POST C/bash ── start ── task: acquire ── exec ── drain into the call's events ── outcome
//!                                                          │
//!        JSON answer: waits for the outcome ◄──────────────┤
//!        event stream: follows the events   ◄──────────────┤
//!        GET C/bash/{call}, Last-Event-ID   ◄──────────────┘
//! ```
//!
//! A call runs in its own task: a client that goes away does not end it, and one that comes back
//! with the call's id reads on where it was. Nothing ever runs a command twice.

mod call;
mod keyed;
mod output;
mod run;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hotcell_api::ErrorCode;
use hotcell_types::{
    CallId, ChatId, WorkspaceId,
    limits::{CALL_RETENTION_MS, MAX_CALLS, MAX_COMMAND_BYTES, MAX_RETAINED_CALL_BYTES},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(super) use call::{Call, Outcome};
pub(super) use keyed::recall;
pub(super) use run::{Command, failed};

use super::{App, error::ApiError, idempotency::Ticket};
use crate::handles::Caller;

/// What `bash` and jobs take as a script.
///
/// # Errors
/// It is too long, or bash could not be given it whole.
pub(super) fn check_script(text: &str) -> Result<(), ApiError> {
    if text.len() > MAX_COMMAND_BYTES {
        return Err(ApiError::new(
            ErrorCode::CommandTooLong,
            format!(
                "The command has {} bytes, {MAX_COMMAND_BYTES} at most are taken. Put the data into an upload.",
                text.len()
            ),
        )
        .with_limit_bytes(MAX_COMMAND_BYTES as u64));
    }
    if text.contains('\0') {
        return Err(ApiError::bad_request(
            "In the field command: a bash script holds no NUL.",
        ));
    }
    Ok(())
}

/// The calls. Cheap to clone.
#[derive(Clone, Default)]
pub struct Calls {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    known: Mutex<Known>,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

#[derive(Default)]
struct Known {
    calls: HashMap<CallId, Arc<Call>>,
    /// The finished ones, oldest first, with what each takes.
    finished: VecDeque<(CallId, usize)>,
    finished_bytes: usize,
}

impl Known {
    fn forget(&mut self, id: &CallId) {
        if let Some(index) = self.finished.iter().position(|(other, _)| other == id)
            && let Some((_, bytes)) = self.finished.remove(index)
        {
            self.finished_bytes -= bytes;
            self.calls.remove(id);
        }
    }

    fn forget_oldest(&mut self) -> bool {
        let Some((id, bytes)) = self.finished.pop_front() else {
            return false;
        };
        self.finished_bytes -= bytes;
        self.calls.remove(&id);
        true
    }
}

impl Calls {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.inner
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call in a task of its own.
    ///
    /// # Errors
    /// When too many run, or the daemon is stopping.
    pub(super) fn start(
        app: &Arc<App>,
        caller: Caller,
        command: Command,
        ticket: Option<Ticket>,
    ) -> Result<Arc<Call>, ApiError> {
        let calls = app.calls.clone();
        if calls.inner.stopping.is_cancelled() {
            return Err(ApiError::new(
                ErrorCode::ShuttingDown,
                "The server is shutting down. Try again in a moment.",
            ));
        }
        let call = Arc::new(Call::new(
            CallId::from_bits(app.ids.bits()),
            caller.workspace.clone(),
            caller.chat.clone(),
            caller.request.clone(),
        ));
        {
            let mut known = calls.known();
            while known.calls.len() >= MAX_CALLS {
                if !known.forget_oldest() {
                    return Err(ApiError::new(
                        ErrorCode::Busy,
                        format!("{MAX_CALLS} calls are running. Try again when some have ended."),
                    )
                    .with_limit(MAX_CALLS as u64));
                }
            }
            known.calls.insert(call.id().clone(), call.clone());
        }
        if let Some(ticket) = &ticket {
            ticket.is_call(call.id());
        }
        let task = {
            let (app, call) = (app.clone(), call.clone());
            async move {
                let stopping = app.calls.inner.stopping.clone();
                let started = tokio::time::Instant::now();
                run::run(&app, &call, &caller, command, ticket, &stopping).await;
                let outcome = call.outcome_name();
                let metrics = app.sandboxes.metrics();
                metrics.called("bash", started.elapsed(), outcome);
                let calls = app.calls.clone();
                // What is kept of a finished call must not keep everything else alive.
                drop(app);
                calls.retain(&call, &stopping).await;
            }
        };
        let span = tracing::Span::current();
        calls
            .inner
            .tasks
            .spawn(tracing::Instrument::instrument(task, span));
        Ok(call)
    }

    /// Keeps a finished call for whoever comes back to it, then forgets it.
    async fn retain(&self, call: &Call, stopping: &CancellationToken) {
        {
            let bytes = call.retained_bytes();
            let mut known = self.known();
            known.finished.push_back((call.id().clone(), bytes));
            known.finished_bytes += bytes;
            while known.finished_bytes > MAX_RETAINED_CALL_BYTES && known.finished.len() > 1 {
                known.forget_oldest();
            }
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(CALL_RETENTION_MS)) => {}
            () = stopping.cancelled() => {}
        }
        self.known().forget(call.id());
    }

    /// A call of this chat, by its id.
    pub(super) fn find(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        id: &CallId,
    ) -> Option<Arc<Call>> {
        self.known()
            .calls
            .get(id)
            .filter(|call| call.is_of(workspace, chat))
            .cloned()
    }

    /// Ends every running call (its client is told that the server is shutting down) and takes on
    /// no more. Returns when all of them have ended.
    pub async fn stop(&self) {
        self.inner.stopping.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}
