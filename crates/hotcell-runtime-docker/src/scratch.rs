//! The scratch disk of a lease: one ext4 image in a sparse file, so that `/workspace` and `/tmp`
//! end at a size that nobody can exceed.
//!
//! ```text
//! volume_root/.scratch/template/v1-<bytes>-<uid>.img    an empty disk, copied for each lease
//! volume_root/.scratch/<lease>/record.json              whose it is; from birth
//!                              warm                     it was made ahead and nobody has claimed it whole
//!                              disk.img                 the disk
//!                              disk/                    where it is mounted
//!                              disk/{workspace,tmp}     what the sandbox sees
//!                              read-only/<volume>       gVisor: views of volumes
//!                              mnt/<volume>             made ahead: see `attach.rs`
//! volume_root/.scratch/{unborn,gone}-<lease>            half a directory, of nobody
//! ```
//!
//! It is mounted where the *engine* sees it: in the mount namespace of whoever listens on the
//! engine's socket. For a rootless Podman that is not the host's. A stopped sandbox keeps its
//! disk; the mount goes when the sandbox is removed.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use hotcell_runtime::{
    NetworkMode, RuntimeError, VolumeMount,
    disk::{copy_sparse, make_tree},
};
use hotcell_types::{LeaseId, Resources, VolumeKind, limits};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use serde::{Deserialize, Serialize};

use crate::{
    fault::{self, if_there},
    labels::Marks,
    mounted::{is_mounted, last_mounted_beneath},
    tool,
};

/// Part of the templates' names; to be raised when they are made otherwise.
const TEMPLATE_VERSION: u32 = 1;
/// Names of directories that are not there whole, before the lease's.
const HALVES: [&str; 2] = ["unborn-", "gone-"];
/// One inode per this many bytes.
const BYTES_PER_INODE: &str = "8192";

/// All scratch disks of one installation on one engine.
#[derive(Debug, Clone)]
pub(crate) struct Scratch {
    root: PathBuf,
    owner: (u32, u32),
    /// The engine's process, whose mount namespace counts.
    engine_pid: Arc<AtomicU32>,
    bounded: bool,
    /// Held while volumes are attached in a lease's directory and while one goes: work that nobody waits
    /// for any more must not attach a volume to what is just being removed.
    pub(crate) attaching: Arc<Mutex<()>>,
}

/// What stands in a lease's directory from its making on: all that a container is made of, but
/// for the key of its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) labels: Marks,
    /// What the engine calls the image.
    pub(crate) image: String,
    pub(crate) resources: Resources,
    pub(crate) scratch_bytes: u64,
    pub(crate) mounts: Vec<VolumeMount>,
    pub(crate) network: NetworkMode,
}

/// A lease that has a directory.
pub(crate) struct Kept {
    pub(crate) lease: LeaseId,
    /// What its record says, when it can be read.
    pub(crate) marks: Option<Marks>,
    /// It was made ahead and nobody has claimed it whole.
    pub(crate) unclaimed: bool,
}

/// One lease's directory.
#[derive(Debug, Clone)]
pub(crate) struct Disk(PathBuf);

impl Disk {
    fn record(&self) -> PathBuf {
        self.0.join("record.json")
    }
    fn image(&self) -> PathBuf {
        self.0.join("disk.img")
    }
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.0.join("disk")
    }
    pub(crate) fn workspace(&self) -> PathBuf {
        self.mount_point().join("workspace")
    }
    pub(crate) fn tmp(&self) -> PathBuf {
        self.mount_point().join("tmp")
    }
    /// The mark of what was made ahead.
    pub(crate) fn warm(&self) -> PathBuf {
        self.0.join("warm")
    }
    /// Beneath which one that was made ahead sees its volumes.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.0.join("mnt")
    }
}

impl Scratch {
    /// Finds out, by doing it, whether disks can be mounted where the engine sees them.
    pub(crate) fn open(
        volume_root: &Path,
        owner: (u32, u32),
        engine_pid: u32,
    ) -> Result<(Self, Option<RuntimeError>), RuntimeError> {
        let mut scratch = Self {
            root: volume_root.join(".scratch"),
            owner,
            engine_pid: Arc::new(AtomicU32::new(engine_pid)),
            bounded: true,
            attaching: Arc::default(),
        };
        make_passable(&scratch.root)?;
        scratch.remove_halves()?;
        let trouble = scratch.try_mount().err();
        scratch.bounded = trouble.is_none();
        Ok((scratch, trouble))
    }

