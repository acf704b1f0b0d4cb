//! Asks the daemon over its local socket.

use std::path::PathBuf;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::{Exit, Settings};

/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// How long the daemon may take, in milliseconds.
const ANSWER_TIMEOUT_MS: u64 = 60_000;

/// The daemon, through its local socket.
pub(super) struct Local {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Local {
    pub(super) fn new(settings: &Settings) -> Result<Self, Exit> {
        Self::at(settings.load(None, None)?.admin_socket())
    }

    /// The one that listens on this socket.
    pub(super) fn at(socket: PathBuf) -> Result<Self, Exit> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Exit::failed(&error))?;
        Ok(Self { socket, runtime })
    }

    /// Asks, and takes a refusal as a failure.
    pub(super) fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Exit> {
        let (status, answer) = self.ask_any(method, path, body)?;
        if status.is_success() {
            return Ok(answer);
        }
        let part = |name: &str| answer.get(name).and_then(Value::as_str);
        let words =
            part("detail").unwrap_or_else(|| status.canonical_reason().unwrap_or("refused"));
        let code = part("code").map_or_else(|| status.as_str().to_owned(), str::to_owned);
        Err(Exit::words(format!("{words} ({code})")))
    }

    /// Asks; a refusal is an answer too.
    pub(super) fn ask_any(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), Exit> {
        let limit = std::time::Duration::from_millis(ANSWER_TIMEOUT_MS);
        self.runtime.block_on(async {
            tokio::time::timeout(limit, self.exchange(method, path, body))
                .await
                .unwrap_or_else(|_| Err(Exit::unreachable("the daemon does not answer")))
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), Exit> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| {
            Exit::unreachable(format!(
                "the daemon cannot be reached on {}: {error}; is `hotcell serve` running, with this --run-dir, and are you its user?",
                self.socket.display()
            ))
        })?;
        let io = TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
            .await
            .map_err(|error| Exit::failed(&error))?;
        let connection = tokio::spawn(connection);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Exit::failed(&error))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| Exit::failed(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let bytes = body.collect().await;
        let bytes = bytes
            .map_err(|error| Exit::words(error.to_string()))?
            .to_bytes();
        connection.abort();
        if bytes.is_empty() {
            return Ok((status, Value::Null));
        }
        let value = serde_json::from_slice(&bytes).map_err(|error| Exit::failed(&error))?;
        Ok((status, value))
    }
}
