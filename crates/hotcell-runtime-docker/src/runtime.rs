//! The engine's side: [`Runtime`] over a container engine.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use hotcell_agent_client::AgentSandbox;
use hotcell_runtime::{
    Check, Facts, FilterSite, ImageInfo, Isolation, LeaseLocks, NetworkMode, Observed,
    ObservedState, Runtime, RuntimeError, Sandbox, SandboxEnd, SandboxSpec, Stats, WarmSpec,
};
use hotcell_types::{AgentKey, LeaseId};

use crate::{
    cgroup::Hierarchies,
    checks,
    config::DockerConfig,
    container::{Listed, Role, name_of},
    dial::EngineDial,
    engine::Engine,
    fault,
    labels::{LEASE, is_ahead, read_labels},
    net::{Pin, Sockets, Way},
    presence::Presence,
    scratch::{Kept, Scratch, make_passable},
    volumes, warm,
};

/// What a sandbox's `/etc/resolv.conf` says: a name service that is not there, so that a look-up
/// fails at once instead of after seconds. No search list, and nothing of the engine's.
const RESOLV_CONF: &str =
    "# This sandbox has no network.\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n";

/// Sandboxes as containers of a Docker Engine or a Podman.
pub struct DockerRuntime {
    pub(crate) core: Arc<Core>,
}

/// What is known of a lease while the daemon runs. All of it can be found out again.
#[derive(Debug, Default)]
struct Live {
    way: Option<Way>,
    /// Its first process.
    process: Option<Arc<OwnedFd>>,
    /// How often the engine had gone when it was started.
    absences: u64,
    ended_by_us: bool,
}

pub(crate) struct Core {
    pub(crate) config: DockerConfig,
    pub(crate) engine: Engine,
    pub(crate) scratch: Scratch,
    /// Why scratch disks have no size, if they have none.
    pub(crate) unbounded: Option<RuntimeError>,
    pub(crate) hierarchies: Hierarchies,
    pub(crate) sockets: Sockets,
    pub(crate) locks: LeaseLocks,
    pub(crate) agent: PathBuf,
    pub(crate) resolv_conf: PathBuf,
    /// Only for an engine that ends its containers when it starts again.
    presence: Option<Presence>,
    live: Mutex<HashMap<LeaseId, Live>>,
}

impl DockerRuntime {
    /// Connects to the engine, reads what it can do, and prepares this host's side.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] when the engine cannot be reached, and
    /// [`RuntimeError::Unsupported`] when it can never run a sandbox, with the reason.
    pub async fn open(config: DockerConfig) -> Result<Self, RuntimeError> {
        let engine = Engine::open(&config).await?;
        if let Some(refusal) = engine.refusal() {
            return Err(refusal);
        }
        if config.warm_pool && engine.info.is_rootless() {
            return Err(warm::rootless());
        }
        let prepare = {
            let (config, owner, pid) = (config.clone(), engine.quirks.owner, engine.peer.pid);
            let rootless = engine.info.is_rootless();
            move || {
                make_passable(&config.run_dir)?;
                for path in [&config.run_dir, &config.volume_root] {
                    if rootless {
                        volumes::let_pass(path, owner)
                            .map_err(fault::at("let the engine's user pass to", path))?;
                    }
                }
                let agent = config.run_dir.join("agent");
                place(&config.agent_binary, &agent)?;
                let resolv_conf = config.run_dir.join("resolv.conf");
                write_public(&resolv_conf, RESOLV_CONF.as_bytes(), 0o644)
                    .map_err(fault::at("write", &resolv_conf))?;
                let scratch = Scratch::open(&config.volume_root, owner, pid)?;
                let hierarchies =
                    Hierarchies::find().map_err(fault::of("find the control groups"))?;
                let sockets = Sockets::open().map_err(fault::of("start a thread"))?;
                Ok::<_, RuntimeError>((agent, resolv_conf, scratch, hierarchies, sockets))
            }
        };
        let (agent, resolv_conf, (scratch, unbounded), hierarchies, sockets) =
            blocking(prepare).await?;
        if let Some(error) = &unbounded {
            tracing::warn!(%error, "scratch disks have no size");
        }
        let presence = engine
            .quirks
            .ends_containers
            .then(|| Presence::watch(engine.socket.clone(), &config.installation));
        let core = Core {
            config,
            engine,
            scratch,
            unbounded,
            hierarchies,
            sockets,
            locks: LeaseLocks::default(),
            agent,
            resolv_conf,
            presence,
            live: Mutex::default(),
        };
        Ok(Self {
            core: Arc::new(core),
        })
    }
}

/// Runs work that waits for the disk or the kernel.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| fault::failed("work", "its thread ended early"))?
}

/// Puts the agent where every engine's user can read it.
fn place(from: &Path, to: &Path) -> Result<(), RuntimeError> {
    let agent = fs::read(from).map_err(|error| {
        RuntimeError::Unavailable(format!("the agent {}: {error}", from.display()))
    })?;
    write_public(to, &agent, 0o755).map_err(fault::at("write", to))
}

