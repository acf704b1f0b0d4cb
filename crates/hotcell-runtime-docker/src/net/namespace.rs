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
use rustix::{
    fs::{StatVfsMountFlags, statvfs},
    mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount},
};

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

/// The same for work that changes settings of that namespace. A hardened service has `/proc/sys`
/// read-only; in mounts of the thread's own it need not be.
pub(super) fn within_settings<T: Send>(
    namespace: impl AsFd + Send,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    within(namespace, || {
        if statvfs("/proc/sys")?
            .f_flag
            .contains(StatVfsMountFlags::RDONLY)
        {
            unshare(CloneFlags::CLONE_NEWNS)?;
            own_mounts()?;
            hotcell_uplink::make_writable()?;
        }
        work()
    })
}

/// Nothing is mounted here for others, nor by others for us.
fn own_mounts() -> io::Result<()> {
    let own = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", own)?)
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
///
/// The mount on that file is made in the mount namespace of the first process, where it can be. A
/// hardened service has one of its own, and what is mounted in there ends with it: a restart
/// would end the links of all sandboxes.
#[derive(Debug)]
pub(crate) struct Pin(PathBuf);

impl Pin {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Opens what is pinned.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        match open_pinned(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                open_pinned(&as_the_first_sees(&self.0))
            }
            opened => opened,
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
            if let Some(mounts) = mounts_of_the_first(path)? {
                may_be_refused(enter_mounts(mounts))?;
            }
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
    if let Some(mounts) = mounts_of_the_first(path)? {
        let there = || {
            enter_mounts(mounts)?;
            unmount_if_mounted(path)
        };
        may_be_refused(apart(there))?;
    }
    unmount_if_mounted(path)?;
    if_there(fs::remove_file(path))
}

fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let file = File::open(path)?;
    let found = rustix::fs::fstatfs(&file)?;
    if found.f_type == NSFS_MAGIC {
        Ok(file.into())
    } else {
        // After a reboot or a crash between the two steps of `make`.
        Err(io::ErrorKind::NotFound.into())
    }
}

fn as_the_first_sees(path: &Path) -> PathBuf {
    Path::new("/proc/1/root").join(path.strip_prefix("/").unwrap_or(path))
}

/// The mount namespace of the first process; nothing when it is ours, or when this directory is not
/// in there.
fn mounts_of_the_first(path: &Path) -> io::Result<Option<OwnedFd>> {
    let Some(directory) = path.parent() else {
        return Ok(None);
    };
    let is_same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let Ok(mounts) = File::open("/proc/1/ns/mnt") else {
        // Of another user, as in a container.
        return Ok(None);
    };
    let ours = fs::metadata("/proc/thread-self/ns/mnt")?;
    let (here, there) = (
        fs::metadata(directory),
        fs::metadata(as_the_first_sees(directory)),
    );
    let (Ok(here), Ok(there)) = (here, there) else {
        return Ok(None);
    };
    let is_another = !is_same(&mounts.metadata()?, &ours) && is_same(&here, &there);
    Ok(is_another.then(|| mounts.into()))
}

/// Moves this thread, which ends with what it does there.
fn enter_mounts(mounts: OwnedFd) -> io::Result<()> {
    unshare(CloneFlags::CLONE_FS)?;
    setns(mounts, CloneFlags::CLONE_NEWNS)?;
    Ok(())
}

/// Whoever may not go there has made and makes the mount among its own.
fn may_be_refused(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

fn unmount_if_mounted(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What `statfs` says of a file that is a namespace.
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, mount_remount};

    use super::*;

    /// Runs `work` as a hardened service runs: with mounts of its own.
    fn in_a_service<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        apart(|| {
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
            // Nothing comes in or goes out, so that the path alone decides.
            own_mounts()?;
            work()
        })
    }

    #[test]
    fn settings_are_changed_where_the_service_has_them_read_only() {
        if !rustix::process::geteuid().is_root() {
            println!("NOT checked: it takes root");
            return;
        }
        let change = || fs::write("/proc/sys/net/ipv4/conf/lo/forwarding", "1");
        in_a_service(|| {
            mount_bind("/proc/sys", "/proc/sys")?;
            let read_only = MountFlags::BIND | MountFlags::RDONLY;
            mount_remount("/proc/sys", read_only, "")?;
            let namespace = make()?;
            let refused = within(&namespace, change).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
            within_settings(&namespace, change)?;
            // For that thread alone.
            let refused = within(&namespace, change).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_link_outlives_the_mounts_of_the_service_that_made_it() {
        if !rustix::process::geteuid().is_root() {
            println!("NOT checked: it takes root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        if fs::metadata(as_the_first_sees(directory.path())).is_err() {
            println!("NOT checked: the first process does not see this directory");
            return;
        }
        let pin = Pin::new(directory.path().join("netns/lease"));
        let inode = |file: OwnedFd| File::from(file).metadata().map(|found| found.ino());
        let made = in_a_service(|| {
            let made = inode(pin.make()?)?;
            assert_eq!(inode(pin.open()?)?, made);
            Ok(made)
        });
        let made = made.unwrap();
        // The next one has none of the mounts that the first one made for itself.
        let found = in_a_service(|| inode(pin.open()?)).unwrap();
        assert_eq!(found, made);
        in_a_service(|| pin.release()).unwrap();
        let gone = in_a_service(|| pin.open()).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        // Where nobody has mounts of their own it is as it was.
        let here = inode(pin.make().unwrap()).unwrap();
        assert_eq!(inode(pin.open().unwrap()).unwrap(), here);
        pin.release().unwrap();
        pin.release().unwrap();
    }
}
