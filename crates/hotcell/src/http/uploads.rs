//! The files that users attached to chats, as files beneath each chat's uploads directory.
//!
//! ```text
//!   begin ── reserve ── write to <state>/tmp, hashing and counting ── commit: fsync, rename
//!               │                                                        │
//!               └ bytes in flight count against the chat's total         └ the name appears whole
//!   any failure, or a client that goes away: the temporary file and the reservation are dropped
//! ```
//!
//! **Two uploads of one name**: the later one replaces the earlier one whole; whoever has the
//! earlier one open keeps it. Names differ by case. What a sandbox sees is the name itself.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use axum::body::Body;
use bytes::Bytes;
use hotcell_api::{
    ErrorCode,
    files::{Upload, UploadList},
};
use hotcell_core::profile::InputLimits;
use hotcell_types::{
    ChatId, FileName, VolumeKind, WorkspaceId,
    limits::MAX_UPLOADS_PER_CHAT,
    volume::{SANDBOX_GID, SANDBOX_UID},
};
use http_body_util::BodyExt;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Stat, Uid};
use tempfile::NamedTempFile;

use super::{body::body_failed, error::ApiError, files, media::media_type};
use crate::{beneath, volumes::Volumes};

type Key = (WorkspaceId, ChatId);

/// The uploads of all chats. Cheap to clone.
#[derive(Clone)]
pub struct UploadStore {
    inner: Arc<Inner>,
}

struct Inner {
    volumes: Volumes,
    tmp: PathBuf,
    limits: InputLimits,
    /// Uploads in flight, by chat.
    flights: Mutex<HashMap<Key, Flights>>,
}

#[derive(Default)]
struct Flights {
    uploads: usize,
    /// Bytes that are being written and not yet in the chat's directory. Held while that is looked
    /// at and while an upload takes its place in it, so that every byte counts once.
    reserved_bytes: Arc<Mutex<u64>>,
}

/// What a chat's directory holds.
#[derive(Default)]
struct Taken {
    bytes: u64,
    files: usize,
}

impl UploadStore {
    /// The uploads beneath the volumes; `tmp` is a directory on the same file system.
    #[must_use]
    pub fn new(volumes: Volumes, tmp: &Path, limits: InputLimits) -> Self {
        Self {
            inner: Arc::new(Inner {
                volumes,
                tmp: tmp.to_owned(),
                limits,
                flights: Mutex::default(),
            }),
        }
    }

    fn dir(&self, workspace: &WorkspaceId, chat: &ChatId) -> Result<OwnedFd, ApiError> {
        self.inner
            .volumes
            .uploads_dir(workspace, chat)
            .map_err(|error| ApiError::disk("a chat's uploads cannot be opened", &error))
    }

    /// Stores a body under a name; `declared` is the length that it says it has.
    ///
    /// # Errors
    /// Over a limit, not the body that was signed, too slow, cut short, or the disk is full. Then
    /// nothing of it is left.
    pub(super) async fn put(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        name: &FileName,
        declared: Option<u64>,
        mut body: Body,
    ) -> Result<(Upload, bool), ApiError> {
        let limit = self.inner.limits.file_bytes;
        if declared.is_some_and(|bytes| bytes > limit) {
            return Err(too_large(limit));
        }
        let mut flight = {
            let (store, name) = (self.clone(), name.clone());
            let key = (workspace.clone(), chat.clone());
            blocking(move || {
                let mut flight = Flight::begin(&store, key, name)?;
                flight.grow(declared.unwrap_or(0))?;
                Ok(flight)
            })
            .await?
        };
        while let Some(frame) = body.frame().await {
            let Ok(bytes) = frame.map_err(body_failed)?.into_data() else {
                continue;
            };
            flight = blocking(move || {
                flight.write(&bytes)?;
                Ok(flight)
            })
            .await?;
        }
        blocking(move || flight.commit()).await
    }

