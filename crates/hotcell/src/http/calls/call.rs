//! One call: its events with their ids, and its outcome.
//!
//! ```text
//!   id 1        call
//!   id 2 …      output, as the pieces came
//!   id last     result or problem, once it has ended
//! ```
//!
//! Progress has no id: it says how things stand now and is never repeated.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{Stream, stream};
use hotcell_api::{
    Problem,
    bash::{BashEvent, BashResult, CallRunning, OutputPiece, Progress, StreamName},
};
use hotcell_types::{CallId, ChatId, RequestId, WorkspaceId};
use tokio::sync::watch;

use crate::http::error::ApiError;

/// How a call ended.
pub(in crate::http) type Outcome = Result<Arc<BashResult>, ApiError>;

/// What followers wake up for.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    pieces: usize,
    progress: Progress,
    admitted: bool,
    ended: bool,
}

#[derive(Default)]
struct State {
    pieces: Vec<(StreamName, Arc<str>)>,
    outcome: Option<Outcome>,
    /// What the pieces and the outcome take.
    bytes: usize,
}

/// One call.
pub(in crate::http) struct Call {
    id: CallId,
    workspace: WorkspaceId,
    chat: ChatId,
    request: RequestId,
    state: Mutex<State>,
    seen: watch::Sender<Seen>,
}

impl Call {
    pub(super) fn new(
        id: CallId,
        workspace: WorkspaceId,
        chat: ChatId,
        request: RequestId,
    ) -> Self {
        Self {
            id,
            workspace,
            chat,
            request,
            state: Mutex::default(),
            seen: watch::Sender::new(Seen::default()),
        }
    }

    /// Its id.
    pub(in crate::http) fn id(&self) -> &CallId {
        &self.id
    }

    pub(super) fn is_of(&self, workspace: &WorkspaceId, chat: &ChatId) -> bool {
        self.workspace == *workspace && self.chat == *chat
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its sandbox is there and takes the command.
    pub(super) fn admitted(&self) {
        self.seen.send_modify(|seen| seen.admitted = true);
    }

    pub(super) fn piece(&self, stream: StreamName, text: String) {
        if text.is_empty() {
            return;
        }
        let pieces = {
            let mut state = self.state();
            state.bytes += text.len();
            state.pieces.push((stream, text.into()));
            state.pieces.len()
        };
        self.seen.send_modify(|seen| seen.pieces = pieces);
    }

    pub(super) fn progress(&self, progress: Progress) {
        self.seen.send_modify(|seen| seen.progress = progress);
    }

    /// All text of one stream so far.
    pub(super) fn text(&self, stream: StreamName) -> String {
        let state = self.state();
        let of_stream = || state.pieces.iter().filter(|(of, _)| *of == stream);
        let mut text = String::with_capacity(of_stream().map(|(_, piece)| piece.len()).sum());
        for (_, piece) in of_stream() {
            text.push_str(piece);
        }
        text
    }

    /// It has ended; only the first end counts.
    pub(super) fn end(&self, outcome: Outcome) {
        {
            let mut state = self.state();
            if state.outcome.is_some() {
                return;
            }
            if let Ok(result) = &outcome {
                let base64 = |text: &Option<String>| text.as_ref().map_or(0, String::len);
                state.bytes += result.stdout.len()
                    + result.stderr.len()
                    + base64(&result.stdout_base64)
                    + base64(&result.stderr_base64);
            }
            state.outcome = Some(outcome.map_err(|error| error.with_call(&self.id)));
        }
        self.seen.send_modify(|seen| seen.ended = true);
    }

    /// How it ended, for those who count: `ok`, or the code of its problem.
    pub(super) fn outcome_name(&self) -> &'static str {
        match &self.state().outcome {
            Some(Ok(_)) => "ok",
            Some(Err(error)) => error.code().as_str(),
            None => "none",
        }
    }

    /// What it takes in memory, roughly, in bytes.
    pub(super) fn retained_bytes(&self) -> usize {
        const OVERHEAD_BYTES: usize = 1024;
        OVERHEAD_BYTES + self.state().bytes
    }

    /// Its outcome, when it has one.
    pub(in crate::http) fn outcome(&self) -> Option<Outcome> {
        self.state().outcome.clone()
    }