    /// The engine is another process now.
    pub(crate) fn engine_is(&self, pid: u32) {
        self.engine_pid.store(pid, Ordering::Relaxed);
    }

    /// Whether disks end at their size.
    pub(crate) const fn is_bounded(&self) -> bool {
        self.bounded
    }

    pub(crate) fn disk(&self, lease: &LeaseId) -> Disk {
        Disk(self.root.join(lease.as_str()))
    }

    /// Makes the directory of a sandbox that is nobody's: from its first appearance on it says so.
    pub(crate) fn prepare_ahead(&self, record: &Record) -> Result<(), RuntimeError> {
        let lease = &record.labels.lease;
        let (unborn, disk) = (self.half("unborn-", lease), self.disk(lease));
        if_there(fs::remove_dir_all(&unborn.0)).map_err(fault::at("remove", &unborn.0))?;
        make_passable(&unborn.0)?;
        write_whole(&unborn.record(), record)?;
        fs::write(unborn.warm(), b"")
            .and_then(|()| fs::rename(&unborn.0, &disk.0))
            .map_err(fault::at("make a sandbox ahead", &disk.0))
    }

    /// Writes down what a sandbox is to be from now on.
    pub(crate) fn write(&self, record: &Record) -> Result<(), RuntimeError> {
        write_whole(&self.disk(&record.labels.lease).record(), record)
    }

    /// Whether a sandbox was made ahead and nobody has claimed it whole.
    pub(crate) fn is_unclaimed(&self, lease: &LeaseId) -> bool {
        let disk = self.disk(lease);
        disk.warm().exists() || read_record(&disk).is_some_and(|record| record.labels.is_nobodys())
    }

    /// Whether a lease has a directory at all.
    pub(crate) fn is_there(&self, lease: &LeaseId) -> bool {
        self.disk(lease).0.exists()
    }

    fn half(&self, what: &str, lease: &LeaseId) -> Disk {
        Disk(self.root.join(format!("{what}{lease}")))
    }

    /// What a kill left of directories that were being made or removed. Nothing is mounted in them.
    fn remove_halves(&self) -> Result<(), RuntimeError> {
        let remove = || -> io::Result<()> {
            for entry in fs::read_dir(&self.root)? {
                let entry = entry?;
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if HALVES.iter().any(|half| name.starts_with(half)) {
                    if_there(fs::remove_dir_all(entry.path()))?;
                }
            }
            Ok(())
        };
        remove().map_err(fault::at("remove what is half made in", &self.root))
    }

    /// Makes what is missing, and mounts it.
    pub(crate) fn prepare(&self, record: &Record) -> Result<Disk, RuntimeError> {
        let disk = self.disk(&record.labels.lease);
        room(&self.root)?;
        if !record.labels.ahead {
            make_passable(&disk.0)?;
        }
        write_whole(&disk.record(), record)?;
        if self.bounded {
            let template = self.template(record.scratch_bytes)?;
            copy_sparse(&template, &disk.image())
                .map_err(fault::at("make the scratch disk", &disk.image()))?;
            make_passable(&disk.mount_point())?;
            self.mount(&disk)?;
        } else {
            make_passable(&disk.mount_point())?;
            let point = disk.mount_point();
            make_tree(&point, self.owner).map_err(fault::at("make a directory", &point))?;
        }
        Ok(disk)
    }

    /// A view of a volume that is read-only on this host, too: gVisor truncates a file on a
    /// read-only mount before it looks whether it may, so what it is given must not be writable.
    pub(crate) fn read_only_view(
        &self,
        lease: &LeaseId,
        kind: VolumeKind,
        volume: &Path,
    ) -> Result<PathBuf, RuntimeError> {
        let name = kind.mount_path().rsplit('/').next().unwrap_or_default();
        let view = self.disk(lease).0.join("read-only").join(name);
        make_passable(&view)?;
        self.at_the_engine(|| {
            if !is_mounted(&view)? {
                mount_bind(volume, &view)?;
            }
            let flags = MountFlags::BIND | MountFlags::RDONLY;
            mount_remount(&view, flags | MountFlags::NOSUID | MountFlags::NODEV, "")?;
            Ok(())
        })
        .map_err(fault::at("make a read-only view at", &view))?;
        Ok(view)
    }

