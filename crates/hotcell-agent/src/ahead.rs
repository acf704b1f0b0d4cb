//! The shell of the next call, started while nobody waits for it.
//!
//! ```text
//!  call ends, a moment's rest ──> prelude for the state it left, bash started, waits in the prelude
//!                  │
//!  next call ──> text into its file ── one line on its stdin ──> goes on, opens the file
//! ```
//!
//! Most of what a small command costs is the start of its shell. One shell waits with the working
//! directory and exports of the call before; its stdin is a pipe until it goes on. It is used by a call
//! that starts with just that: no directory or variables of its own, and no trap to be watched. Every
//! other call is started as if there were none.
//!
//! It is of the user's own processes, so user code may kill or stop it: one that has ended is not used,
//! and a call that was handed to one that is stopped runs into its own time limit, as a call whose
//! shell is stopped later does.

use std::{
    ffi::OsStr,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use hotcell_types::limits::agent::{AHEAD_PATIENCE_MS, AHEAD_PAUSE_MS};
use tokio::{
    net::unix::pipe::Sender,
    sync::{Mutex, MutexGuard},
    time::timeout,
};

use crate::{
    agent::Agent,
    call::Running,
    environment,
    pump::{Pipes, Stdio},
    shell::Prepared,
    shim::wire::Spec,
    tree::{self, Tree, TreeKind},
};

/// The shell that waits, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Locked while one is being started.
    waiting: Mutex<Option<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    tree: Arc<Tree>,
    pipes: Pipes,
    /// Closed without a line it makes the shell exit.
    gate: Sender,
    prepared: Prepared,
    cwd: Vec<u8>,
    /// Which directory that was.
    place: Place,
}

/// Device and number of a directory.
type Place = (u64, u64);

fn place_of(path: &[u8]) -> Option<Place> {
    let found = std::fs::metadata(Path::new(OsStr::from_bytes(path))).ok()?;
    Some((found.dev(), found.ino()))
}

impl Ahead {
    /// Not for ever: user code may stop the process that starts it.
    async fn lock(&self) -> Option<MutexGuard<'_, Option<Waiting>>> {
        let patience = Duration::from_millis(AHEAD_PATIENCE_MS);
        timeout(patience, self.waiting.lock()).await.ok()
    }

    /// Hands a command to the shell that waits. `None` when there is none for it: then the call has to
    /// be started.
    pub(crate) async fn take(&self, agent: &Agent, text: &str) -> Option<Running> {
        let waiting = self.lock().await?.take()?;
        let state = *waiting.tree.state().borrow();
        let lives = state.exit.is_none() && !state.gone && !state.lost;
        // The directory that the shell is in may have another name by now, or none.
        if !lives || place_of(&waiting.cwd) != Some(waiting.place) {
            return None;
        }
        // What is wrong with the text is told by the call that is started.
        if !matches!(agent.shell.hand_over(&waiting.prepared, text), Ok(true)) {
            return None;
        }
        waiting.tree.becomes(TreeKind::Call);
        if !matches!(waiting.gate.try_write(b"\n"), Ok(1)) {
            waiting.tree.becomes(TreeKind::Ahead);
            return None;
        }
        Some(Running {
            tree: waiting.tree,
            pipes: waiting.pipes,
            epoch: waiting.prepared.epoch(),
            shell: Some(waiting.prepared),
            note: None,
        })
    }

    /// Lets the shell that waits exit.
    pub(crate) async fn discard(&self) {
        if let Some(mut waiting) = self.lock().await {
            waiting.take();
        }
    }

    /// Starts a shell in the background, once no call has come for a moment, unless the right one
    /// waits. A failure is none: the next call starts its own, and tells.
    ///
    /// A call that comes at once would wait for this start as long as for its own, and whoever carries
    /// its answer has the processors meanwhile.
    pub(crate) fn refill_at_rest(&self, agent: &Arc<Agent>) {
        let agent = Arc::clone(agent);
        tokio::spawn(async move {
            let begun = agent.begun();
            tokio::time::sleep(Duration::from_millis(AHEAD_PAUSE_MS)).await;
            // The end of a later call comes here as well.
            if agent.begun() == begun && agent.calls() == 0 {
                refill(&agent).await;
            }
        });
    }

    /// Starts the first one.
    pub(crate) fn fill(&self, agent: &Arc<Agent>) {
        let agent = Arc::clone(agent);
        tokio::spawn(async move { refill(&agent).await });
    }
}

async fn refill(agent: &Agent) {
    let Some(mut waiting) = agent.ahead.lock().await else {
        return;
    };
    let is_right = |waiting: &Waiting| agent.shell.is_current(&waiting.prepared);
    if !waiting.as_ref().is_some_and(is_right) {
        *waiting = None;
        *waiting = start(agent).await;
    }
}

async fn start(agent: &Agent) -> Option<Waiting> {
    let mut prepared = agent.shell.prepare_ahead().ok()??;
    let cwd = prepared.cwd.take().unwrap_or_else(|| agent.workspace());
    let place = place_of(&cwd)?;
    let mut env = std::mem::take(&mut prepared.env);
    env.insert(b"PWD".to_vec(), cwd.clone());
    let spec = Spec {
        cwd: cwd.clone(),
        argv: std::mem::take(&mut prepared.argv),
        env: environment::joined(&env),
    };
    let (pipes, gate, stdio): (Pipes, Sender, Stdio) = Pipes::with_open_stdin().ok()?;
    let started = tree::start(&agent.pool, &agent.trees, TreeKind::Ahead, &spec, stdio);
    Some(Waiting {
        tree: started.await.ok()?,
        pipes,
        gate,
        prepared,
        cwd,
        place,
    })
}
