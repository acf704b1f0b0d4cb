//! What a failure of the transport means for the sandbox.

use std::{error::Error, io};

use hotcell_runtime::SandboxError;

/// An I/O error on the connection itself: whoever was there is not there any more.
pub(crate) fn lost(error: &io::Error) -> SandboxError {
    SandboxError::Lost(error.to_string())
}

/// What hyper's error means: what the caller's own content said, nonsense from the peer, or a
/// peer that is gone.
pub(crate) fn from_hyper(error: &hyper::Error) -> SandboxError {
    if let Some(own) = find::<SandboxError>(error) {
        return own.clone();
    }
    if error.is_parse() || error.is_parse_status() {
        return SandboxError::Protocol(chain(error));
    }
    match find::<io::Error>(error).map(io::Error::kind) {
        // A broken chunk header, or a body that is no HTTP.
        Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
            SandboxError::Protocol(chain(error))
        }
        _ => SandboxError::Lost(chain(error)),
    }
}

fn find<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
