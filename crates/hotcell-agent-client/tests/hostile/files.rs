//! Files in both directions.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hotcell_agent_proto::AgentErrorCode;
use hotcell_runtime::{ByteStream, Sandbox, SandboxError};
use tokio::{sync::mpsc, time::timeout};

use super::common::{Server, impatient};
use super::{SOON, fixed, path};

async fn read_all(sandbox: &impl Sandbox) -> Result<Vec<u8>, SandboxError> {
    let (_, mut content) = sandbox.read_file(&path("/workspace/f")).await?;
    let mut whole = Vec::new();
    while let Some(piece) = timeout(SOON, content.next()).await.unwrap() {
        whole.extend_from_slice(&piece?);
    }
    Ok(whole)
}

#[tokio::test]
async fn files_are_never_more_or_less_than_announced() {
    const FIVE: &str = "hotcell-file: {\"name\":\"f\",\"kind\":\"file\",\"bytes\":5,\"mode\":420,\"mtime_ms\":0}\r\n";
    let whole = fixed("200 OK", FIVE, b"12345").await;
    assert_eq!(read_all(&whole.sandbox()).await.unwrap(), b"12345");
    for body in [&b"123456789"[..], b"123", b""] {
        let server = fixed("200 OK", FIVE, body).await;
        let error = read_all(&server.sandbox()).await.unwrap_err();
        assert!(matches!(error, SandboxError::Protocol(_)), "{error:?}");
    }
    for headers in ["", "hotcell-file: {}\r\n", "hotcell-file: \u{ff}\r\n"] {
        let server = fixed("200 OK", headers, b"12345").await;
        let error = read_all(&server.sandbox()).await.unwrap_err();
        assert!(matches!(error, SandboxError::Protocol(_)), "{error:?}");
    }
    let endless = Server::new(|mut peer| async move {
        peer.request().await;
        peer.say(format!(
            "HTTP/1.1 200 OK\r\n{FIVE}transfer-encoding: chunked\r\n\r\n"
        ))
        .await;
        peer.chunk("12345").await;
        while peer.chunk("more").await {}
    })
    .await;
    let error = read_all(&endless.sandbox()).await.unwrap_err();
    assert!(matches!(error, SandboxError::Protocol(_)), "{error:?}");
    let stalled = Server::new(|mut peer| async move {
        peer.request().await;
        peer.say(format!(
            "HTTP/1.1 200 OK\r\n{FIVE}content-length: 5\r\n\r\n123"
        ))
        .await;
        peer.closed().await;
    })
    .await;
    let error = read_all(&stalled.sandbox().with_patience(impatient()))
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::Timeout(_)), "{error:?}");
}

fn content(pieces: Vec<Result<&'static str, SandboxError>>) -> ByteStream {
    Box::pin(stream::iter(pieces).map(|piece| piece.map(Bytes::from)))
}

#[tokio::test]
async fn uploads_are_whole_or_cut() {
    let (got, mut bodies) = mpsc::channel(8);
    let server = Server::new(move |mut peer| {
        let got = got.clone();
        async move {
            let whole = peer.request().await;
            let info =
                b"{\"name\":\"f\",\"kind\":\"file\",\"bytes\":6,\"mode\":420,\"mtime_ms\":0}";
            peer.answer("200 OK", "", info).await;
            got.send(whole.is_some()).await.unwrap();
        }
    })
    .await;
    let sandbox = server.sandbox();
    let at = path("/workspace/f");
    let hash = "0".repeat(64);
    let write = |pieces| sandbox.write_file(&at, 0o644, 6, &hash, content(pieces));
    write(vec![Ok("abc"), Ok("def")]).await.unwrap();
    assert_eq!(bodies.recv().await, Some(true));
    let cut = || SandboxError::Lost("the source broke".into());
    for (pieces, too_large) in [
        (vec![Ok("abc")], false),
        (vec![Ok("abc"), Err(cut())], false),
        (vec![Ok("abc"), Ok("defg")], true),
    ] {
        let error = write(pieces).await.unwrap_err();
        assert_eq!(
            matches!(error, SandboxError::TooLarge(6)),
            too_large,
            "{error:?}"
        );
        assert_eq!(bodies.recv().await, Some(false));
    }
}

#[tokio::test]
async fn an_upload_that_is_refused_early_says_why() {
    // The peer reads the head only. It answers while the body is under way, and then waits, or
    // hangs up on what is still in its ears, which resets the connection.
    for hangs_up in [false, true] {
        let server = Server::new(move |mut peer| async move {
            while let Some(head) = peer.head().await {
                if head.starts_with("GET") {
                    peer.answer("200 OK", "", "{\"mounts\":[]}").await;
                } else {
                    let why = "{\"code\":\"disk_full\",\"message\":\"no space\"}";
                    peer.answer("507 Full", "", why).await;
                    break;
                }
            }
            if !hangs_up {
                peer.closed().await;
            }
        })
        .await;
        let sandbox = server.sandbox();
        for round in 0..30 {
            let endless = stream::repeat_with(|| Ok(Bytes::from_static(&[0; 60_000])));
            let hash = "0".repeat(64);
            let at = path("/workspace/f");
            let write = sandbox.write_file(&at, 0o644, 1 << 40, &hash, Box::pin(endless));
            let error = timeout(SOON, write).await.unwrap().unwrap_err();
            assert!(
                matches!(&error, SandboxError::Agent(e) if e.code == AgentErrorCode::DiskFull),
                "{hangs_up} {round}: {error:?}"
            );
            // That connection is of no more use, and nobody tries.
            sandbox.disk().await.unwrap();
        }
        // Each refused upload cost the connection that it came over.
        assert_eq!(server.count(), 31);
    }
}

#[tokio::test]
async fn an_upload_that_does_not_move_times_out() {
    let server = Server::new(|peer| async move {
        // Reads nothing and says nothing.
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(peer);
    })
    .await;
    let endless = stream::repeat_with(|| Ok(Bytes::from_static(&[0; 60_000])));
    let hash = "0".repeat(64);
    let sandbox = server.sandbox().with_patience(impatient());
    let at = path("/workspace/f");
    let write = sandbox.write_file(&at, 0o644, 1 << 40, &hash, Box::pin(endless));
    let error = timeout(SOON, write).await.unwrap().unwrap_err();
    assert!(matches!(error, SandboxError::Timeout(_)), "{error:?}");
}
