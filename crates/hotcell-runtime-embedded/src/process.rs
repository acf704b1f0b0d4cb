//! Processes by their pidfd, so that a number that was used again is never hit.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::io::{Interest, unix::AsyncFd};

/// A handle of a process.
pub(crate) fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?)
}

/// Kills it; one that is gone is fine.
pub(crate) fn kill(process: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => Ok(other?),
    }
}

/// Waits until it has ended. Works for processes of other parents too.
#[expect(
    deprecated,
    reason = "an OwnedFd stays the same open descriptor for as long as it is registered, which is \
              what the replacement wants to be promised in unsafe code"
)]
pub(crate) async fn wait(process: OwnedFd) -> io::Result<()> {
    let process = AsyncFd::with_interest(process, Interest::READABLE)?;
    process.readable().await.map(drop)
}

/// The same for a thread that may wait; `false` when the time was up first.
pub(crate) fn wait_blocking(process: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    loop {
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}
