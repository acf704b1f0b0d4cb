//! The `bash` tool.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{Stream, StreamExt};
use hotcell_api::{
    ErrorCode, Problem,
    bash::{BashEvent, BashRequest, BashResult, CallQuery, CallRunning},
};
use hotcell_types::{
    CallId,
    limits::{
        DEFAULT_COMMAND_TIMEOUT_MS, EVENT_STREAM_PATIENCE_MS, KEEP_ALIVE_INTERVAL_MS,
        MAX_COMMAND_TIMEOUT_MS,
    },
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use crate::http::{
    App,
    calls::{Call, Calls, Command, Outcome, check_script, recall},
    error::ApiError,
    idempotency::{Begin, Keyed},
    json::{Json, Query, json, ok},
    scope::InChat,
};

/// Names the call, on every answer about it.
const CALL_HEADER: HeaderName = HeaderName::from_static("hotcell-call");

/// Run a bash command
///
/// Runs a bash script in the chat's sandbox, which is made first if there is none, and answers when it has ended.
/// With `Accept: text/event-stream` the answer is a stream of events instead: `call`, `output`,
/// `progress`, then `result` or `problem` (see `BashEvent`), with a keep-alive at least every five seconds. A client that
/// loses its connection reads on with `GET …/bash/{call}`; the command is never run again.
#[utoipa::path(
    post,
    path = "/v1/workspaces/{workspace}/chats/{chat}/bash",
    operation_id = "run_bash",
    tag = "sandbox",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("Accept" = Option<String>, Header, description = "`application/json`, or `text/event-stream` for events as they come.", nullable = false),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters. The same request with the same key within 24 hours runs nothing again and gets the same answer.", nullable = false),
    ),
    request_body = BashRequest,
    responses(
        (status = 200, description = "The command has ended. Or, as asked for: its events.", content(
            (BashResult = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The sandbox or the server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn run_bash(
    State(app): State<Arc<App>>,
    scope: InChat,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    Json(body): Json<BashRequest>,
) -> Result<Response, ApiError> {
    let keyed = Keyed::of(&method, &uri, &headers)?;
    check_script(&body.command)?;
    let timeout_ms = body.timeout_ms.unwrap_or(DEFAULT_COMMAND_TIMEOUT_MS);
    if !(1..=MAX_COMMAND_TIMEOUT_MS).contains(&timeout_ms) {
        return Err(ApiError::bad_request(format!(
            "In the field timeout_ms: it must be 1 to {MAX_COMMAND_TIMEOUT_MS}."
        ))
        .with_limit(MAX_COMMAND_TIMEOUT_MS));
    }
    let command = Command {
        text: body.command,
        timeout_ms,
        restart: body.restart,
    };
    let begun = match &keyed {
        Some(keyed) => Some(app.idempotency.begin(&app, &scope.workspace, keyed).await?),
        None => None,
    };
    let call = match begun {
        None => Calls::start(&app, scope.caller(&body.user), command, None)?,
        Some(Begin::Ours(ticket)) => {
            Calls::start(&app, scope.caller(&body.user), command, Some(ticket))?
        }
        Some(Begin::Call(id)) => app
            .calls
            .find(&scope.workspace, &scope.chat, &id)
            .ok_or_else(unknown_call)?,
        Some(Begin::Done(answer)) => recall(&app, &scope, &answer)?,
    };
    if !wants_events(&headers) {
        return Ok(answer(&call, call.ended().await));
    }
    // A refusal is a plain answer with its status, if it comes soon. Later ones are events: a
    // client (or a proxy before it) must not wait in silence for a sandbox to start.
    let patience = Duration::from_millis(EVENT_STREAM_PATIENCE_MS);
    let _ = tokio::time::timeout(patience, call.taken_on()).await;
    if let Some(refused) = call.refused() {
        return Err(refused);
    }
    Ok(stream(&call, 0))
}

fn unknown_call() -> ApiError {
    ApiError::new(
        ErrorCode::UnknownCall,
        "There is no such call in this chat, or it ended more than ten minutes ago.",
    )
}

/// Read a bash call again
///
/// Follows a call that runs or has ended in the last ten minutes. With `Accept: text/event-stream` its events
/// after `Last-Event-ID`, from the start without it; otherwise its result, which is waited for,
/// with `wait_ms` at most so long.
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/bash/{call}",
    operation_id = "read_bash_call",
    tag = "sandbox",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("call" = String, Path, description = "The call's id."),
        ("Accept" = Option<String>, Header, description = "`application/json`, or `text/event-stream`.", nullable = false),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen.", nullable = false),
        CallQuery,
    ),
    responses(
        (status = 200, description = "The command has ended. Or, as asked for: its events.", content(
            (BashResult = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = 202, description = "It has not ended within `wait_ms`.", body = CallRunning),
        (status = "4XX", description = "Refused, or how the call ended.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "How the call ended.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn read_bash_call(
    State(app): State<Arc<App>>,
    scope: InChat,
    headers: HeaderMap,
    Query(query): Query<CallQuery>,
) -> Result<Response, ApiError> {
    let id: CallId = scope.params.get("call").map_err(|_| unknown_call())?;
    let call = app
        .calls
        .find(&scope.workspace, &scope.chat, &id)
        .ok_or_else(unknown_call)?;
    if wants_events(&headers) {
        let after = match headers.get("last-event-id") {
            None => 0,
            Some(value) => value
                .to_str()
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| {
                    ApiError::bad_request("The header Last-Event-ID must be the id of an event.")
                })?,
        };
        return Ok(stream(&call, after));
    }
    match query.wait_ms {
        None => Ok(answer(&call, call.ended().await)),
        Some(wait_ms) => {
            let wait = Duration::from_millis(wait_ms.min(MAX_COMMAND_TIMEOUT_MS));
            match tokio::time::timeout(wait, call.ended()).await {
                Ok(outcome) => Ok(answer(&call, outcome)),
                Err(_) => {
                    let running = CallRunning {
                        call: id,
                        running: true,
                    };
                    Ok(named(&call, json(StatusCode::ACCEPTED, &running)))
                }
            }
        }
    }
}

fn wants_events(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|entry| entry.split(';').next())
        .any(|media_type| media_type.trim().eq_ignore_ascii_case("text/event-stream"))
}

fn named(call: &Call, mut response: Response) -> Response {
    // An id is made of header characters.
    if let Ok(value) = HeaderValue::from_str(call.id().as_str()) {
        response.headers_mut().insert(CALL_HEADER, value);
    }
    response
}

fn answer(call: &Call, outcome: Outcome) -> Response {
    named(
        call,
        match outcome {
            Ok(result) => ok(&*result),
            Err(error) => error.into_response(),
        },
    )
}

fn stream(call: &Arc<Call>, after: u64) -> Response {
    let events = call.clone().events(after).map(|(id, event)| sse(id, event));
    let mut response = named(call, sse_response(events));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some proxies hold small pieces back unless they are told not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn sse_response(
    events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
) -> Response {
    let keep_alive = KeepAlive::new()
        .interval(Duration::from_millis(KEEP_ALIVE_INTERVAL_MS))
        .text("keep-alive");
    Sse::new(events).keep_alive(keep_alive).into_response()
}

fn sse(id: Option<u64>, event: BashEvent) -> Result<Event, Infallible> {
    let (name, data) = match &event {
        BashEvent::Call(data) => ("call", serde_json::to_string(data)),
        BashEvent::Output(data) => ("output", serde_json::to_string(data)),
        BashEvent::Progress(data) => ("progress", serde_json::to_string(data)),
        BashEvent::Result(data) => ("result", serde_json::to_string(data)),
        BashEvent::Problem(data) => ("problem", serde_json::to_string(data)),
    };
    // Strings and numbers always serialize, and JSON holds no bare line breaks.
    let mut event = Event::default().event(name).data(data.unwrap_or_default());
    if let Some(id) = id {
        event = event.id(id.to_string());
    }
    Ok(event)
}
