//! Plain GET requests to the engine, bounded, for answers that bollard's types do not fit.
//!
//! Podman's answers leave Docker's enumerations now and then, and a single unknown word would
//! cost a whole listing; logs would be taken apart by guessing. Here an answer is bytes first.

use std::time::Duration;

use bytes::Bytes;
use hotcell_runtime::RuntimeError;
use hotcell_types::limits;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::{net::UnixStream, time::timeout};

use crate::{config::EngineSocket, fault};

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The engine's clock, as its `Date` header says.
    pub(crate) date: Option<String>,
    pub(crate) body: Bytes,
}

/// Asks and reads the whole answer, at most `limit` bytes of it.
pub(crate) async fn get(
    socket: &EngineSocket,
    action: &'static str,
    target: &str,
    limit: usize,
) -> Result<Answer, RuntimeError> {
    let patience = Duration::from_millis(limits::ENGINE_ANSWER_TIMEOUT_MS);
    timeout(patience, exchange(socket, action, target, limit))
        .await
        .map_err(|_| RuntimeError::Unavailable("the engine did not answer in time".into()))?
}

async fn exchange(
    socket: &EngineSocket,
    action: &'static str,
    target: &str,
    limit: usize,
) -> Result<Answer, RuntimeError> {
    let gone = |error: &dyn std::error::Error| {
        RuntimeError::Unavailable(format!("{socket}: {}", fault::chain(error)))
    };
    let stream = UnixStream::connect(socket.as_str())
        .await
        .map_err(|error| gone(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| gone(&error))?;
    let request = Request::get(target)
        .header(header::HOST, "engine")
        .body(Empty::<Bytes>::new())
        .map_err(|error| fault::failed(action, error.to_string()))?;
    let talk = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| gone(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, limit)
            .collect()
            .await
            .map_err(|error| fault::failed(action, format!("the engine's answer: {error}")))?
            .to_bytes();
        let date = head.headers.get(header::DATE);
        Ok(Answer {
            status: head.status,
            date: date.and_then(|date| date.to_str().ok()).map(str::to_owned),
            body,
        })
    };
    tokio::pin!(talk);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        answer = &mut talk => answer,
        // When the connection is done first, the answer is there or never comes.
        _ = &mut connection => talk.await,
    }
}

/// The same, for JSON. `Ok(None)` when there is no such thing.
pub(crate) async fn json<T: DeserializeOwned>(
    socket: &EngineSocket,
    action: &'static str,
    target: &str,
) -> Result<Option<T>, RuntimeError> {
    let answer = get(socket, action, target, limits::MAX_ENGINE_ANSWER_BYTES).await?;
    if answer.status == StatusCode::NOT_FOUND {
        return Ok(None);
    }
    if !answer.status.is_success() {
        return Err(fault::said(action, &String::from_utf8_lossy(&answer.body)));
    }
    serde_json::from_slice(&answer.body)
        .map(Some)
        .map_err(|error| fault::failed(action, format!("an answer not understood: {error}")))
}
