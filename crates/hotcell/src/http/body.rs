//! Request bodies, bounded before anything is kept of them.
//!
//! ```text
//!   Incoming ── LingeringBody ── PacedBody ── SignedBody ── handler
//!                    │               │            └ holds the last piece back until the hash is right
//!                    │               └ 408 when it comes too slowly
//!                    └ after an early answer: reads on for a moment, so that the sender sees the answer
//! ```
//!
//! The size limit is the reader's: [`read_all`] and the uploads' writer each have theirs.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, extract::Request};
use bytes::{Bytes, BytesMut};
use hotcell_api::ErrorCode;
use hotcell_types::limits::{
    BODY_IDLE_TIMEOUT_MS, LINGER_BYTES, LINGER_MS, LINGER_UNAUTHENTICATED_BYTES,
    MIN_BODY_BYTES_PER_SECOND,
};
use hotcell_wire::BodyHash;
use http::{HeaderMap, Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};

use super::{auth, error::ApiError};

/// Why a body did not come whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// It is not the body that was signed.
    #[error("the body is not the one that was signed")]
    Mismatch,
    /// It came too slowly.
    #[error("the body came too slowly")]
    TooSlow,
    /// The connection broke, or the framing is wrong.
    #[error("the body ended early")]
    Broken(#[source] axum::Error),
}

/// How much is read and thrown away when a body is dropped before its end.
#[derive(Debug, Clone)]
pub(super) struct Linger(Arc<AtomicU64>);

impl Linger {
    /// The sender has proven who it is.
    pub(super) fn authenticated(&self) {
        self.0.store(LINGER_BYTES, Ordering::Relaxed);
    }
}

/// A body that, dropped before its end, is read on for a moment: a connection that is closed with
/// bytes unread is reset, and the sender may lose the answer that says why.
pub(super) struct LingeringBody {
    inner: Option<Body>,
    /// Reading a body that was announced with `Expect: 100-continue` would ask for it.
    may_read: bool,
    limit: Linger,
}

impl LingeringBody {
    pub(super) fn wrap(request: Request) -> Request {
        let (mut parts, body) = request.into_parts();
        if body.is_end_stream() || parts.version > Version::HTTP_11 {
            return Request::from_parts(parts, body);
        }
        let limit = Linger(Arc::new(AtomicU64::new(LINGER_UNAUTHENTICATED_BYTES)));
        parts.extensions.insert(limit.clone());
        let body = Self {
            inner: Some(body),
            may_read: !parts.headers.contains_key(header::EXPECT),
            limit,
        };
        Request::from_parts(parts, Body::new(body))
    }
}

impl HttpBody for LingeringBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.may_read = true;
        let Some(inner) = self.inner.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(inner).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.inner = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for LingeringBody {
    fn drop(&mut self) {
        let Some(body) = self.inner.take() else {
            return;
        };
        if !self.may_read || body.is_end_stream() {
            return;
        }
        let limit = self.limit.0.load(Ordering::Relaxed);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(
                Duration::from_millis(LINGER_MS),
                drain(body, limit),
            ));
        }
    }
}

async fn drain(mut body: Body, mut left: u64) {
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// A body that must keep coming: never silent for [`BODY_IDLE_TIMEOUT_MS`], and after that time
/// no slower on average than [`MIN_BODY_BYTES_PER_SECOND`].
pub(super) struct PacedBody {
    inner: Body,
    started: Instant,
    received: u64,
    deadline: Pin<Box<Sleep>>,
}

impl PacedBody {
    pub(super) fn new(inner: Body) -> Self {
        let idle = Duration::from_millis(BODY_IDLE_TIMEOUT_MS);
        Self {
            inner,
            started: Instant::now(),
            received: 0,
            deadline: Box::pin(tokio::time::sleep(idle)),
        }
    }
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.received += frame.data_ref().map_or(0, Bytes::len) as u64;
                let idle = Duration::from_millis(BODY_IDLE_TIMEOUT_MS);
                let earned = Duration::from_secs(self.received / MIN_BODY_BYTES_PER_SECOND);
                let deadline = (Instant::now() + idle).min(self.started + idle + earned);
                self.deadline.as_mut().reset(deadline);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(BodyError::Broken(error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => self
                .deadline
                .as_mut()
                .poll(cx)
                .map(|()| Some(Err(BodyError::TooSlow))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body that shows its last piece only when its hash is the one that was signed.
pub(super) struct SignedBody {
    inner: PacedBody,
    hash: Option<BodyHash>,
    declared_hex: String,
    held: Option<Bytes>,
}

impl SignedBody {
    pub(super) fn new(inner: Body, declared_hex: String) -> Self {
        Self {
            inner: PacedBody::new(inner),
            hash: Some(BodyHash::default()),
            declared_hex,
            held: None,
        }
    }
}

impl HttpBody for SignedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if self.hash.is_none() {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers are not signed and nobody reads them.
                    let Ok(bytes) = frame.into_data() else {
                        continue;
                    };
                    if bytes.is_empty() {
                        continue;
                    }
                    if let Some(hash) = self.hash.as_mut() {
                        hash.update(&bytes);
                    }
                    if let Some(before) = self.held.replace(bytes) {
                        return Poll::Ready(Some(Ok(Frame::data(before))));
                    }
                }
                Some(Err(error)) => {
                    self.hash = None;
                    self.held = None;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    let right = self
                        .hash
                        .take()
                        .is_some_and(|hash| hash.finish(&self.declared_hex).is_ok());
                    let last = self.held.take();
                    if !right {
                        return Poll::Ready(Some(Err(BodyError::Mismatch)));
                    }
                    return Poll::Ready(last.map(|bytes| Ok(Frame::data(bytes))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // Never before the hash was looked at.
        self.hash.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// What a body's failure means.
pub(super) fn body_failed(error: axum::Error) -> ApiError {
    match error.into_inner().downcast::<BodyError>() {
        Ok(error) => match *error {
            BodyError::Mismatch => auth::signature_mismatch(),
            BodyError::TooSlow => ApiError::new(
                ErrorCode::BodyTimeout,
                "The body came too slowly. Send it again on a better connection.",
            ),
            BodyError::Broken(_) => {
                ApiError::bad_request("The body ended early or is wrongly framed.")
            }
        },
        Err(_) => ApiError::bad_request("The body ended early or is wrongly framed."),
    }
}

/// What a body says of its own size, if it does. A lie is found out by the framing.
pub(super) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// Reads a body whole; at most `limit` bytes are ever held.
///
/// # Errors
/// `too_large` when it is or claims to be larger: then before anything is read.
pub(super) async fn read_all(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    too_large: impl Fn() -> ApiError,
) -> Result<Bytes, ApiError> {
    if declared_length(headers).is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(body_failed)?.into_data() else {
            continue;
        };
        if whole.len() + bytes.len() > limit {
            return Err(too_large());
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.freeze())
}