    /// What a lease's sandbox is made of; `None` when there is no such lease.
    pub(crate) fn record(&self, lease: &LeaseId) -> Result<Option<Record>, RuntimeError> {
        let disk = self.disk(lease);
        if !disk.0.exists() {
            return Ok(None);
        }
        match read_record(&disk) {
            Some(record) => Ok(Some(record)),
            None => Err(fault::failed(
                "read a record",
                format!("{} is missing or damaged", disk.record().display()),
            )),
        }
    }

    /// Removes all of it. Fine when there is nothing.
    pub(crate) fn remove(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        let (disk, gone) = (self.disk(lease), self.half("gone-", lease));
        let remove_gone =
            || if_there(fs::remove_dir_all(&gone.0)).map_err(fault::at("remove", &gone.0));
        remove_gone()?;
        if !disk.0.exists() {
            return Ok(());
        }
        // All of them, or the files of a volume would be removed with the directory; here too, where
        // a mount of the engine's may have come through.
        let unmount_all = || -> io::Result<()> {
            while let Some(target) = last_mounted_beneath(&disk.0)? {
                unmount(&target, UnmountFlags::DETACH)?;
            }
            Ok(())
        };
        {
            let _held = self
                .attaching
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.at_the_engine(unmount_all)
                .and_then(|()| unmount_all())
                .map_err(fault::at("unmount what is in", &disk.0))?;
            // At once, so that a kill does not leave one without its record or its mark.
            if_there(fs::rename(&disk.0, &gone.0)).map_err(fault::at("remove", &disk.0))?;
        }
        remove_gone()
    }

    /// Every lease that has a directory here.
    pub(crate) fn list(&self) -> Result<Vec<Kept>, RuntimeError> {
        let read = || -> io::Result<_> {
            let mut found = Vec::new();
            for entry in fs::read_dir(&self.root)? {
                let name = entry?.file_name();
                if let Some(lease) = name.to_str().and_then(|name| name.parse::<LeaseId>().ok()) {
                    // The mark first: it goes when the record is whole.
                    let is_marked = self.disk(&lease).warm().exists();
                    let marks = read_record(&self.disk(&lease)).map(|record| record.labels);
                    let unclaimed = is_marked || marks.as_ref().is_some_and(Marks::is_nobodys);
                    // One that was just removed has neither.
                    if self.is_there(&lease) {
                        found.push(Kept {
                            lease,
                            marks,
                            unclaimed,
                        });
                    }
                }
            }
            Ok(found)
        };
        read().map_err(fault::at("list the scratch disks in", &self.root))
    }

    /// Device numbers of the mounted disk, as the engine sees them.
    pub(crate) fn device(&self, lease: &LeaseId) -> io::Result<u64> {
        let target = self.disk(lease).mount_point();
        self.at_the_engine(|| Ok(fs::metadata(&target)?.dev()))
    }

    fn mount(&self, disk: &Disk) -> Result<(), RuntimeError> {
        let (image, target) = (disk.image(), disk.mount_point());
        let outcome = self.at_the_engine(|| {
            if is_mounted(&target)? {
                return Ok(Ok(()));
            }
            let mut command = Command::new("mount");
            command
                .args(["-n", "-t", "ext4", "-o"])
                .arg("loop,nosuid,nodev,noatime,noinit_itable")
                .arg(&image)
                .arg(&target);
            Ok(tool::run("mount the scratch disk", &mut command))
        });
        outcome.map_err(fault::at("mount the scratch disk", &target))?
    }

    fn try_mount(&self) -> Result<(), RuntimeError> {
        let probe = Disk(self.root.join("probe"));
        make_passable(&probe.mount_point())?;
        let template = self.template(limits::DEFAULT_SCRATCH_BYTES)?;
        copy_sparse(&template, &probe.image()).map_err(fault::at("copy", &template))?;
        let mounted = self.mount(&probe).and_then(|()| {
            let target = probe.mount_point();
            self.at_the_engine(|| {
                fs::metadata(target.join("workspace"))?;
                Ok(unmount(&target, UnmountFlags::DETACH)?)
            })
            .map_err(fault::at(
                "look into the scratch disk at",
                &probe.mount_point(),
            ))
        });
        if_there(fs::remove_file(probe.image())).map_err(fault::at("remove", &probe.image()))?;
        mounted
    }

