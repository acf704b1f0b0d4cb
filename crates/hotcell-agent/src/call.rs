//! One call: start it, pass its output on, tell how it ended.

use std::{sync::Arc, time::Duration};

use hotcell_agent_proto::{AgentError, AgentErrorCode, Command, ExecExit, ExecRequest};
use hotcell_types::limits::agent::ANSWER_AFTER_TIMEOUT_MS;
use hotcell_types::limits::{
    KEEP_ALIVE_INTERVAL_MS, MAX_COMMAND_TIMEOUT_MS, MAX_PATH_BYTES, PROGRESS_INTERVAL_MS,
};
use tokio::{
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};

use crate::{
    agent::{Agent, CallSlot},
    environment::{self, Variables},
    output::{FrameBody, Frames, Output},
    pump::{Pipes, Stdio},
    shell::Prepared,
    shim::wire::Spec,
    tree::{self, StartError, Tree, TreeKind, TreeState},
};

/// A command that is ready to be started.
#[derive(Debug)]
pub(crate) struct Ready {
    argv: Vec<Vec<u8>>,
    env: Variables,
    /// Where, and whether somebody asked for it.
    cwd: Vec<u8>,
    cwd_was_named: bool,
    /// The shell's epoch: a restart meanwhile ends what was about to start.
    epoch: u64,
    /// The shell's files, for a shell command; they go when this is dropped.
    pub(crate) shell: Option<Prepared>,
}

/// Checks a command and writes what it needs.
///
/// # Errors
/// [`AgentErrorCode::BadRequest`] and what [`Shell::prepare`](crate::shell::Shell::prepare)
/// refuses.
pub(crate) fn ready(
    agent: &Agent,
    command: &Command,
    cwd: Option<&str>,
    request: Variables,
    save: bool,
) -> Result<Ready, AgentError> {
    let bad = |what: &str| AgentError::new(AgentErrorCode::BadRequest, what);
    let epoch = agent.shell.epoch();
    if cwd.is_some_and(|cwd| cwd.is_empty() || cwd.len() > MAX_PATH_BYTES || cwd.contains('\0')) {
        return Err(bad("the working directory is no path"));
    }
    // A relative directory is meant from the workspace, as with files.
    let named = cwd.map(|cwd| {
        use std::os::unix::ffi::OsStrExt as _;
        agent
            .config
            .workspace
            .join(cwd)
            .as_os_str()
            .as_bytes()
            .to_vec()
    });
    let (argv, mut env, before, shell) = match command {
        Command::Shell(text) => {
            let mut prepared = agent.shell.prepare(text, request, save)?;
            let argv = std::mem::take(&mut prepared.argv);
            let env = std::mem::take(&mut prepared.env);
            let cwd = prepared.cwd.take();
            (argv, env, cwd, Some(prepared))
        }
        Command::Program(arguments) => {
            if arguments.first().is_none_or(String::is_empty) {
                return Err(bad("there is no program to run"));
            }
            if arguments.iter().any(|argument| argument.contains('\0')) {
                return Err(bad("an argument holds a NUL byte"));
            }
            let mut env = agent.base.clone();
            env.extend(request);
            let argv = arguments
                .iter()
                .map(|argument| argument.clone().into_bytes())
                .collect();
            (argv, env, agent.shell.cwd(), None)
        }
    };
    let cwd_was_named = named.is_some();
    let cwd = named.or(before).unwrap_or_else(|| agent.workspace());
    env.insert(b"PWD".to_vec(), cwd.clone());
    Ok(Ready {
        argv,
        env,
        cwd,
        cwd_was_named,
        epoch,
        shell,
    })
}

