//! The writer thread: takes what waits, runs it, commits once, answers.
//!
//! ```text
//!             ┌────────── commit failed ──────────┐
//!             ▼                                   │
//!  Open ──▶ reopen the file ── works ──────────▶ Open
//!             │
//!             └─ fails ─▶ ReadOnly (the file under an overlay) ── next batch ──▶ reopen …
//! ```
//! After an I/O error redb refuses to go on with a database, so the file is opened anew; the lock on
//! it stays ours all the time.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hotcell_types::{IdSource, limits};
use redb::Database;
use tokio::sync::{mpsc, oneshot};

use crate::{
    dto::encode,
    error::StoreError,
    file::StoreFile,
    key::Vault,
    meta::{self, Identity},
    open::{begin, open_direct, open_overlay, panic_text},
    rows::{Base, Layer, Snapshot},
    store::StoreStats,
    tables::{Table, meta_key},
    tx::Tx,
};

/// The database as it is now.
pub(crate) enum Live {
    Open(Database),
    /// The disk failed; this reads the file and can never change it.
    ReadOnly(Database, StoreError),
    /// The disk failed and the file cannot even be read.
    Lost(StoreError),
    Closed,
}

/// What handles and the writer share.
pub(crate) struct Shared {
    pub(crate) live: RwLock<Live>,
    pub(crate) file: Arc<StoreFile>,
    pub(crate) vault: Vault,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) identity: Identity,
    pub(crate) counters: Counters,
}

#[derive(Default)]
pub(crate) struct Counters {
    changes: AtomicU64,
    commits: AtomicU64,
    failures: AtomicU64,
    pub(crate) observer: OnceLock<CommitObserver>,
}

/// Is told how long each commit took, and whether it worked. Runs on the writer thread: it must
/// not block.
pub type CommitObserver = Box<dyn Fn(Duration, bool) + Send + Sync>;

impl Counters {
    pub(crate) fn read(&self) -> StoreStats {
        StoreStats {
            changes: self.changes.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            failed_commits: self.failures.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    pub(crate) fn live(&self) -> RwLockReadGuard<'_, Live> {
        // Only the writer changes it, by moving in a whole value.
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The committed rows, to read from.
    pub(crate) fn base(&self) -> Result<Base, StoreError> {
        match &*self.live() {
            Live::Open(database) | Live::ReadOnly(database, _) => begin(database),
            Live::Lost(error) => Err(error.clone()),
            Live::Closed => Err(StoreError::Closed),
        }
    }

    fn replace(&self, live: Live) -> Live {
        let mut guard = self.live.write().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *guard, live)
    }
}

/// One change that waits.
pub(crate) trait Job: Send {
    /// Runs it. What it wants to write, when it succeeded.
    fn run(
        &mut self,
        view: Snapshot<'_>,
        ids: &dyn IdSource,
        over_uncommitted: bool,
    ) -> Option<Layer>;
    /// Answers its caller.
    fn finish(self: Box<Self>, commit: Result<(), StoreError>);
}

/// A change with the one who waits for it.
pub(crate) struct Change<T, E, F> {
    change: Option<F>,
    result: Option<Result<T, E>>,
    /// Whether it may have seen rows that are not committed yet.
    over_uncommitted: bool,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T, E, F> Change<T, E, F> {
    pub(crate) fn new(change: F, reply: oneshot::Sender<Result<T, E>>) -> Self {
        Self {
            change: Some(change),
            result: None,
            over_uncommitted: false,
            reply,
        }
    }
}

impl<T, E, F> Job for Change<T, E, F>
where
    T: Send,
    E: Send + From<StoreError>,
    F: FnOnce(&mut Tx<'_>) -> Result<T, E> + Send,
{
    fn run(
        &mut self,
        view: Snapshot<'_>,
        ids: &dyn IdSource,
        over_uncommitted: bool,
    ) -> Option<Layer> {
        let change = self.change.take()?;
        self.over_uncommitted = over_uncommitted;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut tx = Tx::new(view, ids);
            let result = change(&mut tx);
            (result, tx.into_layer())
        }));
        let (result, layer) = match ran {
            Ok((Ok(value), layer)) => (Ok(value), Some(layer)),
            Ok((Err(error), _)) => (Err(error), None),
            Err(payload) => (
                Err(StoreError::Panicked(panic_text(&*payload)).into()),
                None,
            ),
        };
        self.result = Some(result);
        layer
    }

    fn finish(self: Box<Self>, commit: Result<(), StoreError>) {
        let result = match (self.result, commit) {
            // It failed by itself, on nothing but committed rows.
            (Some(Err(error)), Err(_)) if !self.over_uncommitted => Err(error),
            (_, Err(error)) => Err(error.into()),
            (Some(result), Ok(())) => result,
            (None, Ok(())) => Err(StoreError::Closed.into()),
        };
        // A caller that gave up does not want to know.
        let _ = self.reply.send(result);
    }
}

