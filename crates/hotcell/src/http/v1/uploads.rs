//! Files that the user attached to the chat.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use hotcell_api::{
    ErrorCode, Member, Problem,
    files::{UploadList, UploadStored},
    user::MemberQuery,
};
use hotcell_types::FileName;
use http::{HeaderMap, Method, StatusCode, header};

use crate::http::{
    App, body,
    error::ApiError,
    files::{self, FileHead, file_response},
    json::{Query, json, ok},
    media::media_type,
    scope::InChat,
    uploads::unknown_upload,
};

/// List the uploads
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/uploads",
    operation_id = "list_uploads",
    tag = "uploads",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The files.", body = UploadList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_uploads(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(_member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    Ok(ok(&app.uploads.list(&scope.workspace, &scope.chat).await?))
}

/// Upload a file
///
/// Stores the raw body as a file that the chat's sandbox sees, read-only, beneath `/mnt/uploaded-files`. A file of the same
/// name is replaced whole. At most 25 MiB each, 256 MiB and 1,000 files per chat.
#[utoipa::path(
    put,
    path = "/v1/workspaces/{workspace}/chats/{chat}/uploads/{name}",
    operation_id = "put_upload",
    tag = "uploads",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("name" = String, Path, description = "The file's name, percent-encoded."),
        MemberQuery,
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The file's bytes."),
    responses(
        (status = 200, description = "Stored; it replaced one of the same name.", body = UploadStored),
        (status = 201, description = "Stored.", body = UploadStored),
        (status = "4XX", description = "Refused; nothing was stored.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed; nothing was stored.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn put_upload(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(member): Query<MemberQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let name: FileName = scope.params.get("name")?;
    let member = Member::from(member);
    scope.admitted(&app, &member)?;
    let (parts, content): (_, Body) = request.into_parts();
    refuse_forms(&parts.headers)?;
    let declared = body::declared_length(&parts.headers);
    let (upload, replaced) = app
        .uploads
        .put(&scope.workspace, &scope.chat, &name, declared, content)
        .await?;
    let action = if replaced {
        "upload.replaced"
    } else {
        "upload.stored"
    };
    let row = scope.audit(app.clock.now(), action, &[name.as_str()]);
    app.store
        .write::<_, hotcell_store::StoreError, _>(move |tx| tx.audit(row).map(drop))
        .await?;
    let status = if replaced {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    Ok(json(status, &UploadStored { upload, replaced }))
}

fn refuse_forms(headers: &HeaderMap) -> Result<(), ApiError> {
    let form = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|text| {
            text.trim_start()
                .to_ascii_lowercase()
                .starts_with("multipart/")
        });
    if form {
        return Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "Send the file's bytes as the body, not a form: PUT …/uploads/{name}, one request per file.",
        ));
    }
    Ok(())
}

/// Download an upload
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/uploads/{name}",
    operation_id = "get_upload",
    tag = "uploads",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("name" = String, Path, description = "The file's name, percent-encoded."),
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
pub(super) async fn get_upload(
    State(app): State<Arc<App>>,
    scope: InChat,
    method: Method,
    headers: HeaderMap,
    Query(_member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let name: FileName = scope.params.get("name")?;
    let (file, stat) = app
        .uploads
        .open(&scope.workspace, &scope.chat, &name)
        .await?;
    let head = FileHead {
        name: name.as_str(),
        media_type: media_type(&name),
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        etag: files::etag_of(&stat),
        changed_at: files::changed_at(&stat),
    };
    Ok(file_response(&method, &headers, &head, file))
}

/// Remove an upload
#[utoipa::path(
    delete,
    path = "/v1/workspaces/{workspace}/chats/{chat}/uploads/{name}",
    operation_id = "delete_upload",
    tag = "uploads",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        ("name" = String, Path, description = "The file's name, percent-encoded."),
        MemberQuery,
    ),
    responses(
        (status = 204, description = "Removed."),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_upload(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let name: FileName = scope.params.get("name")?;
    let member = Member::from(member);
    scope.needs_editor(&app, &member)?;
    if !app
        .uploads
        .remove(&scope.workspace, &scope.chat, &name)
        .await?
    {
        return Err(unknown_upload());
    }
    let row = scope.audit(app.clock.now(), "upload.removed", &[name.as_str()]);
    app.store
        .write::<_, hotcell_store::StoreError, _>(move |tx| tx.audit(row).map(drop))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
