//! Organizations.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use hotcell_api::{
    Problem,
    admin::{Organization, OrganizationList, PageQuery, PutOrganization},
};
use hotcell_core::model;
use hotcell_store::StoreError;
use hotcell_types::OrganizationId;
use http::StatusCode;

use super::{AsOperator, declared, display_name, known_profile, page, page_rows, set};
use crate::http::{
    App,
    error::{ApiError, unknown_organization},
    json::{Json, Query, json, ok},
    view,
};

/// List the organizations
#[utoipa::path(
    get,
    path = "/v1/admin/organizations",
    operation_id = "list_organizations",
    tag = "admin",
    security(("operator_token" = [])),
    params(PageQuery),
    responses(
        (status = 200, description = "One page.", body = OrganizationList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_organizations(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
    Query(query): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let rows = page_rows(query.limit)?;
    let after = query.after;
    let (organizations, next) = app
        .store
        .read(move |snapshot| {
            let all = snapshot.organizations()?;
            let (rows, next) = page(all, |row| row.id.as_str(), after.as_deref(), rows);
            let shown = |row: model::Organization| {
                let declared = snapshot.is_declared(&declared::organization(&row.id))?;
                Ok(view::organization(&row, declared))
            };
            let rows: Result<Vec<_>, StoreError> = rows.into_iter().map(shown).collect();
            Ok((rows?, next))
        })
        .await?;
    Ok(ok(&OrganizationList {
        organizations,
        next,
    }))
}

/// Show an organization
#[utoipa::path(
    get,
    path = "/v1/admin/organizations/{id}",
    operation_id = "get_organization",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    responses(
        (status = 200, description = "The organization.", body = Organization),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_organization(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id: OrganizationId = operator.params.get("id")?;
    let (found, declared) = app.store.read_now(|snapshot| {
        let declared = snapshot.is_declared(&declared::organization(&id))?;
        Ok((snapshot.organization(&id)?, declared))
    })?;
    let found = found.ok_or_else(unknown_organization)?;
    Ok(ok(&view::organization(&found, declared)))
}

/// Make or change an organization
#[utoipa::path(
    put,
    path = "/v1/admin/organizations/{id}",
    operation_id = "put_organization",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    request_body = PutOrganization,
    responses(
        (status = 200, description = "Changed.", body = Organization),
        (status = 201, description = "Made.", body = Organization),
        (status = "4XX", description = "Refused; nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn put_organization(
    State(app): State<Arc<App>>,
    operator: AsOperator,
    Json(change): Json<PutOrganization>,
) -> Result<Response, ApiError> {
    let id: OrganizationId = operator.params.get("id")?;
    declared::refuse(&app, &declared::organization(&id))?;
    let name = change.name.map(display_name).transpose()?;
    known_profile(&app, change.profile.iter().flatten().next()).await?;
    let at = app.clock.now();
    let (organization, made) = app
        .store
        .write::<_, ApiError, _>(move |tx| {
            let old = tx.organization(&id)?;
            let made = old.is_none();
            let mut organization = old.unwrap_or_else(|| model::Organization {
                name: id.to_string(),
                id: id.clone(),
                enabled: false,
                profile: None,
                created_at: at,
            });
            let mut fields = Vec::new();
            set(&mut organization.name, name, "name", &mut fields);
            set(
                &mut organization.enabled,
                change.enabled,
                "enabled",
                &mut fields,
            );
            set(
                &mut organization.profile,
                change.profile,
                "profile",
                &mut fields,
            );
            tx.put_organization(&organization)?;
            let action = if made {
                "organization.created"
            } else {
                "organization.updated"
            };
            tx.audit(operator.audit(at, action, format!("organization/{id}"), &fields))?;
            Ok((organization, made))
        })
        .await?;
    let status = if made {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(json(status, &view::organization(&organization, false)))
}

/// Delete an organization
///
/// With its credentials. Refused while it has workspaces.
#[utoipa::path(
    delete,
    path = "/v1/admin/organizations/{id}",
    operation_id = "delete_organization",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    responses(
        (status = 204, description = "Deleted."),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_organization(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id: OrganizationId = operator.params.get("id")?;
    declared::refuse(&app, &declared::organization(&id))?;
    let at = app.clock.now();
    app.store
        .write::<_, ApiError, _>(move |tx| {
            if !tx.delete_organization(&id)? {
                return Err(unknown_organization());
            }
            tx.audit(operator.audit(
                at,
                "organization.deleted",
                format!("organization/{id}"),
                &[],
            ))?;
            Ok(())
        })
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