/// Replaces a file whole: a sandbox that runs keeps the one it has.
pub(crate) fn write_public(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, bytes)?;
    fs::set_permissions(&part, fs::Permissions::from_mode(mode))?;
    fs::rename(&part, path)
}

impl Core {
    fn with_live<T>(&self, work: impl FnOnce(&mut HashMap<LeaseId, Live>) -> T) -> T {
        work(&mut self.live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn forget(&self, lease: &LeaseId) {
        self.with_live(|live| live.remove(lease));
    }

    pub(crate) fn was_ended_by_us(&self, lease: &LeaseId) -> bool {
        self.with_live(|live| live.get(lease).is_some_and(|live| live.ended_by_us))
    }

    /// From now on the end of this sandbox is our doing.
    pub(crate) fn ending(&self, lease: &LeaseId) {
        self.with_live(|live| {
            let entry = live.entry(lease.clone()).or_default();
            entry.way = None;
            entry.process = None;
            entry.ended_by_us = true;
        });
    }

    fn absences(&self) -> u64 {
        self.presence.as_ref().map_or(0, Presence::absences)
    }

    /// Whether the engine went away since this sandbox was started.
    pub(crate) fn engine_was_away(&self, lease: &LeaseId) -> bool {
        let absences = self.absences();
        self.with_live(|live| {
            live.get(lease)
                .is_some_and(|live| live.absences != absences)
        })
    }

    pub(crate) fn process(&self, lease: &LeaseId) -> Option<Arc<OwnedFd>> {
        self.with_live(|live| live.get(lease).and_then(|live| live.process.clone()))
    }

    pub(crate) fn started(&self, lease: &LeaseId, way: Way, process: Option<OwnedFd>) {
        let absences = self.absences();
        self.with_live(|live| {
            let entry = live.entry(lease.clone()).or_default();
            entry.way = Some(way);
            entry.absences = absences;
            if let Some(process) = process {
                entry.process = Some(Arc::new(process));
            }
            entry.ended_by_us = false;
        });
    }

    pub(crate) fn pin(&self, lease: &LeaseId) -> Pin {
        Pin::new(self.config.run_dir.join("netns").join(lease.as_str()))
    }

    /// How to reach the agent of a running sandbox; found out again after a restart of ours.
    pub(crate) async fn way(&self, lease: &LeaseId) -> Result<Way, RuntimeError> {
        let known = self.with_live(|live| live.get(lease).and_then(|live| live.way.clone()));
        if let Some(way) = known {
            return Ok(way);
        }
        let found = self.engine.inspect(&name_of(lease, Role::Sandbox)).await?;
        let found = found.ok_or(RuntimeError::NoSuchSandbox)?;
        if !found.state.running || self.was_ended_by_us(lease) {
            return Err(RuntimeError::NoSuchSandbox);
        }
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        let record = blocking(move || scratch.record(&same)).await?;
        let record = record.ok_or(RuntimeError::NoSuchSandbox)?;
        let way = self.find_way(&record, found.state.pid).await?;
        self.started(lease, way.clone(), None);
        Ok(way)
    }

    /// Every lease with a container, and every one with a directory only. What stands in a directory is
    /// preferred to a container's labels, which tell nothing of a claim.
    async fn observe(&self) -> Result<Vec<Observed>, RuntimeError> {
        let directories = || {
            let scratch = self.scratch.clone();
            blocking(move || scratch.list())
        };
        let mut kept = directories().await?;
        let rows = self.engine.list(&self.config.installation).await?;
        let lease_of = |row: &Listed| row.labels.as_ref()?.get(LEASE)?.parse::<LeaseId>().ok();
        let known: BTreeSet<LeaseId> = kept.iter().map(|kept| kept.lease.clone()).collect();
        let mut leases = rows.iter().filter_map(lease_of);
        if leases.any(|lease| !known.contains(&lease)) {
            // Again: what came meanwhile has its directory now, and what went had it before.
            kept.extend(directories().await?);
        }
        let mut found: BTreeMap<LeaseId, (Observed, bool)> = BTreeMap::new();
        let nothing_yet = |lease: &LeaseId| Observed {
            labels: None,
            lease: lease.clone(),
            state: ObservedState::Created,
            unclaimed: false,
        };
        for row in rows {
            let labels = row.labels.clone().unwrap_or_default();
            let Some(lease) = labels.get(LEASE).and_then(|text| text.parse().ok()) else {
                tracing::warn!(id = row.id, "a container of ours has no lease");
                continue;
            };
            if row.is(Role::Probe) {
                continue;
            }
            let (entry, ahead) = found
                .entry(lease)
                .or_insert_with_key(|lease| (nothing_yet(lease), is_ahead(&labels)));
            *ahead &= is_ahead(&labels);
            entry.labels = read_labels(&labels);
            if !row.is(Role::Holder) {
                entry.state = state_of(&row.state);
            }
        }
        for (entry, ahead) in found.values_mut() {
            entry.unclaimed = warm::is_orphan(entry.state, *ahead);
        }
        for Kept {
            lease,
            marks,
            unclaimed,
        } in kept
        {
            let installation = marks.as_ref().map(|marks| &marks.installation);
            if installation.is_some_and(|found| *found != self.config.installation) {
                continue;
            }
            let (entry, _) = found
                .entry(lease)
                .or_insert_with_key(|lease| (nothing_yet(lease), false));
            entry.unclaimed = unclaimed;
            if let Some(marks) = marks {
                entry.labels = marks.labels();
            }
        }
        Ok(found.into_values().map(|(observed, _)| observed).collect())
    }
}

/// The words of both engines.
pub(crate) fn state_of(word: &str) -> ObservedState {
    match word {
        "running" | "paused" | "restarting" | "stopping" => ObservedState::Running,
        "created" | "configured" | "initialized" => ObservedState::Created,
        _ => ObservedState::Stopped,
    }
}

#[async_trait]
impl Runtime for DockerRuntime {
    fn facts(&self) -> Facts {
        let engine = &self.core.engine;
        Facts {
            kind: engine.kind.name().into(),
            engine: engine.words(),
            isolation: if engine.is_gvisor() {
                Isolation::Gvisor
            } else {
                Isolation::SharedKernel
            },
            scratch_is_bounded: self.core.scratch.is_bounded(),
        }
    }

    async fn preflight(&self) -> Vec<Check> {
        checks::all(&self.core).await
    }

    async fn images(&self) -> Result<Vec<ImageInfo>, RuntimeError> {
        let stored = self.core.engine.stored_images().await?;
        let allowed = self.core.config.images.iter();
        Ok(allowed
            .filter_map(|image| {
                let found = stored.iter().find(|stored| stored.is(image.as_str()))?;
                Some(ImageInfo {
                    image: image.clone(),
                    name: found.name(),
                    bytes: found.bytes(),
                })
            })
            .collect())
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        match spec.network {
            NetworkMode::None => {}
            NetworkMode::Filtered if self.core.engine.info.is_rootless() => {
                return Err(RuntimeError::EgressUnenforceable(
                    "a rootless engine's sandboxes are in namespaces of its user, where no filter of \
                     this host's can be put; use the rootful engine or the embedded runtime"
                        .into(),
                ));
            }
            NetworkMode::Filtered => {}
        }
        let lease = &spec.labels.lease;
        let _held = self.core.locks.lock(lease).await;
        if self.core.is_unclaimed(lease).await? {
            self.core.remove(lease).await?;
            self.core.forget(lease);
        }
        self.core.create(spec).await
    }

    async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Result<(), RuntimeError> {
        let _held = self.core.locks.lock(lease).await;
        self.core.start(lease, key).await
    }

    async fn warm(&self, spec: &WarmSpec) -> Result<(), RuntimeError> {
        let _held = self.core.locks.lock(&spec.lease).await;
        self.core.make_ahead(spec).await
    }

    async fn claim(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let _held = self.core.locks.lock(&spec.labels.lease).await;
        self.core.give(spec).await
    }

    async fn remove_unclaimed(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let _held = self.core.locks.lock(lease).await;
        if self.core.remove_unclaimed(lease).await? {
            self.core.forget(lease);
        }
        Ok(())
    }

    async fn stop(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let _held = self.core.locks.lock(lease).await;
        self.core.stop(lease).await
    }

    async fn remove(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let _held = self.core.locks.lock(lease).await;
        self.core.remove(lease).await?;
        self.core.forget(lease);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Observed>, RuntimeError> {
        self.core.observe().await
    }

    async fn wait(&self, lease: &LeaseId) -> Result<SandboxEnd, RuntimeError> {
        self.core.ended(lease).await
    }

    async fn filter_site(&self, lease: &LeaseId) -> Result<FilterSite, RuntimeError> {
        let _held = self.core.locks.lock(lease).await;
        self.core.site(lease).await
    }

    async fn stats(&self, lease: &LeaseId) -> Result<Stats, RuntimeError> {
        let found = self
            .core
            .engine
            .inspect(&name_of(lease, Role::Sandbox))
            .await?;
        let found = found.ok_or(RuntimeError::NoSuchSandbox)?;
        if !found.state.running {
            return Ok(Stats::default());
        }
        self.core
            .hierarchies
            .usage(found.state.pid)
            .map_err(fault::of("read what a sandbox uses"))
    }

    fn sandbox(&self, lease: &LeaseId, key: &AgentKey) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        let dial = EngineDial {
            core: Arc::clone(&self.core),
            lease: lease.clone(),
        };
        let config = &self.core.config;
        Ok(Arc::new(AgentSandbox::new(
            lease.clone(),
            key,
            Arc::new(dial),
            Arc::clone(&config.clock),
            Arc::clone(&config.ids),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_both_engines() {
        for word in ["running", "paused", "stopping"] {
            assert_eq!(state_of(word), ObservedState::Running);
        }
        for word in ["created", "initialized"] {
            assert_eq!(state_of(word), ObservedState::Created);
        }
        for word in ["exited", "dead", "stopped", "removing", "", "something new"] {
            assert_eq!(state_of(word), ObservedState::Stopped);
        }
    }
}
