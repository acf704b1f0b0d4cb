//! The runtime itself: what it holds, and how it is opened.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hotcell_runtime::{ImageRef, LeaseLocks, RuntimeError};
use hotcell_types::{InstallationId, LeaseId, limits};
use rustix::fs::{FlockOperation, flock};

use crate::{
    cgroup::Cgroups,
    config::EmbeddedConfig,
    fault,
    image::ImageStore,
    layout::{Layout, uplink_name},
    net::{self, Gateway, Slot},
    oci::Engine,
    probe, record,
    scratch::Scratch,
    sweep,
};

/// The embedded runtime. One per state directory and host; a second one is refused.
pub struct Embedded {
    pub(crate) config: EmbeddedConfig,
    pub(crate) layout: Layout,
    pub(crate) cgroups: Cgroups,
    pub(crate) gateway: Gateway,
    /// What the host calls its end of the uplink.
    pub(crate) uplink_name: String,
    /// Held while the uplink is looked at.
    pub(crate) uplink: tokio::sync::Mutex<()>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) scratch: Scratch,
    /// Why scratch disks have no size, when they have none.
    pub(crate) scratch_fault: Option<RuntimeError>,
    pub(crate) images: ImageStore,
    pub(crate) locks: LeaseLocks,
    /// Held while a probe runs: there is one place for it.
    pub(crate) probing: Arc<tokio::sync::Mutex<()>>,
    slots: Mutex<BTreeMap<LeaseId, Slot>>,
    // Dropped in this order: the lock is given back last.
    _footprint: Footprint,
    _lock: File,
}

impl Embedded {
    /// Opens it: finds an engine that works by running it, adopts the sandboxes that are there,
    /// and removes what has our names but belongs to none of them.
    ///
    /// # Errors
    /// [`RuntimeError::Unavailable`] when this host cannot run sandboxes as configured;
    /// [`diagnose`](crate::diagnose) then says more.
    pub async fn open(config: EmbeddedConfig) -> Result<Self, RuntimeError> {
        if !rustix::process::geteuid().is_root() {
            return Err(RuntimeError::Unavailable(
                "the embedded runtime must run as root".into(),
            ));
        }
        let config = settle(config)?;
        let layout = Layout::new(&config.state_dir, &config.run_dir, &config.installation);
        let lock = lock(&layout).await?;
        for dir in [layout.sandboxes(), layout.engines()] {
            fault::make_private_dir(&dir)?;
        }
        let cgroups = Cgroups::detect(layout.cgroup_base())?;
        let uplink_name = uplink_name(&config.installation);
        let footprint = Footprint {
            uplink_name: uplink_name.clone(),
            layout: layout.clone(),
            cgroups: cgroups.clone(),
        };
        let gateway = Gateway::open(layout.gateway())
            .await
            .map_err(|error| RuntimeError::EgressUnenforceable(error.to_string()))?;
        let images = ImageStore::open(&config.image_dir)?;
        let (scratch, scratch_fault) = Scratch::probe(&layout).await;
        sweep::end_unfinished_starts(&layout, &cgroups).await?;
        let engine = probe::choose(&config, &layout, &cgroups, &gateway).await?;
        tracing::info!(
            engine = engine.describe(),
            cgroups = cgroups.describe(),
            "embedded runtime opened"
        );
        let slots = leases(&layout)?
            .into_iter()
            .filter_map(|lease| {
                let record = record::Record::load(&layout.lease(&lease)).ok()?;
                Some((lease, record.slot))
            })
            .collect();
        let embedded = Self {
            config,
            layout,
            cgroups,
            gateway,
            uplink_name,
            uplink: tokio::sync::Mutex::default(),
            engine: Arc::new(engine),
            scratch,
            scratch_fault,
            images,
            locks: LeaseLocks::default(),
            probing: Arc::default(),
            slots: Mutex::new(slots),
            _footprint: footprint,
            _lock: lock,
        };
        embedded.sweep().await?;
        embedded.settle_uplink().await?;
        embedded.relink_all().await?;
        Ok(embedded)
    }

    /// The unpacked images.
    #[must_use]
    pub fn image_store(&self) -> &ImageStore {
        &self.images
    }

