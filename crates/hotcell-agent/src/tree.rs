//! Process trees: starting one below a shim, following it, ending it.
//!
//! ```text
//!  start ──> running ──> exited, something remains ──> gone
//!              │  └────────────────────────────────────^
//!              └──> lost (user code killed the shim; what was below it is now below us)
//! ```

use std::{
    collections::{HashMap, HashSet},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::Duration,
};

use hotcell_agent_proto::{AgentError, AgentErrorCode};
use hotcell_types::limits::KILL_GRACE_MS;
use hotcell_types::limits::agent::{
    KILL_LIMIT_MS, KILL_ROUND_MS, MAX_FREEZE_ROUNDS, MAX_SPAWN_ATTEMPTS,
};
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, kill_process_group, wait};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

use crate::{
    exit::Exit,
    pool::{Pool, Shim, lock},
    process::{Process, descendants, signal as signal_all},
    shim::wire::{Event, Spec},
};

/// Whose tree it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeKind {
    /// A `bash` call's, or what it left in the background.
    Call,
    /// A job's.
    Job,
    /// A byte stream's.
    Stdio,
    /// A shell that waits for a call.
    Ahead,
}

/// Where a tree stands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TreeState {
    /// How its first process ended.
    pub(crate) exit: Option<Exit>,
    /// Nothing of it is left.
    pub(crate) gone: bool,
    /// Its shim died under it.
    pub(crate) lost: bool,
}

/// One tree.
#[derive(Debug)]
pub(crate) struct Tree {
    shim: Pid,
    /// The process group of its first process.
    group: Option<Pid>,
    kind: Mutex<TreeKind>,
    state: watch::Receiver<TreeState>,
    ending: Ending,
}

/// All trees that are not gone.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    by_shim: Mutex<HashMap<i32, Arc<Tree>>>,
    ending: Ending,
}

impl Trees {
    /// Waits until no tree is being ended any more; whether one was.
    pub(crate) async fn settled(&self) -> bool {
        let mut ending = self.ending.0.subscribe();
        let is_ending = *ending.borrow() > 0;
        let limit = Duration::from_millis(KILL_LIMIT_MS);
        let _ = timeout(limit, ending.wait_for(|count| *count == 0)).await;
        is_ending
    }

    /// Those of this kind.
    pub(crate) fn of_kind(&self, kind: TreeKind) -> Vec<Arc<Tree>> {
        lock(&self.by_shim)
            .values()
            .filter(|tree| *lock(&tree.kind) == kind)
            .cloned()
            .collect()
    }
}

/// Why nothing was started.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The working directory cannot be entered.
    BadCwd(std::io::Error),
    /// The program cannot be executed.
    Spawn(std::io::Error),
    /// There is no process to do it.
    Refused(AgentError),
}

fn is_exhaustion(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AGAIN, Errno::NOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl StartError {
    /// Whether there were too many processes.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Self::BadCwd(_) => false,
            Self::Spawn(error) => is_exhaustion(error),
            Self::Refused(error) => error.code == AgentErrorCode::Busy,
        }
    }

    /// As it is told to the daemon.
    pub(crate) fn into_agent_error(self, cwd: &[u8], program: &[u8]) -> AgentError {
        match self {
            Self::Refused(error) => error,
            Self::BadCwd(error) => AgentError::new(
                AgentErrorCode::BadCwd,
                format!("cannot run in {}: {error}", String::from_utf8_lossy(cwd)),
            ),
            Self::Spawn(error) => {
                let code = if is_exhaustion(&error) {
                    AgentErrorCode::Busy
                } else {
                    AgentErrorCode::SpawnFailed
                };
                let program = String::from_utf8_lossy(program);
                AgentError::new(code, format!("cannot start {program}: {error}"))
            }
        }
    }
}

