//! Calls: frames, silence, floods, and ends.

use std::time::Duration;

use futures_util::StreamExt;
use hotcell_agent_proto::{AgentError, AgentErrorCode, ExecProgress, Frame, Stream};
use hotcell_runtime::{Sandbox, SandboxError};
use hotcell_types::limits;
use tokio::{sync::mpsc, time::timeout};

use super::common::{Peer, Server, exec_request, impatient};
use super::{SOON, exec_peer, exit, run};

#[tokio::test]
async fn frames_that_are_cut_or_too_long_or_unknown() {
    for cut in [
        vec![1],
        vec![1, 0, 0],
        vec![1, 0, 0, 0, 9, b'x'],
        Vec::new(),
    ] {
        let mut bytes = Frame::Output(Stream::Stdout, "whole".into())
            .to_bytes()
            .to_vec();
        bytes.extend(cut);
        let error = run(&exec_peer(bytes).await.sandbox()).await.unwrap_err();
        assert!(matches!(error, SandboxError::Lost(_)), "{error:?}");
    }
    for nonsense in [
        vec![1, 0xff, 0xff, 0xff, 0xff],
        vec![9, 0, 0, 0, 0],
        vec![4, 0, 0, 0, 1, b'{'],
        b"\x04\0\0\0\x02\xff\xfe".to_vec(),
    ] {
        let error = run(&exec_peer(nonsense).await.sandbox()).await.unwrap_err();
        assert!(matches!(error, SandboxError::Protocol(_)), "{error:?}");
    }
    let failed = Frame::Failed(AgentError::new(AgentErrorCode::Internal, "died")).to_bytes();
    let error = run(&exec_peer(failed).await.sandbox()).await.unwrap_err();
    assert!(matches!(error, SandboxError::Agent(e) if e.code == AgentErrorCode::Internal));
}

#[tokio::test]
async fn a_stream_that_ends_cleanly_without_an_exit_is_lost() {
    let server = Server::new(|mut peer| async move {
        while peer.request().await.is_some() {
            peer.begin_chunks().await;
            let out = Frame::Output(Stream::Stdout, "out".into());
            peer.chunk(out.to_bytes()).await;
            peer.say("0\r\n\r\n").await;
        }
    })
    .await;
    let error = run(&server.sandbox()).await.unwrap_err();
    assert!(matches!(error, SandboxError::Lost(_)), "{error:?}");
}

#[tokio::test]
async fn only_the_first_exit_counts_and_its_connection_is_not_used_again() {
    let server = Server::new(|mut peer| async move {
        while peer.request().await.is_some() {
            peer.begin_chunks().await;
            let mut bytes = exit().to_bytes().to_vec();
            bytes.extend_from_slice(&Frame::Output(Stream::Stdout, "late".into()).to_bytes());
            bytes.extend_from_slice(&exit().to_bytes());
            peer.chunk(&bytes).await;
            peer.chunk(&bytes).await;
            peer.say("0\r\n\r\n").await;
        }
    })
    .await;
    let sandbox = server.sandbox();
    for round in 1..=3 {
        let (out, _) = run(&sandbox).await.unwrap();
        assert!(out.is_empty());
        assert_eq!(server.count(), round);
    }
}

#[tokio::test]
async fn a_call_cannot_flood_us() {
    // One byte more than head and tail together.
    let server = Server::new(|mut peer| async move {
        peer.request().await;
        peer.begin_chunks().await;
        let piece = Frame::Output(Stream::Stdout, vec![0; limits::MAX_FRAME_BYTES].into());
        while peer.chunk(piece.to_bytes()).await {}
    })
    .await;
    let error = run(&server.sandbox()).await.unwrap_err();
    let limit = (limits::OUTPUT_HEAD_BYTES + limits::OUTPUT_TAIL_BYTES) as u64;
    assert!(
        matches!(error, SandboxError::TooLarge(at) if at == limit),
        "{error:?}"
    );
}

#[tokio::test]
async fn silence_trickle_and_an_endless_call_are_lost() {
    type Script = fn(Peer) -> futures_util::future::BoxFuture<'static, ()>;
    let scripts: [(&str, Script); 4] = [
        ("silent after the head", |mut peer| {
            Box::pin(async move {
                peer.request().await;
                peer.begin_chunks().await;
                peer.closed().await;
            })
        }),
        ("one byte of a frame at a time", |mut peer| {
            Box::pin(async move {
                peer.request().await;
                peer.begin_chunks().await;
                let frame = Frame::Output(Stream::Stdout, vec![0; 1000].into()).to_bytes();
                for byte in frame {
                    if !peer.chunk([byte]).await {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
        }),
        ("progress for ever", |mut peer| {
            Box::pin(async move {
                peer.request().await;
                peer.begin_chunks().await;
                let frame = Frame::Progress(ExecProgress::default()).to_bytes();
                while peer.chunk(&frame).await {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        }),
        ("progress without a pause", |mut peer| {
            Box::pin(async move {
                peer.request().await;
                peer.begin_chunks().await;
                let frame = Frame::Progress(ExecProgress::default()).to_bytes();
                while peer.chunk(&frame).await {}
            })
        }),
    ];
    for (what, script) in scripts {
        let server = Server::new(script).await;
        let sandbox = server.sandbox().with_patience(impatient());
        let error = run(&sandbox).await.unwrap_err();
        assert!(matches!(error, SandboxError::Lost(_)), "{what}: {error:?}");
    }
}

#[tokio::test]
async fn dropping_a_call_closes_its_connection() {
    let (closed, mut told) = mpsc::channel(4);
    let server = Server::new(move |mut peer| {
        let closed = closed.clone();
        async move {
            peer.request().await;
            if peer.number == 0 {
                peer.begin_chunks().await;
                peer.chunk(Frame::Output(Stream::Stdout, "x".into()).to_bytes())
                    .await;
            }
            peer.closed().await;
            closed.send(peer.number).await.unwrap();
        }
    })
    .await;
    let sandbox = server.sandbox();
    let mut stream = sandbox.exec(exec_request("sleep 100")).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    assert_eq!(timeout(SOON, told.recv()).await.unwrap(), Some(0));
    // The same while the answer has not begun.
    assert!(
        timeout(
            Duration::from_millis(200),
            sandbox.exec(exec_request("sleep 100"))
        )
        .await
        .is_err()
    );
    assert_eq!(timeout(SOON, told.recv()).await.unwrap(), Some(1));
}
