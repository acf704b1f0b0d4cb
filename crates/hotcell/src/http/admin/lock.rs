//! The break-glass switch `HOTCELL_CONFIG_LOCKED`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hotcell_api::ErrorCode;
use http::Method;

use crate::http::{App, error::ApiError};

/// The last parts of routes that take a POST and change no setting: they look, or try.
const LOOKS: [&str; 3] = ["test", "canary", "explain"];

fn is_change(method: &Method, path: &str) -> bool {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => false,
        Method::POST => !path
            .rsplit('/')
            .next()
            .is_some_and(|last| LOOKS.contains(&last)),
        _ => true,
    }
}

/// Refuses every change of a profile or a setting while the server's environment locks them.
pub(in crate::http) async fn refuse_when_locked(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response {
    let is_locked = app.sandboxes.switches().config_locked;
    if is_locked && is_change(request.method(), request.uri().path()) {
        return ApiError::new(
            ErrorCode::ConfigLocked,
            "The server's environment locks profiles and settings. Whoever runs the server can take HOTCELL_CONFIG_LOCKED=true away.",
        )
        .into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_is_no_change() {
        for (method, path, change) in [
            (Method::GET, "/v1/admin/deployment", false),
            (Method::HEAD, "/v1/admin/audit", false),
            (Method::PUT, "/v1/admin/deployment", true),
            (Method::PUT, "/v1/admin/profiles/test", true),
            (Method::POST, "/v1/admin/profiles/p/test", false),
            (Method::POST, "/v1/admin/profiles/p/canary", false),
            (Method::POST, "/v1/admin/profiles/p/activate", true),
            (Method::POST, "/v1/admin/organizations/o/credentials", true),
            (Method::DELETE, "/v1/admin/workspaces/w", true),
            (Method::PATCH, "/v1/admin/anything", true),
        ] {
            assert_eq!(is_change(&method, path), change, "{method} {path}");
        }
    }
}