/// Starts a process below a shim of its own. `stdio` is what it gets as 0, 1 and 2.
///
/// The start goes on when the caller is dropped meanwhile, and then ends the tree at once.
///
/// # Errors
/// See [`StartError`].
pub(crate) async fn start(
    pool: &Arc<Pool>,
    trees: &Arc<Trees>,
    kind: TreeKind,
    spec: &Spec,
    stdio: [OwnedFd; 3],
) -> Result<Arc<Tree>, StartError> {
    let spec = spec.encode().ok_or_else(|| {
        StartError::Refused(AgentError::new(
            AgentErrorCode::BadRequest,
            "arguments and environment are too long",
        ))
    })?;
    let (answer, answered) = oneshot::channel();
    tokio::spawn(own(
        Arc::clone(pool),
        Arc::clone(trees),
        kind,
        spec,
        stdio,
        answer,
    ));
    answered.await.unwrap_or_else(|_| {
        Err(StartError::Refused(AgentError::new(
            AgentErrorCode::Internal,
            "the process that starts processes died",
        )))
    })
}

/// The task that owns a shim while it has something below it.
async fn own(
    pool: Arc<Pool>,
    trees: Arc<Trees>,
    kind: TreeKind,
    spec: Vec<u8>,
    stdio: [OwnedFd; 3],
    answer: oneshot::Sender<Result<Arc<Tree>, StartError>>,
) {
    let (mut shim, child) = match spawn(&pool, &spec, &stdio).await {
        Ok(started) => started,
        Err(error) => {
            let _ = answer.send(Err(error));
            return;
        }
    };
    // The child has its own; ours would keep the pipes open.
    drop((stdio, spec));
    let (publish, state) = watch::channel(TreeState::default());
    let ending = trees.ending.clone();
    let tree = Arc::new(Tree {
        shim: shim.pid,
        group: Pid::from_raw(child),
        kind: Mutex::new(kind),
        state,
        ending,
    });
    let key = shim.pid.as_raw_nonzero().get();
    lock(&trees.by_shim).insert(key, Arc::clone(&tree));
    if let Err(Ok(unwanted)) = answer.send(Ok(tree)) {
        tokio::spawn(async move { unwanted.end().await });
    }
    pool.refill();
    let mut now = TreeState::default();
    while !now.gone && !now.lost {
        match shim.event().await {
            Some(Event::Exited(exit, remains)) => {
                now.exit = Some(exit);
                now.gone = !remains;
            }
            Some(Event::Gone) => now.gone = true,
            Some(_) | None => now.lost = true,
        }
        if now.lost {
            pool.forget(&shim);
        }
        if now.gone || now.lost {
            lock(&trees.by_shim).remove(&key);
        }
        publish.send_replace(now);
    }
    if now.gone {
        pool.give_back(shim);
    } else {
        end_orphans(&pool).await;
    }
}

async fn spawn(pool: &Pool, spec: &[u8], stdio: &[OwnedFd; 3]) -> Result<(Shim, i32), StartError> {
    for _ in 0..MAX_SPAWN_ATTEMPTS {
        let mut shim = pool.take().map_err(StartError::Refused)?;
        let event = match shim.send(spec, stdio).await {
            Ok(()) => shim.event().await,
            Err(_) => None,
        };
        let error = |errno| std::io::Error::from_raw_os_error(errno);
        let failure = match event {
            Some(Event::Started(child)) => return Ok((shim, child)),
            Some(Event::BadCwd(errno)) => StartError::BadCwd(error(errno)),
            Some(Event::SpawnFailed(errno)) => StartError::Spawn(error(errno)),
            // User code killed it while it was idle; it had started nothing that it told of.
            _ => {
                pool.forget(&shim);
                continue;
            }
        };
        pool.give_back(shim);
        return Err(failure);
    }
    Err(StartError::Refused(AgentError::new(
        AgentErrorCode::Internal,
        "the processes that start processes die",
    )))
}

impl Tree {
    /// Where it stands.
    pub(crate) fn state(&self) -> watch::Receiver<TreeState> {
        self.state.clone()
    }

    /// It is another's from now on.
    pub(crate) fn becomes(&self, kind: TreeKind) {
        *lock(&self.kind) = kind;
    }

    /// How many processes of it live.
    pub(crate) fn count(&self) -> u32 {
        let living = self
            .processes()
            .iter()
            .filter(|process| process.alive)
            .count();
        u32::try_from(living).unwrap_or(u32::MAX)
    }

    fn processes(&self) -> Vec<Process> {
        // Once it is over, its process id may be somebody else's.
        let state = *self.state.borrow();
        if state.gone || state.lost {
            Vec::new()
        } else {
            descendants(self.shim, |_| false)
        }
    }

