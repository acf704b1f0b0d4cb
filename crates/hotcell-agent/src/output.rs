//! The output of a call: its head goes out as it comes, its tail is kept for the end.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::{Bytes, BytesMut};
use hotcell_agent_proto::{AgentError, ExecExit, ExecProgress, Frame, Stream};
use hotcell_types::limits::{OUTPUT_HEAD_BYTES, OUTPUT_TAIL_BYTES};
use tokio::sync::Notify;

use crate::pool::lock;

/// One stream of one call.
#[derive(Debug)]
struct Kept {
    head_left: usize,
    tail: VecDeque<u8>,
    total: u64,
}

impl Kept {
    const fn new() -> Self {
        Self {
            head_left: OUTPUT_HEAD_BYTES,
            tail: VecDeque::new(),
            total: 0,
        }
    }

    /// Takes bytes; returns those that belong to the head.
    fn take<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(self.head_left.min(bytes.len()));
        self.head_left -= head.len();
        let rest = &rest[rest.len().saturating_sub(OUTPUT_TAIL_BYTES)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(OUTPUT_TAIL_BYTES);
        self.tail.drain(..over);
        self.tail.extend(rest);
        head
    }

    fn dropped(&self) -> u64 {
        let head = OUTPUT_HEAD_BYTES - self.head_left;
        self.total - (head + self.tail.len()) as u64
    }
}

/// Both streams of one call, and the way to whoever reads them.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: Kept,
    stderr: Kept,
    frames: Arc<Frames>,
    reported: ExecProgress,
}

impl Output {
    pub(crate) fn new(frames: Arc<Frames>) -> Self {
        Self {
            stdout: Kept::new(),
            stderr: Kept::new(),
            frames,
            reported: ExecProgress::default(),
        }
    }

    /// Takes what was read from a stream.
    pub(crate) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let head = kept.take(bytes);
        if !head.is_empty() {
            self.frames
                .push(&Frame::Output(stream, Bytes::copy_from_slice(head)));
        }
    }

    /// The counters now.
    pub(crate) fn progress(&self) -> ExecProgress {
        ExecProgress {
            stdout_bytes: self.stdout.total,
            stderr_bytes: self.stderr.total,
        }
    }

    /// Reports progress if there was any, or if it must; whether it did.
    pub(crate) fn report(&mut self, must: bool) -> bool {
        let now = self.progress();
        let report = must || now != self.reported;
        if report {
            self.reported = now;
            self.frames.push_if_idle(&Frame::Progress(now));
        }
        report
    }

    /// Sends the tails and how the call ended.
    pub(crate) fn finish(self, mut exit: ExecExit) {
        exit.stdout_bytes = self.stdout.total;
        exit.stderr_bytes = self.stderr.total;
        exit.stdout_dropped_bytes = self.stdout.dropped();
        exit.stderr_dropped_bytes = self.stderr.dropped();
        for (stream, kept) in [(Stream::Stdout, self.stdout), (Stream::Stderr, self.stderr)] {
            if !kept.tail.is_empty() {
                let tail = Vec::from(kept.tail);
                self.frames.push(&Frame::Output(stream, tail.into()));
            }
        }
        self.frames.push(&Frame::Exit(exit));
        self.frames.end();
    }

    /// Says that the call failed.
    pub(crate) fn fail(self, error: AgentError) {
        self.frames.push(&Frame::Failed(error));
        self.frames.end();
    }
}

#[derive(Debug, Default)]
struct Queue {
    bytes: BytesMut,
    ended: bool,
    reader: Option<Waker>,
}

/// Frames on their way to the daemon. What can be queued is bounded by head and tail: a slow
/// reader never makes the call wait.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    queue: Mutex<Queue>,
    lost: Notify,
}

impl Frames {
    /// A queue and the body that empties it.
    pub(crate) fn new() -> (Arc<Self>, FrameBody) {
        let frames = Arc::new(Self::default());
        (Arc::clone(&frames), FrameBody { frames })
    }

    fn push(&self, frame: &Frame) {
        self.change(|queue| frame.encode(&mut queue.bytes));
    }

    fn push_if_idle(&self, frame: &Frame) {
        self.change(|queue| {
            if queue.bytes.is_empty() {
                frame.encode(&mut queue.bytes);
            }
        });
    }

    fn end(&self) {
        self.change(|queue| queue.ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let reader = {
            let mut queue = lock(&self.queue);
            change(&mut queue);
            queue.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Waits until nobody reads any more.
    pub(crate) async fn lost(&self) {
        self.lost.notified().await;
    }
}

/// The response body of a call.
#[derive(Debug)]
pub(crate) struct FrameBody {
    frames: Arc<Frames>,
}

impl http_body::Body for FrameBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, io::Error>>> {
        let mut queue = lock(&self.frames.queue);
        if !queue.bytes.is_empty() {
            return Poll::Ready(Some(Ok(http_body::Frame::data(
                queue.bytes.split().freeze(),
            ))));
        }
        if queue.ended {
            return Poll::Ready(None);
        }
        queue.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for FrameBody {
    fn drop(&mut self) {
        self.frames.lost.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_are_kept_and_the_rest_is_counted() {
        let mut kept = Kept::new();
        let all = OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES;
        let data: Vec<u8> = (0..all + 10_000).map(|n| (n % 251) as u8).collect();
        let mut head = Vec::new();
        for piece in data[..all].chunks(7_777) {
            head.extend_from_slice(kept.take(piece));
        }
        assert_eq!(kept.dropped(), 0);
        for piece in data[all..].chunks(3_333) {
            head.extend_from_slice(kept.take(piece));
        }
        assert_eq!(head, data[..OUTPUT_HEAD_BYTES]);
        assert_eq!(
            Vec::from(kept.tail.clone()),
            data[data.len() - OUTPUT_TAIL_BYTES..]
        );
        assert_eq!((kept.total, kept.dropped()), (data.len() as u64, 10_000));
    }

    #[test]
    fn one_piece_larger_than_all_that_is_kept() {
        let mut kept = Kept::new();
        let data = vec![b'x'; 3 * (OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES)];
        assert_eq!(kept.take(&data).len(), OUTPUT_HEAD_BYTES);
        assert_eq!(kept.tail.len(), OUTPUT_TAIL_BYTES);
        assert_eq!(kept.dropped(), 2 * data.len() as u64 / 3);
    }
}