    /// The uploads of a chat, in byte order of their names.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(super) async fn list(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
    ) -> Result<UploadList, ApiError> {
        let (store, workspace, chat) = (self.clone(), workspace.clone(), chat.clone());
        blocking(move || {
            let dir = store.dir(&workspace, &chat)?;
            let mut uploads = Vec::new();
            each_file(&dir, |name, stat| uploads.push(shown(name, &stat)))?;
            uploads.sort_by(|a, b| a.name.as_str().as_bytes().cmp(b.name.as_str().as_bytes()));
            Ok(UploadList {
                total_bytes: uploads.iter().map(|upload| upload.bytes).sum(),
                uploads,
                limit_bytes: store.inner.limits.total_bytes,
            })
        })
        .await
    }

    /// Opens one upload.
    ///
    /// # Errors
    /// When there is none of this name.
    pub(super) async fn open(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        name: &FileName,
    ) -> Result<(File, Stat), ApiError> {
        let (store, workspace, chat) = (self.clone(), workspace.clone(), chat.clone());
        let name = name.clone();
        blocking(move || {
            let dir = store.dir(&workspace, &chat)?;
            beneath::open_file(&dir, name.as_str()).map_err(|error| absent(&error))
        })
        .await
    }

    /// Removes one upload. Whether there was one.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(super) async fn remove(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
        name: &FileName,
    ) -> Result<bool, ApiError> {
        let (store, workspace, chat) = (self.clone(), workspace.clone(), chat.clone());
        let name = name.clone();
        blocking(move || {
            let dir = store.dir(&workspace, &chat)?;
            match rustix::fs::unlinkat(&dir, name.as_str(), AtFlags::empty()) {
                Ok(()) => Ok(true),
                Err(rustix::io::Errno::NOENT) => Ok(false),
                Err(error) => Err(ApiError::disk("an upload cannot be removed", &error.into())),
            }
        })
        .await
    }
}

/// One upload on its way. Dropped before its commit, it leaves nothing.
struct Flight {
    store: UploadStore,
    key: Key,
    name: FileName,
    dir: OwnedFd,
    temp: NamedTempFile,
    written: u64,
    reserved: u64,
    reserved_of_chat: Arc<Mutex<u64>>,
}

impl Flight {
    fn begin(store: &UploadStore, key: Key, name: FileName) -> Result<Self, ApiError> {
        let dir = store.dir(&key.0, &key.1)?;
        let temp = tempfile::Builder::new()
            .prefix("upload-")
            .permissions(std::fs::Permissions::from_mode(0o600))
            .tempfile_in(&store.inner.tmp)
            .map_err(|error| ApiError::disk("an upload cannot be begun", &error))?;
        let reserved_of_chat = {
            let mut flights = lock(&store.inner.flights);
            let of_chat = flights.entry(key.clone()).or_default();
            of_chat.uploads += 1;
            of_chat.reserved_bytes.clone()
        };
        Ok(Self {
            store: store.clone(),
            key,
            name,
            dir,
            temp,
            written: 0,
            reserved: 0,
            reserved_of_chat,
        })
    }

    /// Reserves up to `bytes` in all.
    fn grow(&mut self, bytes: u64) -> Result<(), ApiError> {
        if bytes <= self.reserved && self.reserved > 0 {
            return Ok(());
        }
        let limit = self.store.inner.limits.file_bytes;
        if bytes > limit {
            return Err(too_large(limit));
        }
        let reserved_of_chat = self.reserved_of_chat.clone();
        let mut of_chat = lock(&reserved_of_chat);
        let others = *of_chat - self.reserved;
        self.check(others, bytes)?;
        *of_chat = others + bytes;
        self.reserved = bytes;
        Ok(())
    }

    /// Whether `bytes` of this file fit beside what is there and what is on its way.
    fn check(&self, others: u64, bytes: u64) -> Result<(), ApiError> {
        let taken = taken(&self.dir, &self.name)?;
        if taken.files >= MAX_UPLOADS_PER_CHAT {
            return Err(too_many());
        }
        let limit = self.store.inner.limits.total_bytes;
        if taken.bytes + others + bytes > limit {
            return Err(full(limit));
        }
        Ok(())
    }

    fn write(&mut self, bytes: &Bytes) -> Result<(), ApiError> {
        /// A body of unknown length is reserved for in steps of this size.
        const STEP_BYTES: u64 = 1 << 20;
        let limit = self.store.inner.limits.file_bytes;
        let after = self.written + bytes.len() as u64;
        if after > limit {
            return Err(too_large(limit));
        }
        if after > self.reserved {
            // Near the chat's limit a whole step may not fit where the piece still does.
            self.grow((after + STEP_BYTES).min(limit))
                .or_else(|_| self.grow(after))?;
        }
        self.temp
            .as_file_mut()
            .write_all(bytes)
            .map_err(|error| ApiError::disk("an upload cannot be written", &error))?;
        self.written = after;
        Ok(())
    }

