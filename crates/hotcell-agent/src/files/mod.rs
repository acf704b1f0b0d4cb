//! Files of the sandbox, by path.
//!
//! Everything here runs as the sandbox user and sees what it sees, so a symbolic link can
//! lead nowhere that the user's own commands could not go. What must not happen is that the
//! agent waits (a FIFO), reads without end (`/dev/zero`) or announces one length and sends
//! another (a file that changes meanwhile).
//!
//! File systems may be slow or hang, so the work is done by a bounded set of threads.

mod list;
mod read;
mod remove;
mod write;

use std::{
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use hotcell_agent_proto::{AgentError, AgentErrorCode, FileInfo, FileKind};
use hotcell_types::limits::MAX_PATH_BYTES;

pub(crate) use list::list;
pub(crate) use read::{FileBody, read};
pub(crate) use remove::remove;
pub(crate) use write::{Options, Upload};

/// A path as a request names it; a relative one is taken from the workspace.
///
/// # Errors
/// [`AgentErrorCode::BadRequest`].
pub(crate) fn path(workspace: &Path, bytes: &[u8]) -> Result<PathBuf, AgentError> {
    if bytes.is_empty() || bytes.len() > MAX_PATH_BYTES || bytes.contains(&0) {
        return Err(AgentError::new(
            AgentErrorCode::BadRequest,
            "the path is no path",
        ));
    }
    Ok(workspace.join(std::ffi::OsStr::from_bytes(bytes)))
}

/// What a path is, of a link itself.
///
/// # Errors
/// From the file system.
pub(crate) async fn stat(path: PathBuf) -> Result<FileInfo, AgentError> {
    blocking(move || {
        let metadata = std::fs::symlink_metadata(&path).map_err(|error| failed(&path, &error))?;
        Ok(info(
            path.file_name().map_or(&[], |name| name.as_bytes()),
            &metadata,
        ))
    })
    .await
}

/// Runs file work on a thread for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AgentError> + Send + 'static,
) -> Result<T, AgentError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(AgentError::new(
            AgentErrorCode::Internal,
            "the file work died",
        ))
    })
}

fn failed(path: &Path, error: &io::Error) -> AgentError {
    AgentError::from_io(&path.to_string_lossy(), error)
}

fn info(name: &[u8], metadata: &std::fs::Metadata) -> FileInfo {
    let kind = metadata.file_type();
    let text = String::from_utf8_lossy(name);
    FileInfo {
        name_hex: (text.as_bytes() != name).then(|| hex(name)),
        name: text.into_owned(),
        kind: if kind.is_file() {
            FileKind::File
        } else if kind.is_dir() {
            FileKind::Directory
        } else if kind.is_symlink() {
            FileKind::Link
        } else {
            FileKind::Other
        },
        bytes: metadata.len(),
        mode: metadata.permissions().mode() & 0o7777,
        mtime_ms: metadata
            .mtime()
            .saturating_mul(1000)
            .saturating_add(metadata.mtime_nsec() / 1_000_000),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
            // Writing to a string does not fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
}
