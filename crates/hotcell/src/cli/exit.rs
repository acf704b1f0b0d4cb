//! Exit codes, and what goes to which stream.

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use hotcell_store::{DeclareError, OpenError};

use crate::{config::ConfigError, http::ListenError, serve::StartError};

/// For `--help`.
pub(super) const HELP: &str = "\
Exit codes:
  0  it worked
  1  it failed; stderr says why
  2  the command line is wrong
  3  the configuration is not valid
  4  already in use: another daemon runs on this state directory, socket or address
  5  the store cannot be used as it is (damaged, newer, or another key); it was left untouched
  6  the daemon cannot be reached on its local socket
  7  the network policy has mistakes and would be refused
  8  the network policy denies what was asked about";

/// How a command ends when it does not work.
#[derive(Debug)]
pub struct Exit {
    code: u8,
    message: String,
}

impl Exit {
    /// It failed for a reason that has no code of its own.
    pub(crate) fn failed(error: &dyn Error) -> Self {
        Self::new(1, chain(error))
    }

    pub(crate) fn words(message: impl Into<String>) -> Self {
        Self::new(1, message.into())
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::new(3, message.into())
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self::new(6, message.into())
    }

    pub(crate) fn policy_refused(message: impl Into<String>) -> Self {
        Self::new(7, message.into())
    }

    /// What was asked for was said already; only the code is left to tell.
    pub(crate) fn denied() -> Self {
        Self::new(8, String::new())
    }

    fn new(code: u8, message: String) -> Self {
        Self { code, message }
    }

    pub(super) fn tell(&self) -> ExitCode {
        if !self.message.is_empty() {
            // A closed stderr changes nothing about the code.
            let _ = writeln!(io::stderr(), "hotcell: {}", self.message);
        }
        ExitCode::from(self.code)
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

impl From<ConfigError> for Exit {
    fn from(error: ConfigError) -> Self {
        Self::new(3, chain(&error))
    }
}

impl From<StartError> for Exit {
    fn from(error: StartError) -> Self {
        let code = match &error {
            StartError::Store(OpenError::AlreadyInUse { .. })
            | StartError::Listen(ListenError::SocketInUse(_)) => 4,
            StartError::Declared(DeclareError::WorkspaceOfAnother { .. }) => 3,
            StartError::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse => 4,
            StartError::Store(
                OpenError::Damaged { .. }
                | OpenError::NewerSchema { .. }
                | OpenError::WrongKey { .. }
                | OpenError::Migration { .. },
            )
            | StartError::KeyMissing { .. }
            | StartError::Key { .. } => 5,
            _ => 1,
        };
        Self::new(code, chain(&error))
    }
}

/// Prints a line. Whoever closed the pipe has seen enough.
pub(super) fn say(text: &str) -> Result<(), Exit> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Exit::failed(&error)),
        Ok(()) => Ok(()),
    }
}