    fn commit(mut self) -> Result<(Upload, bool), ApiError> {
        let failed = |error: io::Error| ApiError::disk("an upload cannot be stored", &error);
        let file = self.temp.as_file();
        rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o644))
            .map_err(|error| failed(error.into()))?;
        // Only root can give files away; without root the sandbox runs as who we are.
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(SANDBOX_UID), Gid::from_raw(SANDBOX_GID));
            rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(|error| failed(error.into()))?;
        }
        file.sync_all().map_err(failed)?;
        let reserved_of_chat = self.reserved_of_chat.clone();
        let mut of_chat = lock(&reserved_of_chat);
        self.check(*of_chat - self.reserved, self.written)?;
        let name = self.name.as_str();
        let replaced = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        rustix::fs::renameat(CWD, self.temp.path(), &self.dir, name)
            .map_err(|error| failed(error.into()))?;
        *of_chat -= self.reserved;
        self.reserved = 0;
        drop(of_chat);
        rustix::fs::fsync(&self.dir).map_err(|error| failed(error.into()))?;
        let stat = rustix::fs::fstat(self.temp.as_file()).map_err(|error| failed(error.into()))?;
        Ok((shown(self.name.clone(), &stat), replaced))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        *lock(&self.reserved_of_chat) -= self.reserved;
        let mut flights = lock(&self.store.inner.flights);
        if let Some(of_chat) = flights.get_mut(&self.key) {
            of_chat.uploads -= 1;
            if of_chat.uploads == 0 {
                flights.remove(&self.key);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .unwrap_or_else(|error| Err(ApiError::internal("a disk task failed", &error)))
}

fn each_file(dir: impl AsFd, mut visit: impl FnMut(FileName, Stat)) -> Result<(), ApiError> {
    let failed =
        |error: rustix::io::Errno| ApiError::disk("a chat's uploads cannot be read", &error.into());
    for entry in Dir::read_from(&dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Only this daemon writes here, and only names like these.
        let Some(name) = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        match rustix::fs::statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                visit(name, stat);
            }
            // Removed meanwhile, or not ours.
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// What the directory holds apart from `name`, which will be replaced.
fn taken(dir: impl AsFd, name: &FileName) -> Result<Taken, ApiError> {
    let mut taken = Taken::default();
    each_file(dir, |other, stat| {
        if other != *name {
            taken.bytes += u64::try_from(stat.st_size).unwrap_or(0);
            taken.files += 1;
        }
    })?;
    Ok(taken)
}

fn shown(name: FileName, stat: &Stat) -> Upload {
    Upload {
        path: format!("{}/{name}", VolumeKind::UploadedFiles.mount_path()),
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        media_type: media_type(&name).to_owned(),
        changed_at_ms: files::changed_at(stat),
        name,
    }
}

pub(super) fn unknown_upload() -> ApiError {
    ApiError::new(
        ErrorCode::UnknownUpload,
        "There is no upload of this name in this chat; GET …/uploads lists those that are.",
    )
}

fn absent(error: &io::Error) -> ApiError {
    if error.kind() == io::ErrorKind::NotFound {
        unknown_upload()
    } else {
        ApiError::disk("an upload cannot be opened", error)
    }
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(
        ErrorCode::UploadTooLarge,
        format!("A file may have {limit} bytes. Split it, or compress it."),
    )
    .with_limit_bytes(limit)
}

fn full(limit: u64) -> ApiError {
    ApiError::new(
        ErrorCode::UploadsFull,
        format!("All uploads of a chat together may have {limit} bytes. Remove some first."),
    )
    .with_limit_bytes(limit)
}

fn too_many() -> ApiError {
    ApiError::new(
        ErrorCode::TooManyUploads,
        format!("A chat may have {MAX_UPLOADS_PER_CHAT} uploads. Remove some first."),
    )
    .with_limit(MAX_UPLOADS_PER_CHAT as u64)
}