/// Starts a command in a tree of its own; also notes for whoever asked.
///
/// # Errors
/// As [`tree::start`]; a working directory that the call before left is no error.
pub(crate) async fn start(
    agent: &Agent,
    kind: TreeKind,
    ready: &Ready,
    stdio: impl Fn() -> Result<(Pipes, Stdio), AgentError>,
) -> Result<(Arc<Tree>, Pipes, Option<String>), AgentError> {
    let mut spec = Spec {
        cwd: ready.cwd.clone(),
        argv: ready.argv.clone(),
        env: environment::joined(&ready.env),
    };
    let mut note = None;
    let mut waited = false;
    loop {
        let (pipes, child) = stdio()?;
        match tree::start(&agent.pool, &agent.trees, kind, &spec, child).await {
            Ok(tree) => return Ok((tree, pipes, note)),
            Err(StartError::BadCwd(error)) if !ready.cwd_was_named && note.is_none() => {
                let workspace = agent.workspace();
                note = Some(format!(
                    "the working directory {} cannot be entered any more ({error}); ran in {}",
                    String::from_utf8_lossy(&spec.cwd),
                    String::from_utf8_lossy(&workspace),
                ));
                let mut env = ready.env.clone();
                env.insert(b"PWD".to_vec(), workspace.clone());
                spec.env = environment::joined(&env);
                spec.cwd = workspace;
            }
            // A bomb that is being killed may hold all processes there are.
            Err(error) if error.is_busy() && !waited && agent.trees.settled().await => {
                waited = true;
            }
            Err(error) => {
                let program = spec.argv.first().map_or(&[][..], Vec::as_slice);
                return Err(error.into_agent_error(&spec.cwd, program));
            }
        }
    }
}

/// Checks a time limit.
///
/// # Errors
/// [`AgentErrorCode::BadRequest`] for none or one over the limit.
pub(crate) fn time_limit(timeout_ms: u64, most_ms: u64) -> Result<Duration, AgentError> {
    if (1..=most_ms).contains(&timeout_ms) {
        Ok(Duration::from_millis(timeout_ms))
    } else {
        Err(AgentError::new(
            AgentErrorCode::BadRequest,
            format!("a time limit must be between 1 and {most_ms} ms"),
        ))
    }
}

/// `POST /v1/exec`: the body is the answer once the process runs.
///
/// # Errors
/// Whatever kept it from running.
pub(crate) async fn exec(
    agent: &Arc<Agent>,
    request: ExecRequest,
) -> Result<FrameBody, AgentError> {
    agent.user.check(request.user.as_deref())?;
    let limit = time_limit(request.timeout_ms, MAX_COMMAND_TIMEOUT_MS)?;
    let env = environment::parse(&request.env)?;
    if request.restart {
        // Before a slot is taken: what this ends frees some.
        agent.restart_shell().await;
    }
    let slot = agent.call_slot()?;
    let ahead = match &request.command {
        Command::Shell(text) if request.cwd.is_none() && env.is_empty() => {
            agent.ahead.take(agent, text).await
        }
        _ => None,
    };
    let begin = match ahead {
        Some(running) => Begin::Runs(running),
        None => {
            let cwd = request.cwd.as_deref();
            Begin::Start(ready(agent, &request.command, cwd, env, true)?)
        }
    };
    let (frames, body) = Frames::new();
    let (started, starting) = oneshot::channel();
    tokio::spawn(run(Arc::clone(agent), slot, begin, limit, frames, started));
    match starting.await {
        Ok(Ok(())) => Ok(body),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(AgentError::new(AgentErrorCode::Internal, "the call died")),
    }
}

/// How a call begins.
enum Begin {
    /// Its shell waited for it and has the command.
    Runs(Running),
    /// It has to be started.
    Start(Ready),
}

/// A call that runs.
pub(crate) struct Running {
    pub(crate) tree: Arc<Tree>,
    pub(crate) pipes: Pipes,
    /// The shell's files.
    pub(crate) shell: Option<Prepared>,
    /// As in [`Ready`].
    pub(crate) epoch: u64,
    pub(crate) note: Option<String>,
}

