//! Failures on their way out: one type, turned into `application/problem+json` at the edge.
//!
//! Every internal error is mapped to its code here and nowhere else. What only the journal
//! should know (paths, sources) is logged, not sent.

use axum::response::{IntoResponse, Response};
use hotcell_agent_proto::AgentErrorCode;
use hotcell_api::{ErrorCode, Problem, problem::FieldProblem};
use hotcell_core::{gate::QuotaValue, model::EndReason};
use hotcell_runtime::{RuntimeError, SandboxError};
use hotcell_store::StoreError;
use hotcell_types::CallId;
use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::handles::{AcquireError, Denial};

/// Seconds after which a client may try again what was refused as busy.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// A problem and the headers that belong to it.
#[derive(Debug, Clone)]
pub struct ApiError {
    problem: Box<Problem>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl ApiError {
    /// A failure of this kind; `detail` says what happened and what to do.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        let mut headers = Vec::new();
        if code == ErrorCode::Busy {
            headers.push((header::RETRY_AFTER, RETRY_AFTER_SECONDS));
        }
        if code == ErrorCode::OperatorTokenRequired {
            headers.push((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        Self {
            problem: Box::new(Problem::new(code, detail)),
            headers,
        }
    }

    /// The request is malformed.
    #[must_use]
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, detail)
    }

    /// A bug or a failure that only the journal should know about.
    #[must_use]
    pub fn internal(what: &str, error: &dyn std::error::Error) -> Self {
        tracing::error!(error = %Chain(error), "{what}");
        Self::new(
            ErrorCode::Internal,
            "Something went wrong inside the server. Its journal has more under this request id.",
        )
    }

    /// What a failed write to the server's own disk means.
    #[must_use]
    pub fn disk(what: &str, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        if matches!(
            error.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        ) {
            tracing::error!(%error, "{what}: the disk is full");
            return Self::new(
                ErrorCode::DiskFull,
                "The server's disk is full, so nothing was stored. Tell its operator.",
            );
        }
        Self::internal(what, error)
    }

    /// Names the limit, in bytes.
    #[must_use]
    pub fn with_limit_bytes(mut self, limit_bytes: u64) -> Self {
        self.problem.limit_bytes = Some(limit_bytes);
        self
    }

    /// Names the limit, a count.
    #[must_use]
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.problem.limit = Some(limit);
        self
    }

    /// Tells the server's time.
    #[must_use]
    pub fn with_server_seconds(mut self, seconds: u64) -> Self {
        self.problem.server_seconds = Some(seconds);
        self
    }

    /// Names what is wrong with a document.
    #[must_use]
    pub fn with_problems(mut self, problems: Vec<FieldProblem>) -> Self {
        self.problem.problems = problems;
        self
    }

    /// Names the key that declares it.
    #[must_use]
    pub fn with_declared_in(mut self, key: String) -> Self {
        self.problem.declared_in = Some(key);
        self
    }

    /// Names the call that failed.
    #[must_use]
    pub fn with_call(mut self, call: &CallId) -> Self {
        self.problem.call = Some(call.clone());
        self
    }

    /// Adds a header to the answer.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// A problem that was told before.
    pub(super) fn from_problem(problem: Problem) -> Self {
        Self {
            problem: Box::new(problem),
            headers: Vec::new(),
        }
    }

    /// The problem, without a request id.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.problem.code
    }
}

/// The problem of an answer, until the edge writes it out with the request's id.
#[derive(Debug, Clone)]
pub(super) struct PendingProblem(pub(super) Box<Problem>);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.headers_mut().extend(self.headers);
        response
            .extensions_mut()
            .insert(PendingProblem(self.problem));
        response
    }
}

