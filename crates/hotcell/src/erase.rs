//! Deleting a workspace, or a member of one, with everything that belongs to it.
//!
//! ```text
//!   intent in the store (no new sandbox from here on; a workspace is switched off)
//!     └─► leases ended ─► outputs ─► jobs ─► volumes ─► workspace, intent: one change ─► done
//!           any step fails, or the daemon dies: the intent stays, everything is begun again
//! ```
//!
//! Every step may be repeated. A volume first leaves its place in one rename, into the directory
//! that is emptied at every start, so that half a volume is never mounted again.
//!
//! Of a member goes what is theirs: their sandboxes, their `/mnt/user-data`, the files that were
//! collected for them and their jobs. What they put into `/mnt/workspace-data` or attached to a
//! chat is the workspace's.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use hotcell_core::{
    deletion::DeletionRecord,
    model::{Actor, AuditRow, OutputRecord},
};
use hotcell_store::{Snapshot, StoreError};
use hotcell_types::{OutputId, UserId, WorkspaceId, limits};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    actors::{
        context::Context,
        lease::{AskedBy, LeaseMsg},
        live::{LiveLease, lock},
    },
    handles::Sandboxes,
    http::OutputStore,
    volumes::Volumes,
};

/// Why a deletion could not go on.
#[derive(Debug, thiserror::Error)]
enum Obstacle {
    /// A sandbox cannot be removed yet.
    #[error("{0} sandboxes are still being removed")]
    Leases(usize),
    /// Somebody collected a file meanwhile.
    #[error("files were collected meanwhile")]
    Late,
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The disk refused.
    #[error("a volume cannot be removed")]
    Disk(#[from] std::io::Error),
}

type Key = (WorkspaceId, Option<UserId>);

struct Inner {
    context: Arc<Context>,
    outputs: OutputStore,
    volumes: Volumes,
    tmp: PathBuf,
    running: Mutex<HashMap<Key, watch::Receiver<bool>>>,
    tasks: Mutex<JoinSet<()>>,
}

/// Deletes what was asked to be deleted. Cheap to clone.
#[derive(Clone)]
pub struct Eraser {
    inner: Arc<Inner>,
}

impl Eraser {
    /// One that works on these; `tmp` is a directory on the file system of the volumes that is
    /// emptied at every start.
    #[must_use]
    pub fn new(sandboxes: &Sandboxes, outputs: OutputStore, volumes: Volumes, tmp: &Path) -> Self {
        Self {
            inner: Arc::new(Inner {
                context: sandboxes.context(),
                outputs,
                volumes,
                tmp: tmp.to_owned(),
                running: Mutex::default(),
                tasks: Mutex::default(),
            }),
        }
    }

    /// Goes on with what an earlier daemon did not finish.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn resume(&self) -> Result<(), StoreError> {
        let store = &self.inner.context.store;
        for deletion in store.read(|view| view.deletions()).await? {
            tracing::info!(subject = deletion.subject(), "going on with a deletion");
            self.run(deletion);
        }
        Ok(())
    }

    /// Stops; the intents stay.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.inner.tasks));
        tasks.shutdown().await;
    }

    /// Writes down that something is to be deleted, begins, and waits a moment. Whether it is done.
    ///
    /// # Errors
    /// There is no such workspace, or the store failed.
    pub async fn delete(&self, deletion: DeletionRecord) -> Result<bool, StoreError> {
        let intent = deletion.clone();
        self.inner
            .context
            .store
            .write::<_, StoreError, _>(move |tx| {
                if !tx.begin_deletion(&intent)? {
                    return Ok(());
                }
                let mut fields = Vec::new();
                if intent.user.is_none()
                    && let Some(mut workspace) = tx.workspace(&intent.workspace)?
                {
                    workspace.enabled = false;
                    tx.put_workspace(&workspace)?;
                    fields.push("enabled".to_owned());
                }
                tx.audit(AuditRow {
                    at: intent.requested_at,
                    actor: intent.actor.clone(),
                    action: action(&intent, "deletion_requested"),
                    subject: intent.subject(),
                    fields,
                    request: intent.request.clone(),
                })?;
                Ok(())
            })
            .await?;
        let mut done = self.run(deletion);
        let patience = Duration::from_millis(limits::DELETION_PATIENCE_MS);
        let waited = tokio::time::timeout(patience, done.wait_for(|done| *done)).await;
        Ok(matches!(waited, Ok(Ok(_))))
    }

    /// Every deletion that is under way.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn pending(&self) -> Result<Vec<DeletionRecord>, StoreError> {
        let store = &self.inner.context.store;
        store.read(|view| view.deletions()).await
    }

    fn run(&self, deletion: DeletionRecord) -> watch::Receiver<bool> {
        let key = (deletion.workspace.clone(), deletion.user.clone());
        let mut running = lock(&self.inner.running);
        if let Some(done) = running.get(&key) {
            return done.clone();
        }
        let (tell, done) = watch::channel(false);
        running.insert(key.clone(), done.clone());
        drop(running);
        let inner = Arc::clone(&self.inner);
        let mut tasks = lock(&self.inner.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            loop {
                if let Err(obstacle) = inner.erase(&deletion).await {
                    let subject = deletion.subject();
                    tracing::warn!(subject, %obstacle, "the deletion cannot go on now");
                    tokio::time::sleep(Duration::from_millis(limits::DELETION_RETRY_MS)).await;
                    continue;
                }
                // Whoever asked for the same again a moment ago waits for this task: the intent
                // is written before the map is looked into.
                let mut running = lock(&inner.running);
                let (workspace, user) = &key;
                let again = inner
                    .context
                    .store
                    .read_now(|view| view.deletion(workspace, user.as_ref()));
                if matches!(again, Ok(None)) {
                    running.remove(&key);
                    break;
                }
            }
            tell.send_replace(true);
        });
        done
    }
}