/// The task of one call. It ends when the shell has ended or the reader is gone.
async fn run(
    agent: Arc<Agent>,
    slot: CallSlot,
    how: Begin,
    limit: Duration,
    frames: Arc<Frames>,
    started: oneshot::Sender<Result<(), AgentError>>,
) {
    let begin = Instant::now();
    let running = match how {
        Begin::Runs(running) => Ok(running),
        Begin::Start(ready) => start(&agent, TreeKind::Call, &ready, Pipes::with_empty_stdin)
            .await
            .map(|(tree, pipes, note)| Running {
                tree,
                pipes,
                note,
                shell: ready.shell,
                epoch: ready.epoch,
            }),
    };
    let Running {
        tree,
        mut pipes,
        shell,
        epoch,
        note,
    } = match running {
        Ok(running) => running,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(()));
    if agent.shell.epoch() != epoch {
        end_in_background(&tree);
    }
    let mut output = Output::new(Arc::clone(&frames));
    let end = follow(&tree, &mut pipes, &mut output, &frames, begin + limit).await;
    pipes.drain(|stream, bytes| output.take(stream, bytes));
    pipes.discard();

    let mut notes: Vec<String> = note.into_iter().collect();
    let (state, timed_out) = match end {
        End::Lost => {
            output.fail(AgentError::new(
                AgentErrorCode::Internal,
                "the process that runs the call died",
            ));
            return;
        }
        End::Exited(state) => (state, false),
        End::TimedOut(state) => (state, true),
        End::Abandoned => {
            tree.end().await;
            return;
        }
    };
    if let Some(shell) = &shell
        && let Some(note) = agent.shell.keep(shell)
    {
        notes.push(note);
    }
    let still_running = if state.gone { 0 } else { tree.count() };
    if still_running > 0 {
        notes.push(match (timed_out, still_running) {
            (true, _) => "some of its processes have not ended yet; they are being killed".into(),
            (false, 1) => "1 process still runs in the background".into(),
            (false, n) => format!("{n} processes still run in the background"),
        });
    }
    // Before the answer goes out: whoever has it may start the next call.
    drop(slot);
    drop(shell);
    output.finish(ExecExit {
        exit_code: state.exit.filter(|_| !timed_out).map(|exit| exit.code()),
        signal: state.exit.and_then(|exit| exit.signal_name()),
        timed_out,
        stdout_bytes: 0,
        stderr_bytes: 0,
        stdout_dropped_bytes: 0,
        stderr_dropped_bytes: 0,
        still_running,
        duration_ms: u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX),
        notes,
    });
    agent.ahead.refill_at_rest(&agent);
}

/// Why a call is over.
enum End {
    /// Its shell has ended.
    Exited(TreeState),
    /// Its time ran out.
    TimedOut(TreeState),
    /// Its shim was killed.
    Lost,
    /// Nobody waits for its result.
    Abandoned,
}

async fn follow(
    tree: &Arc<Tree>,
    pipes: &mut Pipes,
    output: &mut Output,
    frames: &Frames,
    deadline: Instant,
) -> End {
    let mut state = tree.state();
    let mut timed_out = false;
    let progress = Duration::from_millis(PROGRESS_INTERVAL_MS);
    let mut ticks = interval_at(Instant::now() + progress, progress);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = Instant::now();
    let mut next = deadline;
    loop {
        let now = *state.borrow_and_update();
        if now.lost {
            return End::Lost;
        }
        if timed_out && now.gone {
            return End::TimedOut(now);
        }
        if !timed_out && now.exit.is_some() {
            return End::Exited(now);
        }
        tokio::select! {
            biased;
            _ = state.changed() => {}
            () = frames.lost() => return End::Abandoned,
            () = sleep_until(next) => {
                if timed_out {
                    return End::TimedOut(now);
                }
                timed_out = true;
                next = deadline + Duration::from_millis(ANSWER_AFTER_TIMEOUT_MS);
                end_in_background(tree);
            }
            _ = ticks.tick() => {
                let must = reported.elapsed() >= Duration::from_millis(KEEP_ALIVE_INTERVAL_MS);
                if output.report(must) {
                    reported = Instant::now();
                }
            }
            read = pipes.read() => {
                if let Some((stream, bytes)) = read {
                    output.take(stream, bytes);
                }
            }
        }
    }
}

/// Ends a tree while its caller goes on.
pub(crate) fn end_in_background(tree: &Arc<Tree>) {
    let tree = Arc::clone(tree);
    tokio::spawn(async move { tree.end().await });
}
