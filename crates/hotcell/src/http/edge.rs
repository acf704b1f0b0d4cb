//! What is around every request: its id, its span, its last line in the journal, panics, and
//! the writing of problems.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use hotcell_api::{ErrorCode, PROBLEM_MEDIA_TYPE};
use hotcell_types::RequestId;
use http::{HeaderName, HeaderValue, Method, header};
use tracing::Instrument;

use super::{
    App,
    body::LingeringBody,
    error::{ApiError, PendingProblem},
};

/// Names the request, on every answer.
pub const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("hotcell-request-id");

/// The outermost layer.
pub(super) async fn around(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let id = RequestId::from_bits(app.ids.bits());
    let method = request.method().clone();
    // The query stays out of the journal: it names members.
    let path = request.uri().path().to_owned();
    let span = tracing::info_span!(
        "request",
        request_id = %id,
        workspace = tracing::field::Empty,
        chat = tracing::field::Empty,
        lease = tracing::field::Empty,
    );
    let started = tokio::time::Instant::now();
    let mut request = LingeringBody::wrap(request);
    request.extensions_mut().insert(id.clone());
    let response = AssertUnwindSafe(next.run(request))
        .catch_unwind()
        .instrument(span.clone())
        .await
        .unwrap_or_else(|_panic| {
            ApiError::new(
                ErrorCode::Internal,
                "Something went wrong inside the server. Its journal has more under this request id.",
            )
            .into_response()
        });
    let response = written_out(response, &id, &method);
    let latency_ms = started.elapsed().as_millis() as u64;
    let metrics = app.sandboxes.metrics();
    metrics.answered(&method, response.status().as_u16());
    let _entered = span.enter();
    tracing::info!(%method, path, status = response.status().as_u16(), latency_ms, "answered");
    response
}

fn written_out(mut response: Response, id: &RequestId, method: &Method) -> Response {
    if let Some(PendingProblem(mut problem)) = response.extensions_mut().remove() {
        problem.request_id = id.to_string();
        if let Some(denial) = &problem.denial {
            tracing::info!(request_id = %id, denial, "denied");
        }
        // A problem holds only strings and numbers: that always serializes.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(PROBLEM_MEDIA_TYPE),
        );
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, body.len().into());
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if method != Method::HEAD {
            *response.body_mut() = Body::from(body);
        }
    }
    // An id is made of header characters.
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID_HEADER, value);
    }
    response
}
