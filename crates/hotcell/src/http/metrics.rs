//! `/metrics`: open to everybody who reaches the port, like `/readyz`, as long as it names
//! nobody. What names workspaces takes the operator's token, or the local socket.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use hotcell_api::Problem;
use http::{HeaderMap, header};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{App, auth, error::ApiError};

/// Whether everybody here may see workspaces.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeesWorkspaces(pub(super) bool);

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Read the metrics
///
/// In the OpenMetrics text format, which Prometheus scrapes. With the operator token also what
/// workspaces use of their quotas.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "health",
    security((), ("operator_token" = [])),
    responses(
        (status = 200, description = "All metrics.", body = String, content_type = "application/openmetrics-text"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn metrics(
    State(app): State<Arc<App>>,
    Extension(SeesWorkspaces(local)): Extension<SeesWorkspaces>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let sees_workspaces = local || auth::has_operator_token(&app, &headers);
    let moment = app.sandboxes.moment(sees_workspaces).await?;
    let text = app.sandboxes.metrics().text(&moment);
    let text = text.map_err(|error| ApiError::internal("the metrics cannot be written", &error))?;
    let head = [
        (
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((head, text).into_response())
}
