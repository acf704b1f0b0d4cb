//! `Idempotency-Key`: a request that is sent again does nothing again.
//!
//! ```text
//!   key ──► flight of this process? ── yes ──► follow it
//!                │ no
//!                ▼
//!          begin, in the store ── fresh ─────► ours: act ── finish(answer) ── or release
//!                ├─ other request ──► 409 idempotency_key_reused
//!                ├─ cut off ────────► 409 idempotency_cut_off
//!                └─ done ───────────► the answer again
//! ```
//! What a request did and that it is done are written in one transaction where that is possible
//! (collected files). Where it is not (a command), the key says before the command starts that
//! it may have run: after a crash the command is never run a second time, and whoever asks is told so.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use hotcell_api::ErrorCode;
use hotcell_store::{IdempotencyBegin, IdempotencyState, NewIdempotencyKey, Store, StoreError, Tx};
use hotcell_types::{
    CallId, IdSource, WorkspaceId,
    limits::{MAX_IDEMPOTENCY_KEY_CHARACTERS, MAX_IDEMPOTENCY_KEYS_PER_WORKSPACE},
};
use http::{HeaderMap, Method, Uri};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{App, error::ApiError};
use crate::actors::lock;

const HEADER: &str = "idempotency-key";
/// How often a follower whose leader did nothing tries to lead.
const MAX_TRIES: usize = 16;

type FlightKey = (WorkspaceId, String);

/// How far a flight is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Begun,
    /// It is this call.
    Call(CallId),
    Over,
}

struct Flight {
    fingerprint: String,
    progress: watch::Sender<Progress>,
}

/// The keyed requests of this process. Cheap to clone.
#[derive(Clone)]
pub struct Idempotency {
    by: Arc<str>,
    flights: Arc<Mutex<HashMap<FlightKey, Arc<Flight>>>>,
}

/// A key as it came, with what it came with.
pub(super) struct Keyed {
    key: String,
    fingerprint: String,
}

impl Keyed {
    /// The request's key, if it has one. The request is told from others by its method, its path
    /// and its body, whose hash was signed.
    ///
    /// # Errors
    /// The header is repeated or malformed.
    pub(super) fn of(
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<Self>, ApiError> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        let key = value
            .to_str()
            .ok()
            .filter(|key| (1..=MAX_IDEMPOTENCY_KEY_CHARACTERS).contains(&key.len()))
            .filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
        let (Some(key), None) = (key, values.next()) else {
            return Err(ApiError::bad_request(format!(
                "The header Idempotency-Key must come once, with 1 to {MAX_IDEMPOTENCY_KEY_CHARACTERS} visible ASCII characters."
            )));
        };
        let mut hash = Sha256::new();
        hash.update(method.as_str());
        hash.update("\n");
        hash.update(uri.path());
        hash.update("\n");
        if let Some(body) = headers.get("hotcell-content-sha256") {
            hash.update(body.as_bytes());
        }
        Ok(Some(Self {
            key: key.to_owned(),
            fingerprint: hex::encode(hash.finalize()),
        }))
    }
}

/// What to do with a keyed request.
pub(super) enum Begin {
    /// It is the first: do it.
    Ours(Ticket),
    /// The same request runs: it is this call.
    Call(CallId),
    /// It was done, with this answer.
    Done(String),
}

/// The same for requests that are no calls.
pub(super) enum Once {
    /// It is the first: do it.
    Ours(Ticket),
    /// It was done, with this answer.
    Done(String),
}

/// An answer as it is kept.
pub(super) fn answer_text(answer: &impl Serialize) -> String {
    // Strings and numbers always serialize.
    serde_json::to_string(answer).unwrap_or_default()
}

fn reused() -> ApiError {
    ApiError::new(
        ErrorCode::IdempotencyKeyReused,
        "This idempotency key came with another request before. Take a new key for a new request.",
    )
}

fn cut_off() -> ApiError {
    ApiError::new(
        ErrorCode::IdempotencyCutOff,
        "The request with this idempotency key was cut off by a restart of the server; whether it did anything is not known. \
         Look at what is there, then send it with a new key.",
    )
}

/// The answer of a request that was done is not there any more.
pub(super) fn answer_gone(more: &str) -> ApiError {
    ApiError::new(
        ErrorCode::IdempotencyAnswerGone,
        format!(
            "The request with this idempotency key was done; its answer was too long to be kept. {more}"
        ),
    )
}

fn done(answer: Option<String>) -> Result<Begin, ApiError> {
    match answer {
        Some(answer) => Ok(Begin::Done(answer)),
        None => Err(answer_gone(
            "List the outputs of the chat to see what there is.",
        )),
    }
}

