//! Sandboxes that are made ahead: nobody's until they are claimed, and then like any other.
//!
//! ```text
//!  warm    directory with record and mark ─► empty mount for volumes ─► container runs
//!  claim   record: whose it is, its volumes ─► volumes attached ─► looked at ─► the mark goes
//! ```
//!
//! A kill before the last step leaves the mark, and whatever has the mark is never used: it is listed as
//! unclaimed, and removed by a sweep or by the creation of its lease's sandbox. Since an engine may finish a
//! container that a killed daemon has asked for, after the next one has removed its directory, one that
//! was made ahead, has no directory and never ran counts as unclaimed, too.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read,
};

use hotcell_runtime::{ObservedState, RuntimeError, SandboxSpec, WarmSpec};
use hotcell_types::LeaseId;

use crate::{
    attach,
    container::{Inspected, Role, name_of},
    fault,
    labels::{Marks, is_ahead, is_ours},
    runtime::{Core, blocking, state_of},
    scratch::Record,
    volumes,
};

const MAKE: &str = "make a sandbox ahead";
const CLAIM: &str = "claim the sandbox";
/// What gVisor's file server calls itself, as the first word of its command line.
const FILE_SERVER: &[u8; 12] = b"runsc-gofer\0";
/// Why a rootless engine has no pool.
pub(crate) const ROOTLESS: &str = "its mounts are in a namespace of its user, and it is not known whether a \
     volume that is mounted there later comes through to its containers";

/// The refusal of a rootless engine.
pub(crate) fn rootless() -> RuntimeError {
    RuntimeError::Unsupported {
        what: "a warm pool on a rootless engine",
        reason: format!(
            "{ROOTLESS}; set profile.warm_pool to 0, or use the rootful engine or the embedded runtime"
        ),
    }
}

impl Core {
    /// Makes and runs a sandbox that is nobody's.
    pub(crate) async fn make_ahead(&self, spec: &WarmSpec) -> Result<(), RuntimeError> {
        if self.engine.info.is_rootless() {
            return Err(rootless());
        }
        if spec.installation != self.config.installation {
            return Err(fault::failed(MAKE, "it is of another installation"));
        }
        let record = Record {
            labels: Marks::ahead(spec),
            image: self.find_image(&spec.image).await?,
            resources: spec.resources,
            scratch_bytes: spec.scratch_bytes,
            mounts: Vec::new(),
            network: spec.network,
        };
        let (scratch, new) = (self.scratch.clone(), record.clone());
        blocking(move || {
            if scratch.is_there(&new.labels.lease) {
                return Err(fault::failed(MAKE, "it is there already"));
            }
            scratch.prepare_ahead(&new)
        })
        .await?;
        self.run(&record, &spec.agent_key).await
    }

    /// Gives a sandbox that was made ahead to its lease.
    pub(crate) async fn give(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let lease = &spec.labels.lease;
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        let found = blocking(move || Ok((scratch.record(&same)?, scratch.is_unclaimed(&same))));
        let (record, is_unclaimed) = found.await?;
        let mut record = record.ok_or(RuntimeError::NoSuchSandbox)?;
        if !is_unclaimed || record.labels.labels().is_some() {
            return Err(fault::failed(CLAIM, "it is somebody's already"));
        }
        let fits = record.labels.ahead
            && record.labels.installation == spec.labels.installation
            && record.image == self.find_image(&spec.image).await?
            && record.resources == spec.resources
            && record.scratch_bytes == spec.scratch_bytes
            && record.network == spec.network;
        if !fits {
            return Err(fault::failed(CLAIM, "it is not what is asked for"));
        }
        let kinds: BTreeSet<_> = spec.mounts.iter().map(|mount| mount.kind).collect();
        if kinds.len() != spec.mounts.len() {
            return Err(fault::failed(CLAIM, "one volume has two places"));
        }
        self.look_for_the_engine().await?;
        let found = self.engine.inspect(&name_of(lease, Role::Sandbox)).await?;
        let runs = |found: &Inspected| {
            found.state.running
                && found.state.pid != 0
                && is_ours(&found.labels(), &self.config.installation, lease)
        };
        let found = found
            .filter(runs)
            .ok_or_else(|| fault::failed(CLAIM, "it does not run"))?;
        // First the intent: whoever finds it from now on can see whose it was to be.
        record.labels.give_to(&spec.labels);
        record.mounts.clone_from(&spec.mounts);
        let (scratch, root) = (self.scratch.clone(), self.config.volume_root.clone());
        let (owner, keeper) = (self.engine.quirks.owner, self.keeper(found.state.pid));
        let lease = lease.clone();
        blocking(move || {
            volumes::binds(&root, &record.mounts, owner)?;
            scratch.write(&record)?;
            scratch.attach(&lease, &record.mounts)?;
            attach::look(keeper?, &record.mounts).map_err(|reason| fault::failed(CLAIM, reason))?;
            let mark = scratch.disk(&lease).warm();
            fs::remove_file(&mark).map_err(fault::at("remove", &mark))
        })
        .await
    }

    /// The process in whose root a sandbox's paths are resolved: its first one, or under gVisor its file
    /// server, which is in the same control group.
    pub(crate) fn keeper(&self, pid: u32) -> Result<u32, RuntimeError> {
        if !self.engine.is_gvisor() {
            return Ok(pid);
        }
        let members = self.hierarchies.members(pid);
        members
            .map_err(fault::of("list its processes"))?
            .into_iter()
            .find(|pid| is_file_server(*pid))
            .ok_or_else(|| fault::failed("look at its volumes", "it has no file server"))
    }

    /// Whether a sandbox was made ahead and nobody has claimed it whole.
    pub(crate) async fn is_unclaimed(&self, lease: &LeaseId) -> Result<bool, RuntimeError> {
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        blocking(move || Ok(scratch.is_unclaimed(&same))).await
    }

    /// See [`is_orphan`], of a lease that has no directory.
    async fn is_orphan(&self, lease: &LeaseId) -> Result<bool, RuntimeError> {
        if let Some(sandbox) = self.engine.inspect(&name_of(lease, Role::Sandbox)).await? {
            let state = state_of(&sandbox.state.status);
            return Ok(is_orphan(state, is_ahead(&sandbox.labels())));
        }
        let holder = self.engine.inspect(&name_of(lease, Role::Holder)).await?;
        Ok(holder.is_some_and(|holder| is_ahead(&holder.labels())))
    }

    /// Removes a sandbox that was made ahead, unless it is somebody's, and says whether it was there.
    pub(crate) async fn remove_unclaimed(&self, lease: &LeaseId) -> Result<bool, RuntimeError> {
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        let (is_there, mut is_nobodys) =
            blocking(move || Ok((scratch.is_there(&same), scratch.is_unclaimed(&same)))).await?;
        if !is_there {
            is_nobodys = self.is_orphan(lease).await?;
        }
        if is_nobodys {
            self.remove(lease).await?;
        }
        Ok(is_nobodys)
    }
}

/// Whether containers without a directory were made ahead and never became anybody's: what is claimed has run
/// before, and has a directory. What only keeps a network says nothing of its own.
pub(crate) fn is_orphan(sandbox: ObservedState, was_made_ahead: bool) -> bool {
    was_made_ahead && sandbox == ObservedState::Created
}

fn is_file_server(pid: u32) -> bool {
    let mut name = [0; FILE_SERVER.len()];
    let read =
        File::open(format!("/proc/{pid}/cmdline")).and_then(|mut line| line.read_exact(&mut name));
    read.is_ok() && name == *FILE_SERVER
}
