//! Collecting files from a sandbox into a chat.
//!
//! ```text
//!   for each path, in order:  parse ── place ── type ── count ── open ── size ── read ── draft
//!                               └────────┴───────┴───────┴───────┴───────┴───────┴─► skipped, with the reason
//!   then: place every draft ── one write of all records ── answer
//! ```
//!
//! The sandbox is hostile: what it says of a size only ever refuses a file early. What counts is
//! how many bytes were read; a file that grows past a limit while it is read is given up.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use hotcell_agent_proto::{AgentErrorCode, FileKind};
use hotcell_api::{
    ErrorCode,
    files::{Output, PresentFilesResult, Skipped},
};
use hotcell_core::{
    gate::Denial,
    model::{Actor, AuditRow, OutputRecord},
    profile::OutputLimits,
};
use hotcell_runtime::{Sandbox, SandboxError};
use hotcell_store::{Store, StoreError};
use hotcell_types::{
    ChatId, Clock, FileName, IdSource, LeaseId, OutputId, SandboxPath, UserId, VolumeKind,
    WorkspaceId,
    limits::{AGENT_SILENCE_MS, COLLECTION_TIMEOUT_MS, MAX_SHORTENED_PATH_CHARACTERS},
    volume::{TMP_PATH, WORKSPACE_PATH},
};
use tokio::time::Instant;

use super::{
    App, calls,
    error::{ApiError, denied},
    idempotency::{Finisher, Ticket, answer_text},
    media::media_type,
    outputs::{Draft, OutputStore},
    outputs_quota::{self, NotStored},
    view,
};
use crate::handles::Caller;

/// Where collected files are put, and how much of them.
#[derive(Clone)]
pub(super) struct Shelf {
    pub(super) store: Store,
    pub(super) outputs: OutputStore,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ids: Arc<dyn IdSource>,
    pub(super) limits: Arc<OutputLimits>,
}

impl Shelf {
    fn of(app: &App) -> Self {
        Self {
            store: app.store.clone(),
            outputs: app.outputs.clone(),
            clock: Arc::clone(&app.clock),
            ids: Arc::clone(&app.ids),
            limits: Arc::clone(&app.output_limits),
        }
    }
}

/// Whose files are collected, and who is audited for it.
pub(super) struct Owner {
    pub(super) workspace: WorkspaceId,
    pub(super) chat: ChatId,
    pub(super) user: UserId,
    pub(super) lease: LeaseId,
    pub(super) actor: Actor,
    pub(super) request: Option<String>,
}

/// How much of the list of types is repeated in a reason; types are ASCII.
const MAX_LISTED_TYPES_BYTES: usize = 200;

/// Where a collected file may lie.
const ROOTS: [&str; 4] = [
    WORKSPACE_PATH,
    VolumeKind::UserData.mount_path(),
    VolumeKind::WorkspaceData.mount_path(),
    TMP_PATH,
];

pub(super) struct Collected {
    name: FileName,
    pub(super) path: SandboxPath,
    pub(super) draft: Draft,
}

pub(super) enum Refusal {
    /// This file is not collected.
    Skip(String),
    /// The sandbox is gone, or the server's disk failed.
    Fail(Failure),
}

pub(super) enum Failure {
    Sandbox(SandboxError),
    Here(ApiError),
}

fn skip<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Skip(reason.into()))
}

/// What can be said of a path without looking at it.
fn allowed(limits: &OutputLimits, text: &str) -> Result<(SandboxPath, FileName), String> {
    let path: SandboxPath = text
        .parse()
        .map_err(|error| format!("not a path: {error}"))?;
    let root = path.directory().filter(|root| ROOTS.contains(root));
    let name = path
        .file_name()
        .filter(|_| root.is_some_and(|root| path.as_str() != root));
    let Some(name) = name else {
        return Err(format!(
            "only files in {} can be presented",
            ROOTS.join(", ")
        ));
    };
    match name.extension() {
        Some(extension) if limits.types.contains(&extension) => Ok((path, name)),
        _ => {
            let types: Vec<&str> = limits.types.iter().map(String::as_str).collect();
            let mut types = types.join(", ");
            if types.len() > MAX_LISTED_TYPES_BYTES {
                types.truncate(MAX_LISTED_TYPES_BYTES);
                types.push('…');
            }
            Err(format!(
                "this file type cannot be presented; these can: {types}"
            ))
        }
    }
}

