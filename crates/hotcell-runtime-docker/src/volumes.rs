//! Volumes: directories of the appliance, beneath its volume root and nowhere else.

use std::{
    fs::{self, Metadata},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt, chown},
    },
    path::Path,
};

use hotcell_runtime::{RuntimeError, VolumeMount};
use hotcell_types::{limits, volume::SANDBOX_UID};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, chownat, openat, openat2, statat},
    process::{Gid, Uid},
};

use crate::{container::Bind, fault};

/// Checks the volumes of a sandbox and turns them into binds.
pub(crate) fn binds(
    root: &Path,
    mounts: &[VolumeMount],
    owner: (u32, u32),
) -> Result<Vec<Bind>, RuntimeError> {
    mounts
        .iter()
        .map(|mount| {
            let directory = open_beneath(root, &mount.host_path)?;
            // Files that another engine's sandboxes made belong to the sandbox's user; a rootless
            // engine's sandboxes have another.
            if owner.0 != SANDBOX_UID {
                hand_over(&directory, owner)
                    .map_err(fault::at("change the owner of", &mount.host_path))?;
            }
            Ok(Bind::new(
                &mount.host_path,
                mount.kind.mount_path(),
                mount.kind.read_only(),
            ))
        })
        .collect()
}

/// Lets the user of a rootless engine pass through the directories that lead to `path`, and itself:
/// those that are the daemon's own and closed to every group get the engine's group, which may pass
/// and not list. Whatever else is closed is left for preflight to name.
pub(crate) fn let_pass(path: &Path, owner: (u32, u32)) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    for directory in path.ancestors().filter(|path| path.is_absolute()) {
        let found = fs::symlink_metadata(directory)?;
        let mode = found.permissions().mode();
        let group_has_none = mode & 0o070 == 0;
        if may_pass(&found, owner) || found.uid() != own || !found.is_dir() || !group_has_none {
            continue;
        }
        chown(directory, None, Some(owner.1))?;
        fs::set_permissions(
            directory,
            PermissionsExt::from_mode((mode & 0o7777) | 0o010),
        )?;
    }
    Ok(())
}

/// Whether a user can pass through a directory.
pub(crate) fn may_pass(found: &Metadata, (uid, gid): (u32, u32)) -> bool {
    let mode = found.permissions().mode();
    let bit = if found.uid() == uid {
        0o100
    } else if found.gid() == gid {
        0o010
    } else {
        0o001
    };
    mode & bit != 0
}

/// Opens a directory beneath the root, through no link at all.
fn open_beneath(root: &Path, path: &Path) -> Result<OwnedFd, RuntimeError> {
    let refuse = |reason: String| RuntimeError::Unsupported {
        what: "a volume there",
        reason,
    };
    let inner = path.strip_prefix(root).map_err(|_| {
        refuse(format!(
            "{} is not beneath {}",
            path.display(),
            root.display()
        ))
    })?;
    // `.scratch` is ours, and the root itself would show every workspace.
    let first = inner.components().next();
    if !matches!(first, Some(std::path::Component::Normal(name)) if !name.as_encoded_bytes().starts_with(b"."))
    {
        return Err(refuse(format!(
            "{} is no directory for a volume",
            path.display()
        )));
    }
    let root = fs::File::open(root).map_err(fault::at("open", root))?;
    openat2(
        &root,
        inner,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .map_err(|error| refuse(format!("{}: {error}", path.display())))
}

/// Gives everything in a volume to the engine's user, unless its top says that this was done.
/// Links are changed themselves and never followed: what is in there was named by user code.
fn hand_over(directory: &OwnedFd, owner: (u32, u32)) -> io::Result<()> {
    let metadata: Metadata = fs::File::from(directory.try_clone()?).metadata()?;
    if metadata.uid() == owner.0 {
        return Ok(());
    }
    let top = openat(
        directory,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut left = limits::MAX_VOLUME_ENTRIES;
    walk(&top, owner, &mut left, 0)?;
    // Last: a walk that was cut short is made again.
    Ok(rustix::fs::fchown(
        &top,
        Some(Uid::from_raw(owner.0)),
        Some(Gid::from_raw(owner.1)),
    )?)
}

fn walk(directory: impl AsFd, owner: (u32, u32), left: &mut u64, depth: usize) -> io::Result<()> {
    if depth > limits::MAX_VOLUME_DEPTH {
        return Err(io::Error::other("its directories are too deep"));
    }
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        *left = left
            .checked_sub(1)
            .ok_or_else(|| io::Error::other("it holds too many files"))?;
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        chownat(
            &directory,
            name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let inner = openat(
                &directory,
                name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            walk(inner, owner, left, depth + 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use hotcell_types::VolumeKind;

    use super::*;

    fn mount(path: &Path) -> VolumeMount {
        VolumeMount {
            kind: VolumeKind::UserData,
            host_path: path.to_owned(),
        }
    }

    #[test]
    fn volumes_lie_beneath_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("w/users/u")).unwrap();
        fs::create_dir_all(root.join(".scratch/x")).unwrap();
        fs::write(root.join("w/file"), b"").unwrap();
        symlink("/etc", root.join("w/link")).unwrap();
        symlink("users", root.join("w/inner")).unwrap();
        let try_it = |path: &Path| binds(root, &[mount(path)], (1000, 1000));
        let good = try_it(&root.join("w/users/u")).unwrap();
        assert_eq!(
            good,
            [Bind::new(root.join("w/users/u"), "/mnt/user-data", false)]
        );
        for bad in [
            "",
            ".",
            "w/../../etc",
            "w/link",
            "w/inner/u",
            "w/file",
            "w/none",
            ".scratch/x",
        ] {
            let outcome = try_it(&root.join(bad));
            assert!(
                matches!(outcome, Err(RuntimeError::Unsupported { .. })),
                "{bad}: {outcome:?}"
            );
        }
        assert!(try_it(Path::new("/etc")).is_err());
    }

    #[test]
    fn one_group_more_may_pass_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let closed = |name: &str, mode| {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        closed("", 0o700);
        closed("a", 0o700);
        let leaf = closed("a/b", 0o700);
        let shared = closed("a/c", 0o750);
        let owner = (4321, 4322);
        let may = |path: &Path| may_pass(&fs::metadata(path).unwrap(), owner);
        assert!(!may(&leaf));
        let_pass(&leaf, owner).unwrap();
        let_pass(&leaf, owner).unwrap();
        for path in [&leaf, &dir.path().join("a"), &dir.path().to_owned()] {
            assert!(may(path), "{}", path.display());
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0o010, "{}", path.display());
        }
        // Another group's right is not taken away.
        let_pass(&shared, owner).unwrap();
        assert!(!may(&shared));
        assert_eq!(
            fs::metadata(&shared).unwrap().permissions().mode() & 0o777,
            0o750
        );
    }

    #[test]
    fn a_volume_is_handed_over_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let outside = root.join("outside");
        fs::write(&outside, b"").unwrap();
        let volume = root.join("w/v");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/b/f"), b"").unwrap();
        symlink(&outside, volume.join("a/link")).unwrap();
        binds(root, &[mount(&volume)], (4321, 4322)).unwrap();
        for path in ["", "a", "a/b", "a/b/f", "a/link"] {
            let found = fs::symlink_metadata(volume.join(path)).unwrap();
            assert_eq!((found.uid(), found.gid()), (4321, 4322), "{path}");
        }
        assert_eq!(fs::metadata(&outside).unwrap().uid(), 0);
    }
}
