//! Whether a sandbox runs, how it ended, and how what is left of it goes away.

use std::time::Duration;

use hotcell_runtime::{ObservedState, RuntimeError, SandboxEnd};
use hotcell_types::LeaseId;

use crate::{
    cgroup::Cgroups,
    embedded::Embedded,
    fault,
    layout::{Layout, link_name},
    process, scratch,
};

/// How long to wait when a process is neither there nor gone: the kernel is putting it away.
const SETTLE: Duration = Duration::from_millis(5);

impl Embedded {
    /// The first process of a sandbox, as the engine named it, while it is in its group.
    pub(crate) fn main_process(&self, lease: &LeaseId) -> Option<u32> {
        main_process(&self.layout, &self.cgroups, lease)
    }

    /// Where a sandbox stands.
    pub(crate) fn state(&self, lease: &LeaseId) -> ObservedState {
        if self.main_process(lease).is_some() {
            ObservedState::Running
        } else if self.layout.lease(lease).started().exists() {
            ObservedState::Stopped
        } else {
            ObservedState::Created
        }
    }

    /// Why a sandbox that does not run does not.
    pub(crate) fn end_of(&self, lease: &LeaseId) -> SandboxEnd {
        let dir = self.layout.lease(lease);
        if !dir.path().exists() || dir.stopped().exists() || !dir.started().exists() {
            SandboxEnd::Stopped
        } else if self.cgroups.oom_kills(lease.as_str()) > 0 {
            SandboxEnd::OutOfMemory
        } else if self.cgroups.exists(lease.as_str()) {
            SandboxEnd::Exited
        } else {
            // Only a reboot takes the group away without leaving word.
            SandboxEnd::Lost
        }
    }

    /// Ends what runs of a sandbox and removes everything but its directory. Succeeds when
    /// nothing is there; may be repeated after a failure in the middle.
    pub(crate) async fn clear(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.cgroups.kill(lease.as_str()).await?;
        self.gateway
            .detach(link_name(lease.short()))
            .await
            .map_err(fault::of("remove a link"))?;
        let engine = self.layout.engine(lease.short());
        fault::remove_tree(engine.path())
            .map_err(fault::at("remove the engine's state", engine.path()))?;
        self.cgroups.remove(lease.as_str()).await?;
        scratch::wait_released(&self.layout.lease(lease).scratch_image()).await
    }
}

/// Waits until a sandbox does not run.
pub(crate) async fn wait_for_end(
    layout: &Layout,
    cgroups: &Cgroups,
    lease: &LeaseId,
) -> Result<(), RuntimeError> {
    while let Some(pid) = main_process(layout, cgroups, lease) {
        match process::open(pid) {
            Ok(handle) if main_process(layout, cgroups, lease) == Some(pid) => {
                process::wait(handle)
                    .await
                    .map_err(fault::of("wait for the sandbox"))?;
            }
            _ => {}
        }
        if main_process(layout, cgroups, lease) == Some(pid) {
            tokio::time::sleep(SETTLE).await;
        }
    }
    Ok(())
}

/// See [`Embedded::main_process`].
pub(crate) fn main_process(layout: &Layout, cgroups: &Cgroups, lease: &LeaseId) -> Option<u32> {
    let file = layout.engine(lease.short()).pid();
    let pid = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    cgroups
        .processes(lease.as_str())
        .ok()?
        .contains(&pid)
        .then_some(pid)
}
