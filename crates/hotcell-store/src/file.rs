//! The store's file on disk: who holds it, how it comes to be, how it is copied.
//!
//! The lock is taken on the file itself before a byte of it is read, and held until the store is closed,
//! also while the database in it is reopened after a disk failure. A new file is made complete
//! under another name and then linked into its place, so there is no moment at which a kill
//! leaves half a store behind.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{CWD, FallocateFlags, RenameFlags};

use crate::error::OpenError;

/// How often opening starts over because the file was replaced between opening and locking it.
const OPEN_ATTEMPTS: usize = 8;

/// The locked file.
#[derive(Debug)]
pub(crate) struct StoreFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    #[cfg(test)]
    pub(crate) faults: crate::tests::Faults,
}

pub(crate) fn io_error(
    path: &Path,
    doing: &'static str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> OpenError {
    OpenError::Io {
        path: path.to_owned(),
        doing,
        source: Arc::new(error),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens a file, locks it and makes sure that the path still leads to it.
fn open_locked(path: &Path, create: bool) -> Result<Option<File>, OpenError> {
    for _ in 0..OPEN_ATTEMPTS {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .mode(0o600)
            .open(path);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
            Err(error) => return Err(io_error(path, "opening it", error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::AlreadyInUse {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(io_error(path, "locking it", error)),
        }
        let held = file
            .metadata()
            .map_err(|error| io_error(path, "looking at it", error))?;
        match std::fs::metadata(path) {
            Ok(found) if (found.dev(), found.ino()) == (held.dev(), held.ino()) => {
                return Ok(Some(file));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(path, "looking at it", error)),
        }
    }
    Err(OpenError::AlreadyInUse {
        path: path.to_owned(),
    })
}

impl StoreFile {
    /// The existing file, locked, or a new one that `fill` has made complete.
    pub(crate) fn open_or_create(
        path: &Path,
        fill: impl Fn(&Arc<Self>) -> Result<(), OpenError>,
    ) -> Result<Arc<Self>, OpenError> {
        for _ in 0..OPEN_ATTEMPTS {
            if let Some(file) = open_locked(path, false)? {
                return Ok(Arc::new(Self {
                    path: path.to_owned(),
                    file,
                    #[cfg(test)]
                    faults: crate::tests::Faults::default(),
                }));
            }
            if let Some(created) = Self::create(path, &fill)? {
                return Ok(created);
            }
        }
        Err(OpenError::AlreadyInUse {
            path: path.to_owned(),
        })
    }

    /// Nothing when another process was faster.
    fn create(
        path: &Path,
        fill: &impl Fn(&Arc<Self>) -> Result<(), OpenError>,
    ) -> Result<Option<Arc<Self>>, OpenError> {
        let fresh = beside(path, ".new");
        let Some(file) = open_locked(&fresh, true)? else {
            return Ok(None);
        };
        // What a killed predecessor left in it.
        file.set_len(0)
            .map_err(|error| io_error(&fresh, "emptying it", error))?;
        let made = Arc::new(Self {
            path: path.to_owned(),
            file,
            #[cfg(test)]
            faults: crate::tests::Faults::default(),
        });
        fill(&made)?;
        made.file
            .sync_all()
            .map_err(|error| io_error(&fresh, "writing it to disk", error))?;
        match rustix::fs::renameat_with(CWD, &fresh, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Ok(None),
            Err(error) => return Err(io_error(path, "putting it in its place", error)),
        }
        sync_directory_of(path)
            .map_err(|error| io_error(path, "putting it in its place", error))?;
        Ok(Some(made))
    }

    /// Copies the file as it is now; only when no commit is being written.
    pub(crate) fn copy_to(&self, target: &Path) -> io::Result<()> {
        let fresh = beside(target, ".new");
        let mut copy = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        let mut source = File::open(&self.path)?;
        let held = self.file.metadata()?;
        let found = source.metadata()?;
        if (found.dev(), found.ino()) != (held.dev(), held.ino()) {
            return Err(io::Error::other("the store's file was replaced"));
        }
        let copied = io::copy(&mut source, &mut copy).and_then(|_| copy.sync_all());
        if let Err(error) = copied {
            // The copy is useless; the error that made it so is what matters.
            let _ = std::fs::remove_file(&fresh);
            return Err(error);
        }
        std::fs::rename(&fresh, target)?;
        sync_directory_of(target)
    }

    /// Where the file is copied to before it is migrated.
    pub(crate) fn backup_before_schema(&self, from: u32, to: u32) -> PathBuf {
        beside(&self.path, &format!(".before-schema-{from}-to-{to}"))
    }

    /// Grows or shrinks the file. Growing takes the space at once: a later write into the file
    /// then never finds the disk full.
    pub(crate) fn set_len(&self, len: u64) -> io::Result<()> {
        let now = self.file.metadata()?.len();
        if len <= now {
            return self.file.set_len(len);
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), now, len - now) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(len),
            Err(error) => {
                // What was taken before the disk was full is given back.
                let _ = self.file.set_len(now);
                Err(error.into())
            }
        }
    }
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}
