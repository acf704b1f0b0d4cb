//! Processes whose stdin and stdout the caller holds: an upgraded connection.

use hotcell_agent_proto::StdioRequest;
use hotcell_runtime::{SandboxError, Stdio};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use hyper_util::rt::TokioIo;

use crate::{
    client::{Call, Client},
    error::from_hyper,
    frames::{self, Bounds, Source, Upgraded},
    link::Link,
};

const PROTOCOL: &str = "hotcell-stdio";

/// JSON that a header can carry: everything outside printable ASCII as `\u` escapes. Such
/// characters only stand in strings, so the text keeps its meaning.
fn header_json(request: &StdioRequest) -> Result<HeaderValue, SandboxError> {
    let bad =
        |error: &dyn std::fmt::Display| SandboxError::Protocol(format!("the request: {error}"));
    let json = serde_json::to_string(request).map_err(|error| bad(&error))?;
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() && !character.is_ascii_control() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    HeaderValue::from_str(&text).map_err(|error| bad(&error))
}

pub(crate) async fn open(client: &Client, request: &StdioRequest) -> Result<Stdio, SandboxError> {
    let mut call = Call::new(Method::POST, "/v1/stdio");
    call.headers = vec![
        (
            HeaderName::from_static("hotcell-stdio"),
            header_json(request)?,
        ),
        (header::UPGRADE, HeaderValue::from_static(PROTOCOL)),
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
    ];
    let patience = client.patience;
    let answer = client
        .send_alone(call, patience.connect, patience.answer)
        .await?;
    if answer.response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(client.unexpected(answer).await);
    }
    // The connection's driver hands the socket over, so it must live until it has.
    let upgraded = hyper::upgrade::on(answer.response)
        .await
        .map_err(|error| from_hyper(&error))?;
    drop(answer.connection);
    let parts = upgraded
        .downcast::<TokioIo<Link>>()
        .map_err(|_| SandboxError::Protocol("the upgraded connection is no socket".into()))?;
    let (stream, ended) = parts.io.into_inner().into_parts();
    let (read, write) = stream.into_split();
    let bounds = Bounds {
        silence: patience.silence,
        deadline: None,
        output_bytes: None,
    };
    Ok(Stdio {
        stdin: Box::pin(write),
        output: frames::events(
            Source::Upgraded(parts.read_buf, Upgraded { read, ended }),
            bounds,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_carries_any_text_and_means_the_same() {
        let request = StdioRequest {
            program: vec!["a\u{7f}b".into(), "测试 😀\n\"".into()],
            cwd: None,
            env: [("K".to_owned(), "\u{1}".to_owned())].into(),
        };
        let value = header_json(&request).unwrap();
        let back: StdioRequest = serde_json::from_str(value.to_str().unwrap()).unwrap();
        assert_eq!(back, request);
    }
}
