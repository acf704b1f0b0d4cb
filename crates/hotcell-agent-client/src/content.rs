//! The bytes of files, in both directions.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hotcell_runtime::{ByteStream, SandboxError};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::time::timeout;

use crate::{
    client::Answer,
    error::from_hyper,
    patience::millis,
    pool::{Connection, Pool, RequestBody},
};

struct Download {
    body: Incoming,
    connection: Connection,
    pool: Pool,
    left: u64,
    patience: Duration,
}

impl Download {
    async fn piece(&mut self) -> Result<Option<Bytes>, SandboxError> {
        loop {
            let frame = timeout(self.patience, self.body.frame())
                .await
                .map_err(|_| SandboxError::Timeout(millis(self.patience)))?;
            let Some(frame) = frame else {
                return match self.left {
                    0 => Ok(None),
                    left => Err(SandboxError::Protocol(format!(
                        "the file ended {left} bytes early"
                    ))),
                };
            };
            let Ok(piece) = frame.map_err(|error| from_hyper(&error))?.into_data() else {
                continue;
            };
            match self.left.checked_sub(piece.len() as u64) {
                Some(left) => self.left = left,
                None => {
                    return Err(SandboxError::Protocol(
                        "more came than the file was said to have".into(),
                    ));
                }
            }
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }
}

/// The body of an answer as a file of `bytes` bytes.
pub(crate) fn download(answer: Answer, pool: Pool, bytes: u64, patience: Duration) -> ByteStream {
    let start = Download {
        body: answer.response.into_body(),
        connection: answer.connection,
        pool,
        left: bytes,
        patience,
    };
    Box::pin(stream::unfold(Some(start), |state| async move {
        let mut state = state?;
        match state.piece().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(state))),
            Ok(None) => {
                state.pool.put(state.connection);
                None
            }
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// How much of an upload has been handed over, for whoever watches that it moves.
pub(crate) type Moved = Arc<AtomicU64>;

/// A request body of exactly `bytes` bytes. Content that has more or fewer is an error, which
/// cuts the request, so that the agent never takes half a file for a whole one.
pub(crate) fn upload(bytes: u64, content: ByteStream) -> (RequestBody, Moved) {
    let moved = Moved::default();
    let counter = Arc::clone(&moved);
    let pieces = stream::unfold(Some((content, 0_u64)), move |state| {
        let counter = Arc::clone(&counter);
        async move {
            let (mut content, sent) = state?;
            match content.next().await {
                Some(Ok(piece)) => {
                    let sent = sent.saturating_add(piece.len() as u64);
                    if sent > bytes {
                        return Some((Err(SandboxError::TooLarge(bytes)), None));
                    }
                    counter.store(sent, Ordering::Relaxed);
                    Some((Ok(Frame::data(piece)), Some((content, sent))))
                }
                Some(Err(error)) => Some((Err(error), None)),
                None if sent < bytes => {
                    let short = format!("the content ended {} bytes early", bytes - sent);
                    Some((Err(SandboxError::Protocol(short)), None))
                }
                None => None,
            }
        }
    });
    (StreamBody::new(pieces).boxed_unsync(), moved)
}
