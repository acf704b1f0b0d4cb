//! The last look into a sandbox before it is stopped or ended: what lies in `/workspace/outputs`
//! goes into the chat, as if it had been presented.
//!
//! That directory is the one place in `/workspace` whose files outlive the sandbox without being
//! asked for. It is swept when a sandbox has gone unused for the idle limit, before it is stopped,
//! and when it reaches the hard limit while it runs. The limits are those of one collection; what
//! the chat has from this sandbox already, by path and content, is not collected again. So a
//! sweep may be repeated, and a crash in the middle of one costs nothing.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;
use hotcell_agent_proto::FileKind;
use hotcell_core::{
    model::{Actor, LeaseRecord, OutputRecord},
    profile::OutputLimits,
};
use hotcell_runtime::Sandbox;
use hotcell_store::Store;
use hotcell_types::{
    Clock, IdSource, SandboxPath,
    limits::{MAX_FINAL_SWEEP_DIRECTORIES, MAX_PAGE_ROWS, MAX_PATHS_PER_COLLECTION},
};

use super::{
    collect::{self, Collection, Failure, NotKept, Owner, Refusal, Shelf},
    outputs::OutputStore,
};
use crate::FinalSweep;

/// The directory that is swept.
const SWEPT: &str = "/workspace/outputs";

/// Sweeps `/workspace/outputs`.
pub struct Sweeper {
    shelf: Shelf,
}

impl Sweeper {
    /// One that puts what it finds where `present_files` does.
    #[must_use]
    pub fn new(
        store: Store,
        outputs: OutputStore,
        (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>),
        limits: Arc<OutputLimits>,
    ) -> Self {
        Self {
            shelf: Shelf {
                store,
                outputs,
                clock,
                ids,
                limits,
            },
        }
    }
}

#[async_trait]
impl FinalSweep for Sweeper {
    async fn sweep(&self, lease: &LeaseRecord, sandbox: Arc<dyn Sandbox>) -> usize {
        let paths = found(&*sandbox).await;
        if paths.is_empty() {
            return 0;
        }
        let (workspace, chat) = (lease.workspace.clone(), lease.chat.clone());
        let known = self
            .shelf
            .store
            .read(move |view| view.outputs_of_chat(&workspace, &chat))
            .await;
        let known: Vec<OutputRecord> = match known {
            Ok(known) => known
                .into_iter()
                .filter(|it| it.lease == lease.id)
                .collect(),
            Err(error) => {
                tracing::warn!(lease = %lease.id, %error, "the chat's outputs cannot be read");
                return 0;
            }
        };
        let mut collection = Collection::new(&self.shelf, &*sandbox);
        for path in paths {
            match collection.take(&path).await {
                Ok(()) => {
                    let is_known = collection.files.last().is_some_and(|file| {
                        let sha256 = file.draft.sha256();
                        known
                            .iter()
                            .any(|it| it.path == file.path.as_str() && it.sha256 == sha256)
                    });
                    if is_known {
                        collection.drop_last();
                    }
                }
                Err(Refusal::Skip(reason)) => {
                    tracing::info!(lease = %lease.id, path, reason, "a file is not collected");
                }
                Err(Refusal::Fail(Failure::Sandbox(error))) => {
                    tracing::info!(lease = %lease.id, %error, "the sandbox cannot be swept any further");
                    break;
                }
                Err(Refusal::Fail(Failure::Here(error))) => {
                    tracing::warn!(lease = %lease.id, code = error.code().as_str(), "a file cannot be kept");
                    break;
                }
            }
        }
        let owner = Owner {
            workspace: lease.workspace.clone(),
            chat: lease.chat.clone(),
            user: lease.user.clone(),
            lease: lease.id.clone(),
            actor: Actor::System,
            request: None,
        };
        match collect::store(&self.shelf, &owner, collection.files, |_| None).await {
            Ok(records) => records.len(),
            Err(NotKept::Denied(denial)) => {
                tracing::warn!(lease = %lease.id, denial = denial.name(), "what was collected cannot be kept");
                0
            }
            Err(NotKept::Failed(error)) => {
                tracing::warn!(lease = %lease.id, code = error.code().as_str(), "what was collected cannot be kept");
                0
            }
        }
    }
}

/// The files beneath the swept directory, the names of each directory in byte order, directories
/// after files.
async fn found(sandbox: &dyn Sandbox) -> Vec<String> {
    let mut paths = Vec::new();
    let mut seen = 0;
    let mut left: VecDeque<String> = [SWEPT.to_owned()].into();
    while let Some(directory) = left.pop_front() {
        let Ok(path) = directory.parse::<SandboxPath>() else {
            continue;
        };
        // Most sandboxes have no such directory.
        let Ok(listing) = sandbox.list(&path, None, MAX_PAGE_ROWS).await else {
            continue;
        };
        for entry in listing.entries {
            // A name that is no text cannot be presented either.
            if entry.name_hex.is_some() {
                continue;
            }
            let path = format!("{directory}/{}", entry.name);
            match entry.kind {
                FileKind::File if paths.len() < MAX_PATHS_PER_COLLECTION => paths.push(path),
                FileKind::Directory if seen < MAX_FINAL_SWEEP_DIRECTORIES => {
                    seen += 1;
                    left.push_back(path);
                }
                _ => {}
            }
        }
    }
    paths
}
