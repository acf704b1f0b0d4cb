//! The one switch for the whole deployment.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{
    Problem,
    admin::{Deployment, PutDeployment},
};

use super::{AsOperator, known_profile, set};
use crate::http::{
    App,
    error::ApiError,
    json::{Json, ok},
    view,
};

/// Show the deployment
#[utoipa::path(
    get,
    path = "/v1/admin/deployment",
    operation_id = "get_deployment",
    tag = "admin",
    security(("operator_token" = [])),
    responses(
        (status = 200, description = "The switch and the default profile.", body = Deployment),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_deployment(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
) -> Result<Response, ApiError> {
    let deployment = app.store.read_now(|snapshot| snapshot.deployment())?;
    Ok(ok(&view::deployment(&deployment, app.sandboxes.switches())))
}

/// Change the deployment
#[utoipa::path(
    put,
    path = "/v1/admin/deployment",
    operation_id = "put_deployment",
    tag = "admin",
    security(("operator_token" = [])),
    request_body = PutDeployment,
    responses(
        (status = 200, description = "As it is now.", body = Deployment),
        (status = "4XX", description = "Refused; nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn put_deployment(
    State(app): State<Arc<App>>,
    operator: AsOperator,
    Json(change): Json<PutDeployment>,
) -> Result<Response, ApiError> {
    known_profile(&app, change.default_profile.iter().flatten().next()).await?;
    let at = app.clock.now();
    let deployment = app
        .store
        .write::<_, ApiError, _>(move |tx| {
            let mut deployment = tx.deployment()?;
            let mut fields = Vec::new();
            let profile = &mut deployment.default_profile;
            set(
                profile,
                change.default_profile,
                "default_profile",
                &mut fields,
            );
            set(
                &mut deployment.enabled,
                change.enabled,
                "enabled",
                &mut fields,
            );
            tx.put_deployment(&deployment)?;
            tx.audit(operator.audit(at, "deployment.updated", "deployment".to_owned(), &fields))?;
            Ok(deployment)
        })
        .await?;
    Ok(ok(&view::deployment(&deployment, app.sandboxes.switches())))
}
