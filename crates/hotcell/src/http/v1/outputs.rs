//! Files that were collected from sandboxes.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{ErrorCode, Problem, files::OutputList, user::MemberQuery};
use hotcell_types::OutputId;
use http::{HeaderMap, Method};

use crate::http::{
    App,
    error::ApiError,
    files::{FileHead, file_response},
    json::{Query, ok},
    scope::InChat,
    view,
};

/// List the collected files
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/outputs",
    operation_id = "list_outputs",
    tag = "outputs",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The files, oldest first.", body = OutputList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_outputs(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(_member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let (workspace, chat) = (scope.workspace, scope.chat);
    let records = app
        .store
        .read(move |snapshot| snapshot.outputs_of_chat(&workspace, &chat))
        .await?;
    Ok(ok(&OutputList {
        outputs: records.iter().rev().map(view::output).collect(),
    }))
}

/// Download a collected file
///
/// Always as an attachment under its own name, with ranges and a strong `ETag` (its SHA-256).
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/outputs/{id}/content",
    operation_id = "get_output_content",
    tag = "outputs",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("id" = String, Path, description = "The output's id."),
        ("Range" = Option<String>, Header, description = "One range of bytes.", nullable = false),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The file.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part of the file.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "It has not changed."),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_output_content(
    State(app): State<Arc<App>>,
    scope: InChat,
    method: Method,
    headers: HeaderMap,
    Query(_member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let unknown = || {
        ApiError::new(
            ErrorCode::UnknownOutput,
            "There is no such output in this chat; GET …/outputs lists those that are.",
        )
    };
    let id: OutputId = scope.params.get("id").map_err(|_| unknown())?;
    let record = app
        .store
        .read_now(|snapshot| snapshot.output(&id))?
        .filter(|record| record.workspace == scope.workspace && record.chat == scope.chat)
        .ok_or_else(unknown)?;
    let outputs = app.outputs.clone();
    let file = tokio::task::spawn_blocking(move || outputs.file(&id))
        .await
        .map_err(|error| ApiError::internal("a disk task failed", &error))?
        .map_err(|error| ApiError::disk("a collected file cannot be opened", &error))?;
    let head = FileHead {
        name: record.name.as_str(),
        media_type: &record.media_type,
        bytes: record.bytes,
        etag: record.sha256.clone(),
        changed_at: record.created_at,
    };
    Ok(file_response(&method, &headers, &head, file))
}
