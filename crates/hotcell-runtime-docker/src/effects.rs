//! The effects on one lease. Each may be repeated, and each may have been cut short anywhere by
//! a former run: what is there is looked at first, and names follow from the lease.
//!
//! ```text
//!  create   record, scratch disk ─► (filtered: far end, uplink) ─► (holder) ─► container ─► approve
//!  start    what is missing of that ─► (holder runs, far end, link) ─► container runs
//!           ─► limits ─► look at it
//!  stop     container ends ─► (made ahead: volumes detached) ─► holder ends ─► far end goes, but not
//!           from under a filter
//!  remove   container ─► holder ─► uplink, far end ─► control group ─► scratch disk
//! ```

use std::{io, os::unix::fs::MetadataExt, time::Duration};

use hotcell_runtime::{ImageRef, NetworkMode, RuntimeError, SandboxSpec};
use hotcell_types::{AgentKey, LeaseId, limits};
use tokio::time::{Instant, sleep};

use crate::{
    attach,
    cgroup::OwnGroup,
    container::{Bind, Inspected, Network, Plan, Role, fixed_binds, name_of},
    engine, fault,
    labels::{Marks, is_ours},
    net::{self, Ends, Way},
    runtime::{Core, blocking},
    scratch::Record,
    site::lay_gateway,
    truth::{self, Expected},
    volumes, wait,
};

impl Core {
    pub(crate) async fn create(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let (scratch, lease) = (self.scratch.clone(), spec.labels.lease.clone());
        let was_ahead = blocking(move || {
            let record = scratch.record(&lease).ok().flatten();
            Ok(record.is_some_and(|record| record.labels.ahead))
        })
        .await?;
        let mut labels = Marks::of(&spec.labels);
        // A claimed one keeps its one mount.
        labels.ahead = was_ahead;
        let record = Record {
            labels,
            image: self.find_image(&spec.image).await?,
            resources: spec.resources,
            scratch_bytes: spec.scratch_bytes,
            mounts: spec.mounts.clone(),
            network: spec.network,
        };
        self.ensure(&record, &spec.agent_key).await
    }

    /// Makes what is missing of a sandbox. A container is there to be thrown away: all that lasts
    /// is on the scratch disk and in the volumes. One with another key is made anew.
    async fn ensure(&self, record: &Record, key: &AgentKey) -> Result<(), RuntimeError> {
        self.look_for_the_engine().await?;
        let binds = {
            let (scratch, root) = (self.scratch.clone(), self.config.volume_root.clone());
            let (record, owner) = (record.clone(), self.engine.quirks.owner);
            let (gvisor, rootless) = (self.engine.is_gvisor(), self.engine.info.is_rootless());
            let (agent, resolv_conf) = (self.agent.clone(), self.resolver_of(&record));
            let pin = self.pin(&record.labels.lease);
            blocking(move || {
                if record.network == NetworkMode::Filtered {
                    lay_gateway(&pin, &record.labels.lease, &resolv_conf)?;
                }
                let mut volumes = volumes::binds(&root, &record.mounts, owner)?;
                for mount in record.mounts.iter().filter(|_| rootless) {
                    let path = &mount.host_path;
                    volumes::let_pass(path, owner)
                        .map_err(fault::at("let the engine's user pass to", path))?;
                }
                let disk = scratch.prepare(&record)?;
                let mut binds = fixed_binds(&agent, &resolv_conf, &disk.workspace(), &disk.tmp());
                if record.labels.ahead {
                    let lease = &record.labels.lease;
                    binds.push(Bind::beneath(scratch.lay_base(lease)?));
                    scratch.attach(lease, &record.mounts)?;
                    return Ok(binds);
                }
                // After its record: that says which volumes are in use.
                scratch.show(&record.mounts)?;
                if gvisor {
                    for (bind, mount) in volumes.iter_mut().zip(&record.mounts) {
                        if bind.read_only {
                            let lease = &record.labels.lease;
                            bind.source =
                                scratch.read_only_view(lease, mount.kind, &mount.host_path)?;
                        }
                    }
                }
                binds.extend(volumes);
                Ok(binds)
            })
            .await?
        };
        let network = if self.has_holder(record) {
            let holder = Plan::holder(record);
            self.engine.ensure(&holder).await?;
            Network::Of(holder.name())
        } else {
            Network::None
        };
        let oci_runtime = self.config.oci_runtime.clone();
        let plan = Plan::sandbox(record, key, binds, network, oci_runtime);
        self.engine.ensure(&plan).await
    }

    /// What the engine calls an image.
    pub(crate) async fn find_image(&self, image: &ImageRef) -> Result<String, RuntimeError> {
        if !self.config.images.contains(image) {
            return Err(RuntimeError::NoSuchImage(format!(
                "{image} (the profile does not allow it)"
            )));
        }
        let stored = self.engine.stored_images().await?;
        stored
            .into_iter()
            .find(|stored| stored.is(image.as_str()))
            .map(|stored| stored.id)
            .ok_or_else(|| RuntimeError::NoSuchImage(image.to_string()))
    }

