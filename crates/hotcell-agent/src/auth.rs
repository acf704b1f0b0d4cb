//! Who may ask: whoever holds this lease's key, once per nonce.
//!
//! All that the headers tell is checked before the body is read. The body then streams
//! through its hash, and only what has the hash that was signed is acted on.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hotcell_agent_proto::{AgentError, AgentErrorCode};
use hotcell_types::{
    Clock as _,
    limits::{
        BODY_IDLE_TIMEOUT_MS,
        agent::{DRAIN_MS, MAX_DRAINED_BODY_BYTES},
    },
};
use hotcell_wire::{BodyHash, HeadError, NonceError, SignedHead};
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::{agent::Agent, clock::SystemClock, pool::lock};

fn unauthorized() -> AgentError {
    AgentError::new(
        AgentErrorCode::Unauthorized,
        "the request is not signed with the key of this lease",
    )
}

/// Checks the head; returns the hash that the body must have.
///
/// # Errors
/// [`AgentErrorCode::Unauthorized`], the same for every reason that depends on the key.
pub(crate) fn check(agent: &Agent, head: &Parts) -> Result<String, AgentError> {
    let now = SystemClock.now();
    let signed = SignedHead::parse(&head.headers, now).map_err(|error| match error {
        HeadError::ClockSkew { .. } => {
            AgentError::new(AgentErrorCode::Unauthorized, error.to_string())
        }
        _ => unauthorized(),
    })?;
    let target = head
        .uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let genuine = signed.is_signed_by(agent.key.expose(), head.method.as_str(), target);
    if !genuine || signed.key != agent.config.lease.as_str() {
        return Err(unauthorized());
    }
    // Only genuine requests get this far, so nobody else can fill the memory of nonces. There
    // is one key, so it need not be remembered with each.
    lock(&agent.nonces)
        .take("", &signed.nonce, now.seconds())
        .map_err(|error| match error {
            NonceError::Replayed => unauthorized(),
            NonceError::Full => AgentError::new(AgentErrorCode::Busy, error.to_string()),
        })?;
    Ok(signed.body_sha256)
}

/// A body that streams through its hash.
#[derive(Debug)]
pub(crate) struct SignedBody {
    body: Incoming,
    hash: BodyHashState,
    declared: String,
}

struct BodyHashState(BodyHash);

impl std::fmt::Debug for BodyHashState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BodyHash(…)")
    }
}

impl SignedBody {
    pub(crate) fn new(body: Incoming, declared: String) -> Self {
        Self {
            body,
            hash: BodyHashState(BodyHash::default()),
            declared,
        }
    }

    /// The next piece; nothing at the end.
    ///
    /// # Errors
    /// [`AgentErrorCode::BadRequest`] when the body is cut or does not go on.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, AgentError> {
        let bad = |what: &str| AgentError::new(AgentErrorCode::BadRequest, what);
        loop {
            let next = timeout(
                Duration::from_millis(BODY_IDLE_TIMEOUT_MS),
                self.body.frame(),
            )
            .await
            .map_err(|_| bad("the body does not go on"))?;
            let Some(frame) = next else { return Ok(None) };
            let frame = frame.map_err(|_| bad("the body was cut"))?;
            // Trailers are nothing to us.
            if let Ok(bytes) = frame.into_data() {
                self.hash.0.update(&bytes);
                return Ok(Some(bytes));
            }
        }
    }

    /// Reads what is left and throws it away, within limits: of a body that nobody wants any more.
    /// A connection that is closed with unread bytes in it is reset, and then the answer that says
    /// why may never be read.
    pub(crate) async fn drain(&mut self) {
        let rest = async {
            let mut drained = 0_u64;
            while let Some(Ok(frame)) = self.body.frame().await {
                drained += frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
                if drained > MAX_DRAINED_BODY_BYTES {
                    return;
                }
            }
        };
        // Whoever sends it slowly does without.
        let _ = timeout(Duration::from_millis(DRAIN_MS), rest).await;
    }

    /// At the end: whether it was the body that was signed.
    ///
    /// # Errors
    /// [`AgentErrorCode::Unauthorized`].
    pub(crate) fn finish(self) -> Result<(), AgentError> {
        self.hash
            .0
            .finish(&self.declared)
            .map_err(|_| unauthorized())
    }

    /// All of it, up to a limit.
    ///
    /// # Errors
    /// As [`Self::piece`] and [`Self::finish`]; [`AgentErrorCode::BadRequest`] over the limit.
    pub(crate) async fn whole(mut self, limit_bytes: usize) -> Result<Bytes, AgentError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > limit_bytes {
                return Err(AgentError::new(
                    AgentErrorCode::BadRequest,
                    format!("the body is longer than {limit_bytes} bytes"),
                ));
            }
            whole.extend_from_slice(&piece);
        }
        self.finish()?;
        Ok(whole.freeze())
    }
}
