//! The seam: [`Runtime`] for [`Embedded`].

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use hotcell_agent_client::AgentSandbox;
use hotcell_runtime::{
    Check, Facts, FilterSite, Gateway, ImageInfo, ImageRef, NetworkMode, Observed, Runtime,
    RuntimeError, Sandbox, SandboxEnd, SandboxSpec, Stats, VolumeMount, WarmSpec,
};
use hotcell_types::{AgentKey, InstallationId, LeaseId, Resources};

use crate::{
    birth::{Birth, check_volume},
    bundle::Bundle,
    dial::GatewayDial,
    embedded::{Embedded, leases},
    ending::wait_for_end,
    fault,
    layout::link_name,
    net::{Slot, UPLINK},
    oci::is_executable,
    record::{Record, mark, need_free_space},
    scratch::Scratch,
};

/// The smallest scratch disk that a file system fits on.
const MIN_SCRATCH_BYTES: u64 = 8 << 20;
/// The least memory in which a sandbox comes up.
const MIN_MEMORY_BYTES: u64 = 64 << 20;

#[async_trait]
impl Runtime for Embedded {
    fn facts(&self) -> Facts {
        Facts {
            kind: "embedded".into(),
            engine: self.engine.describe(),
            isolation: self.engine.isolation(),
            scratch_is_bounded: self.scratch == Scratch::Bounded,
        }
    }

    async fn preflight(&self) -> Vec<Check> {
        self.checks().await
    }

    async fn settle(&self) {
        drop(self.probing.lock().await);
    }

    async fn images(&self) -> Result<Vec<ImageInfo>, RuntimeError> {
        Ok(self.images.list()?)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let lease = &spec.labels.lease;
        let _guard = self.locks.lock(lease).await;
        let dir = self.layout.lease(lease);
        if dir.warm().exists() {
            self.discard(lease).await?;
        }
        if dir.path().exists() {
            // Directories appear whole, so this one was made by an earlier call.
            return Record::load(&dir)
                .map(drop)
                .map_err(fault::at("read the record", &dir.record()));
        }
        self.check(spec)?;
        need_free_space(&self.layout.sandboxes())?;
        if spec.network == NetworkMode::Filtered {
            self.need_uplink().await?;
        }
        let record = Record::new(spec, self.take_slot(lease)?);
        self.make_directory(lease, record).await
    }

    async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Result<(), RuntimeError> {
        let _guard = self.locks.lock(lease).await;
        let dir = self.layout.lease(lease);
        let record = self.record(lease)?;
        if dir.warm().exists() {
            return Err(fault::failed("start the sandbox", "nobody has claimed it"));
        }
        if self.main_process(lease).is_some() {
            return Ok(());
        }
        self.bear(lease, key, record).await
    }

    async fn warm(&self, spec: &WarmSpec) -> Result<(), RuntimeError> {
        self.make_ahead(spec).await
    }

    async fn claim(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        self.give(spec).await
    }

    async fn remove_unclaimed(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let _guard = self.locks.lock(lease).await;
        if self.layout.lease(lease).warm().exists() {
            self.discard(lease).await?;
        }
        Ok(())
    }

    async fn stop(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let _guard = self.locks.lock(lease).await;
        let dir = self.layout.lease(lease);
        if !dir.path().exists() {
            return Err(RuntimeError::NoSuchSandbox);
        }
        mark(&dir.stopped())?;
        self.clear(lease).await
    }

    async fn remove(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let _guard = self.locks.lock(lease).await;
        self.discard(lease).await
    }

    async fn list(&self) -> Result<Vec<Observed>, RuntimeError> {
        let observe = |lease: LeaseId| Observed {
            labels: Record::load(&self.layout.lease(&lease))
                .ok()
                .and_then(|record| record.labels),
            state: self.state(&lease),
            unclaimed: self.layout.lease(&lease).warm().exists(),
            lease,
        };
        Ok(leases(&self.layout)?.into_iter().map(observe).collect())
    }

    async fn wait(&self, lease: &LeaseId) -> Result<SandboxEnd, RuntimeError> {
        if !self.layout.lease(lease).path().exists() {
            return Err(RuntimeError::NoSuchSandbox);
        }
        wait_for_end(&self.layout, &self.cgroups, lease).await?;
        Ok(self.end_of(lease))
    }

    async fn filter_site(&self, lease: &LeaseId) -> Result<FilterSite, RuntimeError> {
        let record = self.record(lease)?;
        self.site(lease, record.network, record.slot).await
    }

