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

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use hotcell_core::model::LeaseRecord;
use hotcell_runtime::VolumeMount;
use hotcell_types::{
    ChatId, UserId, VolumeKind, WorkspaceId,
    volume::{SANDBOX_GID, SANDBOX_UID},
};
use rustix::fs::{CWD, Gid, Uid};

use crate::beneath;

const PARENT_MODE: u32 = 0o700;
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
}

impl Volumes {
    /// The volumes under `<state_dir>/volumes`, which is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let path = std::path::absolute(state_dir.join("volumes"))?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(PARENT_MODE)
            .create(&path)?;
        let dir = File::open(&path)?.into();
        Ok(Self {
            root: Arc::new(Root { path, dir }),
        })
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
        // Only root can give files away; without root the sandbox runs as who we are.
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(SANDBOX_UID), Gid::from_raw(SANDBOX_GID));
            let stat = rustix::fs::fstat(&dir)?;
            // Once given away it stays so: a rootless engine's sandboxes have another user.
            if stat.st_uid == 0 {
                rustix::fs::fchown(&dir, Some(uid), Some(gid))?;
            }
        }
        Ok((dir, path))
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
        self.ensure(&[workspace.as_str()], "workspace-data")
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
        self.ensure(&[workspace.as_str(), "users"], user.as_str())
    }

    /// Takes a workspace's volumes out of their place, to `to` on the same file system. Whether
    /// there were any.
    ///
    /// # Errors
    /// When they cannot be moved.
    pub fn move_workspace_away(&self, workspace: &WorkspaceId, to: &Path) -> io::Result<bool> {
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
        let from = format!("{workspace}/users/{user}");
        moved(rustix::fs::renameat(&self.root.dir, from, CWD, to))
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
                    VolumeKind::WorkspaceData => self.ensure(&[workspace], "workspace-data"),
                }?;
                Ok(VolumeMount { kind, host_path })
            })
            .collect()
    }
}

fn moved(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

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
