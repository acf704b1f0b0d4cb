//! Workspaces.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{
    ErrorCode, Problem,
    admin::{PutWorkspace, Workspace, WorkspaceList, WorkspacesQuery},
};
use hotcell_core::model;
use hotcell_store::StoreError;
use hotcell_types::WorkspaceId;
use http::StatusCode;

use super::{AsOperator, declared, display_name, page, page_rows, set};
use crate::http::{
    App,
    error::{ApiError, being_deleted},
    json::{Json, Query, json, ok},
    quota_view, view,
};

fn unknown() -> ApiError {
    ApiError::new(
        ErrorCode::UnknownWorkspace,
        "There is no such workspace; GET /v1/admin/workspaces lists those that are.",
    )
}

/// List the workspaces
#[utoipa::path(
    get,
    path = "/v1/admin/workspaces",
    operation_id = "list_workspaces",
    tag = "admin",
    security(("operator_token" = [])),
    params(WorkspacesQuery),
    responses(
        (status = 200, description = "One page.", body = WorkspaceList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_workspaces(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
    Query(query): Query<WorkspacesQuery>,
) -> Result<Response, ApiError> {
    let rows = page_rows(query.limit)?;
    let organization = query.organization;
    let after = query.after;
    let (rows, next) = app
        .store
        .read(move |snapshot| {
            let all = snapshot.workspaces(organization.as_ref())?;
            let (rows, next) = page(all, |row| row.id.as_str(), after.as_deref(), rows);
            let with_quotas = |row: model::Workspace| {
                let quotas = snapshot.quota_settings(&row.id)?;
                let declared = snapshot.is_declared(&declared::workspace(&row.id))?;
                Ok(view::workspace(&row, &quotas, declared))
            };
            let rows: Result<Vec<_>, StoreError> = rows.into_iter().map(with_quotas).collect();
            Ok((rows?, next))
        })
        .await?;
    Ok(ok(&WorkspaceList {
        workspaces: rows,
        next,
    }))
}

/// Show a workspace
#[utoipa::path(
    get,
    path = "/v1/admin/workspaces/{id}",
    operation_id = "get_workspace",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The workspace.")),
    responses(
        (status = 200, description = "The workspace.", body = Workspace),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_workspace(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id: WorkspaceId = operator.params.get("id")?;
    let (found, quotas, declared) = app.store.read_now(|snapshot| {
        let declared = snapshot.is_declared(&declared::workspace(&id))?;
        let quotas = snapshot.quota_settings(&id)?;
        Ok((snapshot.workspace(&id)?, quotas, declared))
    })?;
    let found = found.ok_or_else(unknown)?;
    Ok(ok(&view::workspace(&found, &quotas, declared)))
}

/// Make or change a workspace
#[utoipa::path(
    put,
    path = "/v1/admin/workspaces/{id}",
    operation_id = "put_workspace",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The workspace.")),
    request_body = PutWorkspace,
    responses(
        (status = 200, description = "Changed.", body = Workspace),
        (status = 201, description = "Made.", body = Workspace),
        (status = "4XX", description = "Refused; nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn put_workspace(
    State(app): State<Arc<App>>,
    operator: AsOperator,
    Json(change): Json<PutWorkspace>,
) -> Result<Response, ApiError> {
    let id: WorkspaceId = operator.params.get("id")?;
    declared::refuse(&app, &declared::workspace(&id))?;
    let name = change.name.map(display_name).transpose()?;
    let at = app.clock.now();
    let (workspace, made) = app
        .store
        .write::<_, ApiError, _>(move |tx| {
            if tx.deletion(&id, None)?.is_some() {
                return Err(being_deleted());
            }
            let old = tx.workspace(&id)?;
            let made = old.is_none();
            let mut fields = Vec::new();
            let mut workspace = match (old, change.organization) {
                (Some(old), organization) => {
                    if organization.is_some_and(|organization| organization != old.organization) {
                        return Err(ApiError::new(
                            ErrorCode::Conflict,
                            "A workspace never changes its organization.",
                        ));
                    }
                    old
                }
                (None, Some(organization)) => {
                    fields.push("organization");
                    model::Workspace {
                        name: id.to_string(),
                        id: id.clone(),
                        organization,
                        enabled: false,
                        created_at: at,
                    }
                }
                (None, None) => {
                    return Err(ApiError::bad_request(
                        "In the field organization: a new workspace needs one.",
                    ));
                }
            };
            set(&mut workspace.name, name, "name", &mut fields);
            set(
                &mut workspace.enabled,
                change.enabled,
                "enabled",
                &mut fields,
            );
            tx.put_workspace(&workspace)?;
            let mut quotas = tx.quota_settings(&id)?;
            if let Some(change) = &change.quotas {
                fields.extend(quota_view::change(&mut quotas, change)?);
                tx.put_quotas(&id, &quotas)?;
            }
            let action = if made {
                "workspace.created"
            } else {
                "workspace.updated"
            };
            tx.audit(operator.audit(at, action, format!("workspace/{id}"), &fields))?;
            Ok(((workspace, quotas), made))
        })
        .await?;
    let status = if made {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let (workspace, quotas) = workspace;
    Ok(json(status, &view::workspace(&workspace, &quotas, false)))
}