    /// Waits for its end.
    pub(in crate::http) async fn ended(&self) -> Outcome {
        let mut seen = self.seen.subscribe();
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            // The sender is in `self`: it is not gone.
            let _ = seen.changed().await;
        }
    }

    /// Waits until its sandbox takes the command, or it has ended.
    pub(in crate::http) async fn taken_on(&self) {
        let mut seen = self.seen.subscribe();
        let _ = seen.wait_for(|seen| seen.admitted || seen.ended).await;
    }

    /// Whether it ended without its sandbox ever taking the command.
    pub(in crate::http) fn refused(&self) -> Option<ApiError> {
        match self.outcome() {
            Some(Err(error)) if !self.seen.borrow().admitted => Some(error),
            _ => None,
        }
    }

    fn problem(&self, error: &ApiError) -> Problem {
        let mut problem = error.problem().clone();
        problem.request_id = self.request.to_string();
        problem
    }

    /// The events after the one with id `after`, to the end; each with its id if it has one.
    pub(in crate::http) fn events(
        self: Arc<Self>,
        after: u64,
    ) -> impl Stream<Item = (Option<u64>, BashEvent)> + Send + 'static {
        let follower = Follower {
            seen: self.seen.subscribe(),
            next: after.saturating_add(1),
            progress: Progress::default(),
            done: false,
            call: self,
        };
        stream::unfold(follower, |mut follower| async move {
            let event = follower.next().await?;
            Some((event, follower))
        })
    }
}

struct Follower {
    call: Arc<Call>,
    seen: watch::Receiver<Seen>,
    next: u64,
    progress: Progress,
    done: bool,
}

impl Follower {
    async fn next(&mut self) -> Option<(Option<u64>, BashEvent)> {
        loop {
            if self.done {
                return None;
            }
            let seen = *self.seen.borrow_and_update();
            if let Some(event) = self.ready(seen) {
                return Some(event);
            }
            // The sender is in `self.call`: it is not gone.
            let _ = self.seen.changed().await;
        }
    }

    fn ready(&mut self, seen: Seen) -> Option<(Option<u64>, BashEvent)> {
        let id = self.next;
        if id <= 1 {
            self.next = 2;
            let running = CallRunning {
                call: self.call.id.clone(),
                running: !seen.ended,
            };
            return Some((Some(1), BashEvent::Call(running)));
        }
        let state = self.call.state();
        let index = usize::try_from(id - 2).unwrap_or(usize::MAX);
        if let Some((stream, text)) = state.pieces.get(index) {
            self.next += 1;
            let piece = OutputPiece {
                stream: *stream,
                text: text.to_string(),
            };
            return Some((Some(id), BashEvent::Output(piece)));
        }
        if let Some(outcome) = &state.outcome {
            self.done = true;
            let last = state.pieces.len() as u64 + 2;
            let event = match outcome {
                Ok(result) => BashEvent::Result(Box::new(BashResult::clone(result))),
                Err(error) => BashEvent::Problem(Box::new(self.call.problem(error))),
            };
            // A client that has seen even the end gets it again: better than silence.
            return Some((Some(last), event));
        }
        drop(state);
        if seen.progress != self.progress {
            self.progress = seen.progress;
            return Some((None, BashEvent::Progress(seen.progress)));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use hotcell_api::ErrorCode;

    use super::*;

    fn call() -> Arc<Call> {
        Arc::new(Call::new(
            CallId::from_bits(1),
            "w".parse().unwrap(),
            "c".parse().unwrap(),
            RequestId::from_bits(2),
        ))
    }

    #[tokio::test]
    async fn whoever_comes_back_reads_on_where_they_were() {
        let call = call();
        call.piece(StreamName::Stdout, "one".into());
        call.piece(StreamName::Stderr, "two".into());
        let mut first = Box::pin(call.clone().events(0));
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(first.next().await.unwrap().0);
        }
        assert_eq!(ids, [Some(1), Some(2), Some(3)]);
        drop(first);
        let later = tokio::spawn(call.clone().events(2).collect::<Vec<_>>());
        call.piece(StreamName::Stdout, "three".into());
        call.end(Err(ApiError::new(ErrorCode::SandboxLost, "gone")));
        call.end(Err(ApiError::new(
            ErrorCode::Internal,
            "only the first end counts",
        )));
        let later = later.await.unwrap();
        let ids: Vec<_> = later.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [Some(3), Some(4), Some(5)]);
        let BashEvent::Problem(problem) = &later[2].1 else {
            panic!("{later:?}")
        };
        assert_eq!(problem.code, ErrorCode::SandboxLost);
        assert_eq!(problem.request_id, RequestId::from_bits(2).to_string());
        assert_eq!(problem.call.as_ref(), Some(call.id()));
        // Ids from the future give the end, not silence.
        assert_eq!(call.clone().events(u64::MAX).count().await, 1);
        assert_eq!(call.text(StreamName::Stdout), "onethree");
    }

    #[tokio::test]
    async fn progress_has_no_id_and_wakes_a_follower() {
        let call = call();
        let mut events = Box::pin(call.clone().events(1));
        let progress = Progress {
            stdout_bytes: 5,
            stderr_bytes: 0,
        };
        call.progress(progress);
        assert_eq!(
            events.next().await,
            Some((None, BashEvent::Progress(progress)))
        );
    }
}
