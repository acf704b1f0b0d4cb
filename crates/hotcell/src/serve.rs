//! The daemon as a whole: opened in order, closed in reverse.
//!
//! ```text
//!   directories ─► key files ─► store ─► volumes, outputs, nonces ─► actors ─► HTTP
//!                                │ one daemon per store                 │ take over the leases
//! ```
//!
//! Nothing of another daemon is touched before the store's lock is held.

use std::{collections::BTreeSet, io, net::SocketAddr, path::PathBuf, sync::Arc};

use hotcell_policy::Prefix;
use hotcell_runtime::{Runtime, RuntimeError};
use hotcell_runtime_docker::{DockerConfig, DockerRuntime};
use hotcell_runtime_embedded::{Embedded, EmbeddedConfig};
use hotcell_store::{DeclareError, KeyError, OpenError, Store, StoreError, StoreKey};
use hotcell_types::{Clock, IdSource, InstallationId, UnixMillis, limits};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    actors::{Appliance, BootError, OpenRuntime, Parts},
    clock::{SystemClock, SystemIds},
    config::{Config, EngineChoice, ImageChoice},
    declared,
    egress::{EgressParts, KernelHost, resolvers},
    erase::Eraser,
    handles::Sandboxes,
    http::{
        App, Calls, Connections, Idempotency, ListenError, NonceLogError, Nonces, OutputStore,
        Sweeper, UploadStore, boot_id, local_router, public_router, serve_tcp, serve_unix,
    },
    upkeep,
    volumes::Volumes,
};

mod private;

use private::{empty_dir, make_private_dir, operator_token, store_key};

/// The longest operator token that is read from a file, in bytes.
pub(crate) const MAX_TOKEN_FILE_BYTES: u64 = 4096;
/// The shortest operator token that is accepted, in characters.
pub(crate) const MIN_TOKEN_CHARACTERS: usize = 20;

/// Makes the engine of the profile `default` in place of the configured one.
pub type MakeRuntime = Arc<dyn Fn(&InstallationId) -> Arc<dyn Runtime> + Send + Sync>;

/// What a daemon takes from its surroundings.
#[derive(Clone)]
pub struct Deps {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where ids and secrets come from.
    pub ids: Arc<dyn IdSource>,
    /// The engine; the embedded one as configured when absent.
    pub runtime: Option<MakeRuntime>,
    /// What filters are made with; the kernel and the configured resolvers when absent.
    pub egress: Option<EgressParts>,
}

impl Default for Deps {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            runtime: None,
            egress: None,
        }
    }
}