impl Idempotency {
    /// For one start of the daemon.
    #[must_use]
    pub fn new(ids: &dyn IdSource) -> Self {
        Self {
            by: format!("{:032x}", ids.bits()).into(),
            flights: Arc::default(),
        }
    }

    /// [`begin`](Self::begin) for a request that is no call.
    ///
    /// # Errors
    /// As there; or the key is one of a call.
    pub(super) async fn begin_once(
        &self,
        app: &App,
        workspace: &WorkspaceId,
        keyed: &Keyed,
    ) -> Result<Once, ApiError> {
        match self.begin(app, workspace, keyed).await? {
            Begin::Ours(ticket) => Ok(Once::Ours(ticket)),
            Begin::Done(answer) => Ok(Once::Done(answer)),
            Begin::Call(_) => Err(ApiError::bad_request(
                "This idempotency key is one of a call.",
            )),
        }
    }

    /// Finds out what to do with a keyed request. Waits while another one with the key runs.
    ///
    /// # Errors
    /// It cannot be done: another request, cut off, too many keys, or the store failed.
    pub(super) async fn begin(
        &self,
        app: &App,
        workspace: &WorkspaceId,
        keyed: &Keyed,
    ) -> Result<Begin, ApiError> {
        for _ in 0..MAX_TRIES {
            let flight_key = (workspace.clone(), keyed.key.clone());
            let flight = match lock(&self.flights).entry(flight_key.clone()) {
                Entry::Occupied(flight) => Err(Arc::clone(flight.get())),
                Entry::Vacant(place) => {
                    let flight = Arc::new(Flight {
                        fingerprint: keyed.fingerprint.clone(),
                        progress: watch::Sender::new(Progress::Begun),
                    });
                    place.insert(Arc::clone(&flight));
                    Ok(flight)
                }
            };
            match flight {
                Ok(flight) => {
                    let ticket = Ticket {
                        store: app.store.clone(),
                        idempotency: self.clone(),
                        flight_key,
                        flight,
                        is_fresh: AtomicBool::new(false),
                    };
                    return ticket.begin(app, keyed).await;
                }
                Err(flight) if flight.fingerprint != keyed.fingerprint => return Err(reused()),
                Err(flight) => {
                    let mut progress = flight.progress.subscribe();
                    let moved = progress.wait_for(|now| *now != Progress::Begun).await;
                    // The sender lives as long as the flight, which is held here.
                    if let Ok(Progress::Call(call)) = moved.as_deref() {
                        return Ok(Begin::Call(call.clone()));
                    }
                    let state = app
                        .store
                        .read_now(|view| view.idempotency_state(workspace, &keyed.key))?;
                    if let Some(IdempotencyState::Done { answer }) = state {
                        return done(answer);
                    }
                }
            }
        }
        Err(ApiError::new(
            ErrorCode::Busy,
            "Other requests with this idempotency key keep failing. Try again in a moment.",
        ))
    }
}

/// The right to do a keyed request. Dropped, whoever follows it goes on.
pub(super) struct Ticket {
    store: Store,
    idempotency: Idempotency,
    flight_key: FlightKey,
    flight: Arc<Flight>,
    /// Whether the store has it as begun, and nothing was done or said since.
    is_fresh: AtomicBool,
}

/// Takes a flight from the map when it is over, and wakes who follows it.
struct Landing {
    idempotency: Idempotency,
    flight_key: FlightKey,
    flight: Arc<Flight>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        lock(&self.idempotency.flights).remove(&self.flight_key);
        self.flight.progress.send_replace(Progress::Over);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let landing = Landing {
            idempotency: self.idempotency.clone(),
            flight_key: self.flight_key.clone(),
            flight: Arc::clone(&self.flight),
        };
        if self.is_fresh.load(Ordering::Acquire)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // Begun, and then refused before anything could be done.
            let store = self.store.clone();
            runtime.spawn(async move {
                release(&store, landing.flight_key.clone()).await;
                drop(landing);
            });
        }
    }
}

/// Writes down that a request did nothing.
async fn release(store: &Store, (workspace, key): FlightKey) {
    let written =
        store.write::<_, StoreError, _>(move |tx| tx.release_idempotent(&workspace, &key));
    if let Err(error) = written.await {
        tracing::warn!(%error, "an idempotency key cannot be released");
    }
}

