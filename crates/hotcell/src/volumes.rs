//! The directories of the appliance that sandboxes see.
//!
//! ```text
//!   <state>/volumes/                          0700 root
//!     <workspace>/                            0700 root
//!       skills/                               → /mnt/skills          read-only
//!       workspace-data/                       → /mnt/workspace-data
//!       users/<user>/                         → /mnt/user-data
//!       chats/<chat>/uploads/                 → /mnt/uploaded-files  read-only
//! ```
//!
//! The last directory of each path belongs to the sandbox's user, everything above it to the
//! daemon: a sandbox can do what it likes inside, and cannot replace the directory itself. Ids
//! are safe path components by construction.
//!
//! `workspace-data` and `users/<user>` end at a size when the host can do that: they are then mount points
//! of disks of their own ([ADR 0034](../../../docs/adr/0034-bounded-volumes.md)). A disk is mounted by
//! whoever needs the volume first, and unmounted when nobody has for a while.

mod disk;

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use hotcell_core::model::LeaseRecord;
use hotcell_runtime::{Check, VolumeMount};
use hotcell_types::{
    ChatId, UserId, VolumeKind, WorkspaceId, limits,
    volume::{SANDBOX_GID, SANDBOX_UID},
};
use rustix::fs::{AtFlags, CWD, Gid, Uid, statat};

use self::disk::Disks;
use crate::beneath;

/// The id of the check that says whether persistent volumes end at a size.
pub(crate) const CHECK: &str = "disk.volumes";
const PARENT_MODE: u32 = 0o700;
/// A mount point: what is not mounted is nobody's to write to.
const POINT_MODE: u32 = 0o700;
/// Beneath a workspace: the disks of its volumes.
const DISKS: &str = "disks";
const DISK_FILE: &str = "disk.img";
const VOLUME_MODE: u32 = 0o755;

/// The volumes of all workspaces. Cheap to clone. Its functions touch the disk: call them from
/// a blocking task.
#[derive(Clone)]
pub struct Volumes {
    root: Arc<Root>,
}

struct Root {
    path: PathBuf,
    dir: OwnedFd,
    disks: Disks,
}

