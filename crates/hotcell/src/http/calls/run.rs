//! Running one call: acquire a sandbox, execute, drain, conclude.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::StreamExt;
use hotcell_agent_proto::{Command as AgentCommand, ExecExit, ExecRequest};
use hotcell_api::{
    ErrorCode,
    bash::{BashLease, BashResult, Progress, StreamName},
};
use hotcell_runtime::{ExecEvent, ExecStream, OutputStream, SandboxError};
use hotcell_types::limits::{
    AGENT_EXEC_BACKSTOP_MS, KILL_GRACE_MS, OUTPUT_FLUSH_MS, OUTPUT_PIECE_BYTES,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Call,
    call::Outcome,
    keyed::kept,
    output::{Output, OutputEnd},
};
use crate::{
    handles::{ActiveSandbox, Caller},
    http::{
        App,
        error::{ApiError, ended, sandbox_failed},
        idempotency::Ticket,
    },
};

/// What a call runs.
pub(in crate::http) struct Command {
    /// The text of a bash script.
    pub(in crate::http) text: String,
    /// How long it may run.
    pub(in crate::http) timeout_ms: u64,
    /// Whether to begin anew.
    pub(in crate::http) restart: bool,
}

/// A call whose task dies has ended all the same.
struct Ending<'c>(&'c Call);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end(Err(ApiError::new(
            ErrorCode::Internal,
            "Something went wrong inside the server. Its journal has more under this request id.",
        )));
    }
}

/// Runs a call to its end.
pub(super) async fn run(
    app: &Arc<App>,
    call: &Call,
    caller: &Caller,
    command: Command,
    ticket: Option<Ticket>,
    stopping: &CancellationToken,
) {
    let _ending = Ending(call);
    let mut may_have_run = false;
    let work = async {
        let active = app.sandboxes.acquire(caller).await?;
        if let Some(ticket) = &ticket {
            ticket.act().await?;
        }
        may_have_run = true;
        let since = app.sandboxes.network_cursor();
        let notes = || app.sandboxes.network_notes(&active.lease, since);
        execute(call, &active, command, notes).await
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = stopping.cancelled() => Err(ApiError::new(
            ErrorCode::ShuttingDown,
            "The server is shutting down, so the command was ended.",
        )),
    };
    if let Some(ticket) = ticket {
        // Before anybody is answered: a repeat after the answer finds it.
        if may_have_run {
            ticket.finish(kept(call.id(), &outcome)).await;
        } else {
            ticket.release().await;
        }
    }
    call.end(outcome);
}

async fn execute(
    call: &Call,
    active: &ActiveSandbox,
    command: Command,
    notes: impl Fn() -> Vec<String>,
) -> Outcome {
    let timeout_ms = command.timeout_ms;
    let request = ExecRequest {
        call: call.id().clone(),
        command: AgentCommand::Shell(command.text),
        cwd: None,
        user: None,
        env: std::collections::BTreeMap::new(),
        timeout_ms,
        restart: command.restart,
    };
    let mut outputs = Outputs::default();
    let exit = match active.sandbox.exec(request).await {
        Ok(events) => {
            call.admitted();
            drain(call, &mut outputs, events, timeout_ms).await
        }
        Err(error) => Err(error),
    };
    match exit {
        Ok(mut exit) => {
            exit.notes.extend(notes());
            Ok(Arc::new(outputs.conclude(call, active, exit)))
        }
        Err(error) => {
            outputs.tell(call);
            Err(failed(active, &error).await)
        }
    }
}

/// What a sandbox's failure means: its end, if the runtime knows of one.
pub(in crate::http) async fn failed(active: &ActiveSandbox, error: &SandboxError) -> ApiError {
    // A sandbox that answers with a refusal is there.
    let gone = match error {
        SandboxError::Agent(_) | SandboxError::TooLarge(_) => None,
        SandboxError::Lost(_) | SandboxError::Protocol(_) | SandboxError::Timeout(_) => {
            active.why_lost().await
        }
    };
    match gone {
        Some(reason) => ended(&reason),
        None => sandbox_failed(error),
    }
}

#[derive(Default)]
struct Outputs {
    stdout: Output,
    stderr: Output,
}

impl Outputs {
    fn of(&mut self, stream: OutputStream) -> (&mut Output, StreamName) {
        match stream {
            OutputStream::Stdout => (&mut self.stdout, StreamName::Stdout),
            OutputStream::Stderr => (&mut self.stderr, StreamName::Stderr),
        }
    }

    fn tell(&mut self, call: &Call) {
        call.piece(StreamName::Stdout, self.stdout.take());
        call.piece(StreamName::Stderr, self.stderr.take());
    }

    fn conclude(&mut self, call: &Call, active: &ActiveSandbox, exit: ExecExit) -> BashResult {
        let stdout: OutputEnd = self.stdout.finish(exit.stdout_dropped_bytes);
        let stderr: OutputEnd = self.stderr.finish(exit.stderr_dropped_bytes);
        self.tell(call);
        BashResult {
            call: call.id().clone(),
            exit_code: exit.exit_code,
            signal: exit.signal,
            timed_out: exit.timed_out,
            stdout: call.text(StreamName::Stdout),
            stderr: call.text(StreamName::Stderr),
            stdout_dropped_bytes: stdout.dropped_bytes,
            stderr_dropped_bytes: stderr.dropped_bytes,
            stdout_base64: stdout.base64,
            stderr_base64: stderr.base64,
            still_running: exit.still_running,
            duration_ms: exit.duration_ms,
            notes: exit.notes,
            lease: BashLease {
                id: active.lease.clone(),
                fresh: active.fresh,
            },
        }
    }
}

/// Takes events until the exit. Small pieces of output wait a moment for more.
async fn drain(
    call: &Call,
    outputs: &mut Outputs,
    mut events: ExecStream,
    timeout_ms: u64,
) -> Result<ExecExit, SandboxError> {
    // The sandbox keeps the command's time; this is for one that does not.
    let patience_ms = timeout_ms
        .saturating_add(KILL_GRACE_MS)
        .saturating_add(2 * AGENT_EXEC_BACKSTOP_MS);
    let mut backstop = pin!(tokio::time::sleep(Duration::from_millis(patience_ms)));
    let mut flush = pin!(tokio::time::sleep(Duration::ZERO));
    let mut waiting = false;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(ExecEvent::Output(stream, bytes))) => {
                    let (output, name) = outputs.of(stream);
                    output.push(&bytes);
                    if output.pending_bytes() >= OUTPUT_PIECE_BYTES {
                        call.piece(name, output.take());
                    } else if output.pending_bytes() > 0 && !waiting {
                        waiting = true;
                        flush.as_mut().reset(Instant::now() + Duration::from_millis(OUTPUT_FLUSH_MS));
                    }
                }
                Some(Ok(ExecEvent::Progress(progress))) => call.progress(Progress {
                    stdout_bytes: progress.stdout_bytes,
                    stderr_bytes: progress.stderr_bytes,
                }),
                Some(Ok(ExecEvent::Exit(exit))) => return Ok(exit),
                Some(Err(error)) => return Err(error),
                None => return Err(SandboxError::Lost("its answer ended without an exit".to_owned())),
            },
            () = &mut flush, if waiting => {
                waiting = false;
                outputs.tell(call);
            }
            () = &mut backstop => return Err(SandboxError::Timeout(patience_ms)),
        }
    }
}
