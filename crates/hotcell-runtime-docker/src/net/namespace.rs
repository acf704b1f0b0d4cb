//! Network namespaces: of processes, and of our own.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    thread,
};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use crate::fault::if_there;

/// The namespace of a process, which must not be the host's.
pub(crate) fn of_process(pid: u32) -> io::Result<OwnedFd> {
    let file = File::open(format!("/proc/{pid}/ns/net"))?;
    let (theirs, ours) = (file.metadata()?, fs::metadata("/proc/self/ns/net")?);
    if theirs.ino() == ours.ino() && theirs.dev() == ours.dev() {
        return Err(io::Error::other(
            "the sandbox is in the network of the host",
        ));
    }
    Ok(file.into())
}

/// Runs `work` in a namespace, on a thread that ends with it: one that has been elsewhere must
/// not go back to a pool.
pub(crate) fn within<T: Send>(
    namespace: impl AsFd + Send,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    apart(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        work()
    })
}

fn apart<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread of a namespace ended early")))
    })
}

/// A new namespace that lives as long as its handle.
pub(super) fn make() -> io::Result<OwnedFd> {
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
}

/// A namespace that a file keeps alive: the far end of one lease's link.
#[derive(Debug)]
pub(crate) struct Pin(PathBuf);

impl Pin {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Opens what is pinned.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let file = File::open(&self.0)?;
        let found = rustix::fs::fstatfs(&file)?;
        if found.f_type == NSFS_MAGIC {
            Ok(file.into())
        } else {
            // After a reboot or a crash between the two steps of `make`.
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Opens it, or makes a new one in which nothing is but its loopback, which stays down.
    pub(crate) fn make(&self) -> io::Result<OwnedFd> {
        if let Ok(there) = self.open() {
            return Ok(there);
        }
        if let Some(parent) = self.0.parent() {
            fs::create_dir_all(parent)?;
        }
        let path = self.0.as_path();
        apart(|| {
            OpenOptions::new()
                .create(true)
                .write(true)
                .truncate(false)
                .open(path)?;
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount_bind("/proc/thread-self/ns/net", path)?;
            Ok(())
        })?;
        self.open()
    }

    /// Lets go of it; its link ends with it. Fine when there is none.
    pub(crate) fn release(&self) -> io::Result<()> {
        release(&self.0)
    }
}

fn release(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    if_there(fs::remove_file(path))
}

/// What `statfs` says of a file that is a namespace.
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;
