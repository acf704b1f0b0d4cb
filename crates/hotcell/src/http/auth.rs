//! Who may come in: signed requests of backends, operators with their token.
//!
//! ```text
//!   headers parse ─ clock ─ key and signature over the declared body hash ─ nonce ─ body as SignedBody
//!        401          401                  401                               401      401 at its end
//! ```
//!
//! All of this looks at the request as it came, before a router has looked at the path. The
//! nonce is taken only after the signature is right, so nobody else can use one up.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hotcell_api::ErrorCode;
use hotcell_core::model::Actor;
use hotcell_types::{CredentialId, OrganizationId};
use hotcell_wire::{HeadError, NonceError, SignedHead};
use http::{HeaderMap, Method, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{
    App,
    body::{Linger, PacedBody, SignedBody, read_all},
    error::ApiError,
};

/// The backend that signed a request.
#[derive(Debug, Clone)]
pub struct Principal {
    /// Its credential.
    pub credential: CredentialId,
    /// The organization whose workspaces it may act for.
    pub organization: OrganizationId,
}

/// The operator's token, as its hash.
#[derive(Clone)]
pub struct OperatorToken([u8; 32]);

impl OperatorToken {
    /// Takes the token's text and keeps only its hash.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    fn is(&self, text: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        self.0.ct_eq(&given).into()
    }
}

/// The one answer to an unknown key, a wrong secret and anything that was signed otherwise.
pub(super) fn signature_mismatch() -> ApiError {
    ApiError::new(
        ErrorCode::SignatureMismatch,
        "The key, the secret, or what was signed is not right. Sign version, timestamp, nonce, method, \
         request target exactly as sent (with the query) and body hash; docs/api/signing.md has test vectors.",
    )
}

fn head_refused(error: HeadError) -> ApiError {
    match error {
        HeadError::Missing(_) | HeadError::Repeated(_) | HeadError::Malformed(_) => ApiError::new(
            ErrorCode::Unauthenticated,
            format!("The request is not signed as it must be: {error}."),
        ),
        HeadError::ClockSkew { server_seconds } => ApiError::new(
            ErrorCode::ClockSkew,
            format!("{error}. Set the client's clock, and send seconds."),
        )
        .with_server_seconds(server_seconds),
    }
}

/// The request target as it came: path and query. A request line with a whole URL is signed
/// without its scheme and host, as HTTP/2 splits it too.
fn target(request: &Request) -> &str {
    request
        .uri()
        .path_and_query()
        .map_or("", http::uri::PathAndQuery::as_str)
}

fn check(app: &App, request: &Request) -> Result<(Principal, String), ApiError> {
    /// Keeps the time of a refusal the same whether there is a key, a second secret, or neither.
    const NO_SECRET: &str = "0000000000000000000000000000000000000000000000000000000000000000000";

    let now = app.clock.now();
    let head = SignedHead::parse(request.headers(), now).map_err(head_refused)?;
    let id = head.key.parse::<CredentialId>().ok();
    let credential = match &id {
        Some(id) => app.store.read_now(|snapshot| snapshot.credential(id))?,
        None => None,
    };
    let secret = |index: usize| {
        credential
            .as_ref()
            .and_then(|credential| credential.secrets.get(index))
            .map(|secret| secret.text.as_str())
    };
    let mut right = false;
    for index in 0..2 {
        let signed = head.is_signed_by(
            secret(index).unwrap_or(NO_SECRET),
            request.method().as_str(),
            target(request),
        );
        right |= signed & secret(index).is_some();
    }
    let Some(credential) = credential.filter(|_| right) else {
        return Err(signature_mismatch());
    };
    app.nonces
        .take(&head.key, &head.nonce, head.timestamp, now)
        .map_err(|error| match error {
            NonceError::Replayed => ApiError::new(
                ErrorCode::Replayed,
                "This request was received before, or was signed before the server started. Sign it again with a new nonce and the time now.",
            ),
            NonceError::Full => ApiError::new(
                ErrorCode::Busy,
                "So many requests came in the last minutes that no more can be told from replays. Try again in a minute.",
            ),
        })?;
    let skew = &app.sandboxes.context().skew;
    skew.measure(&credential.id, head.timestamp, now);
    let principal = Principal {
        credential: credential.id,
        organization: credential.organization,
    };
    Ok((principal, head.body_sha256))
}

fn refuse_encoded(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "Send the body as it is, without a Content-Encoding.",
        ));
    }
    Ok(())
}

/// Methods whose requests have a body that a handler reads.
fn has_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

async fn without_body(request: Request) -> Result<Request, ApiError> {
    if has_body(request.method()) {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    read_all(&parts.headers, body, 0, || {
        ApiError::bad_request(format!("A {} request takes no body.", parts.method))
    })
    .await?;
    Ok(Request::from_parts(parts, Body::empty()))
}

fn authenticated(request: &Request) {
    if let Some(linger) = request.extensions().get::<Linger>() {
        linger.authenticated();
    }
}

/// Lets signed requests through.
pub(super) async fn signed(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    async fn admitted(app: &App, request: Request) -> Result<Request, ApiError> {
        let (principal, declared_hex) = check(app, &request)?;
        authenticated(&request);
        refuse_encoded(request.headers())?;
        let mut request = request.map(|body| Body::new(SignedBody::new(body, declared_hex)));
        request.extensions_mut().insert(principal);
        without_body(request).await
    }
    match admitted(&app, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// Whether the operator token comes with a request.
pub(super) fn has_operator_token(app: &App, headers: &HeaderMap) -> bool {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map_or("", |(_, token)| token.trim());
    app.operator_token.is(given)
}

/// Lets requests with the operator token through.
pub(super) async fn operator(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response {
    if !has_operator_token(&app, request.headers()) {
        return ApiError::new(
            ErrorCode::OperatorTokenRequired,
            "Send the operator token: Authorization: Bearer and the token.",
        )
        .into_response();
    }
    as_operator(request, next, Actor::Operator).await
}

/// Lets everybody through who reaches the local socket; its file mode says who that is.
pub(super) async fn local_operator(request: Request, next: Next) -> Response {
    as_operator(request, next, Actor::LocalOperator).await
}

async fn as_operator(request: Request, next: Next, actor: Actor) -> Response {
    authenticated(&request);
    let admitted = async {
        refuse_encoded(request.headers())?;
        let mut request = request.map(|body| Body::new(PacedBody::new(body)));
        request.extensions_mut().insert(actor);
        without_body(request).await
    };
    match admitted.await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}
