//! Signed requests, up to the head of the answer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use hotcell_runtime::SandboxError;
use hotcell_types::{AgentKey, Clock, IdSource, LeaseId};
use hotcell_wire::{EMPTY_BODY_SHA256, body_sha256, sign_headers};
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    error::from_hyper,
    patience::{Patience, millis},
    pool::{Connection, Pool, RequestBody},
};

/// The body of a request, as it is known before anything is sent.
pub(crate) enum Content {
    Empty,
    Json(Bytes),
    Streamed {
        bytes: u64,
        sha256_hex: String,
        body: RequestBody,
    },
}

impl Content {
    pub(crate) fn json(value: &impl Serialize) -> Result<Self, SandboxError> {
        let text = serde_json::to_vec(value)
            .map_err(|error| SandboxError::Protocol(format!("the request: {error}")))?;
        Ok(Self::Json(text.into()))
    }
}

/// A request.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) content: Content,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Call {
    pub(crate) fn new(method: Method, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            content: Content::Empty,
            headers: Vec::new(),
        }
    }

    pub(crate) fn content(mut self, content: Content) -> Self {
        self.content = content;
        self
    }
}

/// An answer's head, and the connection that its body comes over.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) connection: Connection,
    /// Whether the connection is good for another request: not when this one may have been
    /// answered before all of it was sent.
    pub(crate) reusable: bool,
}

/// Speaks to one agent.
pub(crate) struct Client {
    lease: LeaseId,
    key: AgentKey,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    pub(crate) pool: Pool,
    pub(crate) patience: Patience,
}

impl Client {
    pub(crate) fn new(
        lease: LeaseId,
        key: AgentKey,
        pool: Pool,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Self {
        Self {
            lease,
            key,
            clock,
            ids,
            pool,
            patience: Patience::default(),
        }
    }

    fn sign(&self, call: Call) -> Result<Request<RequestBody>, SandboxError> {
        let (body, bytes, hash) = match call.content {
            Content::Empty => (
                Empty::new().map_err(|never| match never {}).boxed_unsync(),
                None,
                EMPTY_BODY_SHA256.to_owned(),
            ),
            Content::Json(text) => {
                let hash = body_sha256(&text);
                let bytes = text.len() as u64;
                let body = Full::new(text).map_err(|never| match never {});
                (body.boxed_unsync(), Some(bytes), hash)
            }
            Content::Streamed {
                bytes,
                sha256_hex,
                body,
            } => (body, Some(bytes), sha256_hex),
        };
        let nonce = hex::encode(self.ids.bits().to_be_bytes());
        let signed = sign_headers(
            self.lease.as_str(),
            &self.key.to_hex(),
            self.clock.now().seconds(),
            &nonce,
            call.method.as_str(),
            &call.target,
            &hash,
        );
        let mut request = Request::builder()
            .method(call.method)
            .uri(call.target)
            .header(header::HOST, "sandbox");
        for (name, value) in signed {
            request = request.header(name, value);
        }
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        if let Some(bytes) = bytes {
            request = request.header(header::CONTENT_LENGTH, bytes);
        }
        request
            .body(body)
            .map_err(|error| SandboxError::Protocol(format!("the request: {error}")))
    }

    /// Sends a request and waits for the head of its answer, for `patience`.
    ///
    /// An idle connection may have been closed from the other side. When hyper hands the request
    /// back, not one byte of it was sent, and only then it is sent again on a new connection:
    /// a command never runs twice.
    pub(crate) async fn send(
        &self,
        call: Call,
        patience: Duration,
    ) -> Result<Answer, SandboxError> {
        let streamed = matches!(call.content, Content::Streamed { .. });
        let request = self.sign(call)?;
        let attempt = async {
            let request = match self.pool.take() {
                None => request,
                Some(connection) => match send_on(connection, request).await {
                    Ok(answer) => return Ok(answer),
                    Err(Unsent::Maybe(error)) => return Err(error),
                    Err(Unsent::Surely(request, _)) => *request,
                },
            };
            let connection = self.pool.connect(self.patience.connect).await?;
            send_on(connection, request)
                .await
                .map_err(Unsent::into_error)
        };
        let mut answer = timeout(patience, attempt)
            .await
            .map_err(|_| SandboxError::Timeout(millis(patience)))??;
        answer.reusable = !streamed || answer.response.status().is_success();
        Ok(answer)
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send_alone(
        &self,
        call: Call,
        connect: Duration,
        patience: Duration,
    ) -> Result<Answer, SandboxError> {
        let request = self.sign(call)?;
        let connection = self.pool.connect(connect).await?;
        timeout(patience, send_on(connection, request))
            .await
            .map_err(|_| SandboxError::Timeout(millis(patience)))?
            .map_err(Unsent::into_error)
    }
}

/// Why there is no answer.
enum Unsent {
    /// The agent may have seen the request.
    Maybe(SandboxError),
    /// The connection was closed before the request went out.
    Surely(Box<Request<RequestBody>>, SandboxError),
}

impl Unsent {
    fn into_error(self) -> SandboxError {
        match self {
            Self::Maybe(error) | Self::Surely(_, error) => error,
        }
    }
}

async fn send_on(
    mut connection: Connection,
    request: Request<RequestBody>,
) -> Result<Answer, Unsent> {
    if let Err(error) = connection.sender.ready().await {
        return Err(Unsent::Surely(Box::new(request), from_hyper(&error)));
    }
    // Boxed: the future holds the whole request.
    match connection.sender.try_send_request(request).boxed().await {
        Ok(response) => Ok(Answer {
            response,
            connection,
            reusable: true,
        }),
        Err(mut failed) => {
            let request = failed.take_message();
            let error = from_hyper(&failed.into_error());
            Err(match request {
                Some(request) => Unsent::Surely(Box::new(request), error),
                None => Unsent::Maybe(error),
            })
        }
    }
}
