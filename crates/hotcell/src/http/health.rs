//! `/healthz` and `/readyz`: open to everybody who reaches the port, and brief about what they say.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use hotcell_api::admin::Readiness;
use http::{StatusCode, header};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{App, json::json, view};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz))
}

/// Is the process there
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "healthz",
    tag = "health",
    security(()),
    responses((status = 200, description = "It is.", body = String, content_type = "text/plain")),
)]
async fn healthz() -> Response {
    ([(header::CACHE_CONTROL, "no-store")], "ok\n").into_response()
}

/// Can sandboxes be run
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "health",
    security(()),
    responses(
        (status = 200, description = "They can.", body = Readiness),
        (status = 503, description = "They cannot; the components say why.", body = Readiness),
    ),
)]
async fn readyz(State(app): State<Arc<App>>) -> Response {
    let components = app.sandboxes.ready().await;
    let ready = components.iter().all(|component| component.ok);
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json(
        status,
        &Readiness {
            ready,
            components: components.iter().map(view::component).collect(),
        },
    )
}
