//! What can go wrong with the store.

use std::{path::PathBuf, sync::Arc};

use hotcell_types::LeaseId;

/// Why the store was not opened. Except for [`OpenError::Io`], the file is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another handle of this one, holds the file.
    #[error(
        "the store {path} is already in use by another process; stop it first (one daemon owns one state directory)"
    )]
    AlreadyInUse {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a later release.
    #[error(
        "the store {path} has schema version {found}, this release knows up to {known}; it was left untouched: install the newer release again, or restore the backup that was made before the upgrade"
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The newest version that this release knows.
        known: u32,
    },
    /// The file is not a sound store.
    #[error(
        "the store {path} is damaged ({detail}); it was left untouched: move it away and put the newest backup in its place"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The secrets in the file were sealed with another key.
    #[error(
        "the store {path} was sealed with another key; it was left untouched: configure the key file that belongs to it"
    )]
    WrongKey {
        /// The file.
        path: PathBuf,
    },
    /// A migration failed; nothing of any migration was kept.
    #[error(
        "the store {path} could not be migrated from schema version {from}; it was left untouched"
    )]
    Migration {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        from: u32,
        /// What happened.
        #[source]
        source: StoreError,
    },
    /// The file, or a file beside it, could not be read or written.
    #[error("the store {path} could not be opened: {doing}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What happened.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a read or a write failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The disk is full. The change is not stored; reads work, and writes work again once there is space.
    #[error("the disk of the store is full; nothing was stored: free some space")]
    DiskFull,
    /// The disk failed. The change is not stored.
    #[error("the disk of the store failed; nothing was stored")]
    Io(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The disk failed at the very end of a commit: the change is visible now, but may not survive
    /// a crash. Repeating it is safe for changes that can be repeated.
    #[error(
        "the disk of the store failed while a change was written; it may or may not be durable"
    )]
    Unconfirmed(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The store was reopened after a disk failure while this was reading; ask again.
    #[error("the store was being reopened; ask again")]
    Reopening,
    /// The change panicked and was rolled back; changes beside it were not touched.
    #[error("a change of the store panicked and was rolled back: {0}")]
    Panicked(String),
    /// A stored row does not parse.
    #[error("the row {key} of the stored table {table} cannot be read: {detail}")]
    Row {
        /// The table.
        table: &'static str,
        /// The row's key, as text.
        key: String,
        /// What is wrong.
        detail: String,
    },
    /// A sealed value does not open with the store's key.
    #[error("a sealed value in {table}/{key} does not open")]
    Sealed {
        /// The table.
        table: &'static str,
        /// The row's key, as text.
        key: String,
    },
    /// A row, or all rows of one change together, would be larger than they may be.
    #[error("{what} would have {bytes} bytes, more than the {limit} that the store takes")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// There would be more of them than there may be.
    #[error("there are already {limit} {what}, which is the limit")]
    LimitReached {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// What a row refers to does not exist.
    #[error("there is no {what} {id}")]
    NotFound {
        /// What kind of thing.
        what: &'static str,
        /// Its id.
        id: String,
    },
    /// It cannot be deleted while others refer to it.
    #[error("{what} {id} still has {by}")]
    InUse {
        /// What kind of thing.
        what: &'static str,
        /// Its id.
        id: String,
        /// What refers to it.
        by: &'static str,
    },
    /// A field that never changes would change.
    #[error("the {field} of {what} {id} never changes")]
    Immutable {
        /// What kind of thing.
        what: &'static str,
        /// Its id.
        id: String,
        /// The field.
        field: &'static str,
    },
    /// A chat has at most one live lease.
    #[error("the chat already has the live lease {0}")]
    ChatHasLiveLease(LeaseId),
}

impl StoreError {
    /// Whether the same request may succeed later without anybody changing it.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::DiskFull | Self::Io(_) | Self::Unconfirmed(_) | Self::Reopening
        )
    }

    pub(crate) fn io(error: impl Into<redb::Error>) -> Self {
        let error = error.into();
        match &error {
            redb::Error::Io(io) if is_full(io) => Self::DiskFull,
            redb::Error::DatabaseClosed | redb::Error::PreviousIo => Self::Reopening,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

pub(crate) fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}
