//! `DELETE /v1/files`: a file, or a directory with all in it, however deep.
//!
//! User code decides how deep a directory is, so neither the stack nor the set of open
//! directories may grow with it: what lies deeper than a limit is moved up to the top first
//! and removed from there.

use std::{
    ffi::{CStr, CString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use hotcell_agent_proto::AgentError;
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat},
    io::Errno,
};

use super::{blocking, failed};
use hotcell_types::limits::agent::MAX_REMOVE_DEPTH;

/// Removes what the path names; a link itself, not what it points to.
///
/// # Errors
/// From the file system.
pub(crate) async fn remove(path: PathBuf) -> Result<(), AgentError> {
    blocking(move || remove_path(&path).map_err(|error| failed(&path, &error))).await
}

fn remove_path(path: &Path) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.is_dir() {
        return std::fs::remove_file(path);
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    let top = open(rustix::fs::CWD, &name)?;
    let mut moved = 0;
    empty(top.as_fd(), top.as_fd(), 0, &mut moved)?;
    drop(top);
    std::fs::remove_dir(path)
}

fn open(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?)
}

/// Empties a directory. Every pass removes what it saw; passes go on while there is more,
/// since moving things up adds entries to the top.
fn empty(
    top: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    depth: usize,
    moved: &mut u64,
) -> io::Result<()> {
    loop {
        let mut seen = false;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            seen = true;
            remove_entry(top, directory, name, depth, moved)?;
        }
        if !seen {
            return Ok(());
        }
    }
}

fn remove_entry(
    top: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    name: &CStr,
    depth: usize,
    moved: &mut u64,
) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    if depth >= MAX_REMOVE_DEPTH {
        *moved += 1;
        let aside = CString::new(format!(".hotcell-removed-{}-{moved}", std::process::id()))?;
        return match renameat(directory, name, top, &aside) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        };
    }
    let child = open(directory, name)?;
    empty(top, child.as_fd(), depth + 1, moved)?;
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_deeper_than_any_path_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("deep");
        std::fs::create_dir(&root).unwrap();
        let mut at = open(
            rustix::fs::CWD,
            &CString::new(root.as_os_str().as_bytes()).unwrap(),
        )
        .unwrap();
        for level in 0..3_000 {
            rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
            if level % 100 == 0 {
                openat(&at, c"f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            }
            at = open(at.as_fd(), c"d").unwrap();
        }
        remove_path(&root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("kept");
        let gone = directory.path().join("gone");
        std::fs::create_dir(&kept).unwrap();
        std::fs::create_dir(&gone).unwrap();
        std::fs::write(kept.join("file"), "x").unwrap();
        symlink(&kept, gone.join("link")).unwrap();
        symlink(&kept, directory.path().join("link")).unwrap();
        remove_path(&gone).unwrap();
        remove_path(&directory.path().join("link")).unwrap();
        assert!(kept.join("file").exists());
        let missing = remove_path(&gone).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