    /// Runs `work` on a thread that sees the mounts that the engine sees.
    pub(crate) fn at_the_engine<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let namespace = self.engine_mounts()?;
        thread::scope(|scope| {
            scope
                .spawn(move || {
                    if let Some(namespace) = namespace {
                        // A thread that shares its working directory cannot change namespaces.
                        unshare(CloneFlags::CLONE_FS)?;
                        setns(namespace, CloneFlags::CLONE_NEWNS)?;
                    }
                    work()
                })
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread of a mount ended early")))
        })
    }

    /// Whether the engine sees other mounts than we do.
    pub(crate) fn is_elsewhere(&self) -> io::Result<bool> {
        Ok(self.engine_mounts()?.is_some())
    }

    /// Beneath which all volumes are.
    pub(crate) fn volume_root(&self) -> PathBuf {
        self.root.parent().unwrap_or(&self.root).to_owned()
    }

    /// The engine's mount namespace; `None` when it is ours.
    pub(crate) fn engine_mounts(&self) -> io::Result<Option<OwnedFd>> {
        let file = File::open(format!(
            "/proc/{}/ns/mnt",
            self.engine_pid.load(Ordering::Relaxed)
        ))?;
        let (theirs, ours) = (file.metadata()?, fs::metadata("/proc/self/ns/mnt")?);
        Ok((theirs.ino() != ours.ino()).then(|| file.into()))
    }

    /// The template of this size, made when it is not there.
    fn template(&self, bytes: u64) -> Result<PathBuf, RuntimeError> {
        let dir = self.root.join("template");
        let path = dir.join(format!("v{TEMPLATE_VERSION}-{bytes}-{}.img", self.owner.0));
        if path.exists() {
            return Ok(path);
        }
        make_passable(&dir)?;
        // Two that make the same one at once each make a whole one; the last stays.
        let stem = format!(
            "{bytes}-{}-{:?}",
            std::process::id(),
            thread::current().id()
        );
        let tree = dir.join(format!("{stem}.tree"));
        let image = dir.join(format!("{stem}.part"));
        let made = (|| {
            make_passable(&tree)?;
            make_tree(&tree, self.owner).map_err(fault::at("make a directory", &tree))?;
            File::create(&image)
                .and_then(|file| file.set_len(bytes))
                .map_err(fault::at("make", &image))?;
            let mut mkfs = Command::new("mkfs.ext4");
            mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-i", BYTES_PER_INODE])
                .args(["-O", "^has_journal,^resize_inode"])
                .args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"])
                .arg("-d")
                .arg(&tree)
                .arg(&image);
            tool::run("make a scratch disk", &mut mkfs)?;
            fs::rename(&image, &path).map_err(fault::at("make", &path))
        })();
        if_there(fs::remove_dir_all(&tree)).map_err(fault::at("remove", &tree))?;
        if_there(fs::remove_file(&image)).map_err(fault::at("remove", &image))?;
        made.map(|()| path)
    }
}

fn room(root: &Path) -> Result<(), RuntimeError> {
    let found = rustix::fs::statvfs(root).map_err(fault::at("look at the disk of", root))?;
    if found.f_bavail.saturating_mul(found.f_frsize) < limits::MIN_HOST_FREE_BYTES {
        return Err(RuntimeError::DiskFull(format!(
            "{} has less than {} bytes left",
            root.display(),
            limits::MIN_HOST_FREE_BYTES
        )));
    }
    Ok(())
}

/// A directory that the engine's user can pass through and not list.
pub(crate) fn make_passable(path: &Path) -> Result<(), RuntimeError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(path)
        .map_err(fault::at("make a directory", path))
}

fn read_record(disk: &Disk) -> Option<Record> {
    let mut bytes = Vec::new();
    File::open(disk.record())
        .ok()?
        .take(limits::MAX_ENGINE_FILE_BYTES)
        .read_to_end(&mut bytes)
        .ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write_whole(path: &Path, record: &Record) -> Result<(), RuntimeError> {
    let part = path.with_extension("part");
    let text = serde_json::to_vec(record)
        .map_err(|error| fault::failed("write a record", error.to_string()))?;
    fs::write(&part, text)
        .and_then(|()| fs::rename(&part, path))
        .map_err(fault::at("write", path))
}
