//! Volumes that are mounts, shown to an engine with a mount namespace of its own.
//!
//! A persistent volume may be a file system that the daemon mounted. An engine that has other mounts than
//! the daemon (a rootless one, or one whose unit has private mounts) would bind the empty directory
//! beneath it. So the same mount is attached where the engine looks, and taken away again when no sandbox
//! here names the volume any more. In the daemon's own mount namespace nothing is done.

use std::{collections::BTreeSet, fs, io, os::unix::fs::MetadataExt, path::Path};

use hotcell_runtime::{RuntimeError, VolumeMount};
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount},
};

use crate::{
    fault,
    mounted::{is_mounted, mounts},
    scratch::Scratch,
};

impl Scratch {
    /// Attaches those volumes of a sandbox that are mounts here where the engine looks for them.
    pub(crate) fn show(&self, volumes: &[VolumeMount]) -> Result<(), RuntimeError> {
        for volume in volumes {
            let path = &volume.host_path;
            self.show_one(path)
                .map_err(fault::at("show the engine the volume", path))?;
        }
        Ok(())
    }

    fn show_one(&self, path: &Path) -> io::Result<()> {
        if !self.is_elsewhere()? || !is_mounted(path)? {
            return Ok(());
        }
        let device = fs::metadata(path)?.dev();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, path, flags)?;
        self.at_the_engine(move || {
            if fs::metadata(path)?.dev() == device {
                return Ok(());
            }
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            Ok(move_mount(&tree, "", CWD, path, flags)?)
        })
    }

    /// Takes away what was attached for sandboxes that are gone.
    pub(crate) fn hide_unused(&self) -> Result<(), RuntimeError> {
        let root = self.volume_root();
        let elsewhere = self
            .is_elsewhere()
            .map_err(fault::at("look at the engine's mounts of", &root))?;
        if !elsewhere {
            return Ok(());
        }
        let mut used = BTreeSet::new();
        for kept in self.list()? {
            // One that cannot be read may be anybody's: then nothing is taken away.
            let Ok(Some(record)) = self.record(&kept.lease) else {
                return Ok(());
            };
            used.extend(record.mounts.into_iter().map(|mount| mount.host_path));
        }
        self.at_the_engine(|| {
            for path in mounts()?.iter().rev() {
                if is_volume(&root, path) && !used.contains(path) {
                    unmount(path, UnmountFlags::DETACH)?;
                }
            }
            Ok(())
        })
        .map_err(fault::at("take volumes from the engine in", &root))
    }
}

/// Whether a mount there can only be a volume's: what begins with a dot is not.
fn is_volume(root: &Path, path: &Path) -> bool {
    path.strip_prefix(root)
        .ok()
        .and_then(|below| below.components().next())
        .is_some_and(|first| !first.as_os_str().as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_disks_and_the_root_itself_are_no_volumes() {
        let root = Path::new("/s/volumes");
        for (path, volume) in [
            ("/s/volumes/w/users/u", true),
            ("/s/volumes/w/workspace-data", true),
            ("/s/volumes", false),
            ("/s/volumes/.scratch/x/disk", false),
            ("/s/volumes/.disks/probe", false),
            ("/s/other", false),
        ] {
            assert_eq!(is_volume(root, Path::new(path)), volume, "{path}");
        }
    }
}
