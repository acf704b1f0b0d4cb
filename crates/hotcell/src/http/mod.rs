//! The HTTP surfaces.
//!
//! ```text
//!   TCP  ── edge ─┬─ /v1/…        signed by a backend      auth::signed ── v1
//!                 ├─ /v1/admin/…  the operator's token     auth::operator ── admin
//!                 └─ /healthz, /readyz                     open
//!   Unix ── edge ─┬─ /v1/admin/…  whoever reaches the socket
//!                 └─ /healthz, /readyz
//! ```
//!
//! Each surface is a router of its own with its own layer in front, and the path's prefix only
//! chooses the router: a route cannot end up behind the wrong layer. The layers see the request
//! as it came; routers look at the path after them.

mod admin;
mod auth;
mod body;
mod calls;
mod collect;
mod disposition;
mod edge;
mod error;
mod files;
mod final_sweep;
mod health;
mod idempotency;
mod json;
mod listen;
mod media;
mod metrics;
mod nonces;
mod openapi;
mod outputs;
mod outputs_quota;
mod quota_view;
mod range;
mod scope;
mod text;
mod uploads;
mod v1;
mod view;

use std::{path::PathBuf, sync::Arc};

use axum::{
    Extension, Router,
    extract::{Request, State},
    middleware,
    response::{IntoResponse, Response},
};
use hotcell_api::ErrorCode;
use hotcell_core::profile::OutputLimits;
use hotcell_store::Store;
use hotcell_types::{Clock, IdSource};
use http::Method;
use tower::ServiceExt;

pub use auth::{OperatorToken, Principal};
pub use calls::Calls;
pub use edge::REQUEST_ID_HEADER;
pub use error::ApiError;
pub use final_sweep::Sweeper;
pub use idempotency::Idempotency;
pub use listen::{Connections, ListenError, serve_tcp, serve_unix};
pub use nonces::{NonceLogError, Nonces, boot_id};
pub use openapi::openapi;
pub use outputs::{OutputStore, SweepError};
pub use uploads::UploadStore;

use crate::{erase::Eraser, handles::Sandboxes};

/// What every handler works with.
pub struct App {
    /// The durable state.
    pub store: Store,
    /// The sandboxes.
    pub sandboxes: Sandboxes,
    /// The files that were collected from sandboxes.
    pub outputs: OutputStore,
    /// How much of them one collection may bring.
    pub output_limits: Arc<OutputLimits>,
    /// The files that users attached to chats.
    pub uploads: UploadStore,
    /// Deletes workspaces and members.
    pub eraser: Eraser,
    /// The `bash` calls, running and lately finished.
    pub calls: Calls,
    /// The requests that came with an idempotency key.
    pub idempotency: Idempotency,
    /// The nonces that were used.
    pub nonces: Nonces,
    /// The operator's token.
    pub operator_token: OperatorToken,
    /// The configuration that it was started with, to name where something is declared.
    pub config_file: Option<PathBuf>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where ids and secrets come from.
    pub ids: Arc<dyn IdSource>,
}

/// The surfaces of the TCP listener.
pub fn public_router(app: Arc<App>) -> Router {
    let signed = v1::routes()
        .split_for_parts()
        .0
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), auth::signed))
        .with_state(app.clone());
    let admin =
        admin_router(&app).layer(middleware::from_fn_with_state(app.clone(), auth::operator));
    around(app, Some(signed), admin)
}

/// The surfaces of the local socket.
pub fn local_router(app: Arc<App>) -> Router {
    let admin = admin_router(&app).layer(middleware::from_fn(auth::local_operator));
    around(app, None, admin)
}

fn admin_router(app: &Arc<App>) -> Router {
    admin::routes()
        .split_for_parts()
        .0
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(
            app.clone(),
            admin::refuse_when_locked,
        ))
        .with_state(app.clone())
}

#[derive(Clone)]
struct Surfaces {
    signed: Option<Router>,
    admin: Router,
    open: Router,
}

fn around(app: Arc<App>, signed: Option<Router>, admin: Router) -> Router {
    // Only the local socket has no signed routes.
    let sees_workspaces = signed.is_none();
    let open = health::routes()
        .merge(metrics::routes())
        .split_for_parts()
        .0
        .layer(Extension(metrics::SeesWorkspaces(sees_workspaces)))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app.clone());
    let surfaces = Surfaces {
        signed,
        admin,
        open,
    };
    Router::new()
        .fallback(dispatch)
        .layer(middleware::from_fn_with_state(app, edge::around))
        .with_state(surfaces)
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn dispatch(State(surfaces): State<Surfaces>, request: Request) -> Response {
    let path = request.uri().path();
    let router = if is_below(path, "/v1/admin") {
        surfaces.admin
    } else if is_below(path, "/v1") {
        surfaces.signed.unwrap_or(surfaces.open)
    } else {
        surfaces.open
    };
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

async fn not_found() -> Response {
    ApiError::new(
        ErrorCode::NotFound,
        "There is no such route; docs/api/openapi.json lists them.",
    )
    .into_response()
}

async fn method_not_allowed(method: Method) -> Response {
    // The router adds `Allow`.
    ApiError::new(
        ErrorCode::MethodNotAllowed,
        format!("{method} is not allowed here; Allow lists what is."),
    )
    .into_response()
}
