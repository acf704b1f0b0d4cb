//! What operators look through: the audit trail, sandboxes, runtime profiles.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{
    Problem,
    admin::{AuditPage, PageQuery, ProfileList},
    lease::LeaseList,
};

use super::{AsOperator, page_rows};
use crate::http::{
    App,
    error::ApiError,
    json::{Query, ok},
    view,
};

/// Read the audit trail
#[utoipa::path(
    get,
    path = "/v1/admin/audit",
    operation_id = "list_audit",
    tag = "admin",
    security(("operator_token" = [])),
    params(PageQuery),
    responses(
        (status = 200, description = "One page, newest first.", body = AuditPage),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_audit(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
    Query(query): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let limit = page_rows(query.limit)?;
    let before = query
        .after
        .map(|text| text.parse::<u64>())
        .transpose()
        .map_err(|_| {
            ApiError::bad_request("In the query, after: it must be next of the page before.")
        })?;
    let page = hotcell_store::AuditPage { before, limit };
    let entries = app.store.read(move |snapshot| snapshot.audit(page)).await?;
    let next = entries
        .last()
        .filter(|_| entries.len() == limit)
        .map(|entry| entry.number.to_string());
    Ok(ok(&AuditPage {
        rows: entries
            .iter()
            .map(|entry| view::audit(&entry.row))
            .collect(),
        next,
    }))
}

/// List the live sandboxes
#[utoipa::path(
    get,
    path = "/v1/admin/leases",
    operation_id = "list_leases",
    tag = "admin",
    security(("operator_token" = [])),
    responses(
        (status = 200, description = "All leases that have not ended.", body = LeaseList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_leases(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
) -> Result<Response, ApiError> {
    let records = app.store.read(|snapshot| snapshot.leases()).await?;
    let mut leases = Vec::with_capacity(records.len());
    for record in records {
        let found = app.sandboxes.lease(&record.workspace, &record.chat).await?;
        // Ended meanwhile.
        if let Some(found) = found.filter(|found| found.record.id == record.id) {
            leases.push(view::lease(&found));
        }
    }
    Ok(ok(&LeaseList { leases }))
}

/// List the runtime profiles
#[utoipa::path(
    get,
    path = "/v1/admin/profiles",
    operation_id = "list_profiles",
    tag = "admin",
    security(("operator_token" = [])),
    responses(
        (status = 200, description = "The profiles, with what is true of their engines and the last preflight.", body = ProfileList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_profiles(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
) -> Result<Response, ApiError> {
    let profiles = app.sandboxes.profiles().await;
    Ok(ok(&ProfileList {
        profiles: profiles.iter().map(view::profile).collect(),
    }))
}
