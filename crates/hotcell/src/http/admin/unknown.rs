//! Sandboxes that the store has never heard of.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use hotcell_api::{ErrorCode, Problem, admin::RemoveUnknown};
use hotcell_types::{ProfileId, limits::MAX_PAGE_ROWS};
use http::StatusCode;

use super::AsOperator;
use crate::{
    http::{
        App,
        error::{ApiError, runtime_failed},
        json::Json,
    },
    unknown::UnknownError,
};

/// Remove unknown sandboxes
///
/// Removes sandboxes that the engine has and the store has never heard of, all that is in their `/workspace` included.
/// Volumes stay. Sweeping goes on once there are none left.
#[utoipa::path(
    post,
    path = "/v1/admin/profiles/{id}/unknown-sandboxes/remove",
    operation_id = "remove_unknown_sandboxes",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The profile.")),
    request_body = RemoveUnknown,
    responses(
        (status = 204, description = "Removed."),
        (status = "4XX", description = "Refused; nothing was removed.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The engine or the server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn remove_unknown_sandboxes(
    State(app): State<Arc<App>>,
    operator: AsOperator,
    Json(body): Json<RemoveUnknown>,
) -> Result<Response, ApiError> {
    let id: ProfileId = operator.params.get("id")?;
    if !(1..=MAX_PAGE_ROWS).contains(&body.leases.len()) {
        return Err(ApiError::bad_request(format!(
            "In the field leases: it must name 1 to {MAX_PAGE_ROWS}."
        )));
    }
    let by = (operator.actor.clone(), operator.request.clone());
    let removed = app.sandboxes.remove_unknown(&id, body.leases, by).await;
    match removed {
        Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(UnknownError::NoSuchProfile) => Err(ApiError::new(
            ErrorCode::UnknownProfile,
            "There is no such runtime profile; GET /v1/admin/profiles lists those that are.",
        )),
        Err(error @ UnknownError::Known(_)) => Err(ApiError::new(
            ErrorCode::Conflict,
            format!("It is not possible: {error}. The profile lists those that are."),
        )),
        Err(UnknownError::Engine(error)) => Err(runtime_failed(&error)),
        Err(UnknownError::Store(error)) => Err(error.into()),
    }
}