/// An error and all its sources, on one line.
pub(super) struct Chain<'e>(pub(super) &'e dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// The store failed in a way that only the journal should know about.
fn store_failed(error: &dyn std::error::Error) -> ApiError {
    tracing::error!(error = %Chain(error), "the store failed");
    ApiError::new(
        ErrorCode::StoreFailed,
        "The server's store failed, so nothing was changed. Its journal has more under this request id.",
    )
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let conflict = |detail: String| Self::new(ErrorCode::Conflict, detail);
        match &error {
            StoreError::Closed => Self::new(
                ErrorCode::ShuttingDown,
                "The server is shutting down. Try again in a moment.",
            ),
            StoreError::DiskFull => Self::new(
                ErrorCode::DiskFull,
                "The server's disk is full, so nothing was changed. Tell its operator.",
            ),
            StoreError::LimitReached { limit, .. } => {
                conflict(format!("It is not possible: {error}.")).with_limit(*limit)
            }
            StoreError::NotFound {
                what: "organization",
                ..
            } => unknown_organization(),
            StoreError::NotFound {
                what: "workspace", ..
            } => unknown_workspace(),
            StoreError::NotFound { .. }
            | StoreError::InUse { .. }
            | StoreError::Immutable { .. }
            | StoreError::ChatHasLiveLease(_) => conflict(format!("It is not possible: {error}.")),
            StoreError::Io(_)
            | StoreError::Unconfirmed(_)
            | StoreError::Reopening
            | StoreError::Panicked(_)
            | StoreError::Row { .. }
            | StoreError::Sealed { .. }
            | StoreError::TooLarge { .. } => store_failed(&error),
        }
    }
}

pub(super) fn unknown_workspace() -> ApiError {
    ApiError::new(
        ErrorCode::UnknownWorkspace,
        "There is no such workspace in this organization. An operator makes workspaces.",
    )
}

pub(super) fn being_deleted() -> ApiError {
    ApiError::new(
        ErrorCode::BeingDeleted,
        "It is being deleted. Try again when that is done; GET /v1/admin/deletions lists what is not.",
    )
}

pub(super) fn unknown_organization() -> ApiError {
    ApiError::new(
        ErrorCode::UnknownOrganization,
        "There is no such organization. An operator makes organizations.",
    )
}

impl From<AcquireError> for ApiError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Denied(denial) => denied(denial),
            AcquireError::LeaseOfAnotherUser => Self::new(
                ErrorCode::LeaseOfAnotherUser,
                "This chat's sandbox mounts the files of another member. End it with DELETE …/lease, or wait until it ends.",
            ),
            AcquireError::BeingDeleted => being_deleted(),
            AcquireError::Busy { limit } => Self::new(
                ErrorCode::Busy,
                format!(
                    "All {limit} sandboxes of this server are taken. Try again later, or end one."
                ),
            )
            .with_limit(limit as u64),
            AcquireError::TooManyWaiting { limit } => Self::new(
                ErrorCode::Busy,
                format!("{limit} calls wait for this sandbox already. Try again later."),
            )
            .with_limit(limit as u64),
            AcquireError::StartTimedOut { timeout_ms } => Self::new(
                ErrorCode::StartTimedOut,
                format!("The sandbox was not ready within {timeout_ms} ms. Try again."),
            ),
            AcquireError::StartFailed(error) => runtime_failed(&error),
            AcquireError::RuntimeUnavailable(reason) => {
                tracing::warn!(reason, "the runtime is not available");
                Self::new(
                    ErrorCode::RuntimeUnavailable,
                    format!("The runtime is not available: {reason}. Tell the server's operator."),
                )
            }
            AcquireError::LeaseEnded(reason) => ended(&reason),
            AcquireError::ShuttingDown => Self::new(
                ErrorCode::ShuttingDown,
                "The server is shutting down. Try again in a moment.",
            ),
            AcquireError::Store(error) => store_failed(&error),
            AcquireError::Internal(reason) => {
                tracing::error!(reason, "internal error");
                Self::new(
                    ErrorCode::Internal,
                    "Something went wrong inside the server. Its journal has more under this request id.",
                )
            }
        }
    }
}

/// The gate's refusal.
pub(super) fn denied(denial: Denial) -> ApiError {
    let mut sentence = denial.to_string();
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let mut refused = ApiError::new(ErrorCode::Denied, format!("{sentence}."));
    refused.problem.denial = Some(denial.name().to_owned());
    let Some(exceeded) = denial.exceeded() else {
        return refused;
    };
    match exceeded.limit {
        QuotaValue::Count(limit) | QuotaValue::Seconds(limit) => {
            refused.problem.limit = Some(limit);
        }
        QuotaValue::Bytes(limit) => refused.problem.limit_bytes = Some(limit),
        QuotaValue::Class(class) => refused.problem.limit_class = Some(class),
    }
    match exceeded.frees_after_ms {
        // Rounded up: whoever comes back then must not be a moment too early.
        Some(after_ms) => {
            let seconds = after_ms.div_ceil(1_000).max(1);
            refused.with_header(header::RETRY_AFTER, HeaderValue::from(seconds))
        }
        None => refused,
    }
}