    async fn gateways(&self) -> Result<Vec<Gateway>, RuntimeError> {
        Ok(vec![Gateway {
            namespace: Some(self.gateway.namespace()),
            uplink: UPLINK.to_owned(),
        }])
    }

    async fn stats(&self, lease: &LeaseId) -> Result<Stats, RuntimeError> {
        if !self.layout.lease(lease).path().exists() {
            return Err(RuntimeError::NoSuchSandbox);
        }
        Ok(self.cgroups.stats(lease.as_str()))
    }

    fn sandbox(&self, lease: &LeaseId, key: &AgentKey) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        let slot = self.slots().get(lease).copied();
        let slot = slot.ok_or(RuntimeError::NoSuchSandbox)?;
        let dial = GatewayDial::new(self.gateway.clone(), slot).watching(
            self.layout.clone(),
            self.cgroups.clone(),
            lease.clone(),
        );
        Ok(Arc::new(AgentSandbox::new(
            lease.clone(),
            key,
            Arc::new(dial),
            Arc::clone(&self.config.clock),
            Arc::clone(&self.config.ids),
        )))
    }
}

impl Embedded {
    /// Runs a sandbox that does not run.
    pub(crate) async fn bear(
        &self,
        lease: &LeaseId,
        key: &AgentKey,
        record: Record,
    ) -> Result<(), RuntimeError> {
        let dir = self.layout.lease(lease);
        let is_warm = dir.warm().exists();
        self.clear(lease).await?;
        let root = self.images.root(&record.image)?;
        for volume in &record.mounts {
            check_volume(&self.config.volume_root, &volume.host_path)?;
        }
        fault::remove_file(&dir.stopped()).map_err(fault::at("remove", &dir.stopped()))?;
        mark(&dir.started())?;
        let engine = self.layout.engine(lease.short());
        let birth = Birth {
            engine: Arc::clone(&self.engine),
            gateway: self.gateway.clone(),
            name: lease.short().to_owned(),
            link: link_name(lease.short()),
            slot: record.slot,
            reach: record.network.into(),
            dir: engine.clone(),
            scratch: self.scratch.mount_of(&dir),
            volume_root: self.config.volume_root.clone(),
            bundle: Bundle {
                lease: lease.clone(),
                key: key.clone(),
                slot: record.slot,
                root,
                agent: self.config.agent_binary.clone(),
                scratch: dir.scratch(),
                volumes: record.mounts,
                later: is_warm.then(|| engine.later()),
                resolver: None,
                resources: record.resources,
                cgroup: self.cgroups.path_of(lease.as_str()),
            },
        };
        let started = birth.run().await;
        if started.is_err()
            && let Err(error) = self.clear(lease).await
        {
            tracing::warn!(%lease, %error, "a failed start could not be cleared away yet");
        }
        started
    }

