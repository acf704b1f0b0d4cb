//! What operators look through: the audit trail, sandboxes, runtime profiles.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{
    Problem,
    admin::{AuditPage, AuditQuery, ProfileList},
    lease::LeaseList,
};

use super::{AsOperator, number, page_rows};
use hotcell_core::model::Actor;
use hotcell_store::AuditFilter;

use crate::http::{
    App,
    error::ApiError,
    json::{Query, ok},
    view,
};

/// Who did it, as the rows name them.
fn actor(text: &str) -> Result<Actor, ApiError> {
    match text {
        "operator" => Ok(Actor::Operator),
        "local_operator" => Ok(Actor::LocalOperator),
        "system" => Ok(Actor::System),
        _ => text
            .strip_prefix("backend:")
            .and_then(|key| key.parse().ok())
            .map(Actor::Backend)
            .ok_or_else(|| {
                ApiError::bad_request(
                    "In the query, actor: it must be operator, local_operator, system, or backend: and a credential's key.",
                )
            }),
    }
}

/// Read the audit trail
#[utoipa::path(
    get,
    path = "/v1/admin/audit",
    operation_id = "list_audit",
    tag = "admin",
    security(("operator_token" = [])),
    params(AuditQuery),
    responses(
        (status = 200, description = "One page, newest first.", body = AuditPage),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_audit(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
    Query(query): Query<AuditQuery>,
) -> Result<Response, ApiError> {
    let filter = AuditFilter {
        limit: page_rows(query.limit)?,
        before: number(query.after.as_deref())?,
        actor: query.actor.as_deref().map(actor).transpose()?,
        action_prefix: query.action,
        subject: query.subject,
        since: query.since_ms,
        until: query.until_ms,
    };
    let page = app.store.read(move |view| view.audit_page(&filter)).await;
    let (entries, next) = page?;
    let next = next.map(|number| number.to_string());
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
