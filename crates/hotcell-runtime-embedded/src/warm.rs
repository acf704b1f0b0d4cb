//! Sandboxes that are made ahead, and how one gets its volumes when it is claimed.
//!
//! ```text
//!  warm:   marker `warm` ── start with one mount at /mnt: empty directories, read-only
//!  claim:  record: labels, volumes ── attach the volumes ── remove the marker
//!
//!  thread: unshare(mount) ── bind each volume, fix its flags ── open_tree(clone)
//!            └── setns(mount namespace of whoever resolves paths) ── move_mount beneath /mnt
//! ```
//!
//! Under a shared kernel it is the sandbox's first process whose namespace counts; under gVisor it is
//! that of its file server, whose open directory behind `/mnt` the sandbox's kernel walks through.
//! What is attached is gone with that namespace: a sandbox that is started again has ordinary mounts,
//! from its record. A kill at any point before the last step leaves the marker, and whatever has the
//! marker is never used.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    thread,
};

use hotcell_runtime::{NetworkMode, RuntimeError, SandboxSpec, VolumeMount, WarmSpec};
use hotcell_types::LeaseId;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_bind, mount_change,
        mount_remount, move_mount, open_tree,
    },
};
use tokio::sync::oneshot;

use crate::{
    birth::private_mounts,
    config::OciKind,
    embedded::Embedded,
    fault,
    layout::EngineDir,
    record::{Record, need_free_space},
};

const CLAIM: &str = "claim the sandbox";
/// What gVisor's file server calls itself.
const FILE_SERVER: &[u8] = b"runsc-gofer";

impl Embedded {
    /// Makes and starts a sandbox that is nobody's.
    pub(crate) async fn make_ahead(&self, spec: &WarmSpec) -> Result<(), RuntimeError> {
        let lease = &spec.lease;
        let _guard = self.locks.lock(lease).await;
        if self.layout.lease(lease).path().exists() {
            return Err(fault::failed("make a sandbox ahead", "it is there already"));
        }
        self.check_ahead(spec)?;
        need_free_space(&self.layout.sandboxes())?;
        if spec.network == NetworkMode::Filtered {
            self.need_uplink().await?;
        }
        let record = Record::ahead(spec, self.take_slot(lease)?);
        self.make_directory(lease, record.clone()).await?;
        self.bear(lease, &spec.agent_key, record).await
    }

    /// Gives a sandbox that was made ahead to its lease.
    pub(crate) async fn give(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let lease = &spec.labels.lease;
        let _guard = self.locks.lock(lease).await;
        let dir = self.layout.lease(lease);
        let mut record = self.record(lease)?;
        if !dir.warm().exists() || record.labels.is_some() {
            return Err(fault::failed(CLAIM, "it is somebody's already"));
        }
        if spec.labels.installation != self.config.installation || !record.fits(spec) {
            return Err(fault::failed(CLAIM, "it is not what is asked for"));
        }
        self.check_mounts(&spec.mounts)?;
        let keeper = self.keeper_of_mounts(lease)?;
        // First the intent: whoever finds it from now on can see whose it was to be.
        record.labels = Some(spec.labels.clone());
        record.mounts.clone_from(&spec.mounts);
        record.save(&dir)?;
        let engine = self.layout.engine(lease.short());
        attach(engine, spec.mounts.clone(), keeper).await?;
        fault::remove_file(&dir.warm()).map_err(fault::at("remove", &dir.warm()))
    }

    /// The namespace in which the paths of a running sandbox are resolved.
    fn keeper_of_mounts(&self, lease: &LeaseId) -> Result<Keeper, RuntimeError> {
        let main = self.main_process(lease);
        let main = main.ok_or_else(|| fault::failed(CLAIM, "it does not run"))?;
        let processes = || {
            let found = self.cgroups.processes(lease.as_str());
            found.map_err(fault::of("list its processes"))
        };
        let pid = match self.engine.kind {
            OciKind::Runc | OciKind::Crun => main,
            OciKind::Runsc => processes()?
                .into_iter()
                .find(|pid| is_file_server(*pid))
                .ok_or_else(|| fault::failed(CLAIM, "it has no file server"))?,
        };
        let keeper = Keeper::open(pid).map_err(fault::of("open its mounts"))?;
        // The number has not become another process's in between.
        if processes()?.contains(&pid) {
            Ok(keeper)
        } else {
            Err(fault::failed(CLAIM, "it has just ended"))
        }
    }
}

fn is_file_server(pid: u32) -> bool {
    let line = fault::read_small(Path::new(&format!("/proc/{pid}/cmdline")));
    line.is_ok_and(|line| line.split(|byte| *byte == 0).next() == Some(FILE_SERVER))
}

/// A mount namespace and the root of a process in it.
struct Keeper {
    namespace: OwnedFd,
    root: OwnedFd,
}

impl Keeper {
    fn open(pid: u32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            namespace: File::open(format!("/proc/{pid}/ns/mnt"))?.into(),
            root: openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty())?,
        })
    }
}

/// Attaches volumes beneath the mount that a sandbox was started with for them. In a thread of its
/// own, which ends in a namespace that is not the host's.
async fn attach(
    engine: EngineDir,
    volumes: Vec<VolumeMount>,
    keeper: Keeper,
) -> Result<(), RuntimeError> {
    let (done, result) = oneshot::channel();
    thread::Builder::new()
        .name("attach".into())
        .spawn(move || {
            // Nobody listens when the caller gave up: then the sandbox stays unclaimed.
            let _ = done.send(attach_here(&engine, &volumes, &keeper));
        })
        .map_err(fault::of("start a thread"))?;
    result
        .await
        .map_err(|_| fault::failed("attach the volumes", "the thread ended early"))?
}

fn attach_here(
    engine: &EngineDir,
    volumes: &[VolumeMount],
    keeper: &Keeper,
) -> Result<(), RuntimeError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(fault::of("unshare namespaces"))?;
    private_mounts().map_err(fault::of("make the mounts private"))?;
    let place = engine.attached();
    fault::make_private_dir(&place)?;
    let mut trees = Vec::with_capacity(volumes.len());
    for volume in volumes {
        let tree =
            clone_tree(&place, volume).map_err(fault::at("mount the volume", &volume.host_path))?;
        trees.push((volume.kind.mount_path(), tree));
    }
    setns(&keeper.namespace, CloneFlags::CLONE_NEWNS)
        .map_err(fault::of("enter the sandbox's mounts"))?;
    for (path, tree) in trees {
        move_beneath(&keeper.root, path, &tree)
            .map_err(fault::at("attach the volume at", Path::new(path)))?;
    }
    Ok(())
}

/// A mount of a volume that is attached nowhere, with the flags that it has in the sandbox.
fn clone_tree(place: &Path, volume: &VolumeMount) -> io::Result<OwnedFd> {
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    if volume.kind.read_only() {
        flags |= MountFlags::RDONLY;
    }
    // One upon the other: nobody looks for them by this path.
    mount_bind(&*volume.host_path, place)?;
    mount_remount(place, flags, c"")?;
    mount_change(place, MountPropagationFlags::PRIVATE)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, place, flags)?)
}

fn move_beneath(root: impl AsFd, path: &str, tree: impl AsFd) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = path.trim_start_matches('/');
    let target = openat2(root, path, flags, Mode::empty(), resolve)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, c"", target, c"", flags)?)
}
