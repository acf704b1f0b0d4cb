//! The real agent on this host, without a sandbox around it: both sides speak one protocol.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use std::{process::Stdio, time::Duration};

use bytes::Bytes;
use common::{exec_request, key, lease, sandbox_at};
use futures_util::{StreamExt, future::join_all, stream};
use hotcell_agent_client::AgentSandbox;
use hotcell_agent_proto::{
    AgentErrorCode, Command, ExecExit, FileKind, JobRequest, JobState, KEY_VARIABLE,
    LEASE_VARIABLE, LISTEN_VARIABLE, PROTOCOL_VERSION, RUN_VARIABLE, StdioRequest,
    WORKSPACE_VARIABLE,
};
use hotcell_runtime::{ExecEvent, ExecStream, OutputStream, Sandbox, SandboxError};
use hotcell_types::{JobId, SandboxPath};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Child,
    time::{Instant, timeout},
};

const SOON: Duration = Duration::from_secs(10);

/// An agent that runs, in directories of its own.
struct Agent {
    sandbox: AgentSandbox,
    directory: tempfile::TempDir,
    child: Child,
}

impl Agent {
    async fn start() -> Self {
        let binary = std::env::var_os("HOTCELL_TEST_AGENT").unwrap_or_else(|| {
            panic!(
                "HOTCELL_TEST_AGENT is not set: run `cargo xtask test`, which builds the agent \
                 and names it there"
            )
        });
        let directory = tempfile::tempdir().unwrap();
        for name in ["workspace", "run"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let mut child = tokio::process::Command::new(binary)
            .env(KEY_VARIABLE, key().to_hex())
            .env(LEASE_VARIABLE, lease().as_str())
            .env(LISTEN_VARIABLE, "127.0.0.1:0")
            .env(WORKSPACE_VARIABLE, directory.path().join("workspace"))
            .env(RUN_VARIABLE, directory.path().join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap();
        let line = line.expect("the agent ended at once");
        let address = line.strip_prefix("listening ").unwrap().parse().unwrap();
        Self {
            sandbox: sandbox_at(address),
            directory,
            child,
        }
    }

    fn at(&self, name: &str) -> SandboxPath {
        let path = self.directory.path().join("workspace").join(name);
        path.to_str().unwrap().parse().unwrap()
    }

    async fn write(&self, name: &str, content: &'static [u8]) -> Result<(), SandboxError> {
        let hash = hex::encode(Sha256::digest(content));
        let pieces = content.chunks(7_000).map(|piece| Ok(Bytes::from(piece)));
        let pieces = Box::pin(stream::iter(pieces.collect::<Vec<_>>()));
        let bytes = content.len() as u64;
        let info = self
            .sandbox
            .write_file(&self.at(name), 0o640, bytes, &hash, pieces)
            .await?;
        assert_eq!((info.bytes, info.mode & 0o777), (bytes, 0o640));
        Ok(())
    }

    /// Ends the agent and with it everything that it started.
    async fn stop(mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        timeout(SOON, self.child.wait()).await.unwrap().unwrap();
    }
}

async fn finish(mut stream: ExecStream) -> Result<(String, String, ExecExit), SandboxError> {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(event) = timeout(SOON, stream.next()).await.unwrap() {
        match event? {
            ExecEvent::Output(OutputStream::Stdout, bytes) => out.extend_from_slice(&bytes),
            ExecEvent::Output(OutputStream::Stderr, bytes) => err.extend_from_slice(&bytes),
            ExecEvent::Progress(_) => {}
            ExecEvent::Exit(exit) => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                return Ok((text(out), text(err), exit));
            }
        }
    }
    panic!("a stream without an exit");
}

async fn sh(agent: &Agent, text: &str) -> Result<(String, String, ExecExit), SandboxError> {
    let mut request = exec_request(text);
    request.timeout_ms = 5_000;
    finish(agent.sandbox.exec(request).await?).await
}

#[tokio::test]
async fn calls_and_their_state() {
    let agent = Agent::start().await;
    let health = agent.sandbox.ready(5_000).await.unwrap();
    assert_eq!((health.protocol, health.calls), (PROTOCOL_VERSION, 0));
    assert!(health.bash);
    let (out, err, exit) = sh(&agent, "echo out; echo err >&2; exit 7").await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    assert_eq!((exit.exit_code, exit.timed_out), (Some(7), false));
    sh(&agent, "mkdir sub; cd sub; export CHOSEN='a b'")
        .await
        .unwrap();
    let (out, ..) = sh(&agent, "echo \"$CHOSEN\"; basename \"$PWD\"")
        .await
        .unwrap();
    assert_eq!(out, "a b\nsub\n");
    agent.sandbox.restart().await.unwrap();
    let (out, ..) = sh(&agent, "echo \"[$CHOSEN]\"; basename \"$PWD\"")
        .await
        .unwrap();
    assert_eq!(out, "[]\nworkspace\n");
    let mut request = exec_request("echo x");
    request.cwd = Some("/no/such/place".into());
    let error = agent.sandbox.exec(request).await.err().unwrap();
    assert!(matches!(error, SandboxError::Agent(e) if e.code == AgentErrorCode::BadCwd));
    // Out of time.
    let mut request = exec_request("echo before; sleep 60");
    request.timeout_ms = 300;
    let (out, _, exit) = finish(agent.sandbox.exec(request).await.unwrap())
        .await
        .unwrap();
    assert!(exit.timed_out && exit.exit_code.is_none());
    assert_eq!(out, "before\n");
    // Many at once, on more connections than are kept.
    let calls = (0..24).map(|n| {
        let agent = &agent;
        async move { sh(agent, &format!("sleep 0.1; echo {n}")).await.unwrap().0 }
    });
    for (n, out) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(out, format!("{n}\n"));
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_dropped_call_ends_its_processes() {
    let agent = Agent::start().await;
    let mark = agent.directory.path().join("workspace/alive");
    let text = "trap 'rm -f alive' TERM; touch alive; sleep 300 & wait";
    let mut request = exec_request(text);
    request.timeout_ms = 60_000;
    let stream = agent.sandbox.exec(request).await.unwrap();
    let appears = |want| {
        let mark = mark.clone();
        async move {
            while mark.exists() != want {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    timeout(SOON, appears(true)).await.unwrap();
    drop(stream);
    timeout(SOON, appears(false)).await.unwrap();
    while agent.sandbox.ready(5_000).await.unwrap().calls > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn files() {
    let agent = Agent::start().await;
    let content: &[u8] = (0..1_000_000_u32)
        .map(|n| n as u8)
        .collect::<Vec<_>>()
        .leak();
    let odd = "d/a b&c=d#e?f%41\n测.bin";
    agent.write(odd, content).await.unwrap();
    let (info, mut pieces) = agent.sandbox.read_file(&agent.at(odd)).await.unwrap();
    assert_eq!(info.bytes, content.len() as u64);
    assert_eq!(info.name, "a b&c=d#e?f%41\n测.bin");
    let mut whole = Vec::new();
    while let Some(piece) = pieces.next().await {
        whole.extend_from_slice(&piece.unwrap());
    }
    assert!(whole == content);
    agent.write("d/b", b"").await.unwrap();
    agent.write("d/c", b"x").await.unwrap();
    let names = |listing: hotcell_agent_proto::Listing| {
        let names = listing.entries.into_iter().map(|entry| entry.name);
        (names.collect::<Vec<_>>(), listing.more)
    };
    let page = agent.sandbox.list(&agent.at("d"), None, 2).await.unwrap();
    assert_eq!(names(page), (vec![info.name, "b".to_owned()], true));
    let page = agent.sandbox.list(&agent.at("d"), Some("b"), 2).await;
    assert_eq!(names(page.unwrap()), (vec!["c".to_owned()], false));
    sh(&agent, "mkfifo pipe; ln -s d link").await.unwrap();
    let stat = async |name| agent.sandbox.stat(&agent.at(name)).await.unwrap().kind;
    assert_eq!(stat("pipe").await, FileKind::Other);
    assert_eq!(stat("link").await, FileKind::Link);
    assert_eq!(stat("d").await, FileKind::Directory);
    for (name, code) in [
        ("pipe", AgentErrorCode::NotARegularFile),
        ("d", AgentErrorCode::NotARegularFile),
        ("none", AgentErrorCode::NotFound),
    ] {
        let at = agent.at(name);
        let read = timeout(SOON, agent.sandbox.read_file(&at)).await.unwrap();
        let error = read.err().unwrap();
        assert!(
            matches!(&error, SandboxError::Agent(e) if e.code == code),
            "{name}: {error:?}"
        );
    }
    agent.sandbox.remove_file(&agent.at("d")).await.unwrap();
    assert!(agent.sandbox.stat(&agent.at("d")).await.is_err());
    let disk = agent.sandbox.disk().await.unwrap();
    assert!(disk.mounts.iter().all(|m| m.free_bytes <= m.total_bytes));
    agent.stop().await;
}

#[tokio::test]
async fn jobs() {
    let agent = Agent::start().await;
    let request = |bits, text: &str| JobRequest {
        job: JobId::from_bits(bits),
        command: Command::Shell(text.into()),
        cwd: None,
        env: Default::default(),
        timeout_ms: 60_000,
    };
    let job = request(1, "echo one; echo bad >&2; echo two; exit 9");
    agent.sandbox.start_job(job.clone()).await.unwrap();
    let over = async {
        loop {
            let status = agent.sandbox.job(&job.job).await.unwrap();
            if status.state != JobState::Running {
                return status;
            }
        }
    };
    let status = timeout(SOON, over).await.unwrap();
    assert_eq!(
        (status.state, status.exit_code),
        (JobState::Exited, Some(9))
    );
    let read = async |stream, offset, limit| {
        let output = agent.sandbox.job_output(&job.job, stream, offset, limit);
        let output = output.await.unwrap();
        (output.offset, output.total, output.bytes)
    };
    assert_eq!(
        read(OutputStream::Stdout, 4, 2).await,
        (4, 8, Bytes::from_static(b"tw"))
    );
    assert_eq!(read(OutputStream::Stdout, 8, 9).await, (8, 8, Bytes::new()));
    assert_eq!(
        read(OutputStream::Stderr, 0, 99).await,
        (0, 4, Bytes::from_static(b"bad\n"))
    );
    let long = request(2, "sleep 300");
    agent.sandbox.start_job(long.clone()).await.unwrap();
    assert_eq!(agent.sandbox.jobs().await.unwrap().len(), 2);
    let status = agent.sandbox.stop_job(&long.job).await.unwrap();
    assert_eq!(status.state, JobState::Stopped);
    let error = agent.sandbox.job(&JobId::from_bits(3)).await.unwrap_err();
    assert!(matches!(error, SandboxError::Agent(e) if e.code == AgentErrorCode::NotFound));
    agent.stop().await;
}

#[tokio::test]
async fn stdio() {
    let agent = Agent::start().await;
    let request = StdioRequest {
        program: ["bash", "-c", "read line; echo \"<$line>\"; cat; exit 3"]
            .map(str::to_owned)
            .to_vec(),
        cwd: None,
        env: Default::default(),
    };
    let mut stdio = agent.sandbox.stdio(request).await.unwrap();
    stdio.stdin.write_all("é\nrest".as_bytes()).await.unwrap();
    stdio.stdin.shutdown().await.unwrap();
    let (out, _, exit) = finish(stdio.output).await.unwrap();
    assert_eq!((out.as_str(), exit.exit_code), ("<é>\nrest", Some(3)));
    // Dropping the output ends a process that waits for input, though its stdin is held.
    let request = StdioRequest {
        program: ["bash", "-c", "touch alive; cat; rm alive"]
            .map(str::to_owned)
            .to_vec(),
        cwd: None,
        env: Default::default(),
    };
    let stdio = agent.sandbox.stdio(request).await.unwrap();
    drop(stdio.output);
    let start = Instant::now();
    // The agent answers for as long as it lives, and its tree of calls becomes empty.
    loop {
        let (out, ..) = sh(&agent, "pgrep -f 'touch [a]live' | wc -l")
            .await
            .unwrap();
        if out.trim() == "0" {
            break;
        }
        assert!(start.elapsed() < SOON, "the process lives");
    }
    drop(stdio.stdin);
    agent.stop().await;
}

#[tokio::test]
async fn a_killed_agent_is_lost_and_another_key_unauthorized() {
    let mut agent = Agent::start().await;
    let address = {
        let mut request = exec_request("sleep 60");
        request.timeout_ms = 60_000;
        let mut stream = agent.sandbox.exec(request).await.unwrap();
        agent.child.kill().await.unwrap();
        let end = timeout(SOON, stream.next()).await.unwrap();
        assert!(matches!(end, Some(Err(SandboxError::Lost(_)))), "{end:?}");
        assert!(stream.next().await.is_none());
        agent.sandbox.disk().await
    };
    assert!(matches!(address, Err(SandboxError::Lost(_))), "{address:?}");
}
