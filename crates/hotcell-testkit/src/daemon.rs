//! A daemon for one test.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use hotcell::{
    config::{Config, Overrides},
    handles::Sandboxes,
    serve::{Daemon, Deps, MakeRuntime},
    switches::Switches,
};
use hotcell_core::lease::LeaseLimits;
use hotcell_runtime::{Runtime, fake::FakeRuntime};
use hotcell_store::Store;
use tempfile::TempDir;

use crate::client::Client;

/// The organization that [`TestDaemon::client`] makes.
pub const ORGANIZATION: &str = "o";
/// The workspace that [`TestDaemon::client`] makes.
pub const WORKSPACE: &str = "w";

/// What a test wants of its daemon.
pub struct Options {
    /// The times of a lease.
    pub limits: LeaseLimits,
    /// Sandboxes at once.
    pub max_sandboxes: usize,
    /// Time, ids and engine; the engine is a fake when absent.
    pub deps: Deps,
    /// More configuration, as TOML; `state_dir`, `run_dir` and `listen` are the test's own.
    pub toml: String,
    /// Whether the engine is the one that the TOML names.
    pub configured_engine: bool,
    /// Where its directory is made; where temporary files are when absent.
    pub parent: Option<PathBuf>,
    /// What the environment forces.
    pub switches: Switches,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: LeaseLimits {
                start_timeout_ms: 30_000,
                idle_timeout_ms: 3_600_000,
                hard_timeout_ms: 7_200_000,
            },
            max_sandboxes: 64,
            deps: Deps::default(),
            toml: String::new(),
            configured_engine: false,
            parent: None,
            switches: Switches::default(),
        }
    }
}

/// A daemon in a directory of its own, on a port of its own. Dropping it does not shut it down;
/// its runtime's end does.
pub struct TestDaemon {
    daemon: Daemon,
    dir: TempDir,
    config: Config,
    deps: Deps,
    fake: Arc<Mutex<Option<FakeRuntime>>>,
}

impl TestDaemon {
    /// A daemon on the engine in memory.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    /// A daemon as asked for.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_with(options: Options) -> Self {
        let parent = options.parent.unwrap_or_else(std::env::temp_dir);
        let dir =
            tempfile::tempdir_in(parent).unwrap_or_else(|error| panic!("no directory: {error}"));
        let overrides = Overrides {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            state_dir: Some(dir.path().join("state")),
            run_dir: Some(dir.path().join("run")),
            switches: options.switches,
            ..Overrides::default()
        };
        let config = Config::parse(&options.toml, &overrides);
        let mut config = config.unwrap_or_else(|error| panic!("{error}"));
        config.lease = options.limits;
        // A test that ends without a shutdown would leave mounts behind.
        if !options.toml.contains("volume_bytes") {
            config.volume_bytes = None;
        }
        config.max_sandboxes = options.max_sandboxes;
        let fake: Arc<Mutex<Option<FakeRuntime>>> = Arc::default();
        let mut deps = options.deps;
        if deps.runtime.is_none() && !options.configured_engine {
            let fake = Arc::clone(&fake);
            let make: MakeRuntime = Arc::new(move |installation| {
                let mut fake = fake.lock().unwrap_or_else(PoisonError::into_inner);
                let fake = fake.get_or_insert_with(|| FakeRuntime::new(installation.clone()));
                let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
                runtime
            });
            deps.runtime = Some(make);
            if options.toml.is_empty() {
                config.runtime.image = "fake".parse().unwrap_or_else(|error| panic!("{error}"));
            }
        }
        let daemon = boot(&config, &deps).await;
        Self {
            daemon,
            dir,
            config,
            deps,
            fake,
        }
    }

    /// Shuts it down and starts another in the same directory, on the same engine.
    ///
    /// # Panics
    /// When that does not start.
    pub async fn restart(self) -> Self {
        self.restart_after(|| {}).await
    }

    /// The same, with something that happens while no daemon runs.
    ///
    /// # Panics
    /// When the next one does not start.
    pub async fn restart_after(self, meanwhile: impl FnOnce()) -> Self {
        self.daemon.shutdown().await;
        meanwhile();
        let daemon = boot(&self.config, &self.deps).await;
        Self { daemon, ..self }
    }

    /// The same as [`TestDaemon::restart`], in another environment.
    ///
    /// # Panics
    /// When that does not start.
    pub async fn restart_with(mut self, switches: Switches) -> Self {
        self.config.switches = switches;
        self.restart().await
    }

    /// The same as [`TestDaemon::restart`], with another configuration.
    ///
    /// # Panics
    /// When that does not start.
    pub async fn restart_configured(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self.restart().await
    }

    /// Shuts it down and tries to start it with a configuration that it refuses; then starts it as it was.
    /// What the refusal said.
    ///
    /// # Panics
    /// When it takes that configuration, or does not start as it was.
    pub async fn refused_with(self, config: Config) -> (String, Self) {
        self.daemon.shutdown().await;
        let started = Box::pin(Daemon::start(config, self.deps.clone())).await;
        let error = match started {
            Ok(_) => panic!("it took the configuration"),
            Err(error) => error.to_string(),
        };
        let daemon = boot(&self.config, &self.deps).await;
        (error, Self { daemon, ..self })
    }

    /// Shuts it down.
    pub async fn shutdown(self) {
        self.daemon.shutdown().await;
    }

    /// Its HTTP address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.daemon.addr()
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its directory; state in `state`, socket in `run`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.daemon.store()
    }

    /// Its sandboxes.
    #[must_use]
    pub fn sandboxes(&self) -> Sandboxes {
        self.daemon.sandboxes()
    }

    /// Its engine in memory.
    ///
    /// # Panics
    /// When it runs on another engine.
    #[must_use]
    pub fn fake(&self) -> FakeRuntime {
        let fake = self.fake.lock().unwrap_or_else(PoisonError::into_inner);
        fake.clone()
            .unwrap_or_else(|| panic!("it runs on a real engine"))
    }

    /// The token that its operators have.
    ///
    /// # Panics
    /// When its file cannot be read.
    #[must_use]
    pub fn operator_token(&self) -> String {
        let text = std::fs::read_to_string(&self.config.operator_token_file);
        text.unwrap_or_else(|error| panic!("{error}"))
            .trim()
            .to_owned()
    }

    /// A client that shows nobody's identity.
    #[must_use]
    pub fn anonymous(&self) -> Client {
        let (clock, ids) = (Arc::clone(&self.deps.clock), Arc::clone(&self.deps.ids));
        Client::new(self.addr(), clock, ids)
    }

    /// A client with the operator's token.
    #[must_use]
    pub fn operator(&self) -> Client {
        self.anonymous().with_token(&self.operator_token())
    }

    /// Turns everything on for [`ORGANIZATION`] and [`WORKSPACE`], makes a credential, and
    /// returns a client that signs with it.
    ///
    /// # Panics
    /// When the daemon refuses.
    pub async fn client(&self) -> Client {
        self.operator().switch_on().await
    }
}

async fn boot(config: &Config, deps: &Deps) -> Daemon {
    let started = Box::pin(Daemon::start(config.clone(), deps.clone())).await;
    started.unwrap_or_else(|error| panic!("the daemon does not start: {error}"))
}
