//! Turning what the operating system says into [`RuntimeError`]s.

use std::{io, path::Path};

use hotcell_runtime::RuntimeError;

/// For `map_err`: the failure of `action` on `path`. A full disk keeps its own kind.
pub(crate) fn at<E: Into<io::Error>>(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> RuntimeError {
    move |error| io_failure(action, &path.display().to_string(), &error.into())
}

/// For `map_err`: the failure of `action`.
pub(crate) fn of<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> RuntimeError {
    move |error| io_failure(action, "", &error.into())
}

/// A failure with a reason in words.
pub(crate) fn failed(action: &'static str, reason: impl Into<String>) -> RuntimeError {
    RuntimeError::Failed {
        action,
        reason: reason.into(),
    }
}

fn io_failure(action: &'static str, what: &str, error: &io::Error) -> RuntimeError {
    let reason = if what.is_empty() {
        error.to_string()
    } else {
        format!("{what}: {error}")
    };
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => RuntimeError::DiskFull(reason),
        _ => RuntimeError::Failed { action, reason },
    }
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a directory with all in it; one that is not there is fine.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes a directory, and its parents, that only root may enter.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), RuntimeError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(at("make a directory", path))
}

/// Reads a small file that this runtime or an engine wrote.
pub(crate) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let limit = hotcell_types::limits::MAX_ENGINE_FILE_BYTES;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{} is longer than {limit} bytes", path.display()),
        ));
    }
    Ok(bytes)
}
