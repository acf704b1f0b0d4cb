//! Shims as the agent sees them: started ahead of need, used one call at a time.

use std::{
    collections::HashSet,
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
};

use hotcell_agent_proto::{AgentError, AgentErrorCode};
use hotcell_types::limits::agent::{MAX_IDLE_SHIMS, MAX_SHIMS};
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::Pid,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::UnixStream,
};

use crate::shim::{
    process::by_fork,
    wire::{EVENT_BYTES, Event},
};

/// One shim process and the agent's end of its socket.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) pid: Pid,
    socket: UnixStream,
}

impl Shim {
    /// Sends what to start, with the three descriptors that the child gets.
    ///
    /// # Errors
    /// When the shim is dead.
    pub(crate) async fn send(&mut self, spec: &[u8], stdio: &[OwnedFd; 3]) -> std::io::Result<()> {
        let sent = self
            .socket
            .async_io(Interest::WRITABLE, || {
                let fds = stdio.each_ref().map(|fd| fd.as_fd());
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                control.push(SendAncillaryMessage::ScmRights(&fds));
                sendmsg(
                    self.socket.as_fd(),
                    &[IoSlice::new(spec)],
                    &mut control,
                    SendFlags::NOSIGNAL,
                )
                .map_err(std::io::Error::from)
            })
            .await?;
        self.socket.write_all(&spec[sent..]).await
    }

    /// The next event; nothing when the shim is dead.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        let mut bytes = [0; EVENT_BYTES];
        self.socket.read_exact(&mut bytes).await.ok()?;
        Event::decode(bytes)
    }
}

/// All shims.
#[derive(Debug)]
pub(crate) struct Pool {
    executable: PathBuf,
    idle: Mutex<Vec<Shim>>,
    /// Process ids of all, idle and busy.
    known: Mutex<HashSet<i32>>,
}

impl Pool {
    pub(crate) fn new(executable: PathBuf) -> Self {
        Self {
            executable,
            idle: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// An idle shim, or a new one.
    ///
    /// # Errors
    /// [`AgentErrorCode::Busy`] when no more processes fit.
    pub(crate) fn take(&self) -> Result<Shim, AgentError> {
        if let Some(shim) = lock(&self.idle).pop() {
            return Ok(shim);
        }
        self.start()
    }

    /// Starts an idle shim unless there is one; a failure shows when one is needed.
    pub(crate) fn refill(&self) {
        if lock(&self.idle).is_empty()
            && let Ok(shim) = self.start()
        {
            lock(&self.idle).push(shim);
        }
    }

    /// Takes a shim back that has nothing below it.
    pub(crate) fn give_back(&self, shim: Shim) {
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE_SHIMS {
            idle.push(shim);
        } else {
            // Closing its socket ends it.
            drop(idle);
            self.forget(&shim);
        }
    }

    /// Forgets a shim that is dead or about to be.
    pub(crate) fn forget(&self, shim: &Shim) {
        lock(&self.known).remove(&shim.pid.as_raw_nonzero().get());
    }

    /// Whether this process is a shim that is in use or idle.
    pub(crate) fn knows(&self, pid: i32) -> bool {
        lock(&self.known).contains(&pid)
    }

    fn start(&self) -> Result<Shim, AgentError> {
        let busy = |why: &str| {
            AgentError::new(
                AgentErrorCode::Busy,
                format!("no more processes can start: {why}"),
            )
        };
        if lock(&self.known).len() >= MAX_SHIMS {
            return Err(busy("too many commands left processes in the background"));
        }
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(|error| busy(&error.to_string()))?;
        let mut command = Command::new(&self.executable);
        command
            .arg("shim")
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = by_fork(&mut command)
            .spawn()
            .map_err(|error| busy(&error.to_string()))?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| busy("a process id out of range"))?;
        lock(&self.known).insert(pid.as_raw_nonzero().get());
        let socket = ours
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(ours))
            .map_err(|error| busy(&error.to_string()))?;
        Ok(Shim { pid, socket })
    }
}

/// Locks; a panic elsewhere leaves nothing half-done in what these locks hold.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
