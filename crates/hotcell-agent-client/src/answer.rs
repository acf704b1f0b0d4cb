//! Whole answers: JSON and errors, bounded in size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hotcell_agent_proto::AgentError;
use hotcell_runtime::SandboxError;
use hotcell_types::limits;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{
    client::{Answer, Call, Client},
    error::from_hyper,
    patience::millis,
};

/// Reads a body to its end, at most `limit` bytes of it.
async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, SandboxError> {
    let too_large = || SandboxError::TooLarge(limit as u64);
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| from_hyper(&error))?;
        if let Ok(piece) = frame.into_data() {
            if whole.len() + piece.len() > limit {
                return Err(too_large());
            }
            whole.extend_from_slice(&piece);
        }
    }
    Ok(whole.freeze())
}

impl Client {
    /// The rest of an answer, within the time for the rest of one. Keeps the connection if it can.
    pub(crate) async fn finish(
        &self,
        answer: Answer,
        limit: usize,
    ) -> Result<(HeaderMap, Bytes), SandboxError> {
        let patience = self.patience.answer;
        let (head, body) = answer.response.into_parts();
        let bytes = timeout(patience, collect(body, limit))
            .await
            .map_err(|_| SandboxError::Timeout(millis(patience)))??;
        if answer.reusable {
            self.pool.put(answer.connection);
        }
        Ok((head.headers, bytes))
    }

    /// An answer that is no success: what the agent says went wrong.
    pub(crate) async fn refusal(&self, answer: Answer) -> SandboxError {
        let status = answer.response.status();
        match self.finish(answer, limits::MAX_AGENT_ANSWER_BYTES).await {
            Ok((_, text)) => match serde_json::from_slice::<AgentError>(&text) {
                Ok(error) => error.into(),
                Err(_) => SandboxError::Protocol(format!("status {status} without a reason")),
            },
            Err(error) => error,
        }
    }

    /// Sends, and takes the answer when it has this status.
    pub(crate) async fn expect(
        &self,
        call: Call,
        status: StatusCode,
        patience: Duration,
    ) -> Result<Answer, SandboxError> {
        let answer = self.send(call, patience).await?;
        if answer.response.status() == status {
            Ok(answer)
        } else {
            Err(self.unexpected(answer).await)
        }
    }

    /// What a status other than the expected one means.
    pub(crate) async fn unexpected(&self, answer: Answer) -> SandboxError {
        let status = answer.response.status();
        if status.is_client_error() || status.is_server_error() {
            self.refusal(answer).await
        } else {
            SandboxError::Protocol(format!("status {status} where none belongs"))
        }
    }

    /// Sends, and reads the answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        call: Call,
        patience: Duration,
    ) -> Result<T, SandboxError> {
        self.json_up_to(call, patience, limits::MAX_AGENT_ANSWER_BYTES)
            .await
    }

    /// As [`json`](Self::json), with a limit of its own.
    pub(crate) async fn json_up_to<T: DeserializeOwned>(
        &self,
        call: Call,
        patience: Duration,
        limit: usize,
    ) -> Result<T, SandboxError> {
        let answer = self.expect(call, StatusCode::OK, patience).await?;
        self.parse(answer, limit).await
    }

    /// The rest of an answer, as JSON.
    pub(crate) async fn parse<T: DeserializeOwned>(
        &self,
        answer: Answer,
        limit: usize,
    ) -> Result<T, SandboxError> {
        let (_, text) = self.finish(answer, limit).await?;
        serde_json::from_slice(&text).map_err(|error| SandboxError::Protocol(error.to_string()))
    }
}
