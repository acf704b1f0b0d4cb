//! Jobs: commands that outlive the call that started them.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use hotcell_api::{
    ErrorCode, Member, Problem,
    bash::StreamName,
    jobs::{Job, JobList, JobOutput, JobOutputQuery, JobState, StartJob},
    user::MemberQuery,
};
use hotcell_core::{job, model::Actor};
use hotcell_runtime::OutputStream;
use hotcell_types::{
    JobId,
    limits::{MAX_JOB_READ_BYTES, MAX_JOB_WAIT_MS},
};
use http::{HeaderMap, Method, StatusCode, Uri};
use tracing::Instrument;

use crate::{
    handles::{JobError, JobPiece},
    http::{
        App, calls,
        error::{ApiError, sandbox_failed},
        idempotency::{Keyed, Once, answer_text},
        json::{Json, Query, json, json_text, ok},
        scope::InChat,
        text::Decoder,
    },
};

/// A piece must have room for a whole character.
const MIN_PIECE_BYTES: u64 = 16;

fn unknown() -> ApiError {
    ApiError::new(
        ErrorCode::UnknownJob,
        "There is no such job in this chat; GET …/jobs lists those that are.",
    )
}

async fn refused(error: JobError) -> ApiError {
    match error {
        JobError::Off => ApiError::new(
            ErrorCode::JobsOff,
            "This runtime profile allows no long-running jobs. Run the command with bash, or ask an operator to allow jobs on the profile.",
        ),
        JobError::TooLong { ceiling_ms } => {
            let seconds = ceiling_ms / 1_000;
            ApiError::bad_request(format!(
                "In the field max_seconds: a job may run for {seconds} seconds here."
            ))
            .with_limit(seconds)
        }
        JobError::Unknown => unknown(),
        JobError::Acquire(error) => error.into(),
        JobError::Sandbox {
            error,
            active: Some(active),
        } => calls::failed(&active, &error).await,
        JobError::Sandbox {
            error,
            active: None,
        } => sandbox_failed(&error),
        JobError::Store(error) => error.into(),
    }
}

fn state(state: job::JobState) -> JobState {
    match state {
        job::JobState::Starting => JobState::Starting,
        job::JobState::Running => JobState::Running,
        job::JobState::Exited => JobState::Exited,
        job::JobState::Stopped => JobState::Stopped,
        job::JobState::TimedOut => JobState::TimedOut,
        job::JobState::Failed => JobState::Failed,
        job::JobState::Lost => JobState::Lost,
    }
}

fn view(job: &job::JobRecord) -> Job {
    Job {
        id: job.id.clone(),
        user: job.user.clone(),
        lease: job.lease.clone(),
        state: state(job.state),
        max_seconds: job.max_ms.div_ceil(1_000),
        created_at_ms: job.created_at,
        ended_at_ms: job.ended_at,
        duration_ms: job.duration_ms,
        exit_code: job.exit_code,
        signal: job.signal.clone(),
        reason: job.reason.clone(),
        stdout_bytes: job.stdout_bytes,
        stderr_bytes: job.stderr_bytes,
    }
}

fn id(scope: &InChat) -> Result<JobId, ApiError> {
    scope.params.get("job").map_err(|_| unknown())
}

/// Start a job
///
/// Starts a bash script that goes on after this call, in the chat's sandbox, which is made first if there is none. A
/// running job keeps its sandbox from going idle; the sandbox's hard time limit ends it all the same. Refused as
/// `jobs_off` unless the runtime profile allows jobs.
#[utoipa::path(
    post,
    path = "/v1/workspaces/{workspace}/chats/{chat}/jobs",
    operation_id = "start_job",
    tag = "jobs",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters. The same request with the same key within 24 hours starts nothing again and gets the same answer.", nullable = false),
    ),
    request_body = StartJob,
    responses(
        (status = 201, description = "It runs.", body = Job),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The sandbox or the server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn start_job(
    State(app): State<Arc<App>>,
    scope: InChat,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    Json(body): Json<StartJob>,
) -> Result<Response, ApiError> {
    let keyed = Keyed::of(&method, &uri, &headers)?;
    calls::check_script(&body.command)?;
    if body.max_seconds == Some(0) {
        return Err(ApiError::bad_request(
            "In the field max_seconds: it must be at least 1.",
        ));
    }
    let (jobs, caller) = (app.sandboxes.jobs(), scope.caller(&body.user));
    let asked_ms = body
        .max_seconds
        .map(|seconds| seconds.saturating_mul(1_000));
    let ticket = match &keyed {
        None => None,
        Some(keyed) => match app
            .idempotency
            .begin_once(&app, &scope.workspace, keyed)
            .await?
        {
            Once::Ours(ticket) => Some(ticket),
            Once::Done(answer) => {
                let mut response = json_text(answer)?;
                *response.status_mut() = StatusCode::CREATED;
                return Ok(response);
            }
        },
    };
    // A client that goes away leaves no job that was half started.
    let starting = tokio::spawn(
        async move {
            if let Some(ticket) = &ticket {
                ticket.act().await?;
            }
            let started = jobs.start(&caller, body.command, asked_ms).await;
            if let Some(ticket) = &ticket {
                match &started {
                    Ok(job) => ticket.finish(answer_text(&view(job))).await,
                    // It may have begun: sent again it does not begin a second time.
                    Err(JobError::Sandbox { .. }) => {}
                    Err(_) => ticket.release().await,
                }
            }
            match started {
                Ok(job) => Ok(json(StatusCode::CREATED, &view(&job))),
                Err(error) => Err(refused(error).await),
            }
        }
        .in_current_span(),
    );
    starting
        .await
        .map_err(|error| ApiError::internal("the start of a job panicked", &error))?
}

/// List the jobs
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/jobs",
    operation_id = "list_jobs",
    tag = "jobs",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The jobs of the chat, the newest first.", body = JobList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_jobs(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(_member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    match app
        .sandboxes
        .jobs()
        .list(&scope.workspace, &scope.chat)
        .await
    {
        Ok(jobs) => Ok(ok(&JobList {
            jobs: jobs.iter().map(view).collect(),
        })),
        Err(error) => Err(refused(error).await),
    }
}

