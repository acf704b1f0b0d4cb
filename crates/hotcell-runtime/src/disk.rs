//! Scratch disks as every local runtime makes them: a copy of an empty one, and what lies on it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown},
    path::Path,
};

use rustix::fs::{SeekFrom, copy_file_range, seek};

/// Makes the two directories of a scratch disk: `workspace` of the sandbox's user (user and group
/// id), and `tmp` of everybody.
///
/// # Errors
/// When they cannot be made or given away.
pub fn make_tree(root: &Path, owner: (u32, u32)) -> io::Result<()> {
    for (name, mode, owner) in [("workspace", 0o700, Some(owner)), ("tmp", 0o1777, None)] {
        let path = root.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        if let Some((uid, gid)) = owner {
            chown(&path, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

/// Copies a file with its holes; a copy that is there stays as it is.
///
/// # Errors
/// When it cannot be read or written; half a copy is not taken for a whole one later.
pub fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let source = File::open(from)?;
    let bytes = source.metadata()?.len();
    let part = to.with_extension("part");
    let target = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)?;
    target.set_len(bytes)?;
    let mut at = 0;
    loop {
        at = match seek(&source, SeekFrom::Data(at)) {
            // The rest is a hole.
            Err(rustix::io::Errno::NXIO) => break,
            other => other?,
        };
        let end = seek(&source, SeekFrom::Hole(at))?;
        let (mut read, mut write) = (at, at);
        while read < end {
            let left = usize::try_from(end - read).unwrap_or(usize::MAX);
            if copy_file_range(&source, Some(&mut read), &target, Some(&mut write), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    fs::rename(&part, to)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn copies_keep_content_size_and_holes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        let file = File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"head", 0).unwrap();
        file.write_all_at(b"middle", 40 << 20).unwrap();
        copy_sparse(&from, &to).unwrap();
        let copy = fs::metadata(&to).unwrap();
        assert_eq!(copy.len(), 64 << 20);
        assert!(copy.blocks() * 512 < 1 << 20, "{} blocks", copy.blocks());
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
    }
}
