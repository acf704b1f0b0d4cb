//! Opening paths beneath a directory whose names belong to somebody hostile.
//!
//! A sandbox owns every name on its volumes and may change them at any moment. So nothing here
//! checks a path and then opens it: the kernel resolves it in one step that cannot leave the
//! directory, follows no link, and does not wait for the other end of a pipe. What was opened is
//! then looked at through its descriptor, which no rename can change.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};

/// How often an open is repeated that the kernel gave up on because of a rename beside it.
const MAX_RESOLVE_TRIES: usize = 64;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS);

fn open(dir: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    for _ in 0..MAX_RESOLVE_TRIES {
        match rustix::fs::openat2(&dir, path, flags, mode, RESOLVE) {
            // A component was renamed while the kernel looked: it cannot tell whether the path
            // stayed beneath.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "the path keeps changing while it is opened",
    ))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Opens a regular file for reading.
///
/// # Errors
/// `InvalidInput` when there is something that is no regular file; otherwise what the kernel
/// says, such as `ELOOP` for a link and `EXDEV` for a path that would leave the directory.
pub fn open_file(dir: impl AsFd, path: impl AsRef<Path>) -> io::Result<(File, Stat)> {
    let fd = open(dir, path.as_ref(), OFlags::RDONLY, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if is_regular(&stat) {
        Ok((File::from(fd), stat))
    } else {
        Err(not_regular())
    }
}

/// Opens a directory.
///
/// # Errors
/// What the kernel says, such as `ENOTDIR`.
pub fn open_dir(dir: impl AsFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    open(
        dir,
        path.as_ref(),
        OFlags::RDONLY | OFlags::DIRECTORY,
        Mode::empty(),
    )
}

/// Makes a new file for writing; its mode is not cut by the umask.
///
/// # Errors
/// `AlreadyExists` when anything, even a dangling link, has that name.
pub fn create_file(dir: impl AsFd, path: impl AsRef<Path>, mode: u32) -> io::Result<File> {
    let mode = Mode::from_raw_mode(mode);
    let fd = open(
        dir,
        path.as_ref(),
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        mode,
    )?;
    rustix::fs::fchmod(&fd, mode)?;
    Ok(File::from(fd))
}

/// Makes the directory `name` (one component) if it is missing, and opens it.
///
/// # Errors
/// When something else has that name, a link included.
pub fn ensure_dir(dir: impl AsFd, name: &str, mode: u32) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => open_dir(dir, name),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::fs::symlink,
    };

    use super::*;

    fn dir(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn only_regular_files_beneath_open() {
        let root = tempfile::tempdir().unwrap();
        let inside = root.path().join("inside");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(root.path().join("secret"), "secret").unwrap();
        std::fs::write(inside.join("sub/file"), "hello").unwrap();
        symlink(root.path().join("secret"), inside.join("absolute")).unwrap();
        symlink("../secret", inside.join("relative")).unwrap();
        symlink("sub/file", inside.join("harmless")).unwrap();
        symlink("..", inside.join("up")).unwrap();
        rustix::fs::mkfifoat(dir(&inside), "pipe", Mode::from_raw_mode(0o600)).unwrap();
        let fd = dir(&inside);

        let (mut file, stat) = open_file(&fd, "sub/file").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), stat.st_size), ("hello", 5));
        for bad in [
            "absolute",
            "relative",
            "harmless",
            "up/secret",
            "../secret",
            "sub",
            "pipe",
            ".",
            "/etc/passwd",
            "sub/../../secret",
        ] {
            assert!(open_file(&fd, bad).is_err(), "{bad} opened");
        }
    }

    #[test]
    fn new_files_replace_nothing() {
        let root = tempfile::tempdir().unwrap();
        let fd = dir(root.path());
        create_file(&fd, "new", 0o644)
            .unwrap()
            .write_all(b"x")
            .unwrap();
        let again = create_file(&fd, "new", 0o644).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        symlink("nowhere", root.path().join("dangling")).unwrap();
        assert!(create_file(&fd, "dangling", 0o644).is_err());
        assert!(ensure_dir(&fd, "dangling", 0o755).is_err());
        ensure_dir(&fd, "made", 0o700).unwrap();
        ensure_dir(&fd, "made", 0o700).unwrap();
    }
}