    /// Signals the group that most trees are: without a look at `/proc`, which may take
    /// seconds while a fork bomb has the processor.
    /// Returns the group that got it.
    fn signal_group(&self, signal: Signal) -> Option<i32> {
        // Once its first process has ended the number may be somebody else's.
        let group = self.group.filter(|_| self.state.borrow().exit.is_none())?;
        kill_process_group(group, signal).ok()?;
        Some(group.as_raw_nonzero().get())
    }

    /// Ends it: TERM, a grace, then KILL until nothing is left or the agent gives up.
    pub(crate) async fn end(&self) {
        let _ending = self.ending.begin();
        let mut state = self.state();
        let told = self.signal_group(Signal::TERM);
        let processes = self.processes();
        // A second TERM would cut short what the first has a shell do before it ends.
        let others: Vec<Process> = processes
            .iter()
            .filter(|process| Some(process.group) != told)
            .copied()
            .collect();
        signal_all(&others, self.shim, Signal::TERM);
        // A stopped process takes its TERM only once it goes on.
        signal_all(&processes, self.shim, Signal::CONT);
        let over = async |state: &mut watch::Receiver<TreeState>| {
            let _ = state.wait_for(|state| state.gone || state.lost).await;
        };
        if timeout(Duration::from_millis(KILL_GRACE_MS), over(&mut state))
            .await
            .is_ok()
        {
            return;
        }
        let give_up = Instant::now() + Duration::from_millis(KILL_LIMIT_MS);
        let mut pause = Duration::from_millis(KILL_ROUND_MS);
        let mut is_first = true;
        self.signal_group(Signal::KILL);
        while Instant::now() < give_up {
            kill(|| self.processes(), self.shim, is_first).await;
            is_first = false;
            if timeout(pause, over(&mut state)).await.is_ok() {
                return;
            }
            pause *= 2;
        }
    }
}

/// Kills. Where a first round was not enough, something forks into groups of its own: then
/// everything is stopped first, so that nothing can fork away from under the killing.
async fn kill(processes: impl Fn() -> Vec<Process>, keep: Pid, is_first: bool) {
    let mut stopped = HashSet::new();
    for _ in 0..if is_first { 0 } else { MAX_FREEZE_ROUNDS } {
        let fresh: Vec<Process> = processes()
            .into_iter()
            .filter(|process| process.alive && stopped.insert(process.pid))
            .collect();
        if fresh.is_empty() {
            break;
        }
        signal_all(&fresh, keep, Signal::STOP);
        tokio::task::yield_now().await;
    }
    signal_all(&processes(), keep, Signal::KILL);
}

/// Ends what a dead shim left: all that is below the agent and below no shim it knows.
async fn end_orphans(pool: &Pool) {
    let orphans = || {
        descendants(getpid(), |pid| pool.knows(pid))
            .into_iter()
            .filter(|process| process.alive)
            .collect::<Vec<_>>()
    };
    let give_up = Instant::now() + Duration::from_millis(KILL_LIMIT_MS);
    let mut pause = Duration::from_millis(KILL_ROUND_MS);
    let mut is_first = true;
    while Instant::now() < give_up && !orphans().is_empty() {
        kill(orphans, getpgrp(), is_first).await;
        is_first = false;
        // Nothing tells when they are reaped but the next look.
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// Counts the trees that are being ended.
#[derive(Debug, Clone)]
struct Ending(Arc<watch::Sender<usize>>);

impl Default for Ending {
    fn default() -> Self {
        Self(Arc::new(watch::channel(0).0))
    }
}

impl Ending {
    fn begin(&self) -> EndingGuard {
        self.0.send_modify(|count| *count += 1);
        EndingGuard(self.clone())
    }
}

struct EndingGuard(Ending);

impl Drop for EndingGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Reaps dead shims and orphans from now on.
///
/// # Errors
/// When the signal cannot be watched.
pub(crate) fn reap_everything() -> std::io::Result<()> {
    let mut children = signal(SignalKind::child())?;
    tokio::spawn(async move {
        loop {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            if children.recv().await.is_none() {
                return;
            }
        }
    });
    Ok(())
}