/// Show a job
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/jobs/{job}",
    operation_id = "get_job",
    tag = "jobs",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("job" = String, Path, description = "The job's id."),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The job as it is now.", body = Job),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_job(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(_member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let id = id(&scope)?;
    let jobs = app.sandboxes.jobs();
    match jobs.get(&scope.workspace, &scope.chat, &id).await {
        Ok(job) => Ok(ok(&view(&job))),
        Err(error) => Err(refused(error).await),
    }
}

/// Stop a job
///
/// Ends the job with all its processes. One that has ended stays as it is.
#[utoipa::path(
    delete,
    path = "/v1/workspaces/{workspace}/chats/{chat}/jobs/{job}",
    operation_id = "stop_job",
    tag = "jobs",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("job" = String, Path, description = "The job's id."),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The job as it is now.", body = Job),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The sandbox or the server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn stop_job(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let id = id(&scope)?;
    scope.needs_editor(&app, &Member::from(member))?;
    let by = (
        Actor::Backend(scope.principal.credential.clone()),
        scope.request.clone(),
    );
    let jobs = app.sandboxes.jobs();
    match jobs.stop(&scope.workspace, &scope.chat, &id, by).await {
        Ok(job) => Ok(ok(&view(&job))),
        Err(error) => Err(refused(error).await),
    }
}

/// Read a job's output
///
/// A piece of one stream from an offset on; `next_offset` is where to go on. All of the output (of each stream the last 16 MiB) can be
/// read while the sandbox runs, also after the job has ended; afterwards the last 64 KiB of each stream.
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/jobs/{job}/output",
    operation_id = "read_job_output",
    tag = "jobs",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("job" = String, Path, description = "The job's id."),
        JobOutputQuery,
    ),
    responses(
        (status = 200, description = "The piece; empty when there is nothing beyond the offset.", body = JobOutput),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The sandbox or the server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn read_job_output(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(query): Query<JobOutputQuery>,
) -> Result<Response, ApiError> {
    let id = id(&scope)?;
    let wait_ms = query.wait_ms.unwrap_or(0);
    if wait_ms > MAX_JOB_WAIT_MS {
        return Err(ApiError::bad_request(format!(
            "In the query, wait_ms: it must be at most {MAX_JOB_WAIT_MS}."
        ))
        .with_limit(MAX_JOB_WAIT_MS));
    }
    let limit = query.limit.unwrap_or(MAX_JOB_READ_BYTES);
    if limit == 0 {
        return Err(ApiError::bad_request(
            "In the query, limit: it must be at least 1.",
        ));
    }
    let name = query.stream.unwrap_or(StreamName::Stdout);
    let stream = match name {
        StreamName::Stdout => OutputStream::Stdout,
        StreamName::Stderr => OutputStream::Stderr,
    };
    let piece = app
        .sandboxes
        .jobs()
        .output(
            (&scope.workspace, &scope.chat, &id),
            stream,
            query.offset.unwrap_or(0),
            limit.max(MIN_PIECE_BYTES),
            wait_ms,
        )
        .await;
    match piece {
        Ok(piece) => Ok(ok(&output(name, &piece))),
        Err(error) => Err(refused(error).await),
    }
}

fn output(stream: StreamName, piece: &JobPiece) -> JobOutput {
    let mut decoder = Decoder::default();
    let mut text = decoder.push(&piece.bytes);
    let end = piece.offset + piece.bytes.len() as u64;
    // The rest of a character may still come, unless nothing will.
    let held_back = if piece.job.state.has_ended() && end >= piece.total {
        text.push_str(decoder.finish());
        0
    } else {
        decoder.cut()
    };
    let told = &piece.bytes[..piece.bytes.len() - held_back];
    JobOutput {
        stream,
        offset: piece.offset,
        next_offset: piece.offset + told.len() as u64,
        total_bytes: piece.total,
        text,
        base64: decoder.replaced().then(|| STANDARD.encode(told)),
        state: state(piece.job.state),
    }
}