pub(crate) enum Command {
    Change(Box<dyn Job>),
    Backup(PathBuf, oneshot::Sender<Result<(), StoreError>>),
    Close(oneshot::Sender<Result<(), StoreError>>),
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Command>,
    /// The number of the last batch that was committed.
    batch: u64,
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: mpsc::Receiver<Command>,
    ) -> Result<Self, StoreError> {
        let batch = meta::batch_number(&shared.base()?, &shared.vault)?;
        Ok(Self {
            shared,
            queue,
            batch,
        })
    }

    /// Runs until the store is closed or the last handle is gone.
    pub(crate) fn run(mut self) {
        let mut batch: Vec<Box<dyn Job>> = Vec::new();
        while let Some(first) = self.queue.blocking_recv() {
            let mut next = Some(first);
            let mut other = None;
            while let Some(command) = next.take() {
                match command {
                    Command::Change(job) => {
                        batch.push(job);
                        if batch.len() < limits::STORE_BATCH_CHANGES {
                            next = self.queue.try_recv().ok();
                        }
                    }
                    command => other = Some(command),
                }
            }
            if !batch.is_empty() {
                self.commit_batch(mem::take(&mut batch));
            }
            match other {
                None | Some(Command::Change(_)) => {}
                Some(Command::Backup(target, reply)) => {
                    let copied = self.shared.file.copy_to(&target);
                    let _ = reply.send(copied.map_err(StoreError::io));
                }
                Some(Command::Close(reply)) => {
                    let _ = reply.send(self.close());
                    return;
                }
            }
        }
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the store was not closed cleanly; the next start repairs it");
        }
    }

    fn close(&self) -> Result<(), StoreError> {
        let closed = match self.shared.replace(Live::Closed) {
            Live::Open(database) => database.close().map_err(StoreError::io),
            Live::ReadOnly(..) | Live::Lost(_) | Live::Closed => Ok(()),
        };
        let unlocked = self.shared.file.file.unlock().map_err(StoreError::io);
        closed.and(unlocked)
    }

    fn commit_batch(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        let committed = self.ensure_open().and_then(|()| self.run_batch(&mut jobs));
        for job in jobs {
            job.finish(committed.clone());
        }
    }

    fn run_batch(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let base = shared.base()?;
        let mut rows = Layer::new();
        for job in jobs.iter_mut() {
            let view = Snapshot::over(&base, &rows, &shared.vault);
            if let Some(layer) = job.run(view, &*shared.ids, !rows.is_empty()) {
                rows.extend(layer);
            }
        }
        // Old pages can only be used again when nobody reads them.
        drop(base);
        let counters = &shared.counters;
        counters
            .changes
            .fetch_add(jobs.len() as u64, Ordering::Relaxed);
        if rows.is_empty() {
            return Ok(());
        }
        let number = self.batch + 1;
        rows.insert(
            (Table::Meta, meta_key::BATCH.to_vec()),
            Some(encode(&number)?),
        );
        let started = tokio::time::Instant::now();
        let committed = self.commit(&rows);
        if let Some(observer) = self.shared.counters.observer.get() {
            observer(started.elapsed(), committed.is_ok());
        }
        match committed {
            Ok(()) => {
                self.batch = number;
                counters.commits.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                counters.failures.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "a commit of the store failed");
                Err(self.recover(number, error))
            }
        }
    }

    fn commit(&self, rows: &Layer) -> Result<(), StoreError> {
        let live = self.shared.live();
        let Live::Open(database) = &*live else {
            return Err(StoreError::Closed);
        };
        catch_unwind(AssertUnwindSafe(|| write_rows(database, rows))).unwrap_or_else(|payload| {
            Err(StoreError::io(std::io::Error::other(panic_text(&*payload))))
        })
    }

    /// Opens the file anew after a failed commit, and finds out whether the commit is in it.
    fn recover(&mut self, number: u64, error: StoreError) -> StoreError {
        self.reopen();
        let found = self
            .shared
            .base()
            .and_then(|base| meta::batch_number(&base, &self.shared.vault));
        match found {
            Ok(found) if found == number => {
                self.batch = number;
                StoreError::Unconfirmed(Arc::new(error))
            }
            Ok(_) => error,
            Err(_) => StoreError::Unconfirmed(Arc::new(error)),
        }
    }

    /// Makes the database writable again if it is not.
    fn ensure_open(&mut self) -> Result<(), StoreError> {
        if matches!(&*self.shared.live(), Live::ReadOnly(..) | Live::Lost(_)) {
            self.reopen();
        }
        match &*self.shared.live() {
            Live::Open(_) => Ok(()),
            Live::ReadOnly(_, error) | Live::Lost(error) => Err(error.clone()),
            Live::Closed => Err(StoreError::Closed),
        }
    }

    fn reopen(&mut self) {
        let mut guard = self
            .shared
            .live
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let broken = mem::replace(&mut *guard, Live::Closed);
        // A database with a latched I/O error writes nothing when it goes.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
        *guard = match open_direct(&self.shared.file) {
            Ok(database) => Live::Open(database),
            Err(error) => {
                tracing::error!(%error, "the store cannot be opened for writing");
                match open_overlay(&self.shared.file) {
                    Ok(database) => Live::ReadOnly(database, error),
                    Err(_) => Live::Lost(error),
                }
            }
        };
    }
}

fn write_rows(database: &Database, rows: &Layer) -> Result<(), StoreError> {
    let mut transaction = database.begin_write().map_err(StoreError::io)?;
    // Two phases: damage of the last commit can then be told from a commit that a crash cut off.
    transaction.set_two_phase_commit(true);
    let mut rows = rows.iter().peekable();
    while let Some(((table, _), _)) = rows.peek() {
        let table = *table;
        let mut open = transaction
            .open_table(table.definition())
            .map_err(StoreError::io)?;
        while let Some(((_, key), value)) = rows.next_if(|((of, _), _)| *of == table) {
            match value {
                Some(value) => open.insert(key.as_slice(), value.as_slice()).map(drop),
                None => open.remove(key.as_slice()).map(drop),
            }
            .map_err(StoreError::io)?;
        }
    }
    transaction.commit().map_err(StoreError::io)
}