    /// Ends a sandbox and removes all of it. To be called under its lock.
    pub(crate) async fn discard(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let dir = self.layout.lease(lease);
        if dir.path().exists() {
            // So that whoever waits for its end learns that it was us. A full disk may refuse
            // the marker and must not keep a sandbox alive.
            if let Err(error) = mark(&dir.stopped()) {
                tracing::debug!(%lease, %error, "no marker");
            }
        }
        self.clear(lease).await?;
        let gone = self.layout.gone(lease);
        match std::fs::rename(dir.path(), &gone) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(fault::at("remove a sandbox", dir.path()))?,
        }
        self.slots().remove(lease);
        tokio::task::spawn_blocking(move || {
            fault::remove_tree(&gone).map_err(fault::at("remove a sandbox", &gone))
        })
        .await
        .map_err(|error| fault::failed("remove a sandbox", error.to_string()))?
    }

    pub(crate) fn record(&self, lease: &LeaseId) -> Result<Record, RuntimeError> {
        let dir = self.layout.lease(lease);
        if !dir.path().exists() {
            return Err(RuntimeError::NoSuchSandbox);
        }
        Record::load(&dir).map_err(fault::at("read the record", &dir.record()))
    }

    /// Refuses what cannot be given.
    fn check(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let labels = &spec.labels;
        self.check_place(&labels.installation, spec.scratch_bytes, spec.resources)?;
        self.check_mounts(&spec.mounts)?;
        self.check_tree(&spec.image, spec.network)
    }

    /// Refuses what cannot be given of a sandbox made ahead.
    pub(crate) fn check_ahead(&self, spec: &WarmSpec) -> Result<(), RuntimeError> {
        self.check_place(&spec.installation, spec.scratch_bytes, spec.resources)?;
        self.check_tree(&spec.image, spec.network)
    }

    fn check_place(
        &self,
        installation: &InstallationId,
        scratch_bytes: u64,
        resources: Resources,
    ) -> Result<(), RuntimeError> {
        let refuse = |what, reason: String| Err(RuntimeError::Unsupported { what, reason });
        if *installation != self.config.installation {
            return refuse(
                "a sandbox of another installation",
                format!("this is {}", self.config.installation),
            );
        }
        if scratch_bytes < MIN_SCRATCH_BYTES {
            return refuse(
                "so small a scratch disk",
                format!("it must have {MIN_SCRATCH_BYTES} bytes at least"),
            );
        }
        if resources.memory_bytes < MIN_MEMORY_BYTES
            || resources.cpu_millis == 0
            || resources.pids == 0
        {
            return refuse(
                "so few resources",
                format!(
                    "{MIN_MEMORY_BYTES} bytes of memory, processor time and processes are needed"
                ),
            );
        }
        Ok(())
    }

    pub(crate) fn check_mounts(&self, mounts: &[VolumeMount]) -> Result<(), RuntimeError> {
        let kinds: BTreeSet<_> = mounts.iter().map(|mount| mount.kind).collect();
        if kinds.len() != mounts.len() {
            return Err(RuntimeError::Unsupported {
                what: "one volume twice",
                reason: "each has one place".into(),
            });
        }
        for volume in mounts {
            check_volume(&self.config.volume_root, &volume.host_path)?;
        }
        Ok(())
    }

    fn check_tree(&self, image: &ImageRef, network: NetworkMode) -> Result<(), RuntimeError> {
        // No default arm: a new mode must be thought about here.
        match network {
            NetworkMode::None | NetworkMode::Filtered => {}
        }
        if !is_executable(&self.config.agent_binary) {
            return Err(RuntimeError::Unavailable(format!(
                "the agent binary {} is not there",
                self.config.agent_binary.display()
            )));
        }
        self.images.root(image).map(drop)?;
        Ok(())
    }

    pub(crate) fn take_slot(&self, lease: &LeaseId) -> Result<Slot, RuntimeError> {
        const ACTION: &str = "make another sandbox";
        let mut slots = self.slots();
        let limit = self.config.sandbox_limit();
        if slots.len() >= limit {
            return Err(fault::failed(ACTION, format!("there are {limit} already")));
        }
        if slots.keys().any(|other| other.short() == lease.short()) {
            return Err(fault::failed(ACTION, "its short name is taken"));
        }
        let taken = slots.values().copied().collect();
        let slot = Slot::first_free(&taken)
            .ok_or_else(|| fault::failed(ACTION, format!("{} links are in use", taken.len())))?;
        slots.insert(lease.clone(), slot);
        Ok(slot)
    }

    /// Makes a lease's directory under another name and then puts it in its place, so that it is
    /// there whole or not at all.
    pub(crate) async fn make_directory(
        &self,
        lease: &LeaseId,
        record: Record,
    ) -> Result<(), RuntimeError> {
        // Labels come with the claim.
        let is_warm = record.labels.is_none();
        let (unborn, dir) = (self.layout.unborn(lease), self.layout.lease(lease));
        let (layout, scratch) = (self.layout.clone(), self.scratch);
        let made = tokio::task::spawn_blocking(move || {
            let bytes = record.scratch_bytes;
            fault::remove_tree(unborn.path()).map_err(fault::at("remove", unborn.path()))?;
            let made = fault::make_private_dir(unborn.path())
                .and_then(|()| record.save(&unborn))
                .and_then(|()| {
                    if is_warm {
                        mark(&unborn.warm())
                    } else {
                        Ok(())
                    }
                })
                .and_then(|()| scratch.prepare(&layout, &unborn, bytes))
                .and_then(|()| {
                    std::fs::rename(unborn.path(), dir.path())
                        .map_err(fault::at("make a sandbox", dir.path()))
                });
            if made.is_err() {
                fault::remove_tree(unborn.path()).map_err(fault::at("remove", unborn.path()))?;
            }
            made
        })
        .await
        .unwrap_or_else(|error| Err(fault::failed("make a sandbox", error.to_string())));
        if made.is_err() {
            self.slots().remove(lease);
        }
        made
    }
}
