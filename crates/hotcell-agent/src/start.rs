//! Getting started: hiding the key, then serving.
//!
//! ```text
//! runtime ─ exec ─> hotcell-agent          environment holds the key
//!                     │ key into a pipe, pipe becomes stdin
//!                     └ exec ─> hotcell-agent serve   environment without the key,
//!                                                     not dumpable, key read from stdin
//! ```
//!
//! `/proc/PID/environ` shows what a process was executed with, for as long as it lives; only
//! a new execution gets rid of it. Not being dumpable keeps user code of the same user id
//! from reading `/proc/1/mem` or tracing the agent.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use hotcell_agent_proto::{AGENT_PATH, KEY_VARIABLE};
use hotcell_types::limits::agent as limits;
use rustix::{
    fs::Mode,
    pipe::{PipeFlags, pipe_with},
    process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior, umask},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    agent::Agent,
    complain,
    config::{Config, ConfigError},
    http, tree,
};

/// The first life: moves the key out of the environment and executes itself anew.
pub(crate) fn hand_over_key() -> ExitCode {
    fail(match execute_without_key() {
        Ok(never) => match never {},
        Err(error) => error,
    })
}

/// The second life: the agent itself.
pub(crate) fn serve() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn fail(ConfigError(message): ConfigError) -> ExitCode {
    complain(&message);
    ExitCode::FAILURE
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> ConfigError {
    move |error| ConfigError(format!("{what}: {error}"))
}

fn execute_without_key() -> Result<std::convert::Infallible, ConfigError> {
    let key = std::env::var(KEY_VARIABLE)
        .map_err(|_| ConfigError(format!("{KEY_VARIABLE} is not set")))?;
    check_key(&key)?;
    // Complains here, while whoever started it still looks.
    Config::from_env()?;
    let (reader, writer) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed("cannot make a pipe")(e.into()))?;
    File::from(writer)
        .write_all(key.as_bytes())
        .map_err(failed("cannot pass the key on"))?;
    let error = Command::new(own_executable())
        .arg0("hotcell-agent")
        .arg("serve")
        .env_remove(KEY_VARIABLE)
        .stdin(reader)
        .exec();
    Err(failed("cannot execute itself")(error))
}

fn check_key(key: &str) -> Result<(), ConfigError> {
    if key.len() >= 32
        && key.len() <= limits::MAX_KEY_BYTES
        && key.bytes().all(|b| b.is_ascii_graphic())
    {
        Ok(())
    } else {
        Err(ConfigError(format!("{KEY_VARIABLE} is no key")))
    }
}

fn own_executable() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from(AGENT_PATH))
}

fn read_key() -> Result<String, ConfigError> {
    let mut key = String::new();
    std::io::stdin()
        .lock()
        .take(limits::MAX_KEY_BYTES as u64 + 1)
        .read_to_string(&mut key)
        .map_err(failed("cannot read the key"))?;
    check_key(&key)?;
    let null = File::open("/dev/null").map_err(failed("cannot open /dev/null"))?;
    rustix::stdio::dup2_stdin(null).map_err(|e| failed("cannot close the key")(e.into()))?;
    Ok(key)
}

fn run() -> Result<(), ConfigError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| failed("cannot hide its memory")(e.into()))?;
    let key = read_key()?;
    umask(Mode::from_raw_mode(0o022));
    let is_init = getpid().is_init();
    if !is_init {
        // Orphans of a killed shim must come here, as they do to PID 1.
        set_child_subreaper(Some(getpid()))
            .map_err(|e| failed("cannot adopt orphans")(e.into()))?;
    }
    let config = Config::from_env()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(limits::MAX_FILE_THREADS)
        .thread_keep_alive(Duration::from_millis(limits::FILE_THREAD_IDLE_MS))
        .build()
        .map_err(failed("cannot start the event loop"))?;
    runtime.block_on(run_agent(config, key, is_init))
}

async fn run_agent(config: Config, key: String, is_init: bool) -> Result<(), ConfigError> {
    tree::reap_everything().map_err(failed("cannot watch its children"))?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(failed("cannot listen"))?;
    let address = listener.local_addr().map_err(failed("cannot listen"))?;
    if config.listen.port() == 0 {
        let mut stdout = std::io::stdout();
        writeln!(stdout, "listening {address}")
            .and_then(|()| stdout.flush())
            .map_err(failed("cannot say where it listens"))?;
    }
    let lease = config.lease.clone();
    let agent = Arc::new(Agent::new(config, key, own_executable()));
    complain(&format!("{lease} listening on {address}"));
    agent.pool.refill();
    agent.ahead.fill(&agent);
    let serve = http::serve(listener, Arc::clone(&agent));
    if is_init {
        // The kernel shields PID 1 from signals that it does not handle: user code must not
        // be able to end it, and whoever ends a sandbox from outside uses KILL.
        serve.await;
        return Ok(());
    }
    let mut terminate =
        signal(SignalKind::terminate()).map_err(failed("cannot watch for signals"))?;
    tokio::select! {
        () = serve => {}
        _ = terminate.recv() => {
            agent.end_everything().await;
        }
    }
    Ok(())
}
