//! The pipes between the agent and what it runs.

use std::{io, os::fd::OwnedFd};

use hotcell_agent_proto::{AgentError, AgentErrorCode, Stream};
use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, ioctl_fionread},
    pipe::{PipeFlags, pipe_with},
};
use tokio::net::unix::pipe::{Receiver, Sender};

use hotcell_types::limits::agent::PIPE_READ_BYTES;

/// The reading ends of stdout and stderr.
#[derive(Debug)]
pub(crate) struct Pipes {
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    buffer: Vec<u8>,
}

/// What a process has as 0, 1 and 2.
pub(crate) type Stdio = [OwnedFd; 3];

fn failed(error: impl Into<io::Error>) -> AgentError {
    AgentError::new(
        AgentErrorCode::Busy,
        format!("cannot make a pipe: {}", error.into()),
    )
}

fn reading(end: OwnedFd) -> Result<Receiver, AgentError> {
    Receiver::from_owned_fd(end).map_err(failed)
}

impl Pipes {
    /// Pipes for a process whose stdin is empty.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub(crate) fn with_empty_stdin() -> Result<(Self, Stdio), AgentError> {
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        Self::with_stdin(null)
    }

    /// Pipes for a process, and the writing end of its stdin.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub(crate) fn with_open_stdin() -> Result<(Self, Sender, Stdio), AgentError> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        let (pipes, stdio) = Self::with_stdin(reader)?;
        Ok((pipes, Sender::from_owned_fd(writer).map_err(failed)?, stdio))
    }

    fn with_stdin(stdin: OwnedFd) -> Result<(Self, Stdio), AgentError> {
        let (stdout, stdout_of_child) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        let (stderr, stderr_of_child) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        let pipes = Self {
            stdout: Some(reading(stdout)?),
            stderr: Some(reading(stderr)?),
            buffer: vec![0; PIPE_READ_BYTES],
        };
        Ok((pipes, [stdin, stdout_of_child, stderr_of_child]))
    }

    /// Waits until there is output or a pipe is closed. Nothing comes with the latter; once
    /// both are closed it waits for ever.
    pub(crate) async fn read(&mut self) -> Option<(Stream, &[u8])> {
        let stream = tokio::select! {
            () = readable(self.stdout.as_ref()) => Stream::Stdout,
            () = readable(self.stderr.as_ref()) => Stream::Stderr,
        };
        let pipe = pipe(&mut self.stdout, &mut self.stderr, stream);
        match pipe.as_ref()?.try_read(&mut self.buffer) {
            Ok(0) => {
                *pipe = None;
                None
            }
            Ok(length) => Some((stream, &self.buffer[..length])),
            Err(error) if is_transient(&error) => None,
            Err(_) => {
                *pipe = None;
                None
            }
        }
    }

    /// Whether both pipes are closed.
    pub(crate) const fn closed(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }

    /// Reads what is in the pipes now, and no more: what remains in the background may write
    /// for ever.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Stream, &[u8])) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let Some(pipe) = pipe(&mut self.stdout, &mut self.stderr, stream) else {
                continue;
            };
            let mut left = ioctl_fionread(&*pipe)
                .ok()
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(0);
            while left > 0 {
                // Past the event loop: it may not have heard yet of what is in there.
                let wanted = left.min(self.buffer.len());
                match rustix::io::read(&*pipe, &mut self.buffer[..wanted]) {
                    Ok(length) if length > 0 => {
                        take(stream, &self.buffer[..length]);
                        left -= length;
                    }
                    Err(Errno::INTR) => {}
                    Ok(_) | Err(_) => break,
                }
            }
        }
    }

    /// Reads on until both are closed and throws everything away, so that what remains in
    /// the background is neither blocked nor ended by a full or broken pipe.
    pub(crate) fn discard(mut self) {
        if !self.closed() {
            tokio::spawn(async move {
                while !self.closed() {
                    self.read().await;
                }
            });
        }
    }
}

const fn pipe<'p>(
    stdout: &'p mut Option<Receiver>,
    stderr: &'p mut Option<Receiver>,
    stream: Stream,
) -> &'p mut Option<Receiver> {
    match stream {
        Stream::Stdout => stdout,
        Stream::Stderr => stderr,
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        Some(pipe) => {
            // An error shows in the read that follows.
            let _ = pipe.readable().await;
        }
        None => std::future::pending().await,
    }
}