pub(super) struct Collection<'s> {
    shelf: &'s Shelf,
    sandbox: &'s dyn Sandbox,
    pub(super) files: Vec<Collected>,
    bytes: u64,
    deadline: Instant,
}

impl<'s> Collection<'s> {
    pub(super) fn new(shelf: &'s Shelf, sandbox: &'s dyn Sandbox) -> Self {
        Self {
            shelf,
            sandbox,
            files: Vec::new(),
            bytes: 0,
            deadline: Instant::now() + Duration::from_millis(COLLECTION_TIMEOUT_MS),
        }
    }

    /// Leaves out the last file that was taken: nobody wants it.
    pub(super) fn drop_last(&mut self) {
        if let Some(file) = self.files.pop() {
            self.bytes -= file.draft.bytes();
        }
    }

    pub(super) async fn take(&mut self, text: &str) -> Result<(), Refusal> {
        let limits = &*self.shelf.limits;
        let (path, name) = allowed(limits, text).map_err(Refusal::Skip)?;
        if self.files.iter().any(|file| file.path == path) {
            return skip("it is listed before");
        }
        if self.files.len() >= limits.files {
            return skip(format!("one call collects {} files at most", limits.files));
        }
        let reading = self.read(&path);
        let draft = match tokio::time::timeout_at(self.deadline, reading).await {
            Ok(result) => result?,
            Err(_) => return skip("there was no time left to read it"),
        };
        self.bytes += draft.bytes();
        self.files.push(Collected { name, path, draft });
        Ok(())
    }