    pub(crate) async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Result<(), RuntimeError> {
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        let found = blocking(move || Ok((scratch.record(&same)?, scratch.is_unclaimed(&same))));
        let (record, is_unclaimed) = found.await?;
        let record = record.ok_or(RuntimeError::NoSuchSandbox)?;
        if is_unclaimed {
            return Err(fault::failed("start the sandbox", "nobody has claimed it"));
        }
        self.run(&record, key).await
    }

    /// Runs what a record says, unless it runs.
    pub(crate) async fn run(&self, record: &Record, key: &AgentKey) -> Result<(), RuntimeError> {
        let lease = &record.labels.lease;
        let name = name_of(lease, Role::Sandbox);
        let running = |found: &Inspected| found.state.running;
        if !self
            .engine
            .inspect(&name)
            .await?
            .as_ref()
            .is_some_and(running)
        {
            if record.labels.ahead {
                // What a former run left there may be mounts of volumes that are mounted anew by now.
                self.detach(lease).await?;
            }
            self.ensure(record, key).await?;
            if self.has_holder(record) {
                self.connect_holder(record).await?;
            }
            self.engine.start(&name).await?;
        }
        let outcome = match self.settle(&name).await {
            Ok(found) => self.admit(record, &found).await,
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            // Nobody may use what is not as it must be. The first failure is the one to tell.
            if let Err(error) = self.stop(lease).await {
                tracing::error!(%lease, %error, "a sandbox that must not run could not be ended");
            }
        }
        outcome
    }

    /// Waits until the engine shows the process of a container that it has started.
    async fn settle(&self, name: &str) -> Result<Inspected, RuntimeError> {
        let settled = |found: Option<&Inspected>| {
            found.is_none_or(|found| {
                (found.state.running && found.state.pid != 0)
                    || matches!(found.state.status.as_str(), "exited" | "dead" | "stopped")
            })
        };
        let found = self
            .engine
            .until("start a container", name, settled)
            .await?;
        match found {
            Some(found) if found.state.running => Ok(found),
            None => Err(RuntimeError::NoSuchSandbox),
            Some(found) => {
                let words = self.engine.last_words(name).await;
                Err(RuntimeError::StartFailed(format!(
                    "it ended at once with {} {}: {words}",
                    found.state.exit_code, found.state.error
                )))
            }
        }
    }

    /// Holds a new sandbox to its limits, looks at it, and finds the way to it.
    async fn admit(&self, record: &Record, found: &Inspected) -> Result<(), RuntimeError> {
        let (lease, pid, resources) = (&record.labels.lease, found.state.pid, record.resources);
        let process = wait::open(pid)
            .map_err(fault::of("watch a sandbox"))?
            .ok_or_else(|| RuntimeError::StartFailed("it ended at once".into()))?;
        let way = self.find_way(record, pid).await?;
        let filtered = record.network == NetworkMode::Filtered;
        let gateway = filtered.then(|| Ends::of(lease).far);
        let own = self
            .engine
            .quirks
            .own_limits
            .then(|| OwnGroup::of(&self.hierarchies, &self.config.installation, lease));
        let (hierarchies, scratch, same) = (
            self.hierarchies.clone(),
            self.scratch.clone(),
            lease.clone(),
        );
        let (gvisor, uid) = (self.engine.is_gvisor(), self.engine.quirks.owner.0);
        let attached = match record.labels.ahead {
            true => Some((self.keeper(pid)?, record.mounts.clone())),
            false => None,
        };
        blocking(move || {
            let refuse = |what, reason| RuntimeError::Unsupported { what, reason };
            if let Some(own) = own {
                own.hold(pid, &resources)
                    .map_err(|error| refuse("limits", error.to_string()))?;
            }
            hierarchies
                .hold(pid, &resources)
                .map_err(|reason| refuse("limits", reason))?;
            let scratch_device = scratch
                .is_bounded()
                .then(|| scratch.device(&same))
                .transpose()
                .map_err(fault::of("look at the scratch disk"))?;
            let expected = Expected {
                gvisor,
                uid,
                scratch_device,
                gateway,
            };
            truth::check(pid, &expected)
                .and_then(|()| {
                    attached.map_or(Ok(()), |(keeper, volumes)| attach::look(keeper, &volumes))
                })
                .map_err(|reason| refuse("a sandbox as it must be", reason))
        })
        .await?;
        self.started(lease, way, Some(process));
        Ok(())
    }

