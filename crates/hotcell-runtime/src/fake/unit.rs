//! One sandbox of the fake, and its runs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use hotcell_types::{AgentKey, limits, volume::WORKSPACE_PATH};
use tokio::{sync::watch, time::Instant};

use crate::{
    Labels, ObservedState, RuntimeError, SandboxEnd, SandboxSpec, Stats, WarmSpec,
    fake::{files::Files, jobs::Jobs, lock},
};

/// What the shell keeps from call to call.
#[derive(Clone)]
pub(super) struct Shell {
    pub(super) cwd: String,
    pub(super) env: BTreeMap<String, String>,
}

impl Default for Shell {
    fn default() -> Self {
        Self {
            cwd: WORKSPACE_PATH.to_owned(),
            env: BTreeMap::new(),
        }
    }
}

/// From a start to its end.
pub(super) struct Run {
    pub(super) key: AgentKey,
    pub(super) since: Instant,
    pub(super) shell: Mutex<Shell>,
    pub(super) jobs: Jobs,
    /// Counts restarts; a call ends when it moves.
    pub(super) restarts: watch::Sender<u64>,
    /// Set once, when the run is over.
    pub(super) end: watch::Sender<Option<SandboxEnd>>,
    pub(super) calls: AtomicU32,
    /// When what was left in the background ends.
    pub(super) background: Mutex<Vec<Instant>>,
}

impl Run {
    fn new(key: &AgentKey) -> Self {
        Self {
            key: key.clone(),
            since: Instant::now(),
            shell: Mutex::default(),
            jobs: Jobs::default(),
            restarts: watch::Sender::new(0),
            end: watch::Sender::new(None),
            calls: AtomicU32::new(0),
            background: Mutex::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Processes that still run in the background.
    pub(super) fn in_background(&self) -> u32 {
        let now = Instant::now();
        let mut background = lock(&self.background);
        background.retain(|end| *end > now);
        u32::try_from(background.len()).unwrap_or(u32::MAX)
    }

    /// Ends every call, job and background process. Returns how many there were.
    pub(super) fn restart(&self) -> u32 {
        let ended = self.calls.load(Ordering::Relaxed) + self.in_background();
        lock(&self.background).clear();
        *lock(&self.shell) = Shell::default();
        self.restarts.send_modify(|count| *count += 1);
        ended + self.jobs.stop_all()
    }
}

/// Counts a call for as long as it lives.
pub(super) struct CallGuard(Arc<Run>);

impl CallGuard {
    /// `None` when too many calls run.
    pub(super) fn new(run: &Arc<Run>) -> Option<Self> {
        let limit = u32::try_from(limits::MAX_CALLS_PER_SANDBOX).unwrap_or(u32::MAX);
        run.calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |calls| {
                (calls < limit).then_some(calls + 1)
            })
            .ok()
            .map(|_| Self(Arc::clone(run)))
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One sandbox.
pub(super) struct Unit {
    labels: Mutex<Option<Labels>>,
    /// What it was made ahead as, until it is claimed.
    warm: Mutex<Option<WarmSpec>>,
    pub(super) files: Mutex<Files>,
    run: Mutex<Option<Arc<Run>>>,
}

impl Unit {
    pub(super) fn new(spec: &SandboxSpec) -> Self {
        Self {
            labels: Mutex::new(Some(spec.labels.clone())),
            warm: Mutex::default(),
            files: Mutex::new(Files::new(spec.mounts.clone(), spec.scratch_bytes)),
            run: Mutex::default(),
        }
    }

    pub(super) fn planted(labels: Option<Labels>) -> Self {
        Self {
            labels: Mutex::new(labels),
            warm: Mutex::default(),
            files: Mutex::new(Files::new(Vec::new(), limits::DEFAULT_SCRATCH_BYTES)),
            run: Mutex::default(),
        }
    }

    pub(super) fn ahead(spec: &WarmSpec) -> Self {
        Self {
            labels: Mutex::default(),
            warm: Mutex::new(Some(spec.clone())),
            files: Mutex::new(Files::new(Vec::new(), spec.scratch_bytes)),
            run: Mutex::default(),
        }
    }

    pub(super) fn labels(&self) -> Option<Labels> {
        lock(&self.labels).clone()
    }

    pub(super) fn is_unclaimed(&self) -> bool {
        lock(&self.warm).is_some()
    }

    /// Writes down who claims it, if it is what that one asks for.
    pub(super) fn label(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let warm = lock(&self.warm);
        let fits = warm.as_ref().is_some_and(|warm| {
            warm.image == spec.image
                && warm.resources == spec.resources
                && warm.scratch_bytes == spec.scratch_bytes
                && warm.network == spec.network
        });
        if !fits || self.state() != ObservedState::Running {
            return Err(RuntimeError::Failed {
                action: "claim the sandbox",
                reason: "it is not what is asked for".into(),
            });
        }
        *lock(&self.labels) = Some(spec.labels.clone());
        Ok(())
    }

    /// Attaches its volumes, which makes it claimed.
    pub(super) fn attach(&self, spec: &SandboxSpec) {
        lock(&self.files).attach(spec.mounts.clone());
        lock(&self.warm).take();
    }

    pub(super) fn state(&self) -> ObservedState {
        match &*lock(&self.run) {
            None => ObservedState::Created,
            Some(run) if run.is_over() => ObservedState::Stopped,
            Some(_) => ObservedState::Running,
        }
    }

    /// Starts it, unless it runs.
    pub(super) fn start(&self, key: &AgentKey) {
        let mut run = lock(&self.run);
        if run.as_ref().is_none_or(|run| run.is_over()) {
            *run = Some(Arc::new(Run::new(key)));
        }
    }

    /// Ends its run. Returns whether there was one.
    pub(super) fn end(&self, end: SandboxEnd) -> bool {
        let run = lock(&self.run).clone();
        run.is_some_and(|run| {
            let ran = run.end.send_if_modified(|slot| {
                let first = slot.is_none();
                slot.get_or_insert(end);
                first
            });
            if ran {
                run.jobs.abandon();
            }
            ran
        })
    }

    /// How its last run ended, once it has.
    pub(super) async fn ended(&self) -> SandboxEnd {
        let run = lock(&self.run).clone();
        let Some(run) = run else {
            // Never started: there is nothing to wait for.
            return SandboxEnd::Stopped;
        };
        let mut end = run.end.subscribe();
        let end = end.wait_for(Option::is_some).await;
        end.ok()
            .and_then(|end| end.clone())
            .unwrap_or(SandboxEnd::Lost)
    }

    /// The run that is going on.
    pub(super) fn running(&self) -> Option<Arc<Run>> {
        lock(&self.run).clone().filter(|run| !run.is_over())
    }

    pub(super) fn stats(&self) -> Stats {
        let memory_bytes = lock(&self.files).used_bytes();
        match self.running() {
            None => Stats::default(),
            Some(run) => Stats {
                memory_bytes,
                cpu_ms: 0,
                pids: 1 + run.calls.load(Ordering::Relaxed) + run.in_background(),
            },
        }
    }
}