    async fn read(&self, path: &SandboxPath) -> Result<Draft, Refusal> {
        let (info, mut content) = self.sandbox.read_file(path).await.map_err(refusal)?;
        if info.kind != FileKind::File {
            return skip("it is not a regular file");
        }
        let limit = self.shelf.limits.bytes;
        let left = limit - self.bytes;
        let too_large = |bytes: u64| {
            format!(
                "it has {bytes} bytes or more, and {left} of the {limit} bytes of one call are left"
            )
        };
        if info.bytes > left {
            return skip(too_large(info.bytes));
        }
        let disk = |error| {
            Refusal::Fail(Failure::Here(ApiError::disk(
                "a file cannot be collected",
                &error,
            )))
        };
        let outputs = self.shelf.outputs.clone();
        let mut draft = blocking(move || outputs.draft()).await.map_err(disk)?;
        let silence = Duration::from_millis(AGENT_SILENCE_MS);
        loop {
            let Ok(piece) = tokio::time::timeout(silence, content.next()).await else {
                return skip("the sandbox stopped sending it");
            };
            let Some(bytes) = piece.transpose().map_err(refusal)? else {
                break;
            };
            if draft.bytes() + bytes.len() as u64 > left {
                return skip(too_large(draft.bytes() + bytes.len() as u64));
            }
            draft = blocking(move || draft.write(&bytes).map(|()| draft))
                .await
                .map_err(disk)?;
        }
        if draft.bytes() != info.bytes {
            return skip("it changed while it was read; present it again when it is finished");
        }
        Ok(draft)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(std::io::Error::other)?
}

fn refusal(error: SandboxError) -> Refusal {
    match error {
        SandboxError::Agent(error) => Refusal::Skip(
            match error.code {
                AgentErrorCode::NotFound => "there is no such file",
                AgentErrorCode::NotARegularFile => "it is not a regular file",
                AgentErrorCode::PermissionDenied => "the sandbox's user may not read it",
                _ => "the sandbox could not read it",
            }
            .to_owned(),
        ),
        SandboxError::TooLarge(limit) => Refusal::Skip(format!("it has more than {limit} bytes")),
        lost => Refusal::Fail(Failure::Sandbox(lost)),
    }
}

/// Collects `paths` for a caller. Runs to its end once it has begun: put it into a task of its own.
///
/// # Errors
/// There is no sandbox, it went away, or the files cannot be stored. Then nothing is left of them.
pub(super) async fn collect(
    app: Arc<App>,
    caller: Caller,
    paths: Vec<String>,
    ticket: Option<Ticket>,
) -> Result<PresentFilesResult, ApiError> {
    let collected = collect_once(&app, &caller, paths, ticket.as_ref()).await;
    if let (Some(ticket), Err(_)) = (&ticket, &collected) {
        ticket.release().await;
    }
    collected
}

async fn collect_once(
    app: &Arc<App>,
    caller: &Caller,
    paths: Vec<String>,
    ticket: Option<&Ticket>,
) -> Result<PresentFilesResult, ApiError> {
    let active = app.sandboxes.acquire(caller).await?;
    outputs_quota::room_today(app, caller)?;
    let shelf = Shelf::of(app);
    let mut collection = Collection::new(&shelf, &*active.sandbox);
    let mut skipped = Vec::new();
    for path in paths {
        match collection.take(&path).await {
            Ok(()) => {}
            Err(Refusal::Skip(reason)) => skipped.push(Skipped { path, reason }),
            Err(Refusal::Fail(Failure::Here(error))) => return Err(error),
            Err(Refusal::Fail(Failure::Sandbox(error))) => {
                return Err(calls::failed(&active, &error).await);
            }
        }
    }
    let files = collection.files;
    let owner = Owner {
        workspace: caller.workspace.clone(),
        chat: caller.chat.clone(),
        user: caller.user.clone(),
        lease: active.lease.clone(),
        actor: caller.actor.clone(),
        request: Some(caller.request.to_string()),
    };
    drop(active);
    let limit = shelf.limits.characters;
    if files.is_empty() {
        let answer = shortened(Vec::new(), skipped, limit);
        if let Some(ticket) = ticket {
            ticket.finish(answer_text(&answer)).await;
        }
        return Ok(answer);
    }
    let mut answer = PresentFilesResult {
        outputs: Vec::new(),
        skipped: Vec::new(),
    };
    let sealed = |records: &[OutputRecord]| {
        let outputs = records.iter().map(view::output).collect();
        answer = shortened(outputs, skipped, limit);
        ticket.map(|ticket| (ticket.finisher(), answer_text(&answer)))
    };
    match store(&shelf, &owner, files, sealed).await {
        Ok(_) => Ok(answer),
        Err(NotKept::Denied(denial)) => {
            app.sandboxes.record_denial(caller, denial);
            Err(denied(denial))
        }
        Err(NotKept::Failed(error)) => Err(error),
    }
}

/// Why collected files are not on the shelf.
pub(super) enum NotKept {
    /// The day's bytes are used up.
    Denied(Denial),
    /// The disk or the store refused.
    Failed(ApiError),
}

/// Puts collected files on the shelf, all or none. What `sealed` makes of their records is written
/// with them.
///
/// # Errors
/// See [`NotKept`]. Then nothing is left of them.
pub(super) async fn store(
    shelf: &Shelf,
    owner: &Owner,
    files: Vec<Collected>,
    sealed: impl FnOnce(&[OutputRecord]) -> Option<(Finisher, String)>,
) -> Result<Vec<OutputRecord>, NotKept> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let now = shelf.clock.now();
    // Files of one moment are listed by their ids: in the order of their paths.
    let mut ids: Vec<OutputId> = files
        .iter()
        .map(|_| OutputId::from_bits(shelf.ids.bits()))
        .collect();
    ids.sort_unstable();
    let mut records = Vec::with_capacity(files.len());
    let mut drafts = Vec::with_capacity(files.len());
    for (id, file) in ids.into_iter().zip(files) {
        records.push(OutputRecord {
            id: id.clone(),
            workspace: owner.workspace.clone(),
            chat: owner.chat.clone(),
            user: owner.user.clone(),
            lease: owner.lease.clone(),
            bytes: file.draft.bytes(),
            media_type: media_type(&file.name).to_owned(),
            sha256: file.draft.sha256(),
            name: file.name,
            path: file.path.to_string(),
            created_at: now,
        });
        drafts.push((id, file.draft));
    }
    let outputs = shelf.outputs.clone();
    blocking(move || {
        let mut placed = Vec::with_capacity(drafts.len());
        for (id, draft) in drafts {
            if let Err(error) = outputs.place(&id, draft) {
                placed.iter().for_each(|id| outputs.discard(id));
                return Err(error);
            }
            placed.push(id);
        }
        Ok(())
    })
    .await
    .map_err(|error| NotKept::Failed(ApiError::disk("collected files cannot be stored", &error)))?;

