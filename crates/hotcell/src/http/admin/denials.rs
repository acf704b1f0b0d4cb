//! What the gate refused.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{
    Problem,
    denial::{DenialPage, DenialsQuery},
};
use hotcell_core::gate::Denial;
use hotcell_store::DenialFilter;

use super::{AsOperator, number, page_rows};
use crate::http::{
    App,
    error::ApiError,
    json::{Query, ok},
    quota_view,
};

/// List what the gate refused
///
/// The last 10,000 refusals, also those before a restart.
#[utoipa::path(
    get,
    path = "/v1/admin/denials",
    operation_id = "list_denials",
    tag = "admin",
    security(("operator_token" = [])),
    params(DenialsQuery),
    responses(
        (status = 200, description = "One page, newest first.", body = DenialPage),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_denials(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
    Query(query): Query<DenialsQuery>,
) -> Result<Response, ApiError> {
    let limit = page_rows(query.limit)?;
    let before = number(query.after.as_deref())?;
    if let Some(name) = query
        .name
        .as_deref()
        .filter(|name| !Denial::NAMES.contains(name))
    {
        let known = Denial::NAMES.join(", ");
        let shown: String = name.chars().take(80).collect();
        return Err(ApiError::bad_request(format!(
            "In the query, name: {shown} is none of {known}."
        )));
    }
    // An operator who looks sees the one of a moment ago.
    app.sandboxes.write_denials().await?;
    let filter = DenialFilter {
        workspace: query.workspace,
        name: query.name,
        before,
        limit,
    };
    let entries = app.store.read(move |view| view.denials(&filter)).await?;
    let next = entries.last().filter(|_| entries.len() == limit);
    Ok(ok(&DenialPage {
        next: next.map(|entry| entry.number.to_string()),
        denials: entries
            .iter()
            .map(|entry| quota_view::denial(&entry.record))
            .collect(),
    }))
}
