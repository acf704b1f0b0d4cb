//! The agent's state: what every request works on.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use hotcell_agent_proto::{AgentError, AgentErrorCode, Restarted};
use hotcell_types::limits::MAX_CALLS_PER_SANDBOX;
use hotcell_types::limits::agent::MAX_NONCES;
use hotcell_wire::NonceCache;
use tokio::task::JoinSet;

use crate::{
    ahead::Ahead,
    config::Config,
    environment::{self, User, Variables},
    health,
    job::Jobs,
    pool::Pool,
    run_dir::RunDir,
    shell::{Shell, path_bytes},
    tree::{Tree, TreeKind, Trees},
};

/// Everything that requests share.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) key: Key,
    pub(crate) nonces: Mutex<NonceCache>,
    pub(crate) user: User,
    pub(crate) base: Variables,
    pub(crate) pool: Arc<Pool>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) shell: Shell,
    pub(crate) ahead: Ahead,
    pub(crate) jobs: Jobs,
    pub(crate) writable_read_only_mounts: Vec<String>,
    calls: AtomicUsize,
    begun: AtomicUsize,
}

/// The key text; never shown.
pub(crate) struct Key(String);

impl Key {
    /// The text, to check a signature with.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The right to run one call.
#[derive(Debug)]
pub(crate) struct CallSlot(Arc<Agent>);

impl Drop for CallSlot {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Agent {
    pub(crate) fn new(config: Config, key: String, executable: PathBuf) -> Self {
        let user = User::current();
        let base = environment::base(&config, &user);
        let run = RunDir::new(config.run.clone(), &config.workspace);
        Self {
            key: Key(key),
            nonces: Mutex::new(NonceCache::with_capacity(MAX_NONCES)),
            user,
            pool: Arc::new(Pool::new(executable)),
            trees: Arc::default(),
            shell: Shell::new(base.clone(), run),
            ahead: Ahead::default(),
            base,
            jobs: Jobs::default(),
            writable_read_only_mounts: health::writable_read_only_mounts(),
            calls: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            config,
        }
    }

    /// Takes the right to run one more call.
    ///
    /// # Errors
    /// [`AgentErrorCode::Busy`] when [`MAX_CALLS_PER_SANDBOX`] run.
    pub(crate) fn call_slot(self: &Arc<Self>) -> Result<CallSlot, AgentError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) >= MAX_CALLS_PER_SANDBOX {
            self.calls.fetch_sub(1, Ordering::Relaxed);
            return Err(AgentError::new(
                AgentErrorCode::Busy,
                format!("{MAX_CALLS_PER_SANDBOX} calls run already"),
            ));
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(CallSlot(Arc::clone(self)))
    }

    /// How many calls have begun; wraps.
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many calls run.
    pub(crate) fn calls(&self) -> u32 {
        u32::try_from(self.calls.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Where commands start when nothing says otherwise.
    pub(crate) fn workspace(&self) -> Vec<u8> {
        path_bytes(&self.config.workspace)
    }

    /// Ends every call and what calls left in the background, and forgets the shell state.
    pub(crate) async fn restart_shell(&self) -> u32 {
        self.shell.forget();
        self.ahead.discard().await;
        end_all(self.trees.of_kind(TreeKind::Call)).await
    }

    /// The same for jobs too.
    pub(crate) async fn restart(&self) -> Restarted {
        self.shell.forget();
        self.ahead.discard().await;
        self.jobs.stop_all();
        let mut trees = self.trees.of_kind(TreeKind::Call);
        trees.extend(self.trees.of_kind(TreeKind::Job));
        Restarted {
            ended: end_all(trees).await,
        }
    }

    /// Ends whatever runs, before the agent itself ends.
    pub(crate) async fn end_everything(&self) {
        let kinds = [
            TreeKind::Call,
            TreeKind::Job,
            TreeKind::Stdio,
            TreeKind::Ahead,
        ];
        end_all(
            kinds
                .into_iter()
                .flat_map(|kind| self.trees.of_kind(kind))
                .collect(),
        )
        .await;
    }
}

/// Ends trees; returns how many processes lived in them before.
async fn end_all(trees: Vec<Arc<Tree>>) -> u32 {
    let lived = trees
        .iter()
        .map(|tree| tree.count())
        .fold(0, u32::saturating_add);
    let ending: JoinSet<()> = trees
        .into_iter()
        .map(|tree| async move { tree.end().await })
        .collect();
    ending.join_all().await;
    lived
}
