//! What a workspace uses of its quotas.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{Problem, quota::Usage};
use hotcell_types::WorkspaceId;

use super::AsOperator;
use crate::http::{
    App,
    error::{ApiError, unknown_workspace},
    json::ok,
    quota_view,
};

/// Show what a workspace uses of its quotas
#[utoipa::path(
    get,
    path = "/v1/admin/workspaces/{id}/usage",
    operation_id = "get_workspace_usage",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The workspace.")),
    responses(
        (status = 200, description = "Each quota: what is used, what may be used, when it frees.", body = Usage),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_workspace_usage(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id: WorkspaceId = operator.params.get("id")?;
    let now = app.clock.now();
    let of = id.clone();
    let usage = app
        .store
        .read(move |view| match view.workspace(&of)? {
            Some(_) => view.quota_usage(&of, now).map(Some),
            None => Ok(None),
        })
        .await?
        .ok_or_else(unknown_workspace)?;
    Ok(ok(&quota_view::usage(id, now, &usage)))
}
