//! The files that were collected from sandboxes: `<state>/outputs/<aa>/<output id>`, never changed.
//!
//! ```text
//!   draft in <state>/tmp ── sync ── rename ── one record in the store
//!      dropped: gone                 discarded when the record is refused
//! ```
//!
//! A file without a record is not there for anybody; [`OutputStore::sweep`] removes those that a
//! crash left between the rename and the record.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use hotcell_store::{Store, StoreError};
use hotcell_types::OutputId;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

/// The collected files. Cheap to clone. Its functions touch the disk: call them from a blocking
/// task.
#[derive(Clone)]
pub struct OutputStore {
    root: Arc<Path>,
    tmp: Arc<Path>,
}

/// A sweep could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The directory cannot be read or changed.
    #[error("the collected files cannot be looked through")]
    Io(#[from] io::Error),
    /// The store cannot be read.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

impl OutputStore {
    /// The files under `<state_dir>/outputs`, which is made if it is missing; `tmp` is a directory on the same file
    /// system.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(state_dir: &Path, tmp: &Path) -> io::Result<Self> {
        let root = state_dir.join("outputs");
        make_dir(&root)?;
        Ok(Self {
            root: root.into(),
            tmp: tmp.into(),
        })
    }

    /// The last two characters of an id are its most random ones.
    fn path(&self, id: &OutputId) -> PathBuf {
        let text = id.as_str();
        self.root.join(&text[text.len() - 2..]).join(text)
    }

    /// Begins a file.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(super) fn draft(&self) -> io::Result<Draft> {
        let temp = tempfile::Builder::new()
            .prefix("output-")
            .permissions(std::fs::Permissions::from_mode(0o600))
            .tempfile_in(&self.tmp)?;
        Ok(Draft {
            temp,
            hash: Sha256::new(),
            bytes: 0,
        })
    }

    /// Puts a whole draft in its place.
    ///
    /// # Errors
    /// When the disk refuses; then nothing is left.
    pub(super) fn place(&self, id: &OutputId, draft: Draft) -> io::Result<()> {
        let path = self.path(id);
        let parent = path.parent().unwrap_or(&self.root);
        make_dir(parent)?;
        draft.temp.as_file().sync_all()?;
        let Draft { temp, .. } = draft;
        temp.persist_noclobber(&path).map_err(|error| error.error)?;
        let synced = File::open(parent).and_then(|dir| dir.sync_all());
        if synced.is_err() {
            self.discard(id);
        }
        synced
    }

    /// Removes a placed file that is known to have no record.
    pub(super) fn discard(&self, id: &OutputId) {
        if let Err(error) = std::fs::remove_file(self.path(id)) {
            tracing::warn!(%error, output = %id, "a file without a record stays until the next start");
        }
    }

    /// Removes files whose records are gone.
    pub(crate) fn discard_all(&self, ids: &[OutputId]) {
        ids.iter().for_each(|id| self.discard(id));
    }

    /// Opens a collected file.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn file(&self, id: &OutputId) -> io::Result<File> {
        File::open(self.path(id))
    }

    /// Removes every file that has no record. To be run before anything is collected.
    ///
    /// # Errors
    /// See [`SweepError`].
    pub fn sweep(&self, store: &Store) -> Result<usize, SweepError> {
        let mut removed = 0;
        for shard in std::fs::read_dir(&self.root)? {
            let shard = shard?.path();
            if !shard.is_dir() {
                continue;
            }
            for file in std::fs::read_dir(&shard)? {
                let file = file?;
                let id = file
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse::<OutputId>().ok());
                let known = match id {
                    Some(id) => store.read_now(|snapshot| snapshot.output(&id))?.is_some(),
                    None => false,
                };
                if !known {
                    std::fs::remove_file(file.path())?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        // The name of the new directory must outlive a power loss as much as what is in it.
        Ok(()) => match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        },
    }
}

/// A file that is being collected. Dropped, it is gone.
pub(super) struct Draft {
    temp: NamedTempFile,
    hash: Sha256,
    bytes: u64,
}

impl Draft {
    /// Appends.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.temp.as_file_mut().write_all(bytes)
    }

    /// How much was written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The lower-case hex SHA-256 of what was written.
    pub(super) fn sha256(&self) -> String {
        hex::encode(self.hash.clone().finalize())
    }
}
