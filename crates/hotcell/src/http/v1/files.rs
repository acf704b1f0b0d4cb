//! The `present_files` tool.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{
    Problem,
    files::{PresentFilesRequest, PresentFilesResult},
};
use hotcell_types::limits::MAX_PATHS_PER_COLLECTION;
use http::{HeaderMap, Method, Uri};
use tracing::Instrument;

use crate::http::{
    App, collect,
    error::ApiError,
    idempotency::{Keyed, Once},
    json::{Json, json_text, ok},
    scope::InChat,
};

/// Present files
///
/// Collects finished files from the chat's sandbox, so that the user can download them. At most 25 files and
/// 100 MiB per call, of the allowed types, from `/workspace`, `/mnt/user-data`, `/mnt/workspace-data` and `/tmp`.
/// What cannot be collected is listed with the reason; the rest is delivered.
#[utoipa::path(
    post,
    path = "/v1/workspaces/{workspace}/chats/{chat}/present_files",
    operation_id = "present_files",
    tag = "sandbox",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters. The same request with the same key within 24 hours collects nothing again and gets the same answer.", nullable = false),
    ),
    request_body = PresentFilesRequest,
    responses(
        (status = 200, description = "What was collected and what was not.", body = PresentFilesResult),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The sandbox or the server failed; nothing was collected.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn present_files(
    State(app): State<Arc<App>>,
    scope: InChat,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    Json(body): Json<PresentFilesRequest>,
) -> Result<Response, ApiError> {
    let keyed = Keyed::of(&method, &uri, &headers)?;
    let count = body.paths.len();
    if !(1..=MAX_PATHS_PER_COLLECTION).contains(&count) {
        return Err(ApiError::bad_request(format!(
            "In the field paths: 1 to {MAX_PATHS_PER_COLLECTION} paths, not {count}."
        ))
        .with_limit(MAX_PATHS_PER_COLLECTION as u64));
    }
    let caller = scope.caller(&body.user);
    // In a task of its own: a client that goes away leaves no half-made collection.
    let ticket = match &keyed {
        None => None,
        Some(keyed) => match app
            .idempotency
            .begin_once(&app, &scope.workspace, keyed)
            .await?
        {
            Once::Ours(ticket) => Some(ticket),
            Once::Done(answer) => return json_text(answer),
        },
    };
    let collection = collect::collect(app, caller, body.paths, ticket);
    let collection = tokio::spawn(collection.in_current_span());
    let result = collection
        .await
        .map_err(|error| ApiError::internal("a collection died", &error))??;
    Ok(ok(&result))
}
