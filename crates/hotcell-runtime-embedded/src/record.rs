//! What a lease's directory says about it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use hotcell_runtime::{
    ImageRef, Labels, NetworkMode, RuntimeError, SandboxSpec, VolumeMount, WarmSpec,
};
use hotcell_types::{Resources, limits};
use serde::{Deserialize, Serialize};

use crate::{fault, layout::LeaseDir, net::Slot};

const VERSION: u32 = 2;

/// Everything that is needed to start a sandbox, but for its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// None while nobody has begun to claim it.
    pub(crate) labels: Option<Labels>,
    pub(crate) slot: Slot,
    pub(crate) image: ImageRef,
    pub(crate) resources: Resources,
    pub(crate) scratch_bytes: u64,
    pub(crate) mounts: Vec<VolumeMount>,
    pub(crate) network: NetworkMode,
}

impl Record {
    pub(crate) fn new(spec: &SandboxSpec, slot: Slot) -> Self {
        Self {
            version: VERSION,
            labels: Some(spec.labels.clone()),
            slot,
            image: spec.image.clone(),
            resources: spec.resources,
            scratch_bytes: spec.scratch_bytes,
            mounts: spec.mounts.clone(),
            network: spec.network,
        }
    }

    /// Of one that is made ahead.
    pub(crate) fn ahead(spec: &WarmSpec, slot: Slot) -> Self {
        Self {
            version: VERSION,
            labels: None,
            slot,
            image: spec.image.clone(),
            resources: spec.resources,
            scratch_bytes: spec.scratch_bytes,
            mounts: Vec::new(),
            network: spec.network,
        }
    }

    /// Whether a sandbox of this record is what is asked for, but for whose it is.
    pub(crate) fn fits(&self, spec: &SandboxSpec) -> bool {
        self.image == spec.image
            && self.resources == spec.resources
            && self.scratch_bytes == spec.scratch_bytes
            && self.network == spec.network
    }

    /// Writes it. Not synced: after a power loss the sandbox is gone anyway, and a record that
    /// cannot be read is listed as damaged and removed like any other.
    pub(crate) fn save(&self, dir: &LeaseDir) -> Result<(), RuntimeError> {
        let path = dir.record();
        let text = serde_json::to_vec(self)
            .map_err(|error| fault::failed("write the record", error.to_string()))?;
        write_new(&path, &text).map_err(fault::at("write the record", &path))
    }

    /// Reads it.
    pub(crate) fn load(dir: &LeaseDir) -> io::Result<Self> {
        let bytes = fault::read_small(&dir.record())?;
        let record: Self = serde_json::from_slice(&bytes)?;
        if record.version == VERSION {
            Ok(record)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("record version {}, not {VERSION}", record.version),
            ))
        }
    }
}

/// Writes a file that only root may read, in place of one that is there.
pub(crate) fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&next)?;
    file.write_all(content)?;
    fs::rename(&next, path)
}

/// Sets a marker; setting it twice is fine.
pub(crate) fn mark(path: &Path) -> Result<(), RuntimeError> {
    write_new(path, b"").map_err(fault::at("write a marker", path))
}

/// Refuses to begin what a nearly full disk would break in the middle.
pub(crate) fn need_free_space(dir: &Path) -> Result<(), RuntimeError> {
    let stat = rustix::fs::statvfs(dir).map_err(fault::at("look at the disk", dir))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < limits::MIN_HOST_FREE_BYTES {
        return Err(RuntimeError::DiskFull(format!(
            "{} has {} MiB left, and {} MiB are needed",
            dir.display(),
            free >> 20,
            limits::MIN_HOST_FREE_BYTES >> 20
        )));
    }
    Ok(())
}
