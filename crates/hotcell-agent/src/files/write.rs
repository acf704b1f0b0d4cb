//! `PUT /v1/files`: the whole new file or the old one, never a part.

use std::{
    fs::{DirBuilder, File, FileTimes, Permissions},
    io::Write as _,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use hotcell_agent_proto::{AgentError, AgentErrorCode, FileInfo};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{failed, info};
use hotcell_types::limits::agent::FILE_QUEUE_PIECES;

/// How the file shall be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Permission bits.
    pub(crate) mode: u32,
    /// Last change, milliseconds since the Unix epoch; now when absent.
    pub(crate) mtime_ms: Option<i64>,
}

/// A file on its way in. Unless it is finished nothing of it stays.
#[derive(Debug)]
pub(crate) struct Upload {
    pieces: mpsc::Sender<Step>,
    writer: JoinHandle<Result<FileInfo, AgentError>>,
}

#[derive(Debug)]
enum Step {
    Piece(Bytes),
    /// The body is whole and has the hash that was signed.
    Commit,
}

impl Upload {
    /// Starts to write; what goes wrong shows at the end.
    pub(crate) fn begin(path: PathBuf, options: Options) -> Self {
        let (pieces, steps) = mpsc::channel(FILE_QUEUE_PIECES);
        let writer = tokio::task::spawn_blocking(move || write(&path, options, steps));
        Self { pieces, writer }
    }

    /// Takes the next piece; whether more are wanted.
    pub(crate) async fn piece(&self, bytes: Bytes) -> bool {
        self.pieces.send(Step::Piece(bytes)).await.is_ok()
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// From the file system.
    pub(crate) async fn commit(self) -> Result<FileInfo, AgentError> {
        let _ = self.pieces.send(Step::Commit).await;
        self.end().await
    }

    /// Waits for the writer after it refused a piece.
    ///
    /// # Errors
    /// Why it did.
    pub(crate) async fn end(self) -> Result<FileInfo, AgentError> {
        drop(self.pieces);
        self.writer.await.unwrap_or_else(|_| {
            Err(AgentError::new(
                AgentErrorCode::Internal,
                "the file work died",
            ))
        })
    }
}

/// Removes the temporary file unless it has become the real one.
struct Temporary<'p>(Option<&'p Path>);

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn write(
    path: &Path,
    options: Options,
    mut steps: mpsc::Receiver<Step>,
) -> Result<FileInfo, AgentError> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(AgentError::new(
            AgentErrorCode::BadRequest,
            "the path names no file",
        ));
    };
    let failed = |error: std::io::Error| failed(path, &error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|error| {
            match error.kind() {
                // Something on the way is a file.
                std::io::ErrorKind::AlreadyExists => AgentError::new(
                    AgentErrorCode::NotFound,
                    format!("{} is no directory", directory.to_string_lossy()),
                ),
                _ => failed(error),
            }
        })?;
    let temporary_path = directory.join(temporary_name());
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary_path)
        .map_err(failed)?;
    let mut temporary = Temporary(Some(&temporary_path));
    loop {
        match steps.blocking_recv() {
            Some(Step::Piece(bytes)) => file.write_all(&bytes).map_err(failed)?,
            Some(Step::Commit) => break,
            None => {
                return Err(AgentError::new(
                    AgentErrorCode::BadRequest,
                    "the body was cut",
                ));
            }
        }
    }
    file.set_permissions(Permissions::from_mode(options.mode & 0o7777))
        .map_err(failed)?;
    if let Some(modified) = options.mtime_ms.and_then(time) {
        file.set_times(FileTimes::new().set_modified(modified))
            .map_err(failed)?;
    }
    let metadata = file.metadata().map_err(failed)?;
    std::fs::rename(&temporary_path, path).map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == rustix::io::Errno::ISDIR.raw_os_error() => AgentError::new(
            AgentErrorCode::NotARegularFile,
            format!("{} is a directory", path.to_string_lossy()),
        ),
        _ => failed(error),
    })?;
    temporary.0 = None;
    Ok(info(name.as_bytes(), &metadata))
}

fn time(millis: i64) -> Option<SystemTime> {
    let distance = Duration::from_millis(millis.unsigned_abs());
    if millis < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    }
}

fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    format!(
        ".hotcell-{}-{number}-{}.part",
        std::process::id(),
        now.tv_nsec
    )
}
