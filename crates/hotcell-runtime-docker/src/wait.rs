//! Noticing the end of a sandbox, and why it came.
//!
//! The kernel tells, not the engine: a handle on the first process becomes readable within the
//! same millisecond in which it ends, also while the engine is away. Only then the engine is
//! asked why; one that cannot be asked has lost the sandbox.

use std::{io, os::fd::OwnedFd, time::Duration};

use hotcell_runtime::{RuntimeError, SandboxEnd};
use hotcell_types::{LeaseId, limits};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep},
};

use crate::{
    cgroup::OwnGroup,
    container::{Inspected, Role, name_of},
    fault,
    runtime::Core,
};

/// Between two tries to reach an engine that is away.
const AGAIN: Duration = Duration::from_millis(200);
/// How long an engine may take to notice what the kernel has told us already.
const NOTICE: Duration = Duration::from_secs(2);

impl Core {
    pub(crate) async fn ended(&self, lease: &LeaseId) -> Result<SandboxEnd, RuntimeError> {
        let name = name_of(lease, Role::Sandbox);
        // What we have started we can watch without asking anybody.
        let process = match self.process(lease) {
            Some(process) => Some(process.try_clone().map_err(fault::of("watch a sandbox"))?),
            None => self.find_process(&name).await?,
        };
        if let Some(process) = process {
            readable(process)
                .await
                .map_err(fault::of("watch a sandbox"))?;
        }
        Ok(self.why(lease, &name).await)
    }

    /// The first process of a running container; `None` when it does not run.
    async fn find_process(&self, name: &str) -> Result<Option<OwnedFd>, RuntimeError> {
        let inspect = async || {
            let found = self.engine.inspect(name).await?;
            found.ok_or(RuntimeError::NoSuchSandbox)
        };
        let mut found = inspect().await?;
        while found.state.running {
            let pid = found.state.pid;
            let Some(process) = open(pid).map_err(fault::of("watch a sandbox"))? else {
                // It has ended; the engine will notice.
                break;
            };
            // The number may have become another process's before the handle was opened.
            found = inspect().await?;
            if found.state.running && found.state.pid == pid {
                return Ok(Some(process));
            }
        }
        Ok(None)
    }

    /// Why a sandbox whose process is gone has ended.
    async fn why(&self, lease: &LeaseId, name: &str) -> SandboxEnd {
        let begin = Instant::now();
        let absence = Duration::from_millis(limits::ENGINE_ABSENCE_MS);
        let mut was_away = false;
        loop {
            if self.was_ended_by_us(lease) {
                return SandboxEnd::Stopped;
            }
            match self.engine.inspect(name).await {
                Ok(None) => return SandboxEnd::Lost,
                Ok(Some(found)) if !found.state.running || begin.elapsed() > NOTICE => {
                    return self.read_end(lease, &found, was_away);
                }
                Ok(Some(_)) => sleep(Duration::from_millis(10)).await,
                Err(error) => {
                    was_away = true;
                    if begin.elapsed() > absence {
                        tracing::warn!(%lease, %error, "the engine stays away; the sandbox is lost");
                        return SandboxEnd::Lost;
                    }
                    sleep(AGAIN).await;
                }
            }
        }
    }

    fn read_end(&self, lease: &LeaseId, found: &Inspected, was_away: bool) -> SandboxEnd {
        let own = || OwnGroup::of(&self.hierarchies, &self.config.installation, lease);
        let own_ran_out = self.engine.quirks.own_limits && own().ran_out_of_memory();
        tracing::debug!(%lease, exit_code = found.state.exit_code, error = found.state.error, "ended");
        if found.state.oom_killed || own_ran_out {
            SandboxEnd::OutOfMemory
        } else if was_away || self.engine_was_away(lease) {
            SandboxEnd::Lost
        } else {
            SandboxEnd::Exited
        }
    }
}

/// A handle on a process; `None` when there is none.
pub(crate) fn open(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(handle) => Ok(Some(handle)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe; what the deprecation warns of cannot happen to an OwnedFd"
)]
async fn readable(handle: OwnedFd) -> io::Result<()> {
    let handle = AsyncFd::with_interest(handle, Interest::READABLE)?;
    handle.readable().await.map(|_| ())
}
