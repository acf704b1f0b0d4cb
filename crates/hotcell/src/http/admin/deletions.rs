//! Deleting a workspace or a member with everything that belongs to it.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use hotcell_api::{
    Problem,
    deletions::{Deletion, DeletionList},
};
use hotcell_core::deletion::DeletionRecord;
use hotcell_types::{UserId, WorkspaceId};
use http::StatusCode;

use super::{AsOperator, declared};
use crate::http::{
    App,
    error::ApiError,
    json::{json, ok},
};

fn view(deletion: &DeletionRecord) -> Deletion {
    Deletion {
        workspace: deletion.workspace.clone(),
        user: deletion.user.clone(),
        requested_at_ms: deletion.requested_at,
    }
}

async fn delete(
    app: &App,
    operator: &AsOperator,
    workspace: WorkspaceId,
    user: Option<UserId>,
) -> Result<Response, ApiError> {
    let deletion = DeletionRecord {
        workspace,
        user,
        actor: operator.actor.clone(),
        requested_at: app.clock.now(),
        request: Some(operator.request.to_string()),
    };
    if app.eraser.delete(deletion.clone()).await? {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Ok(json(StatusCode::ACCEPTED, &view(&deletion)))
    }
}

/// Delete a workspace
///
/// Switches it off, ends its sandboxes, and removes it with its volumes, uploads, collected files and jobs. What
/// was begun is finished, also across a restart of the server.
#[utoipa::path(
    delete,
    path = "/v1/admin/workspaces/{id}",
    operation_id = "delete_workspace",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The workspace.")),
    responses(
        (status = 202, description = "It is being deleted; that takes longer than this request.", body = Deletion),
        (status = 204, description = "Deleted."),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_workspace(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id = operator.params.get("id")?;
    declared::refuse(&app, &declared::workspace(&id))?;
    delete(&app, &operator, id, None).await
}

/// Delete a member's files
///
/// Ends the member's sandboxes in the workspace, and removes their `/mnt/user-data`, the files that were
/// collected for them and their jobs. Nothing says that a member exists: deleting what is not there succeeds.
#[utoipa::path(
    delete,
    path = "/v1/admin/workspaces/{id}/users/{user}",
    operation_id = "delete_member",
    tag = "admin",
    security(("operator_token" = [])),
    params(
        ("id" = String, Path, description = "The workspace."),
        ("user" = String, Path, description = "The member, as the backend names them."),
    ),
    responses(
        (status = 202, description = "It is being deleted; that takes longer than this request.", body = Deletion),
        (status = 204, description = "Deleted."),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_member(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let (id, user) = (operator.params.get("id")?, operator.params.get("user")?);
    delete(&app, &operator, id, Some(user)).await
}

/// List what is being deleted
#[utoipa::path(
    get,
    path = "/v1/admin/deletions",
    operation_id = "list_deletions",
    tag = "admin",
    security(("operator_token" = [])),
    responses(
        (status = 200, description = "The deletions that are under way.", body = DeletionList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_deletions(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
) -> Result<Response, ApiError> {
    let deletions = app.eraser.pending().await?;
    Ok(ok(&DeletionList {
        deletions: deletions.iter().map(view).collect(),
    }))
}
