//! Responses and their bodies.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hotcell_agent_proto::AgentError;
use http::{HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use crate::{files::FileBody, output::FrameBody};

/// Any response body.
#[derive(Debug)]
pub(crate) enum AgentBody {
    /// Known as a whole.
    Whole(Full<Bytes>),
    /// The frames of a call.
    Frames(FrameBody),
    /// A file.
    File(FileBody),
}

impl Body for AgentBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body)
                .poll_frame(context)
                .map_err(|never| match never {}),
            Self::Frames(body) => Pin::new(body).poll_frame(context),
            Self::File(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Frames(body) => body.is_end_stream(),
            Self::File(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Frames(body) => body.size_hint(),
            Self::File(body) => body.size_hint(),
        }
    }
}

/// A response.
pub(crate) type Reply = Response<AgentBody>;

fn reply(status: StatusCode, content_type: &'static str, body: AgentBody) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Bytes.
pub(crate) fn bytes(content: Bytes) -> Reply {
    reply(
        StatusCode::OK,
        "application/octet-stream",
        AgentBody::Whole(content.into()),
    )
}

/// A value as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Reply {
    json_with(StatusCode::OK, value)
}

fn json_with(status: StatusCode, value: &impl serde::Serialize) -> Reply {
    // What the protocol sends holds only strings and numbers, which always serialize.
    let content = serde_json::to_vec(value).unwrap_or_default();
    reply(
        status,
        "application/json",
        AgentBody::Whole(Bytes::from(content).into()),
    )
}

/// No content.
pub(crate) fn nothing() -> Reply {
    let mut reply = Response::new(AgentBody::Whole(Full::default()));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
}

/// A failure.
pub(crate) fn failure(error: &AgentError) -> Reply {
    let status =
        StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_with(status, error)
}

/// The frames of a call.
pub(crate) fn frames(body: FrameBody) -> Reply {
    reply(
        StatusCode::OK,
        "application/octet-stream",
        AgentBody::Frames(body),
    )
}

/// A file.
pub(crate) fn file(body: FileBody) -> Reply {
    reply(
        StatusCode::OK,
        "application/octet-stream",
        AgentBody::File(body),
    )
}

/// `101`, after which the connection belongs to the stream.
pub(crate) fn upgraded(protocol: &'static str) -> Reply {
    let mut reply = Response::new(AgentBody::Whole(Full::default()));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(
        http::header::CONNECTION,
        HeaderValue::from_static("upgrade"),
    );
    headers.insert(http::header::UPGRADE, HeaderValue::from_static(protocol));
    reply
}

/// Adds a header.
pub(crate) fn with(mut reply: Reply, name: HeaderName, value: HeaderValue) -> Reply {
    reply.headers_mut().insert(name, value);
    reply
}

/// A value as JSON that a header may hold: a file name can be anything, and what is not
/// plain ASCII is escaped.
pub(crate) fn header_json(value: &impl serde::Serialize) -> HeaderValue {
    use std::fmt::Write as _;
    let text = serde_json::to_string(value).unwrap_or_default();
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if (' '..='~').contains(&character) {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    HeaderValue::from_str(&out).unwrap_or_else(|_| HeaderValue::from_static("{}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_fits_into_a_header_and_comes_back() {
        for name in ["a", "ä\r\nX: y", "\u{1F600} \u{7f}\"\\", ""] {
            let value = header_json(&name);
            let text = value.to_str().unwrap();
            assert_eq!(serde_json::from_str::<String>(text).unwrap(), name);
        }
    }
}
