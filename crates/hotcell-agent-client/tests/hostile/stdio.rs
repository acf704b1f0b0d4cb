//! Processes whose stdin and stdout the caller holds.

use bytes::Bytes;
use futures_util::StreamExt;
use hotcell_agent_proto::{AgentErrorCode, Frame, StdioRequest, Stream};
use hotcell_runtime::{ExecEvent, Sandbox, SandboxError};
use tokio::{sync::mpsc, time::timeout};

use super::common::{Server, impatient};
use super::{SOON, fixed};

pub(crate) fn cat() -> StdioRequest {
    StdioRequest {
        program: vec!["cat".into()],
        cwd: None,
        env: Default::default(),
    }
}

#[tokio::test]
async fn stdio_is_a_stream_both_ways_and_closes_when_its_output_is_dropped() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (closed, mut told) = mpsc::channel(1);
    let server = Server::new(move |mut peer| {
        let closed = closed.clone();
        async move {
            let head = peer.request().await.unwrap().to_lowercase();
            assert!(head.contains("upgrade: hotcell-stdio\r\n"), "{head}");
            // The first frame comes along with the head.
            let mut bytes = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                              upgrade: hotcell-stdio\r\n\r\n"
                .to_vec();
            let hello = Frame::Output(Stream::Stdout, "hello".into());
            bytes.extend_from_slice(&hello.to_bytes());
            peer.say(bytes).await;
            let mut said = [0; 4];
            peer.stream.read_exact(&mut said).await.unwrap();
            let echo = Frame::Output(Stream::Stdout, Bytes::copy_from_slice(&said));
            peer.say(echo.to_bytes()).await;
            peer.closed().await;
            closed.send(()).await.unwrap();
        }
    })
    .await;
    let mut stdio = server.sandbox().stdio(cat()).await.unwrap();
    for want in ["hello", "ping"] {
        if want == "ping" {
            stdio.stdin.write_all(b"ping").await.unwrap();
        }
        let event = timeout(SOON, stdio.output.next()).await.unwrap();
        assert!(
            matches!(&event, Some(Ok(ExecEvent::Output(_, bytes))) if bytes == want),
            "{event:?}"
        );
    }
    drop(stdio.output);
    timeout(SOON, told.recv()).await.unwrap().unwrap();
    assert!(stdio.stdin.write_all(&[0; 1_000_000]).await.is_err());
}

#[tokio::test]
async fn stdio_that_is_refused_or_not_upgraded() {
    let server = fixed(
        "500 No",
        "",
        b"{\"code\":\"spawn_failed\",\"message\":\"no\"}",
    )
    .await;
    let error = server.sandbox().stdio(cat()).await.err().unwrap();
    assert!(matches!(&error, SandboxError::Agent(e) if e.code == AgentErrorCode::SpawnFailed));
    let server = fixed("200 OK", "", b"").await;
    let error = server.sandbox().stdio(cat()).await.err().unwrap();
    assert!(matches!(error, SandboxError::Protocol(_)), "{error:?}");
    // Upgraded, and then silent.
    let server = Server::new(|mut peer| async move {
        peer.request().await;
        peer.say("HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: hotcell-stdio\r\n\r\n")
            .await;
        peer.closed().await;
    })
    .await;
    let sandbox = server.sandbox().with_patience(impatient());
    let mut stdio = sandbox.stdio(cat()).await.unwrap();
    let event = timeout(SOON, stdio.output.next()).await.unwrap();
    assert!(
        matches!(event, Some(Err(SandboxError::Lost(_)))),
        "{event:?}"
    );
}