impl Volumes {
    /// The volumes under `<state_dir>/volumes`, which is made if it is missing. Persistent ones end at
    /// `volume_bytes`, where the host can do that: see [`Volumes::check`]. One that has a disk keeps it.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub fn open_bounded(state_dir: &Path, volume_bytes: Option<u64>) -> io::Result<Self> {
        let path = std::path::absolute(state_dir.join("volumes"))?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(PARENT_MODE)
            .create(&path)?;
        let dir = File::open(&path)?.into();
        let disks = Disks::open(&path, volume_bytes);
        Ok(Self {
            root: Arc::new(Root { path, dir, disks }),
        })
    }

    /// The volumes under `<state_dir>/volumes`, which is made if it is missing. They end where the disk
    /// ends.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        Self::open_bounded(state_dir, None)
    }

    fn ensure(&self, parents: &[&str], name: &str) -> io::Result<(OwnedFd, PathBuf)> {
        let mut path = self.root.path.clone();
        let mut dir = self.root.dir.try_clone()?;
        for parent in parents {
            dir = beneath::ensure_dir(&dir, parent, PARENT_MODE)?;
            path.push(parent);
        }
        let dir = beneath::ensure_dir(&dir, name, VOLUME_MODE)?;
        path.push(name);
        give_away(&dir)?;
        Ok((dir, path))
    }

    /// The same for a volume that is to end at its size.
    fn ensure_persistent(
        &self,
        workspace: &WorkspaceId,
        below: &[&str],
        name: &str,
    ) -> io::Result<(OwnedFd, PathBuf)> {
        let parents = [&[workspace.as_str()], below].concat();
        let disk = [&[workspace.as_str(), DISKS], below, &[name, DISK_FILE]].concat();
        let (mut path, mut image) = (self.root.path.clone(), self.root.path.clone());
        path.extend(&parents);
        path.push(name);
        image.extend(&disk);
        let disks = &self.root.disks;
        let _turn = disks.turn(&path);
        let mut parent = self.root.dir.try_clone()?;
        for component in &parents {
            parent = beneath::ensure_dir(&parent, component, PARENT_MODE)?;
        }
        if !is_mount_point(&parent, name)? {
            let has_disk = image.exists();
            if !has_disk && (!disks.is_bounded() || is_filled(&parent, name)?) {
                // One that was filled while volumes had no size stays as it is.
                return self.ensure(&parents, name);
            }
            let mut at = self.root.dir.try_clone()?;
            for component in &disk[..disk.len() - 1] {
                at = beneath::ensure_dir(&at, component, PARENT_MODE)?;
            }
            beneath::ensure_dir(&parent, name, POINT_MODE)?;
            disks.attach(&image, &path)?;
        }
        let dir = beneath::open_dir(&parent, name)?;
        give_away(&dir)?;
        Ok((dir, path))
    }

    /// Whether persistent volumes end at a size.
    #[must_use]
    pub fn check(&self) -> Check {
        let disks = &self.root.disks;
        let Some(bytes) = disks.bytes() else {
            return Check::warn(
                CHECK,
                "new persistent volumes have no size: one user can fill the disk",
                "set limits.volume_bytes to a number of bytes",
            );
        };
        if let Some(why) = disks.trouble() {
            return Check::warn(
                CHECK,
                format!("new persistent volumes have no size, one user can fill the disk: {why}"),
                "run hotcell as root with loop devices, util-linux and e2fsprogs, and restart it",
            );
        }
        match self.unbounded() {
            Ok(0) => Check::pass(
                CHECK,
                format!("a persistent volume ends at {} MiB", bytes >> 20),
            ),
            Ok(count) => Check::warn(
                CHECK,
                format!("{count} volumes that were filled before there was a size have none"),
                "move their files away, let hotcell make the volume anew, and move them back",
            ),
            Err(error) => Check::warn(
                CHECK,
                format!("the volumes cannot be looked at: {error}"),
                "look at the state directory",
            ),
        }
    }

    /// How many volumes have no disk and are not empty, among the first
    /// [`limits::MAX_PAGE_ROWS`] of each workspace.
    fn unbounded(&self) -> io::Result<usize> {
        let mut count = 0;
        for workspace in std::fs::read_dir(&self.root.path)? {
            let workspace = workspace?;
            if workspace.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let at = workspace.path();
            let mut points = vec![PathBuf::from("workspace-data")];
            if let Ok(users) = std::fs::read_dir(at.join("users")) {
                for user in users.take(limits::MAX_PAGE_ROWS) {
                    points.push(Path::new("users").join(user?.file_name()));
                }
            }
            for point in points {
                let filled = std::fs::read_dir(at.join(&point))
                    .is_ok_and(|mut entries| entries.next().is_some());
                if filled && !at.join(DISKS).join(&point).join(DISK_FILE).exists() {
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// Unmounts the volumes that nobody has open and that are of no lease that `in_use` names.
    ///
    /// # Errors
    /// When the kernel's table of mounts cannot be read, or it refuses.
    pub fn release(&self, in_use: impl Fn() -> Vec<(WorkspaceId, UserId)>) -> io::Result<usize> {
        let mut released = 0;
        for target in disk::mounted_beneath(&self.root.path)? {
            let _turn = self.root.disks.turn(&target);
            // Asked in its turn: a lease is known before its volumes are mounted.
            let kept = in_use().iter().any(|(workspace, user)| {
                let of = self.root.path.join(workspace.as_str());
                target == of.join("workspace-data")
                    || target == of.join("users").join(user.as_str())
            });
            if !kept {
                released += usize::from(disk::release(&target)?);
            }
        }
        Ok(released)
    }

    /// Unmounts all of them, for the end of a daemon: sandboxes that run on have mounts of their own.
    ///
    /// # Errors
    /// When the kernel's table of mounts cannot be read, or it refuses.
    pub fn close(&self) -> io::Result<()> {
        self.detach_beneath(&self.root.path)
    }

    fn detach_beneath(&self, path: &Path) -> io::Result<()> {
        let all = disk::mounted_beneath(&self.root.path)?;
        for target in all.iter().filter(|target| target.starts_with(path)) {
            let _turn = self.root.disks.turn(target);
            disk::detach(target)?;
        }
        Ok(())
    }

    /// The files that were attached to a chat.
    ///
    /// # Errors
    /// When the directory cannot be made or opened.
    pub fn uploads_dir(&self, workspace: &WorkspaceId, chat: &ChatId) -> io::Result<OwnedFd> {
        self.uploads(workspace, chat).map(|(dir, _)| dir)
    }

    /// A member's own files in a workspace.
    ///
    /// # Errors
    /// When the directory cannot be made or opened.
    pub fn user_data_dir(&self, workspace: &WorkspaceId, user: &UserId) -> io::Result<OwnedFd> {
        self.user_data(workspace, user).map(|(dir, _)| dir)
    }

    /// The files that a workspace shares.
    ///
    /// # Errors
    /// When the directory cannot be made or opened.
    pub fn workspace_data_dir(&self, workspace: &WorkspaceId) -> io::Result<OwnedFd> {
        self.ensure_persistent(workspace, &[], "workspace-data")
            .map(|(dir, _)| dir)
    }

    /// The skills of a workspace.
    ///
    /// # Errors
    /// When the directory cannot be made or opened.
    pub fn skills_dir(&self, workspace: &WorkspaceId) -> io::Result<OwnedFd> {
        self.ensure(&[workspace.as_str()], "skills")
            .map(|(dir, _)| dir)
    }

    fn uploads(&self, workspace: &WorkspaceId, chat: &ChatId) -> io::Result<(OwnedFd, PathBuf)> {
        self.ensure(&[workspace.as_str(), "chats", chat.as_str()], "uploads")
    }

    fn user_data(&self, workspace: &WorkspaceId, user: &UserId) -> io::Result<(OwnedFd, PathBuf)> {
        self.ensure_persistent(workspace, &["users"], user.as_str())
    }

    /// Takes a workspace's volumes out of their place, to `to` on the same file system. Whether
    /// there were any.
    ///
    /// # Errors
    /// When they cannot be moved.
    pub fn move_workspace_away(&self, workspace: &WorkspaceId, to: &Path) -> io::Result<bool> {
        self.detach_beneath(&self.root.path.join(workspace.as_str()))?;
        moved(rustix::fs::renameat(
            &self.root.dir,
            workspace.as_str(),
            CWD,
            to,
        ))
    }

    /// Takes a member's volume out of its place, to `to` on the same file system. Whether there
    /// was one.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn move_user_away(
        &self,
        workspace: &WorkspaceId,
        user: &UserId,
        to: &Path,
    ) -> io::Result<bool> {
        let place = format!("{workspace}/users/{user}");
        let disk = format!("{workspace}/{DISKS}/users/{user}");
        self.detach_beneath(&self.root.path.join(&place))?;
        let _turn = self.root.disks.turn(&self.root.path.join(&place));
        std::fs::DirBuilder::new().mode(PARENT_MODE).create(to)?;
        // First the disk: from then on nobody can mount it again.
        let from = &self.root.dir;
        let had_disk = moved(rustix::fs::renameat(from, disk, CWD, to.join("disk")))?;
        let had_files = moved(rustix::fs::renameat(from, place, CWD, to.join("files")))?;
        if !had_disk && !had_files {
            std::fs::remove_dir(to)?;
        }
        Ok(had_disk || had_files)
    }

    /// What a lease's sandbox mounts. Makes what is missing.
    ///
    /// # Errors
    /// When a directory cannot be made.
    pub fn mounts_for(&self, lease: &LeaseRecord) -> io::Result<Vec<VolumeMount>> {
        let workspace = lease.workspace.as_str();
        VolumeKind::ALL
            .into_iter()
            .map(|kind| {
                let (_, host_path) = match kind {
                    VolumeKind::Skills => self.ensure(&[workspace], "skills"),
                    VolumeKind::UploadedFiles => self.uploads(&lease.workspace, &lease.chat),
                    VolumeKind::UserData => self.user_data(&lease.workspace, &lease.user),
                    VolumeKind::WorkspaceData => {
                        self.ensure_persistent(&lease.workspace, &[], "workspace-data")
                    }
                }?;
                Ok(VolumeMount { kind, host_path })
            })
            .collect()
    }
}

/// Gives a volume to the sandbox's user.
fn give_away(dir: &OwnedFd) -> io::Result<()> {
    // Only root can give files away; without root the sandbox runs as who we are.
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(SANDBOX_UID), Gid::from_raw(SANDBOX_GID));
        let stat = rustix::fs::fstat(dir)?;
        // Once given away it stays so: a rootless engine's sandboxes have another user.
        if stat.st_uid == 0 {
            rustix::fs::fchown(dir, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

/// Whether another file system is mounted on `name`.
fn is_mount_point(parent: &OwnedFd, name: &str) -> io::Result<bool> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(found.st_dev != rustix::fs::fstat(parent)?.st_dev),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether there is a directory with something in it.
fn is_filled(parent: &OwnedFd, name: &str) -> io::Result<bool> {
    let dir = match beneath::open_dir(parent, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        dir => dir?,
    };
    for entry in rustix::fs::Dir::read_from(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn moved(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[path = "volumes/tests.rs"]
mod bounded;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use hotcell_core::model::LeaseState;
    use hotcell_types::{LeaseId, ResourceClass, UnixMillis};

    use super::*;

    #[test]
    fn each_lease_gets_its_four_directories() {
        let state = tempfile::tempdir().unwrap();
        let volumes = Volumes::open(state.path()).unwrap();
        let lease = LeaseRecord {
            id: LeaseId::from_bits(1),
            organization: "o".parse().unwrap(),
            workspace: "w".parse().unwrap(),
            chat: "c".parse().unwrap(),
            user: "u@x".parse().unwrap(),
            profile: "default".parse().unwrap(),
            resource_class: ResourceClass::Small,
            state: LeaseState::Starting,
            created_at: UnixMillis(0),
            changed_at: UnixMillis(0),
            end: None,
        };
        let mounts = volumes.mounts_for(&lease).unwrap();
        assert_eq!(mounts, volumes.mounts_for(&lease).unwrap());
        let tails: Vec<_> = mounts
            .iter()
            .map(|m| {
                let tail = m.host_path.strip_prefix(state.path().join("volumes"));
                (m.kind, tail.unwrap().to_str().unwrap().to_owned())
            })
            .collect();
        assert_eq!(
            tails,
            [
                (VolumeKind::Skills, "w/skills".to_owned()),
                (VolumeKind::UploadedFiles, "w/chats/c/uploads".to_owned()),
                (VolumeKind::UserData, "w/users/u@x".to_owned()),
                (VolumeKind::WorkspaceData, "w/workspace-data".to_owned()),
            ]
        );
        for mount in &mounts {
            let data = std::fs::metadata(&mount.host_path).unwrap();
            if rustix::process::geteuid().is_root() {
                assert_eq!((data.uid(), data.gid()), (SANDBOX_UID, SANDBOX_GID));
            }
            let parent = std::fs::metadata(mount.host_path.parent().unwrap()).unwrap();
            assert_eq!(parent.permissions().mode() & 0o777, 0o700);
        }
    }
}