impl Ticket {
    async fn begin(self, app: &App, keyed: &Keyed) -> Result<Begin, ApiError> {
        let new = NewIdempotencyKey {
            workspace: self.flight_key.0.clone(),
            key: keyed.key.clone(),
            fingerprint: keyed.fingerprint.clone(),
            by: self.idempotency.by.to_string(),
            at: app.clock.now(),
        };
        let begun = app
            .store
            .write::<_, StoreError, _>(move |tx| tx.begin_idempotent(&new))
            .await
            .map_err(|error| match error {
                StoreError::LimitReached { .. } => ApiError::new(
                    ErrorCode::Busy,
                    format!(
                        "This workspace used {MAX_IDEMPOTENCY_KEYS_PER_WORKSPACE} idempotency keys in the last day, which is the limit. Send the request without one, or later."
                    ),
                )
                .with_limit(MAX_IDEMPOTENCY_KEYS_PER_WORKSPACE),
                error => error.into(),
            })?;
        match begun {
            IdempotencyBegin::Fresh => {
                self.is_fresh.store(true, Ordering::Release);
                Ok(Begin::Ours(self))
            }
            IdempotencyBegin::OtherRequest => Err(reused()),
            // Of this start, but without a flight: its task died.
            IdempotencyBegin::CutOff | IdempotencyBegin::InProgress => Err(cut_off()),
            IdempotencyBegin::Done { answer } => done(answer),
        }
    }

    /// It is this call: who comes with the same key follows that.
    pub(super) fn is_call(&self, call: &CallId) {
        self.flight
            .progress
            .send_replace(Progress::Call(call.clone()));
    }

    /// Writes down that it may do something from now on.
    ///
    /// # Errors
    /// The store failed; then it must not do anything.
    pub(super) async fn act(&self) -> Result<(), ApiError> {
        self.is_fresh.store(false, Ordering::Release);
        let (workspace, key) = self.flight_key.clone();
        let by = Arc::clone(&self.idempotency.by);
        let written = self
            .store
            .write::<_, StoreError, _>(move |tx| tx.act_idempotent(&workspace, &key, &by));
        Ok(written.await?)
    }

    /// What writes down, inside a transaction, that it is done.
    pub(super) fn finisher(&self) -> Finisher {
        self.is_fresh.store(false, Ordering::Release);
        Finisher(self.flight_key.clone())
    }

    /// Writes down that it is done. What cannot be written is told to the journal: the request
    /// itself was done.
    pub(super) async fn finish(&self, answer: String) {
        let finisher = self.finisher();
        let written = self
            .store
            .write::<_, StoreError, _>(move |tx| finisher.finish(tx, answer));
        if let Err(error) = written.await {
            tracing::warn!(%error, "the answer to a request with an idempotency key cannot be kept");
        }
    }

    /// Writes down that it did nothing: sent again it is done anew.
    pub(super) async fn release(&self) {
        self.is_fresh.store(false, Ordering::Release);
        release(&self.store, self.flight_key.clone()).await;
    }
}

/// Writes down that a keyed request is done.
pub(super) struct Finisher(FlightKey);

impl Finisher {
    /// In the transaction of what it did.
    ///
    /// # Errors
    /// The store failed.
    pub(super) fn finish(&self, tx: &mut Tx<'_>, answer: String) -> Result<(), StoreError> {
        let (workspace, key) = &self.0;
        tx.finish_idempotent(workspace, key, answer)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn keyed(path: &str, headers: &[(&'static str, &str)]) -> Result<Option<Keyed>, ApiError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        Keyed::of(&Method::POST, &path.parse().unwrap(), &map)
    }

    #[test]
    fn keys_are_short_visible_and_single() {
        assert!(keyed("/a", &[]).unwrap().is_none());
        let long = "k".repeat(255);
        for good in ["k", "a/b:c", long.as_str()] {
            assert!(keyed("/a", &[(HEADER, good)]).unwrap().is_some(), "{good}");
        }
        let long = "k".repeat(256);
        for bad in ["", "a b", "ü", "\t", long.as_str()] {
            assert!(keyed("/a", &[(HEADER, bad)]).is_err(), "{bad}");
        }
        assert!(keyed("/a", &[(HEADER, "a"), (HEADER, "a")]).is_err());
    }

    #[test]
    fn a_request_is_told_by_its_path_and_its_body() {
        let print = |path, hash| {
            let headers = [(HEADER, "k"), ("hotcell-content-sha256", hash)];
            keyed(path, &headers).unwrap().unwrap().fingerprint
        };
        assert_eq!(print("/a", "00"), print("/a?x=1", "00"));
        assert_ne!(print("/a", "00"), print("/b", "00"));
        assert_ne!(print("/a", "00"), print("/a", "01"));
    }
}
