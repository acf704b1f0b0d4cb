//! How a sandbox that was made ahead sees its volumes: beneath one mount, which it has from its birth on,
//! and which the host attaches them to at the claim.
//!
//! ```text
//!  .scratch/<lease>/mnt                 a read-only tmpfs of four empty directories, shared;
//!        │        └─<volume>            the container has it at /mnt, as a slave
//!        │              ▲
//!        │              └── move_mount, in the engine's mount namespace
//!        ▼                      ▲
//!  /mnt of the container        │ open_tree(clone)
//!  follows                      │
//!  thread: unshare(mount) ── bind the volume, fix its flags
//! ```
//!
//! A mount's flags do not follow it to its slaves when they change later, so each volume has its own before it
//! is attached: what is read-only is so from its first moment on, whatever the engine was told. The same
//! holds for its peers: bound directly it would hand on what is mounted on this host beneath it.
//!
//! The tmpfs is the end of all that is writable: no first process, no root in it and no OCI runtime can
//! make it writable again but on this host. Mounts stay when a daemon is killed, and go with the lease's
//! directory; a sandbox that does not run has none of its volumes attached.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::PoisonError,
    thread,
};

use hotcell_runtime::{RuntimeError, VolumeMount};
use hotcell_types::{LeaseId, VolumeKind};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::{
    fs::{
        CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstat, fstatvfs, openat, openat2,
        statvfs,
    },
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
        mount_bind, mount_change, mount_remount, move_mount, open_tree, unmount,
    },
};

use crate::{fault, mounted::mounts, scratch::Scratch};

/// What the mount for volumes may hold: a few directories, and nothing in them.
const OPTIONS: &str = "size=64k,nr_inodes=16,mode=755";
const BASE_FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

impl Scratch {
    /// The mount beneath which a sandbox's volumes are attached; made where the engine sees it, unless it
    /// is there whole.
    pub(crate) fn lay_base(&self, lease: &LeaseId) -> Result<PathBuf, RuntimeError> {
        let base = self.disk(lease).volumes();
        // Only in a directory that is there: of one that was removed meanwhile nothing is to come back.
        match DirBuilder::new().mode(0o711).create(&base) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(fault::at("make a directory", &base))?,
        }
        self.at_the_engine(|| lay(&base))
            .map_err(fault::at("make the mount for volumes at", &base))?;
        Ok(base)
    }

    /// Attaches those volumes of a sandbox that are not attached yet.
    pub(crate) fn attach(
        &self,
        lease: &LeaseId,
        volumes: &[VolumeMount],
    ) -> Result<(), RuntimeError> {
        let base = self.disk(lease).volumes();
        let attach = || -> io::Result<()> {
            let _held = self
                .attaching
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let there = self.at_the_engine(mounts)?;
            let missing = volumes
                .iter()
                .map(|volume| (volume, beneath(&base, volume.kind)))
                .filter(|(_, target)| !there.contains(target));
            let missing: Vec<(&VolumeMount, PathBuf)> = missing.collect();
            let engine = self.engine_or_own_mounts()?;
            thread::scope(|scope| {
                scope
                    .spawn(|| attach_here(&base, &missing, &engine))
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("the thread of a mount ended early")))
            })
        };
        attach().map_err(fault::at("attach the volumes at", &base))
    }

    /// Takes a sandbox's volumes away again. For one that does not run.
    pub(crate) fn detach(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let base = self.disk(lease).volumes();
        let detach = || -> io::Result<()> {
            while let Some(target) = mounts()?
                .into_iter()
                .rfind(|mounted| mounted.starts_with(&base) && *mounted != base)
            {
                unmount(&target, UnmountFlags::DETACH)?;
            }
            Ok(())
        };
        self.at_the_engine(detach)
            .map_err(fault::at("detach the volumes at", &base))
    }

    fn engine_or_own_mounts(&self) -> io::Result<OwnedFd> {
        match self.engine_mounts()? {
            Some(theirs) => Ok(theirs),
            None => Ok(File::open("/proc/thread-self/ns/mnt")?.into()),
        }
    }
}

fn beneath(base: &Path, kind: VolumeKind) -> PathBuf {
    base.join(name_of(kind))
}

fn name_of(kind: VolumeKind) -> &'static str {
    kind.mount_path().rsplit('/').next().unwrap_or_default()
}

/// In the engine's mount namespace. That it is read-only is its last step, and so says that it is whole.
fn lay(base: &Path) -> io::Result<()> {
    let is_there = || -> io::Result<bool> { Ok(mounts()?.iter().any(|mounted| mounted == base)) };
    if is_there()? {
        if statvfs(base)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Ok(());
        }
        unmount(base, UnmountFlags::DETACH)?;
    }
    mount(
        "hotcell",
        base,
        "tmpfs",
        BASE_FLAGS,
        Some(&*std::ffi::CString::new(OPTIONS)?),
    )?;
    for kind in VolumeKind::ALL {
        let path = beneath(base, kind);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    }
    // Of its own: where the host's root is shared it was born a peer of copies in other namespaces.
    mount_change(base, MountPropagationFlags::PRIVATE)?;
    mount_change(base, MountPropagationFlags::SHARED)?;
    // The file system itself, not one mount of it.
    Ok(mount_remount(
        base,
        BASE_FLAGS | MountFlags::RDONLY,
        OPTIONS,
    )?)
}

/// In a thread of its own, which ends in a namespace that may not be ours.
fn attach_here(
    place: &Path,
    volumes: &[(&VolumeMount, PathBuf)],
    engine: &OwnedFd,
) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let mut trees = Vec::with_capacity(volumes.len());
    for (volume, target) in volumes {
        trees.push((clone_tree(place, volume)?, target));
    }
    setns(engine, CloneFlags::CLONE_NEWNS)?;
    for (tree, target) in trees {
        move_mount(
            tree,
            "",
            CWD,
            target,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?;
    }
    Ok(())
}

/// A mount of a volume that is attached nowhere, with the flags that it has in the sandbox.
fn clone_tree(place: &Path, volume: &VolumeMount) -> io::Result<OwnedFd> {
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    if volume.kind.read_only() {
        flags |= MountFlags::RDONLY;
    }
    // One upon the other: nobody looks for them by this path, and all of them go with this thread.
    mount_bind(&*volume.host_path, place)?;
    mount_remount(place, flags, "")?;
    mount_change(place, MountPropagationFlags::PRIVATE)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, place, flags)?)
}

/// Looks whether the volumes have come to where a sandbox's paths are resolved, which is the root of this
/// process, and says what is wrong: an engine or a unit of the host may have cut the way.
pub(crate) fn look(keeper: u32, volumes: &[VolumeMount]) -> Result<(), String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{keeper}/root"), flags, Mode::empty())
        .map_err(|error| format!("its root cannot be opened: {error}"))?;
    for volume in volumes {
        let path = volume.kind.mount_path();
        is_volume(&root, volume).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

fn is_volume(root: impl AsFd, volume: &VolumeMount) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let path = volume.kind.mount_path();
    let inside = openat2(root, path, flags, Mode::empty(), resolve)?;
    let (wanted, found) = (fs::metadata(&volume.host_path)?, fstat(&inside)?);
    if (wanted.dev(), wanted.ino()) != (found.st_dev, found.st_ino) {
        return Err(io::Error::other("the volume has not come through"));
    }
    let read_only = fstatvfs(&inside)?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY);
    if volume.kind.read_only() && !read_only {
        return Err(io::Error::other("the volume is not read-only"));
    }
    Ok(())
}
