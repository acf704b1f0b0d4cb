//! JSON in and out, queries, path parameters. Every refusal names the field.

use std::str::FromStr;

use axum::{
    extract::{FromRequest, FromRequestParts, RawPathParams, Request},
    response::{IntoResponse, Response},
};
use hotcell_api::{
    ErrorCode,
    admin::{PutDeployment, PutOrganization, PutWorkspace, RemoveUnknown},
    bash::BashRequest,
    files::PresentFilesRequest,
    jobs::StartJob,
};
use hotcell_types::limits::{MAX_ADMIN_BODY_BYTES, MAX_JSON_BODY_BYTES};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use serde::{Serialize, de::DeserializeOwned};

use super::{body, error::ApiError};

/// A request body with its size limit.
pub(super) trait JsonBody: DeserializeOwned {
    /// The longest text of it, in bytes.
    const LIMIT_BYTES: usize;
}

impl JsonBody for BashRequest {
    const LIMIT_BYTES: usize = MAX_JSON_BODY_BYTES;
}
impl JsonBody for PresentFilesRequest {
    const LIMIT_BYTES: usize = MAX_JSON_BODY_BYTES;
}
impl JsonBody for StartJob {
    const LIMIT_BYTES: usize = MAX_JSON_BODY_BYTES;
}
impl JsonBody for PutDeployment {
    const LIMIT_BYTES: usize = MAX_ADMIN_BODY_BYTES;
}
impl JsonBody for RemoveUnknown {
    const LIMIT_BYTES: usize = MAX_ADMIN_BODY_BYTES;
}
impl JsonBody for PutOrganization {
    const LIMIT_BYTES: usize = MAX_ADMIN_BODY_BYTES;
}
impl JsonBody for PutWorkspace {
    const LIMIT_BYTES: usize = MAX_ADMIN_BODY_BYTES;
}

/// A JSON request body: bounded, whole, with the hash that was signed, and without unknown fields.
pub(super) struct Json<T>(pub(super) T);

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split(';').next())
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

impl<S: Send + Sync, T: JsonBody> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::new(
                ErrorCode::UnsupportedMediaType,
                "The body must be JSON: send Content-Type: application/json.",
            ));
        }
        let (parts, body) = request.into_parts();
        let bytes = body::read_all(&parts.headers, body, T::LIMIT_BYTES, || {
            ApiError::new(
                ErrorCode::BodyTooLarge,
                format!("The body is larger than {} bytes.", T::LIMIT_BYTES),
            )
            .with_limit_bytes(T::LIMIT_BYTES as u64)
        })
        .await?;
        parse(&bytes).map(Self)
    }
}

/// Parses JSON and says where it is wrong.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // A list of the fields' values would pass for the object otherwise.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::bad_request("In the body: it must be an object."));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." {
            "the body".to_owned()
        } else {
            format!("the field {}", shortened(&path))
        };
        ApiError::bad_request(format!(
            "In {place}: {}.",
            shortened(&error.inner().to_string())
        ))
    })?;
    deserializer
        .end()
        .map_err(|error| ApiError::bad_request(format!("After the body: {error}.")))?;
    Ok(value)
}

/// A message that quotes the request stays short.
fn shortened(message: &str) -> String {
    const MAX_MESSAGE_CHARACTERS: usize = 300;
    if message.chars().count() <= MAX_MESSAGE_CHARACTERS {
        return message.to_owned();
    }
    let mut text: String = message.chars().take(MAX_MESSAGE_CHARACTERS).collect();
    text.push('…');
    text
}

/// An answer as JSON.
pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (
            status,
            [
                (
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("application/json"),
                ),
                (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            ],
            bytes,
        )
            .into_response(),
        Err(error) => ApiError::internal("an answer could not be written", &error).into_response(),
    }
}

/// 200 with JSON that was written before.
pub(super) fn json_text(text: String) -> Result<Response, ApiError> {
    let head = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((head, text).into_response())
}

/// 200 with JSON.
pub(super) fn ok<T: Serialize>(value: &T) -> Response {
    json(StatusCode::OK, value)
}

/// The query, without unknown or repeated fields.
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        axum::extract::Query::<T>::try_from_uri(&parts.uri)
            .map(|query| Self(query.0))
            .map_err(|error| {
                let mut message = shortened(&error.body_text());
                if let Some(rest) = message.strip_prefix("Failed to deserialize query string: ") {
                    message = rest.to_owned();
                }
                ApiError::bad_request(format!("In the query: {message}."))
            })
    }
}

/// The path's parameters, decoded.
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    pub(super) async fn of(parts: &mut Parts) -> Result<Self, ApiError> {
        let raw = RawPathParams::from_request_parts(parts, &())
            .await
            .map_err(|_| ApiError::bad_request("The path holds bytes that are not UTF-8."))?;
        Ok(Self(
            raw.iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        ))
    }

    /// Parses one parameter.
    pub(super) fn get<T: FromStr>(&self, name: &str) -> Result<T, ApiError>
    where
        T::Err: std::fmt::Display,
    {
        let text = self
            .0
            .iter()
            .find_map(|(key, value)| (key == name).then_some(value.as_str()))
            .unwrap_or_default();
        text.parse().map_err(|error: T::Err| {
            ApiError::bad_request(format!("In the path, {name}: {error}."))
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Self::of(parts).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(text: &str) -> String {
        match parse::<BashRequest>(text.as_bytes()) {
            Ok(request) => panic!("{request:?}"),
            Err(error) => error.problem().detail.clone(),
        }
    }

    #[test]
    fn a_refusal_names_the_field() {
        let user = r#""user":{"id":"u","role":"editor"}"#;
        for (text, part) in [
            (format!(r#"{{{user},"command":"x","comand":1}}"#), "comand"),
            (format!(r#"{{{user},"command":7}}"#), "the field command"),
            (
                r#"{"user":{"id":"u","role":"root"},"command":"x"}"#.into(),
                "the field user.role",
            ),
            (
                r#"{"user":{"id":"../u","role":"editor"},"command":"x"}"#.into(),
                "the field user.id",
            ),
            (format!(r#"{{{user}}}"#), "missing field `command`"),
            (format!(r#"{{{user},"command":"x"}} x"#), "After the body"),
            (String::new(), "EOF"),
            (
                r#" [{"id":"u","role":"editor"},"x"]"#.into(),
                "must be an object",
            ),
            (
                format!(r#"{{{user},"command":"x","command":"y"}}"#),
                "duplicate field `command`",
            ),
        ] {
            let detail = detail(&text);
            assert!(detail.contains(part), "{text}: {detail}");
        }
        let long = format!(r#"{{{user},"command":"x","{}":1}}"#, "k".repeat(10_000));
        assert!(detail(&long).len() < 1_000);
    }
}
