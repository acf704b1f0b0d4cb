//! Byte streams: a process whose stdin, stdout and stderr the daemon holds.
//!
//! The connection carries the bytes of stdin one way and frames the other way. Nothing is
//! dropped: a slow reader makes the process wait. A caller that closes its side closes the
//! process's stdin; whether it is still there shows when something is sent to it.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use hotcell_agent_proto::{
    AgentError, Command, ExecExit, ExecProgress, Frame, StdioRequest, Stream,
};
use hotcell_types::limits::KEEP_ALIVE_INTERVAL_MS;
use hotcell_types::limits::agent::{PIPE_READ_BYTES, STDIO_PROBE_INTERVAL_MS};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf},
    net::unix::pipe::Sender,
    sync::watch,
    time::{Instant, interval},
};

use crate::{
    agent::Agent,
    call, environment,
    exit::Exit,
    pool::lock,
    pump::Pipes,
    tree::{Tree, TreeKind, TreeState},
};

type Connection = TokioIo<Upgraded>;

/// A process that runs and waits for its connection.
#[derive(Debug)]
pub(crate) struct Stdio {
    tree: Arc<Tree>,
    pipes: Pipes,
    stdin: Sender,
    begin: Instant,
}

/// Starts the process.
///
/// # Errors
/// Whatever kept it from starting.
pub(crate) async fn start(agent: &Arc<Agent>, request: StdioRequest) -> Result<Stdio, AgentError> {
    let env = environment::parse(&request.env)?;
    let workspace = agent.config.workspace.to_string_lossy().into_owned();
    let cwd = request.cwd.unwrap_or(workspace);
    let command = Command::Program(request.program);
    let ready = call::ready(agent, &command, Some(&cwd), env, false)?;
    let begin = Instant::now();
    let writer = std::sync::Mutex::new(None);
    let (tree, pipes, _note) = call::start(agent, TreeKind::Stdio, &ready, || {
        let (pipes, stdin, child) = Pipes::with_open_stdin()?;
        *lock(&writer) = Some(stdin);
        Ok((pipes, child))
    })
    .await?;
    let stdin = writer.into_inner().ok().flatten().ok_or_else(|| {
        AgentError::new(
            hotcell_agent_proto::AgentErrorCode::Internal,
            "stdin got lost",
        )
    })?;
    Ok(Stdio {
        tree,
        pipes,
        stdin,
        begin,
    })
}

/// Carries bytes until the process has ended or the connection is lost; then ends its tree.
pub(crate) async fn carry(stdio: Stdio, upgrade: OnUpgrade) {
    let tree = Arc::clone(&stdio.tree);
    if let Ok(upgraded) = upgrade.await {
        let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
        let (closed, reader_closed) = watch::channel(false);
        let input = tokio::spawn(feed(reader, stdio.stdin, closed));
        // An error means that the connection is lost.
        let _ = send(stdio.tree, stdio.pipes, stdio.begin, writer, reader_closed).await;
        input.abort();
    }
    tree.end().await;
}

/// From the connection to stdin, until the connection ends.
async fn feed(mut reader: ReadHalf<Connection>, stdin: Sender, closed: watch::Sender<bool>) {
    let mut stdin = Some(stdin);
    let mut buffer = vec![0; PIPE_READ_BYTES];
    while let Ok(length @ 1..) = reader.read(&mut buffer).await {
        if let Some(pipe) = &mut stdin
            && pipe.write_all(&buffer[..length]).await.is_err()
        {
            // It does not read any more. Reading on shows when the connection ends.
            stdin = None;
        }
    }
    drop(stdin);
    closed.send_replace(true);
}

/// From the process to the connection, until the process ends.
async fn send(
    tree: Arc<Tree>,
    mut pipes: Pipes,
    begin: Instant,
    mut writer: WriteHalf<Connection>,
    mut reader_closed: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut state = tree.state();
    let mut counts = ExecProgress::default();
    let mut out = BytesMut::new();
    let mut ticks = interval(Duration::from_millis(STDIO_PROBE_INTERVAL_MS));
    let mut last_sent = Instant::now();
    let mut half_closed = false;
    let end = loop {
        let now = *state.borrow_and_update();
        if now.lost || now.exit.is_some() {
            break now;
        }
        tokio::select! {
            _ = state.changed() => {}
            read = pipes.read() => {
                if let Some((stream, bytes)) = read {
                    frame(&mut out, &mut counts, stream, bytes);
                }
            }
            // Ends once: then it is known, and an error would say it again and again.
            _ = reader_closed.changed(), if !half_closed => half_closed = true,
            _ = ticks.tick() => {
                let idle = last_sent.elapsed();
                if half_closed || idle >= Duration::from_millis(KEEP_ALIVE_INTERVAL_MS) {
                    Frame::Progress(counts).encode(&mut out);
                }
            }
        }
        if !out.is_empty() {
            writer.write_all(&out).await?;
            writer.flush().await?;
            out.clear();
            last_sent = Instant::now();
        }
    };
    pipes.drain(|stream, bytes| frame(&mut out, &mut counts, stream, bytes));
    pipes.discard();
    last_frame(end, counts, begin, tree.count()).encode(&mut out);
    writer.write_all(&out).await?;
    writer.shutdown().await
}

fn frame(out: &mut BytesMut, counts: &mut ExecProgress, stream: Stream, bytes: &[u8]) {
    match stream {
        Stream::Stdout => counts.stdout_bytes += bytes.len() as u64,
        Stream::Stderr => counts.stderr_bytes += bytes.len() as u64,
    }
    Frame::Output(stream, bytes::Bytes::copy_from_slice(bytes)).encode(out);
}

fn last_frame(end: TreeState, counts: ExecProgress, begin: Instant, still_running: u32) -> Frame {
    let Some(exit) = end.exit else {
        return Frame::Failed(AgentError::new(
            hotcell_agent_proto::AgentErrorCode::Internal,
            "the process that runs the stream died",
        ));
    };
    Frame::Exit(ExecExit {
        exit_code: Some(Exit::code(exit)),
        signal: exit.signal_name(),
        timed_out: false,
        stdout_bytes: counts.stdout_bytes,
        stderr_bytes: counts.stderr_bytes,
        stdout_dropped_bytes: 0,
        stderr_dropped_bytes: 0,
        // What it left is ended right after this.
        still_running,
        duration_ms: u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX),
        notes: Vec::new(),
    })
}
