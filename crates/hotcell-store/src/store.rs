//! The handle.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use hmac::{Hmac, KeyInit, Mac};
use hotcell_types::{AgentKey, Clock, IdSource, InstallationId, LeaseId, limits};
use sha2::Sha256;
use tokio::sync::{mpsc, oneshot};

use crate::{
    error::{OpenError, StoreError},
    file::io_error,
    key::{StoreKey, Vault},
    migrate::{self, Schema},
    open,
    rows::Snapshot,
    tx::Tx,
    writer::{Change, Command, CommitObserver, Counters, Live, Shared, Writer},
};

/// How much the store has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Changes that were run.
    pub changes: u64,
    /// Commits that are on disk.
    pub commits: u64,
    /// Commits that failed.
    pub failed_commits: u64,
}

/// A handle on the open store; cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Command>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.shared.file.path)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store, or makes it when there is no file. Reads the whole file once, so it takes
    /// time in proportion to its size; it blocks.
    ///
    /// # Errors
    /// The file is in use, damaged, of a later release, or sealed with another key: it is then
    /// as it was before. Or a disk failed.
    pub fn open(
        path: &Path,
        key: StoreKey,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<Self, OpenError> {
        Self::open_schema(path, &key, &*clock, ids, migrate::CURRENT)
    }

    pub(crate) fn open_schema(
        path: &Path,
        key: &StoreKey,
        clock: &dyn Clock,
        ids: Arc<dyn IdSource>,
        schema: Schema,
    ) -> Result<Self, OpenError> {
        let vault = Vault::new(key);
        let opened = open::open(path, &vault, clock, &*ids, schema)?;
        let shared = Arc::new(Shared {
            live: RwLock::new(Live::Open(opened.database)),
            file: opened.file,
            vault,
            ids,
            identity: opened.identity,
            counters: Counters::default(),
        });
        let (queue, receiver) = mpsc::channel(limits::STORE_QUEUE_CHANGES);
        let writer = Writer::new(shared.clone(), receiver)
            .map_err(|error| io_error(path, "reading it", error))?;
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| io_error(path, "starting its writer thread", error))?;
        Ok(Self { shared, queue })
    }

    /// This installation, made when the file was.
    #[must_use]
    pub fn installation(&self) -> InstallationId {
        self.shared.identity.installation.clone()
    }

    /// The key of a lease's agent, derived from the installation's master secret: the same as long as the
    /// store lives, and of no use for any other lease.
    #[must_use]
    pub fn agent_key(&self, lease: &LeaseId) -> AgentKey {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.shared.identity.master)
            .expect("HMAC takes a key of any length");
        mac.update(b"hotcell agent key v1\n");
        mac.update(lease.as_str().as_bytes());
        AgentKey::new(mac.finalize().into_bytes().into())
    }

    /// Runs a change and answers when it is on disk. Changes that wait together share a commit;
    /// one that fails or panics is rolled back alone.
    ///
    /// `change` runs on the store's writer thread: it must not block. When the caller stops
    /// waiting the change still happens, once it was queued.
    ///
    /// # Errors
    /// Whatever `change` returned, or a [`StoreError`] of the store itself.
    pub async fn write<T, E, F>(&self, change: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: Send + 'static + From<StoreError>,
        F: FnOnce(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let command = Command::Change(Box::new(Change::new(change, reply)));
        self.queue
            .send(command)
            .await
            .map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Reads on a blocking thread; for anything that may read many rows.
    ///
    /// # Errors
    /// The store cannot be read, or whatever `read` returned.
    pub async fn read<T, F>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Snapshot<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let store = self.clone();
        match tokio::task::spawn_blocking(move || store.read_now(read)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(payload) => Err(StoreError::Panicked(open::panic_text(&*payload))),
                // The runtime is shutting down.
                Err(_) => Err(StoreError::Closed),
            },
        }
    }

    /// Reads on this thread; for a few rows by their ids, on a hot path. Takes microseconds when the rows are
    /// cached, one disk read each when they are not.
    ///
    /// # Errors
    /// The store cannot be read, or whatever `read` returned.
    pub fn read_now<T>(
        &self,
        read: impl FnOnce(&Snapshot<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let base = self.shared.base()?;
        read(&Snapshot::new(&base, &self.shared.vault))
    }

    /// Copies the store, as of its last commit, to `target`, which is replaced. Writes wait meanwhile.
    ///
    /// # Errors
    /// A disk failed, or the store is closed.
    pub async fn backup(&self, target: PathBuf) -> Result<(), StoreError> {
        self.command(|reply| Command::Backup(target, reply)).await
    }

    /// Changes that wait for the writer now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    #[cfg(test)]
    pub(crate) fn faults(&self) -> &crate::tests::Faults {
        &self.shared.file.faults
    }

    /// Has every commit told to `observer` from now on; only the first one counts.
    pub fn observe_commits(&self, observer: CommitObserver) {
        // A second one would see no more than the first.
        let _ = self.shared.counters.observer.set(observer);
    }

    /// How much the store has done.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.shared.counters.read()
    }

    /// Commits what waits and closes the file, for every handle.
    ///
    /// # Errors
    /// The disk failed; what was acknowledged is durable, and the next open repairs the file.
    pub async fn close(self) -> Result<(), StoreError> {
        match self.command(Command::Close).await {
            // Another handle was faster.
            Err(StoreError::Closed) => Ok(()),
            result => result,
        }
    }

    async fn command(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), StoreError>>) -> Command,
    ) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.queue
            .send(command(reply))
            .await
            .map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}