pub(super) fn runtime_failed(error: &RuntimeError) -> ApiError {
    tracing::warn!(error = %Chain(error), "a sandbox did not start");
    match error {
        RuntimeError::DiskFull(_) => ApiError::new(
            ErrorCode::DiskFull,
            "The server's disk is full, so no sandbox could be made. Tell its operator.",
        ),
        RuntimeError::EgressUnenforceable(reason) => {
            ApiError::new(ErrorCode::EgressUnenforceable, reason.clone())
        }
        RuntimeError::Unavailable(reason) => {
            ApiError::new(ErrorCode::RuntimeUnavailable, reason.clone())
        }
        RuntimeError::NoSuchImage(_)
        | RuntimeError::BadImage { .. }
        | RuntimeError::Unsupported { .. }
        | RuntimeError::NoSuchSandbox
        | RuntimeError::StartFailed(_)
        | RuntimeError::Failed { .. } => ApiError::new(
            ErrorCode::StartFailed,
            format!(
                "The sandbox did not start: {error}. Try again; if it stays so, tell the server's operator."
            ),
        ),
    }
}

/// What the end of a lease means for a call that ran in it.
pub(super) fn ended(reason: &EndReason) -> ApiError {
    const FRESH: &str = "The next call starts a fresh one; files in /workspace are gone, those on the volumes are not.";
    match reason {
        EndReason::OutOfMemory => ApiError::new(
            ErrorCode::OutOfMemory,
            format!("The sandbox ran out of memory and was ended. {FRESH}"),
        ),
        EndReason::Requested => ApiError::new(
            ErrorCode::LeaseEnded,
            format!("The sandbox was ended on request. {FRESH}"),
        ),
        EndReason::HardTimeLimit => ApiError::new(
            ErrorCode::LeaseEnded,
            format!("The sandbox reached its hard time limit. {FRESH}"),
        ),
        EndReason::StartFailed(reason) => ApiError::new(
            ErrorCode::StartFailed,
            format!("The sandbox did not start: {reason}. Try again."),
        ),
        EndReason::SandboxLost | EndReason::RuntimeRestarted => ApiError::new(
            ErrorCode::SandboxLost,
            format!("The sandbox went away. {FRESH}"),
        ),
    }
}

/// What a sandbox's failure means when the runtime knows of no end of it.
pub(super) fn sandbox_failed(error: &SandboxError) -> ApiError {
    tracing::warn!(error = %Chain(error), "a sandbox did not answer as it should");
    match error {
        SandboxError::Lost(_) | SandboxError::Protocol(_) | SandboxError::Timeout(_) => {
            ApiError::new(
                ErrorCode::SandboxLost,
                "The sandbox did not answer as it should. Try again; the next call starts a fresh one if it is gone.",
            )
        }
        SandboxError::TooLarge(limit) => ApiError::new(
            ErrorCode::ExecFailed,
            format!("The sandbox answered with more than {limit} bytes."),
        )
        .with_limit_bytes(*limit),
        SandboxError::Agent(error) => match error.code {
            AgentErrorCode::Busy => ApiError::new(
                ErrorCode::Busy,
                format!(
                    "The sandbox is busy: {error}. Wait until something in it ends, or restart it."
                ),
            ),
            AgentErrorCode::DiskFull => ApiError::new(
                ErrorCode::ExecFailed,
                format!("A disk of the sandbox is full: {error}. Remove files there."),
            ),
            AgentErrorCode::Unauthorized
            | AgentErrorCode::BadRequest
            | AgentErrorCode::BadCwd
            | AgentErrorCode::NoSuchUser
            | AgentErrorCode::EnvTooLarge
            | AgentErrorCode::NoBash
            | AgentErrorCode::SpawnFailed
            | AgentErrorCode::NotFound
            | AgentErrorCode::NotARegularFile
            | AgentErrorCode::PermissionDenied
            | AgentErrorCode::Io
            | AgentErrorCode::Internal => ApiError::new(
                ErrorCode::ExecFailed,
                format!("The sandbox could not run the command: {error}."),
            ),
        },
    }
}
