//! The events of a call, until its end.
//!
//! ```text
//!   body pieces ──► FrameDecoder ──► Output*, Progress* ──► Exit        then nothing more
//!                                └─► a failure, a cut, silence, too much ─► Err, then nothing more
//! ```

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use hotcell_agent_proto::{Frame, FrameDecoder};
use hotcell_runtime::{ExecEvent, ExecStream, OutputStream, SandboxError};
use hotcell_types::limits;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::{
    io::AsyncReadExt,
    net::tcp::OwnedReadHalf,
    time::{Instant, timeout, timeout_at},
};

use tokio_util::sync::CancellationToken;

use crate::{
    client::Answer,
    error::{from_hyper, lost},
    link,
    pool::{Connection, Pool},
};

/// How long the end of an answer may take after its last frame, for its connection to be kept.
const TRAILER_PATIENCE: Duration = Duration::from_secs(1);

/// Where the bytes come from.
pub(crate) enum Source {
    /// The body of an answer; its connection is kept when the answer ends cleanly.
    Answer(Incoming, Connection, Pool),
    /// A connection that was upgraded, and what had been read of it by then.
    Upgraded(Bytes, Upgraded),
}

/// The reading half of an upgraded connection. Dropping it closes both halves, so that the
/// agent ends the process even while somebody still holds its stdin.
pub(crate) struct Upgraded {
    pub(crate) read: OwnedReadHalf,
    pub(crate) ended: CancellationToken,
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        // It fails when the peer was faster.
        let _ = rustix::net::shutdown(self.read.as_ref(), rustix::net::Shutdown::Both);
    }
}

impl Source {
    pub(crate) fn answer(answer: Answer, pool: Pool) -> Self {
        Self::Answer(answer.response.into_body(), answer.connection, pool)
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, SandboxError> {
        match self {
            Self::Answer(body, _, _) => loop {
                match body.frame().await {
                    None => return Ok(None),
                    Some(Err(error)) => return Err(from_hyper(&error)),
                    Some(Ok(frame)) => {
                        if let Ok(piece) = frame.into_data() {
                            return Ok(Some(piece));
                        }
                    }
                }
            },
            Self::Upgraded(before, half) => {
                if !before.is_empty() {
                    return Ok(Some(std::mem::take(before)));
                }
                let mut piece = bytes::BytesMut::with_capacity(limits::MAX_FRAME_BYTES);
                let read = tokio::select! {
                    read = half.read.read_buf(&mut piece) => read,
                    () = half.ended.cancelled() => Err(link::ended()),
                };
                match read.map_err(|error| lost(&error))? {
                    0 => Ok(None),
                    _ => Ok(Some(piece.freeze())),
                }
            }
        }
    }

    /// Keeps the connection if the answer ends here, without making anybody wait for that.
    fn retire(self) {
        if let Self::Answer(mut body, connection, pool) = self {
            tokio::spawn(async move {
                if let Ok(None) = timeout(TRAILER_PATIENCE, body.frame()).await {
                    pool.put(connection);
                }
            });
        }
    }
}

/// What bounds a stream of events.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// How long the next frame may take.
    pub(crate) silence: Duration,
    /// When the call must have ended.
    pub(crate) deadline: Option<Instant>,
    /// Output of one stream, in bytes.
    pub(crate) output_bytes: Option<usize>,
}

struct Reader {
    /// `None` once the stream is over.
    source: Option<Source>,
    decoder: FrameDecoder,
    bounds: Bounds,
    seen: [usize; 2],
}

impl Reader {
    async fn next(&mut self) -> Option<Result<ExecEvent, SandboxError>> {
        self.source.as_ref()?;
        let event = self.event().await;
        match &event {
            Ok(ExecEvent::Exit(_)) => {
                if let Some(source) = self.source.take() {
                    source.retire();
                }
            }
            // Closes the connection.
            Err(_) => self.source = None,
            Ok(_) => {}
        }
        Some(event)
    }

    async fn event(&mut self) -> Result<ExecEvent, SandboxError> {
        // From when somebody wants an event: a slow reader is not the sandbox's silence.
        let silent = Instant::now() + self.bounds.silence;
        let until = self.bounds.deadline.map_or(silent, |end| end.min(silent));
        loop {
            if self
                .bounds
                .deadline
                .is_some_and(|end| Instant::now() >= end)
            {
                return Err(overdue());
            }
            let frame = self
                .decoder
                .next_frame()
                .map_err(|error| SandboxError::Protocol(error.to_string()))?;
            if let Some(frame) = frame {
                return self.take(frame);
            }
            let source = self
                .source
                .as_mut()
                .ok_or_else(|| SandboxError::Lost("the call is over".into()))?;
            let piece = timeout_at(until, source.piece()).await.map_err(|_| {
                if until < silent {
                    overdue()
                } else {
                    SandboxError::Lost(format!(
                        "nothing came for {} ms",
                        self.bounds.silence.as_millis()
                    ))
                }
            })??;
            match piece {
                Some(piece) => self.decoder.push(&piece),
                None => {
                    let cut = match self.decoder.finish() {
                        Ok(()) => "the call's stream ended without its end".to_owned(),
                        Err(error) => error.to_string(),
                    };
                    return Err(SandboxError::Lost(cut));
                }
            }
        }
    }

    fn take(&mut self, frame: Frame) -> Result<ExecEvent, SandboxError> {
        match frame {
            Frame::Output(stream, bytes) => {
                let seen = &mut self.seen[usize::from(stream == OutputStream::Stderr)];
                *seen = seen.saturating_add(bytes.len());
                match self.bounds.output_bytes {
                    Some(limit) if *seen > limit => Err(SandboxError::TooLarge(limit as u64)),
                    _ => Ok(ExecEvent::Output(stream, bytes)),
                }
            }
            Frame::Progress(progress) => Ok(ExecEvent::Progress(progress)),
            Frame::Exit(exit) => Ok(ExecEvent::Exit(exit)),
            Frame::Failed(error) => Err(error.into()),
        }
    }
}

fn overdue() -> SandboxError {
    SandboxError::Lost("the call did not end when its time was up".into())
}

/// The events of one call. Dropping it closes the connection.
pub(crate) fn events(source: Source, bounds: Bounds) -> ExecStream {
    let reader = Reader {
        source: Some(source),
        decoder: FrameDecoder::default(),
        bounds,
        seen: [0; 2],
    };
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((event, reader))
    });
    let events: Pin<Box<_>> = Box::pin(events);
    events
}