    /// Where sockets to a running sandbox's agent are born.
    pub(crate) async fn find_way(&self, record: &Record, pid: u32) -> Result<Way, RuntimeError> {
        let lease = &record.labels.lease;
        let no_way = |error: io::Error| RuntimeError::EgressUnenforceable(error.to_string());
        let own = net::of_process(pid).map_err(no_way)?;
        if !self.has_holder(record) {
            return Ok(Way::inside(own));
        }
        let holder = self.engine.inspect(&name_of(lease, Role::Holder)).await?;
        let holder = holder
            .filter(|holder| holder.state.running)
            .ok_or_else(|| {
                RuntimeError::EgressUnenforceable("the holder of its network is gone".into())
            })?;
        let held = net::of_process(holder.state.pid).map_err(no_way)?;
        let number = |namespace: std::os::fd::OwnedFd| {
            std::fs::File::from(namespace)
                .metadata()
                .map(|found| found.ino())
        };
        if number(own).map_err(no_way)? != number(held).map_err(no_way)? {
            return Err(RuntimeError::EgressUnenforceable(
                "the sandbox is not in the network that its holder keeps".into(),
            ));
        }
        let far = self.pin(lease).open().map_err(no_way)?;
        Ok(Way::across(far, Ends::of(lease)))
    }

    /// Runs the holder and links its namespace to a far end of ours.
    async fn connect_holder(&self, record: &Record) -> Result<(), RuntimeError> {
        let lease = &record.labels.lease;
        let filtered = record.network == NetworkMode::Filtered;
        let name = name_of(lease, Role::Holder);
        self.engine.start(&name).await?;
        let holder = self.settle(&name).await?;
        let (pin, ends) = (self.pin(lease), Ends::of(lease));
        blocking(move || {
            let connect = || -> io::Result<()> {
                let near = net::of_process(holder.state.pid)?;
                net::plug(&pin.make()?, &near, ends, filtered)
            };
            connect().map_err(|error| RuntimeError::EgressUnenforceable(error.to_string()))
        })
        .await
    }

    pub(crate) async fn stop(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.ending(lease);
        self.engine.kill(&name_of(lease, Role::Sandbox)).await?;
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        let record = blocking(move || scratch.record(&same)).await?;
        if record.as_ref().is_some_and(|record| record.labels.ahead) {
            self.detach(lease).await?;
        }
        let filtered = |record: &Record| record.network == NetworkMode::Filtered;
        let is_filtered = record.as_ref().is_some_and(filtered);
        if self.engine.is_gvisor() || is_filtered {
            self.engine.kill(&name_of(lease, Role::Holder)).await?;
        }
        if is_filtered {
            // Its filter sits in the far end and stays.
            return Ok(());
        }
        let pin = self.pin(lease);
        blocking(move || pin.release().map_err(fault::of("let go of a network"))).await
    }

    async fn detach(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        blocking(move || scratch.detach(&same)).await
    }

    pub(crate) async fn remove(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.ending(lease);
        self.look_for_the_engine().await?;
        for role in [Role::Sandbox, Role::Holder] {
            let name = name_of(lease, role);
            // Holders are of gVisor only, but a profile may have changed.
            self.remove_ours(&name, lease).await?;
        }
        self.remove_own_group(lease).await?;
        let (pin, scratch, same) = (self.pin(lease), self.scratch.clone(), lease.clone());
        let resolver = self.own_resolver(lease);
        blocking(move || {
            net::disconnect(&same).map_err(fault::of("remove an uplink"))?;
            pin.release().map_err(fault::of("let go of a network"))?;
            fault::if_there(std::fs::remove_file(&resolver))
                .map_err(fault::at("remove", &resolver))?;
            scratch.remove(&same)?;
            scratch.hide_unused()
        })
        .await
    }

    async fn remove_ours(&self, name: &str, lease: &LeaseId) -> Result<(), RuntimeError> {
        let installation = &self.config.installation;
        match self.engine.inspect(name).await? {
            Some(found) if !is_ours(&found.labels(), installation, lease) => {
                tracing::warn!(
                    name,
                    "a container that is not ours has a name of ours; it stays"
                );
                Ok(())
            }
            Some(_) => self.engine.remove(name).await,
            None => Ok(()),
        }
    }

    /// The kernel gives a group free some time after its last process.
    async fn remove_own_group(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        if !self.engine.quirks.own_limits {
            return Ok(());
        }
        let own = OwnGroup::of(&self.hierarchies, &self.config.installation, lease);
        let deadline = Instant::now() + Duration::from_millis(limits::ENGINE_KILL_TIMEOUT_MS);
        loop {
            match own.remove() {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
                {
                    sleep(Duration::from_millis(10)).await;
                }
                other => return other.map_err(fault::of("remove a control group")),
            }
        }
    }

    /// Who listens on the socket now: after a restart of the engine another process does, and
    /// its mounts are the ones that count.
    pub(crate) async fn look_for_the_engine(&self) -> Result<(), RuntimeError> {
        let peer = engine::peer_of(&self.engine.socket).await?;
        self.scratch.engine_is(peer.pid);
        Ok(())
    }
}
