//! What a crash left behind.
//!
//! Everything has a name that follows from a lease, so what has such a name and no lease
//! directory is nobody's. Volumes are never touched.

use std::{collections::BTreeSet, fs, os::unix::ffi::OsStrExt, path::Path};

use hotcell_runtime::RuntimeError;
use hotcell_types::LeaseId;

use crate::{
    birth::relink,
    cgroup::Cgroups,
    embedded::{Embedded, leases},
    fault,
    layout::{LINK_PREFIX, Layout, link_name},
    process,
    record::Record,
};

impl Embedded {
    /// Removes what belongs to no lease.
    pub(crate) async fn sweep(&self) -> Result<(), RuntimeError> {
        let leases = leases(&self.layout)?;
        let known: BTreeSet<&str> = leases.iter().map(LeaseId::as_str).collect();
        let shorts: BTreeSet<&str> = leases.iter().map(LeaseId::short).collect();
        for name in self.cgroups.names() {
            if !known.contains(name.as_str()) {
                tracing::info!(name, "removing a control group of no sandbox");
                self.cgroups.kill(&name).await?;
                self.cgroups.remove(&name).await?;
            }
        }
        let links = self
            .gateway
            .names()
            .await
            .map_err(fault::of("list the links"))?;
        for link in links {
            if let Some(short) = link.strip_prefix(LINK_PREFIX)
                && !shorts.contains(short)
            {
                self.gateway
                    .detach(link)
                    .await
                    .map_err(fault::of("remove a link"))?;
            }
        }
        for (dir, keep) in [
            (self.layout.engines(), &shorts),
            (self.layout.sandboxes(), &known),
        ] {
            let entries = fs::read_dir(&dir).map_err(fault::at("list", &dir))?;
            for entry in entries {
                let entry = entry.map_err(fault::at("list", &dir))?;
                let name = entry.file_name();
                if !name.to_str().is_some_and(|name| keep.contains(name)) {
                    let path = entry.path();
                    tracing::info!(path = %path.display(), "removing a directory of no sandbox");
                    fault::remove_tree(&path).map_err(fault::at("remove", &path))?;
                }
            }
        }
        Ok(())
    }

    /// Looks that every running sandbox can be reached. The gateway namespace may be another one
    /// than the one that they were linked to: a unit with a mount namespace of its own takes the
    /// mount that keeps it alive along when it stops. A sandbox with the kernel's network stack is
    /// linked again; gVisor's own cannot be, so such a sandbox is ended and listed as stopped.
    pub(crate) async fn relink_all(&self) -> Result<(), RuntimeError> {
        let links = self
            .gateway
            .names()
            .await
            .map_err(fault::of("list the links"))?;
        for lease in leases(&self.layout)? {
            let link = link_name(lease.short());
            let record = Record::load(&self.layout.lease(&lease)).ok();
            let (Some(main), Some(record)) = (self.main_process(&lease), record) else {
                continue;
            };
            if links.contains(&link) {
                continue;
            }
            let relinked = if self.engine.own_stack {
                Err(fault::failed(
                    "link the sandbox",
                    "its network stack is its own",
                ))
            } else {
                let reach = record.network.into();
                relink(self.gateway.clone(), link, record.slot, reach, main).await
            };
            if let Err(error) = relinked {
                tracing::warn!(%lease, %error, "ending a sandbox that cannot be reached any more");
                self.cgroups.kill(lease.as_str()).await?;
            }
        }
        Ok(())
    }
}

/// Ends engine calls that a daemon before us began and did not see the end of, with all that they
/// started: a half-started sandbox must not come up behind the back of whoever removes it.
pub(crate) async fn end_unfinished_starts(
    layout: &Layout,
    cgroups: &Cgroups,
) -> Result<(), RuntimeError> {
    let engines = layout.engines();
    let unfinished = unfinished_starts(&engines);
    for (pid, _) in &unfinished {
        if let Ok(handle) = process::open(*pid) {
            process::kill(&handle).map_err(fault::of("end an engine"))?;
            process::wait(handle)
                .await
                .map_err(fault::of("end an engine"))?;
        }
    }
    for lease in leases(layout)? {
        if unfinished.iter().any(|(_, short)| short == lease.short()) {
            tracing::info!(%lease, "ending a start that was cut off");
            cgroups.kill(lease.as_str()).await?;
        }
    }
    Ok(())
}

/// Processes that are an engine's `run` on one of our directories, and which.
fn unfinished_starts(engines: &Path) -> Vec<(u32, String)> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let mut words = line.split(|byte| *byte == 0);
            let root = words
                .by_ref()
                .skip_while(|word| *word != b"--root")
                .nth(1)?;
            let short = Path::new(std::ffi::OsStr::from_bytes(root))
                .strip_prefix(engines)
                .ok()?
                .iter()
                .next()?
                .to_str()?
                .to_owned();
            words.any(|word| word == b"run").then_some((pid, short))
        })
        .collect()
}
