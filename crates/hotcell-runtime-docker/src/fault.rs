//! Turning what engines and the operating system say into [`RuntimeError`]s.

use std::{io, path::Path};

use bollard::errors::Error as EngineError;
use hotcell_runtime::RuntimeError;

/// The status that a name or a state is in the way of what was asked.
pub(crate) const CONFLICT: u16 = 409;

/// What an engine's answer means for an effect that must be repeatable.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// There is no such thing.
    Missing,
    /// It is there already, or in a state in which this is not needed.
    Already,
    /// A name or a running operation is in the way.
    Conflict(String),
    /// A failure.
    Failed(RuntimeError),
}

impl Refusal {
    /// For effects where nothing but success will do.
    pub(crate) fn into_error(self, action: &'static str) -> RuntimeError {
        match self {
            Self::Missing => RuntimeError::NoSuchSandbox,
            Self::Already => failed(action, "it is there already"),
            Self::Conflict(reason) => failed(action, reason),
            Self::Failed(error) => error,
        }
    }
}

/// Sorts an engine's error. `action` is what was being done.
pub(crate) fn sort(action: &'static str, error: EngineError) -> Refusal {
    match error {
        EngineError::DockerResponseServerError {
            status_code,
            message,
        } => match status_code {
            304 => Refusal::Already,
            404 => Refusal::Missing,
            CONFLICT => Refusal::Conflict(clip(&message)),
            _ => Refusal::Failed(said(action, &message)),
        },
        EngineError::RequestTimeoutError => {
            Refusal::Failed(failed(action, "the engine did not answer in time"))
        }
        EngineError::DockerStreamError { error } => Refusal::Failed(said(action, &error)),
        EngineError::JsonDataError { message, .. } => Refusal::Failed(failed(
            action,
            format!("an answer not understood: {message}"),
        )),
        other => Refusal::Failed(RuntimeError::Unavailable(chain(&other))),
    }
}

/// A failure in an engine's own words. A full disk keeps its own kind.
pub(crate) fn said(action: &'static str, message: &str) -> RuntimeError {
    let lower = message.to_ascii_lowercase();
    let full = ["no space left on device", "disk quota exceeded"];
    if full.iter().any(|words| lower.contains(words)) {
        RuntimeError::DiskFull(clip(message))
    } else {
        failed(action, clip(message))
    }
}

/// A failure with a reason in words.
pub(crate) fn failed(action: &'static str, reason: impl Into<String>) -> RuntimeError {
    RuntimeError::Failed {
        action,
        reason: reason.into(),
    }
}

/// For `map_err`: the failure of `action` on `path`. A full disk keeps its own kind.
pub(crate) fn at<E: Into<io::Error>>(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> RuntimeError {
    move |error| io_failure(action, &format!("{}: ", path.display()), &error.into())
}

/// For `map_err`: the failure of `action`.
pub(crate) fn of<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> RuntimeError {
    move |error| io_failure(action, "", &error.into())
}

fn io_failure(action: &'static str, what: &str, error: &io::Error) -> RuntimeError {
    let reason = format!("{what}{error}");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => RuntimeError::DiskFull(reason),
        _ => failed(action, reason),
    }
}

/// An error with all its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    clip(&text)
}

/// An engine repeats what containers say; that is bounded here.
pub(crate) fn clip(text: &str) -> String {
    const CHARACTERS: usize = 1_000;
    let line = text.trim().replace('\n', " ");
    match line.char_indices().nth(CHARACTERS) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

/// Fine when it is not there.
pub(crate) fn if_there(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(status_code: u16, message: &str) -> EngineError {
        EngineError::DockerResponseServerError {
            status_code,
            message: message.into(),
        }
    }

    #[test]
    fn answers_are_sorted() {
        assert!(matches!(sort("x", server(304, "")), Refusal::Already));
        assert!(matches!(sort("x", server(404, "")), Refusal::Missing));
        assert!(matches!(
            sort("x", server(409, "in use")),
            Refusal::Conflict(_)
        ));
        assert!(matches!(
            sort(
                "x",
                server(500, "write /var/lib/x: no space left on device")
            ),
            Refusal::Failed(RuntimeError::DiskFull(_))
        ));
        assert!(matches!(
            sort("x", server(500, "boom")),
            Refusal::Failed(RuntimeError::Failed { .. })
        ));
        assert!(matches!(
            sort("x", EngineError::SocketNotFoundError("/x".into())),
            Refusal::Failed(RuntimeError::Unavailable(_))
        ));
    }

    #[test]
    fn words_are_clipped_at_characters() {
        let long = "ü".repeat(5_000);
        assert_eq!(clip(&long).chars().count(), 1_001);
        assert_eq!(clip(" a\nb "), "a b");
    }
}
