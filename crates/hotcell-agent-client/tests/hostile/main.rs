//! A peer that lies, cuts, floods and stalls: every call ends soon, with the right kind of error.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod answers;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod files;
mod stdio;

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use hotcell_agent_proto::{ExecExit, Frame, Health};
use hotcell_runtime::{ExecEvent, OutputStream, Sandbox, SandboxError};
use hotcell_types::SandboxPath;
use tokio::time::timeout;

use common::{Server, exec_request};

const SOON: Duration = Duration::from_secs(5);

fn path(text: &str) -> SandboxPath {
    text.parse().unwrap()
}

fn exit() -> Frame {
    Frame::Exit(ExecExit {
        exit_code: Some(0),
        signal: None,
        timed_out: false,
        stdout_bytes: 0,
        stderr_bytes: 0,
        stdout_dropped_bytes: 0,
        stderr_dropped_bytes: 0,
        still_running: 0,
        duration_ms: 0,
        notes: Vec::new(),
    })
}

fn health(protocol: u32) -> String {
    serde_json::to_string(&Health {
        protocol,
        version: "1".into(),
        bash: true,
        writable_read_only_mounts: Vec::new(),
        calls: 0,
        jobs: Vec::new(),
    })
    .unwrap()
}

/// Runs a call to its end or first error.
async fn run(sandbox: &impl Sandbox) -> Result<(Vec<u8>, ExecExit), SandboxError> {
    let call = async {
        let mut stream = sandbox.exec(exec_request("echo")).await?;
        let mut out = Vec::new();
        while let Some(event) = stream.next().await {
            match event? {
                ExecEvent::Output(OutputStream::Stdout, bytes) => out.extend_from_slice(&bytes),
                ExecEvent::Exit(exit) => {
                    assert!(stream.next().await.is_none(), "something after the exit");
                    return Ok((out, exit));
                }
                _ => {}
            }
        }
        panic!("a stream without an end")
    };
    timeout(SOON, call).await.expect("the call hangs")
}

/// A peer that answers every exec with these bytes as one chunk and then closes.
async fn exec_peer(bytes: impl AsRef<[u8]>) -> Server {
    let bytes = Bytes::copy_from_slice(bytes.as_ref());
    Server::new(move |mut peer| {
        let bytes = bytes.clone();
        async move {
            peer.request().await;
            peer.begin_chunks().await;
            peer.chunk(bytes).await;
        }
    })
    .await
}

/// A peer that answers every request with this.
async fn fixed(status: &'static str, headers: &'static str, body: &'static [u8]) -> Server {
    Server::new(move |mut peer| async move {
        while peer.request().await.is_some() {
            peer.answer(status, headers, body).await;
        }
    })
    .await
}