    let audit = AuditRow {
        at: now,
        actor: owner.actor.clone(),
        action: "outputs.collected".to_owned(),
        subject: format!("workspace/{}/chat/{}", owner.workspace, owner.chat),
        fields: records.iter().map(|record| record.id.to_string()).collect(),
        request: owner.request.clone(),
    };
    let finish = sealed(&records);
    let written = records.clone();
    let result: Result<(), NotStored> = shelf
        .store
        .write(move |tx| {
            for record in &written {
                tx.put_output(record)?;
            }
            outputs_quota::take(tx, &written, now)?;
            tx.audit(audit)?;
            if let Some((finisher, answer)) = finish {
                finisher.finish(tx, answer)?;
            }
            Ok(())
        })
        .await;
    match result {
        Ok(()) => Ok(records),
        // The records may be there after all: the next start's sweep sees.
        Err(NotStored::Store(error @ StoreError::Unconfirmed(_))) => {
            Err(NotKept::Failed(error.into()))
        }
        Err(error) => {
            let outputs = shelf.outputs.clone();
            let ids: Vec<OutputId> = records.into_iter().map(|record| record.id).collect();
            let _ = blocking(move || {
                ids.iter().for_each(|id| outputs.discard(id));
                Ok(())
            })
            .await;
            Err(match error {
                NotStored::Denied(denial) => NotKept::Denied(denial),
                NotStored::Store(StoreError::LimitReached { limit, .. }) => NotKept::Failed(
                    ApiError::new(
                        ErrorCode::Conflict,
                        format!("A chat may have {limit} collected files. Begin a new chat."),
                    )
                    .with_limit(limit),
                ),
                NotStored::Store(error) => NotKept::Failed(error.into()),
            })
        }
    }
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

/// Keeps the answer within its characters: paths are cut short, all alike, when it would grow
/// too long. What is collected is always listed whole.
fn shortened(outputs: Vec<Output>, mut skipped: Vec<Skipped>, limit: usize) -> PresentFilesResult {
    let of_outputs: usize = outputs
        .iter()
        .map(|output| {
            characters(output.name.as_str())
                + characters(&output.content_url)
                + output.id.as_str().len()
                + output.media_type.len()
                + output.sha256.len()
        })
        .sum();
    let size = |skipped: &[Skipped]| -> usize {
        let of_skipped = skipped
            .iter()
            .map(|entry| characters(&entry.path) + characters(&entry.reason));
        of_outputs + of_skipped.sum::<usize>()
    };
    if size(&skipped) > limit {
        for entry in &mut skipped {
            if characters(&entry.path) > MAX_SHORTENED_PATH_CHARACTERS {
                entry.path = entry
                    .path
                    .chars()
                    .take(MAX_SHORTENED_PATH_CHARACTERS)
                    .collect();
                entry.path.push('…');
            }
        }
    }
    // Reasons are ours and short, but there may be many.
    let mut reasons = std::collections::HashSet::new();
    if size(&skipped) > limit {
        for entry in &mut skipped {
            if !reasons.insert(entry.reason.clone()) {
                entry.reason = "as one above".to_owned();
            }
        }
    }
    PresentFilesResult { outputs, skipped }
}

#[cfg(test)]
mod tests;