/// Why the daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory or file of the daemon cannot be made or read.
    #[error("{path} cannot be made or read")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The store is there and its key is not.
    #[error(
        "the store {store} is there but its key file {key} is not: put the key back, without it the secrets in the store cannot be read"
    )]
    KeyMissing {
        /// The store.
        store: PathBuf,
        /// Where its key should be.
        key: PathBuf,
    },
    /// The key file holds no key.
    #[error("the store key file {path} cannot be used")]
    Key {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: KeyError,
    },
    /// The token is too short to be one.
    #[error("the operator token in {0} has fewer than {MIN_TOKEN_CHARACTERS} characters")]
    Token(PathBuf),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store failed after it was opened.
    #[error("the store failed while the daemon started")]
    StoreFailed(#[from] StoreError),
    /// What the configuration declares contradicts what is stored.
    #[error(transparent)]
    Declared(#[from] DeclareError),
    /// The log of nonces cannot be used.
    #[error(transparent)]
    Nonces(#[from] NonceLogError),
    /// The actors cannot be started.
    #[error(transparent)]
    Actors(#[from] BootError),
    /// The address cannot be listened on.
    #[error("{addr} cannot be listened on")]
    Bind {
        /// Which.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The local socket cannot be made.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// A running daemon.
pub struct Daemon {
    addr: SocketAddr,
    store: Store,
    appliance: Appliance,
    calls: Calls,
    eraser: Eraser,
    volumes: Volumes,
    listeners: JoinSet<()>,
    stopping: CancellationToken,
}

impl Daemon {
    /// Opens everything and starts to serve.
    ///
    /// # Errors
    /// See [`StartError`]. An engine that cannot be opened is no error: the daemon serves, says
    /// in `/readyz` what is wrong, and tries again.
    pub async fn start(config: Config, deps: Deps) -> Result<Self, StartError> {
        for dir in [&config.state_dir, &config.run_dir] {
            make_private_dir(dir)?;
        }
        let key = store_key(&config, &*deps.ids)?;
        let store = open_store(&config, &deps, key).await?;
        match Self::start_on(&config, &deps, store.clone()).await {
            Ok(daemon) => Ok(daemon),
            Err(error) => {
                // The file is given back before the failure is told.
                let _ = store.close().await;
                Err(error)
            }
        }
    }

    async fn start_on(config: &Config, deps: &Deps, store: Store) -> Result<Self, StartError> {
        let token = operator_token(config, &*deps.ids)?;
        declared::reconcile(&store, &config.declared, deps.clock.now()).await?;
        let tmp = config.state_dir.join("tmp");
        empty_dir(&tmp)?;
        let failed = |path: PathBuf| move |source| StartError::File { path, source };
        let volumes = open_volumes(config)
            .await
            .map_err(failed(config.state_dir.join("volumes")))?;
        let outputs = OutputStore::open(&config.state_dir, &tmp)
            .map_err(failed(config.state_dir.join("outputs")))?;
        sweep_outputs(&outputs, &store).await;
        let boot = boot_id().map_err(failed("/proc/sys/kernel/random/boot_id".into()))?;
        let now: UnixMillis = deps.clock.now();
        let nonces = Nonces::open(&config.state_dir.join("nonces.log"), &boot, now)?;
        let output_limits = Arc::new(config.profile.outputs.clone());
        let appliance = Appliance::start(Parts {
            store: store.clone(),
            clock: Arc::clone(&deps.clock),
            ids: Arc::clone(&deps.ids),
            volumes: volumes.clone(),
            limits: config.profile_limits(),
            final_sweep: Some(Arc::new(Sweeper::new(
                store.clone(),
                outputs.clone(),
                (Arc::clone(&deps.clock), Arc::clone(&deps.ids)),
                Arc::clone(&output_limits),
            ))),
            max_sandboxes: config.max_sandboxes,
            image: config.runtime.image.clone(),
            egress: egress(config, deps),
            switches: config.switches,
            open: open_runtime(config, deps, store.installation()),
        })
        .await?;
        let calls = Calls::default();
        let eraser = Eraser::new(
            &appliance.sandboxes(),
            outputs.clone(),
            volumes.clone(),
            &tmp,
        );
        let app = Arc::new(App {
            store: store.clone(),
            sandboxes: appliance.sandboxes(),
            outputs,
            output_limits,
            eraser: eraser.clone(),
            uploads: UploadStore::new(volumes.clone(), &tmp, config.profile.inputs),
            calls: calls.clone(),
            idempotency: Idempotency::new(&*deps.ids),
            nonces,
            operator_token: token,
            config_file: config.file.clone(),
            clock: Arc::clone(&deps.clock),
            ids: Arc::clone(&deps.ids),
        });
        let listening = match eraser.resume().await {
            Ok(()) => listen(config, app).await,
            Err(error) => Err(error.into()),
        };
        match listening {
            Ok((addr, mut listeners, stopping)) => {
                listeners.spawn(upkeep::run(
                    store.clone(),
                    Arc::clone(&deps.clock),
                    stopping.clone(),
                ));
                listeners.spawn(upkeep::release_volumes(
                    volumes.clone(),
                    appliance.sandboxes(),
                    stopping.clone(),
                ));
                tracing::info!(%addr, "hotcell serves");
                Ok(Self {
                    addr,
                    store,
                    appliance,
                    calls,
                    eraser,
                    volumes,
                    listeners,
                    stopping,
                })
            }
            Err(error) => {
                eraser.stop().await;
                appliance.stop().await;
                Err(error)
            }
        }
    }

    /// Where it serves.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Its sandboxes.
    #[must_use]
    pub fn sandboxes(&self) -> Sandboxes {
        self.appliance.sandboxes()
    }

    /// Takes no more requests, ends running calls, and closes everything. Sandboxes stay as
    /// they are; the next daemon on this state directory adopts them.
    pub async fn shutdown(mut self) {
        tracing::info!("hotcell stops");
        self.appliance.leave();
        self.stopping.cancel();
        self.calls.stop().await;
        while self.listeners.join_next().await.is_some() {}
        self.eraser.stop().await;
        self.appliance.stop().await;
        let volumes = self.volumes;
        match tokio::task::spawn_blocking(move || volumes.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "not every volume could be unmounted"),
            Err(error) => tracing::warn!(%error, "not every volume could be unmounted"),
        }
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store did not close cleanly");
        }
    }
}

async fn listen(
    config: &Config,
    app: Arc<App>,
) -> Result<(SocketAddr, JoinSet<()>, CancellationToken), StartError> {
    let bind = |source| StartError::Bind {
        addr: config.listen,
        source,
    };
    let tcp = TcpListener::bind(config.listen).await.map_err(bind)?;
    let addr = tcp.local_addr().map_err(bind)?;
    let (connections, stopping) = (Connections::default(), CancellationToken::new());
    let mut listeners = JoinSet::new();
    let local = serve_unix(
        &config.admin_socket(),
        local_router(Arc::clone(&app)),
        connections.clone(),
        stopping.clone(),
    )
    .await?;
    listeners.spawn(local);
    listeners.spawn(serve_tcp(
        tcp,
        public_router(app),
        connections,
        stopping.clone(),
    ));
    Ok((addr, listeners, stopping))
}

fn egress(config: &Config, deps: &Deps) -> EgressParts {
    let network = config.runtime.network.clone();
    if let Some(parts) = deps.egress.clone() {
        return EgressParts { network, ..parts };
    }
    let address = config.listen.ip();
    EgressParts {
        upstream: resolvers(&network.upstreams),
        network,
        host: Arc::new(KernelHost),
        // One that listens everywhere listens on the host's addresses, which are closed anyway.
        appliance: (!address.is_unspecified())
            .then(|| Prefix::single(address))
            .into_iter()
            .collect(),
    }
}

fn open_runtime(config: &Config, deps: &Deps, installation: InstallationId) -> OpenRuntime {
    if let Some(make) = deps.runtime.clone() {
        let runtime = make(&installation);
        return Arc::new(move || {
            let runtime = Arc::clone(&runtime);
            Box::pin(async move { Ok(runtime) })
        });
    }
    match &config.runtime.engine {
        EngineChoice::Embedded(oci_runtime) => {
            let embedded = EmbeddedConfig {
                state_dir: config.state_dir.clone(),
                run_dir: config.run_dir.clone(),
                image_dir: config.image_dir(),
                volume_root: config.state_dir.join("volumes"),
                agent_binary: config.agent_binary(),
                installation,
                oci_runtime: oci_runtime.clone(),
                max_sandboxes: config
                    .max_sandboxes
                    .saturating_mul(limits::LEASES_PER_SANDBOX)
                    .saturating_add(config.profile.warm_pool),
                clock: Arc::clone(&deps.clock),
                ids: Arc::clone(&deps.ids),
            };
            Arc::new(move || {
                let embedded = embedded.clone();
                Box::pin(async move {
                    let runtime: Arc<dyn Runtime> = Arc::new(Embedded::open(embedded).await?);
                    Ok::<_, RuntimeError>(runtime)
                })
            })
        }
        EngineChoice::Containers {
            kind,
            socket,
            oci_runtime,
        } => {
            let containers = DockerConfig {
                engine: *kind,
                socket: socket.clone(),
                oci_runtime: oci_runtime.clone(),
                volume_root: config.state_dir.join("volumes"),
                agent_binary: config.agent_binary(),
                installation,
                images: match &config.runtime.image {
                    ImageChoice::Exactly(image) => [image.clone()].into(),
                    ImageChoice::Named(_) => BTreeSet::new(),
                },
                warm_pool: config.profile.warm_pool > 0,
                run_dir: config.run_dir.join("containers"),
                clock: Arc::clone(&deps.clock),
                ids: Arc::clone(&deps.ids),
            };
            Arc::new(move || {
                let containers = containers.clone();
                Box::pin(async move {
                    let runtime: Arc<dyn Runtime> =
                        Arc::new(DockerRuntime::open(containers).await?);
                    Ok::<_, RuntimeError>(runtime)
                })
            })
        }
    }
}

async fn open_store(config: &Config, deps: &Deps, key: StoreKey) -> Result<Store, StartError> {
    let path = config.store_path();
    let (clock, ids) = (Arc::clone(&deps.clock), Arc::clone(&deps.ids));
    let failed = |error: tokio::task::JoinError| StartError::File {
        path: config.store_path(),
        source: io::Error::other(error),
    };
    let opened = tokio::task::spawn_blocking(move || Store::open(&path, key, clock, ids));
    Ok(opened.await.map_err(failed)??)
}

async fn open_volumes(config: &Config) -> io::Result<Volumes> {
    let (state, bytes) = (config.state_dir.clone(), config.volume_bytes);
    tokio::task::spawn_blocking(move || Volumes::open_bounded(&state, bytes))
        .await
        .map_err(io::Error::other)?
}

async fn sweep_outputs(outputs: &OutputStore, store: &Store) {
    let (outputs, store) = (outputs.clone(), store.clone());
    let swept = tokio::task::spawn_blocking(move || outputs.sweep(&store)).await;
    match swept {
        Ok(Ok(0)) => {}
        Ok(Ok(removed)) => tracing::info!(removed, "removed collected files without a record"),
        Ok(Err(error)) => tracing::warn!(%error, "collected files cannot be swept"),
        Err(error) => tracing::warn!(%error, "collected files cannot be swept"),
    }
}