    /// The images that sandboxes need, running or not: those that
    /// [`ImageStore::remove`] must be told to keep.
    ///
    /// # Errors
    /// When the sandboxes cannot be listed.
    pub fn images_in_use(&self) -> Result<BTreeSet<ImageRef>, RuntimeError> {
        images_in_use(&self.config.state_dir)
    }

    /// The links that are given away, by lease.
    pub(crate) fn slots(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the installation's own things from the host when this runtime ends, or was not opened
/// after all.
struct Footprint {
    uplink_name: String,
    layout: Layout,
    cgroups: Cgroups,
}

impl Drop for Footprint {
    fn drop(&mut self) {
        // While there are sandboxes the gateway must stay: their links end there.
        if leases(&self.layout).is_ok_and(|leases| leases.is_empty()) {
            self.cgroups.remove_base();
            if let Err(error) = net::remove_host_end(&self.uplink_name) {
                tracing::warn!(%error, "the uplink stays");
            }
            if let Err(error) = net::close_gateway(&self.layout.gateway()) {
                tracing::warn!(%error, "the gateway namespace stays");
            }
        }
    }
}

/// The leases that have a directory, damaged ones too.
pub(crate) fn leases(layout: &Layout) -> Result<Vec<LeaseId>, RuntimeError> {
    let dir = layout.sandboxes();
    let entries = fs::read_dir(&dir).map_err(fault::at("list the sandboxes", &dir))?;
    let mut leases = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fault::at("list the sandboxes", &dir))?;
        if let Some(lease) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            leases.push(lease);
        }
    }
    Ok(leases)
}

/// The images that the sandboxes of a state directory were made from, whether or not a runtime
/// is open there. A sandbox whose record cannot be read cannot be started again, so it counts
/// for nothing.
///
/// # Errors
/// When the directory cannot be read.
pub fn images_in_use(state_dir: &Path) -> Result<BTreeSet<ImageRef>, RuntimeError> {
    // Where sandboxes are on disk does not depend on the installation.
    let layout = Layout::new(state_dir, Path::new(""), &InstallationId::from_bits(0));
    if !layout.sandboxes().exists() {
        return Ok(BTreeSet::new());
    }
    Ok(leases(&layout)?
        .iter()
        .filter_map(|lease| record::Record::load(&layout.lease(lease)).ok())
        .map(|record| record.image)
        .collect())
}

/// Makes the directories and turns their paths into what the kernel calls them.
fn settle(mut config: EmbeddedConfig) -> Result<EmbeddedConfig, RuntimeError> {
    let real = |path: &Path| -> Result<PathBuf, RuntimeError> {
        path.canonicalize().map_err(fault::at("find", path))
    };
    for dir in [
        &config.state_dir,
        &config.run_dir,
        &config.image_dir,
        &config.volume_root,
    ] {
        fault::make_private_dir(dir)?;
    }
    config.state_dir = real(&config.state_dir)?;
    config.run_dir = real(&config.run_dir)?;
    config.image_dir = real(&config.image_dir)?;
    config.agent_binary = config.agent_binary.canonicalize().map_err(|error| {
        RuntimeError::Unavailable(format!(
            "the agent binary {}: {error}",
            config.agent_binary.display()
        ))
    })?;
    Ok(config)
}

/// Keeps a second runtime away from the same directories. A daemon that was killed may have left
/// a child that was forked and has not become its program yet: it holds the lock for a moment more.
async fn lock(layout: &Layout) -> Result<File, RuntimeError> {
    let mut tries = limits::MAX_LOCK_TRIES;
    loop {
        match try_lock(layout) {
            Err(RuntimeError::Unavailable(_)) if tries > 0 => {
                tries -= 1;
                tokio::time::sleep(Duration::from_millis(limits::LOCK_RETRY_MS)).await;
            }
            outcome => return outcome,
        }
    }
}

fn try_lock(layout: &Layout) -> Result<File, RuntimeError> {
    let path = layout.lock();
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(&path)
        .map_err(fault::at("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RuntimeError::Unavailable(format!(
            "another process already uses {}",
            path.display()
        ))),
        Err(error) => Err(fault::at("lock", &path)(error)),
    }
}
