//! The agent's own small directory: command texts, preludes, shell state.
//!
//! User code has the same user id, so it may remove, replace or fill anything in here. Files
//! are made exclusively, read without blocking and bounded, and found missing without alarm.

use std::{
    fs::{DirBuilder, File},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::OFlags;

use crate::pool::lock;

/// Where files for the agent itself go.
#[derive(Debug)]
pub(crate) struct RunDir {
    candidates: Vec<PathBuf>,
    current: Mutex<Option<PathBuf>>,
    next: AtomicU64,
}

impl RunDir {
    /// `wanted` if it can be written, else a private directory elsewhere.
    pub(crate) fn new(wanted: PathBuf, workspace: &Path) -> Self {
        let private = format!("hotcell-{}", std::process::id());
        let hidden = format!(".{private}");
        Self {
            candidates: vec![
                wanted,
                Path::new("/tmp").join(&hidden),
                Path::new("/dev/shm").join(&hidden),
                workspace.join(&hidden),
            ],
            current: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// Writes files under a fresh name, which it returns. Where that fails although it worked
    /// before, another place is tried.
    ///
    /// # Errors
    /// When none of the places can be written.
    pub(crate) fn write(
        &self,
        files: impl Fn(&Path) -> std::io::Result<()>,
    ) -> std::io::Result<PathBuf> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("call-{number}");
        let first = self.directory()?.join(&name);
        if files(&first).is_ok() {
            return Ok(first);
        }
        *lock(&self.current) = None;
        let second = self.directory()?.join(&name);
        files(&second).map(|()| second)
    }

    fn directory(&self) -> std::io::Result<PathBuf> {
        let mut current = lock(&self.current);
        if let Some(path) = current.as_ref().filter(|path| path.is_dir()) {
            return Ok(path.clone());
        }
        let usable = self.candidates.iter().find(|path| is_usable(path)).cloned();
        (*current).clone_from(&usable);
        usable.ok_or_else(|| std::io::Error::from(ErrorKind::PermissionDenied))
    }
}

fn is_usable(path: &Path) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(path);
    let probe = path.join(".probe");
    let written = write(&probe, &[b"x"]).is_ok();
    let _ = std::fs::remove_file(&probe);
    written
}

/// Makes a file that did not exist, of these pieces.
///
/// # Errors
/// From the file system; what was in the way is removed first.
pub(crate) fn write(path: &Path, pieces: &[&[u8]]) -> std::io::Result<()> {
    let open = || {
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
    };
    let mut file = match open() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            open()?
        }
        other => other?,
    };
    for piece in pieces {
        file.write_all(piece)?;
    }
    Ok(())
}

/// Makes sure that there is nothing.
///
/// # Errors
/// From the file system.
pub(crate) fn clear(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads a whole file, up to a limit; nothing when it is no plain file or longer.
pub(crate) fn read(path: &Path, limit: usize) -> Option<Vec<u8>> {
    // Somebody may have put a FIFO there.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut content = Vec::new();
    let read = file.take(limit as u64 + 1).read_to_end(&mut content).ok()?;
    (read <= limit).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_does_no_harm() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let fifo = std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap();
        assert!(fifo.success());
        assert_eq!(read(&path, 10), None);
        write(&path, &[b"ab", b"c"]).unwrap();
        assert_eq!(read(&path, 3), Some(b"abc".to_vec()));
        assert_eq!(read(&path, 2), None);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(read(&path, 1 << 20), None);
        write(&path, &[b"own"]).unwrap();
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_symlink());
    }

    #[test]
    fn another_place_is_found_when_the_wanted_one_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDir::new(directory.path().join("no/such"), directory.path());
        let file = |path: &Path| write(path, &[b"x"]);
        let path = run.write(file).unwrap();
        assert_ne!(path.parent().unwrap(), directory.path());
        assert_ne!(run.write(file).unwrap(), path);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert!(run.write(file).unwrap().is_file());
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