fn action(deletion: &DeletionRecord, what: &str) -> String {
    let of = if deletion.user.is_some() {
        "member"
    } else {
        "workspace"
    };
    format!("{of}.{what}")
}

impl Inner {
    async fn erase(&self, deletion: &DeletionRecord) -> Result<(), Obstacle> {
        self.end_leases(deletion).await?;
        self.forget_outputs(deletion).await?;
        self.forget_jobs(deletion).await?;
        self.remove_volumes(deletion).await?;
        let (finished, at) = (deletion.clone(), self.context.clock.now());
        self.context
            .store
            .write::<_, Obstacle, _>(move |tx| {
                if !outputs_of(tx, &finished, 1)?.is_empty() {
                    return Err(Obstacle::Late);
                }
                tx.finish_deletion(&finished)?;
                if finished.user.is_none() {
                    tx.delete_workspace(&finished.workspace)?;
                }
                tx.audit(AuditRow {
                    at,
                    actor: Actor::System,
                    action: action(&finished, "deleted"),
                    subject: finished.subject(),
                    fields: Vec::new(),
                    request: finished.request.clone(),
                })?;
                Ok(())
            })
            .await?;
        // Whoever was about to open a volume has made an empty one.
        self.remove_volumes(deletion).await?;
        tracing::info!(subject = deletion.subject(), "deleted");
        Ok(())
    }

    async fn end_leases(&self, deletion: &DeletionRecord) -> Result<(), Obstacle> {
        let is_meant = |workspace: &WorkspaceId, user: &UserId| {
            *workspace == deletion.workspace
                && deletion.user.as_ref().is_none_or(|meant| meant == user)
        };
        let mut live = self.context.live.all();
        live.retain(|lease| is_meant(&lease.workspace, &lease.user));
        let ends: Vec<_> = live.iter().map(|lease| self.end(lease, deletion)).collect();
        futures_util::future::join_all(ends).await;
        // Also one that was admitted a moment ago and has no actor yet.
        let left = self.context.store.read(|view| view.leases()).await?;
        let left = left
            .iter()
            .filter(|lease| is_meant(&lease.workspace, &lease.user))
            .count();
        if left == 0 {
            Ok(())
        } else {
            Err(Obstacle::Leases(left))
        }
    }

    async fn end(&self, lease: &Arc<LiveLease>, deletion: &DeletionRecord) {
        let asked = lease.address.cast(LeaseMsg::End(AskedBy {
            actor: deletion.actor.clone(),
            request: None,
        }));
        if asked.is_err() {
            // Its actor was given up; it is asked again when it is back.
            self.context
                .crew
                .retry_leases(std::slice::from_ref(lease))
                .await;
        }
        let limit = Duration::from_millis(limits::END_TIMEOUT_MS);
        let _ = tokio::time::timeout(limit, lease.gone()).await;
    }

    async fn forget_outputs(&self, deletion: &DeletionRecord) -> Result<(), Obstacle> {
        loop {
            let page = deletion.clone();
            let forgotten = self
                .context
                .store
                .write::<Vec<OutputId>, StoreError, _>(move |tx| {
                    let outputs = outputs_of(tx, &page, limits::MAX_PAGE_ROWS)?;
                    let ids: Vec<OutputId> = outputs.into_iter().map(|output| output.id).collect();
                    for id in &ids {
                        tx.delete_output(id)?;
                    }
                    Ok(ids)
                })
                .await?;
            if forgotten.is_empty() {
                return Ok(());
            }
            let outputs = self.outputs.clone();
            // Those that a crash leaves here have no record, so the next start removes them.
            blocking(move || {
                outputs.discard_all(&forgotten);
                Ok(())
            })
            .await?;
        }
    }

    async fn forget_jobs(&self, deletion: &DeletionRecord) -> Result<(), Obstacle> {
        loop {
            let page = deletion.clone();
            let forgotten = self
                .context
                .store
                .write::<usize, StoreError, _>(move |tx| {
                    let jobs = tx.jobs_of(&page.workspace, page.user.as_ref())?;
                    for job in &jobs {
                        tx.delete_job(&job.id)?;
                    }
                    Ok(jobs.len())
                })
                .await?;
            if forgotten == 0 {
                return Ok(());
            }
        }
    }

    async fn remove_volumes(&self, deletion: &DeletionRecord) -> Result<(), Obstacle> {
        let (volumes, tmp) = (self.volumes.clone(), self.tmp.clone());
        let name = format!("erased-{:032x}", self.context.ids.bits());
        let DeletionRecord {
            workspace, user, ..
        } = deletion.clone();
        blocking(move || {
            let to = tmp.join(name);
            let moved = match &user {
                Some(user) => volumes.move_user_away(&workspace, user, &to),
                None => volumes.move_workspace_away(&workspace, &to),
            };
            if moved? {
                std::fs::remove_dir_all(&to)?;
            }
            Ok(())
        })
        .await?;
        Ok(())
    }
}

fn outputs_of(
    view: &Snapshot<'_>,
    deletion: &DeletionRecord,
    limit: usize,
) -> Result<Vec<OutputRecord>, StoreError> {
    match &deletion.user {
        None => view.outputs_of_workspace(&deletion.workspace, limit),
        Some(user) => view.outputs_of_user(&deletion.workspace, user, limit),
    }
}

async fn blocking(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(std::io::Error::other)?
}
