//! Heads and JSON.

use std::time::Duration;

use hotcell_agent_proto::AgentErrorCode;
use hotcell_runtime::{OutputStream, Sandbox, SandboxError};
use hotcell_types::JobId;
use tokio::time::{Instant, timeout};

use super::common::{Server, impatient};
use super::{SOON, fixed, health, path, run};

#[tokio::test]
async fn heads_that_never_end_time_out() {
    // Nothing, one byte at a time, and interim answers for ever.
    let server = Server::new(|mut peer| async move {
        peer.request().await;
        peer.closed().await;
    })
    .await;
    let sandbox = server.sandbox().with_patience(impatient());
    let error = run(&sandbox).await.unwrap_err();
    assert!(matches!(error, SandboxError::Timeout(400)), "{error:?}");

    let server = Server::new(|mut peer| async move {
        peer.request().await;
        for byte in b"HTTP/1.1 200 OK\r\nx: ".iter().chain(&[b'a'; 100_000]) {
            if !peer.say([*byte]).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let sandbox = server.sandbox().with_patience(impatient());
    let error = run(&sandbox).await.unwrap_err();
    assert!(matches!(error, SandboxError::Timeout(400)), "{error:?}");

    let server = Server::new(|mut peer| async move {
        peer.request().await;
        while peer.say("HTTP/1.1 102 Processing\r\n\r\n").await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let sandbox = server.sandbox().with_patience(impatient());
    let error = run(&sandbox).await.unwrap_err();
    assert!(matches!(error, SandboxError::Timeout(400)), "{error:?}");
}

#[tokio::test]
async fn heads_that_are_nonsense() {
    let many: String = (0..500).map(|n| format!("h{n}: x\r\n")).collect();
    let long = "x".repeat(1 << 20);
    for head in [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "HTTP/1.1 20".to_owned() + "0 OK\r\n\0: x\r\n\r\n",
        format!("HTTP/1.1 200 OK\r\n{many}content-length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\nlong: {long}\r\n\r\n"),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "HTTP/1.1 301 Moved\r\nlocation: http://example.org/\r\ncontent-length: 0\r\n\r\n"
            .to_owned(),
        "HTTP/1.1 500 Oops\r\ncontent-length: 6\r\n\r\n<html>".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n".to_owned(),
    ] {
        let start: String = head.chars().take(60).collect();
        let server = Server::new(move |mut peer| {
            let head = head.clone();
            async move {
                peer.request().await;
                peer.say(head).await;
                peer.closed().await;
            }
        })
        .await;
        let error = run(&server.sandbox().with_patience(impatient()))
            .await
            .unwrap_err();
        assert!(
            matches!(error, SandboxError::Protocol(_)),
            "{start:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn json_that_is_endless_long_slow_or_no_text() {
    let endless = Server::new(|mut peer| async move {
        peer.request().await;
        peer.begin_chunks().await;
        peer.chunk("{\"mounts\":[").await;
        while peer.chunk(vec![b' '; 60_000]).await {}
    })
    .await;
    let error = endless.sandbox().disk().await.unwrap_err();
    assert!(matches!(error, SandboxError::TooLarge(_)), "{error:?}");

    let announced = Server::new(|mut peer| async move {
        peer.request().await;
        peer.say("HTTP/1.1 200 OK\r\ncontent-length: 10995116277760\r\n\r\n")
            .await;
        peer.closed().await;
    })
    .await;
    let error = timeout(SOON, announced.sandbox().disk()).await.unwrap();
    assert!(matches!(error, Err(SandboxError::TooLarge(_))), "{error:?}");

    let cut = Server::new(|mut peer| async move {
        peer.request().await;
        peer.say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"mounts\":[]}")
            .await;
    })
    .await;
    let error = cut.sandbox().disk().await.unwrap_err();
    assert!(matches!(error, SandboxError::Lost(_)), "{error:?}");

    let slow = Server::new(|mut peer| async move {
        peer.request().await;
        peer.begin_chunks().await;
        while peer.chunk(" ").await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let sandbox = slow.sandbox().with_patience(impatient());
    let error = timeout(SOON, sandbox.disk()).await.unwrap().unwrap_err();
    assert!(matches!(error, SandboxError::Timeout(_)), "{error:?}");

    for text in [
        b"{\"mounts\":[{\"path\":\"\xff\xfe\",\"total_bytes\":1,\"free_bytes\":1}]}".to_vec(),
        b"{\"mounts\":".to_vec(),
        [b"[".repeat(100_000)].concat(),
        b"{\"mounts\":[{\"path\":\"/\",\"total_bytes\":-1,\"free_bytes\":1e99}]}".to_vec(),
    ] {
        let server = Server::new(move |mut peer| {
            let text = text.clone();
            async move {
                peer.request().await;
                peer.answer("200 OK", "", text).await;
            }
        })
        .await;
        let error = server.sandbox().disk().await.unwrap_err();
        assert!(matches!(error, SandboxError::Protocol(_)), "{error:?}");
    }
}

#[tokio::test]
async fn another_protocol_version_is_refused_at_once() {
    let server = Server::new(|mut peer| async move {
        while peer.request().await.is_some() {
            peer.answer("200 OK", "", health(2)).await;
        }
    })
    .await;
    let start = Instant::now();
    let error = server.sandbox().ready(30_000).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Protocol(why) if why.contains("version 2")),
        "{error:?}"
    );
    assert!(start.elapsed() < SOON);
}

#[tokio::test]
async fn job_output_stays_where_it_was_asked_for() {
    let job = JobId::from_bits(1);
    let cases: [(&str, &[u8], bool); 8] = [
        (
            "hotcell-offset: 10\r\nhotcell-total: 15\r\n",
            b"12345",
            true,
        ),
        (
            "hotcell-offset: 12\r\nhotcell-total: 17\r\n",
            b"12345",
            true,
        ),
        (
            "hotcell-offset: 10\r\nhotcell-total: 14\r\n",
            b"12345",
            false,
        ),
        (
            "hotcell-offset: 9\r\nhotcell-total: 90\r\n",
            b"12345",
            false,
        ),
        (
            "hotcell-offset: 18446744073709551615\r\nhotcell-total: 9\r\n",
            b"12345",
            false,
        ),
        (
            "hotcell-offset: ten\r\nhotcell-total: 15\r\n",
            b"12345",
            false,
        ),
        ("hotcell-total: 15\r\n", b"12345", false),
        (
            "hotcell-offset: 10\r\nhotcell-total: 99\r\n",
            b"123456789",
            false,
        ),
    ];
    for (headers, body, good) in cases {
        let server = fixed("200 OK", headers, body).await;
        let result = server
            .sandbox()
            .job_output(&job, OutputStream::Stdout, 10, 5)
            .await;
        assert_eq!(result.is_ok(), good, "{headers}: {result:?}");
    }
}

#[tokio::test]
async fn refusals_keep_their_code_and_other_answers_do_not_pass() {
    let server = fixed("429 Busy", "", b"{\"code\":\"busy\",\"message\":\"later\"}").await;
    let sandbox = server.sandbox();
    let error = run(&sandbox).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Agent(e) if e.code == AgentErrorCode::Busy),
        "{error:?}"
    );
    assert!(sandbox.remove_file(&path("/workspace/f")).await.is_err());
    // The answer was read to its end, so its connection was kept.
    assert_eq!(server.count(), 1);

    let server = fixed("200 OK", "", b"{\"entries\":[],\"more\":true}").await;
    let listing = server.sandbox().list(&path("/"), None, 10).await;
    assert!(matches!(listing, Err(SandboxError::Protocol(_))));
}
