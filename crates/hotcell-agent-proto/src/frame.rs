//! Frames: how output, progress and the end of a call share one byte stream.
//!
//! ```text
//! +------+---------------------+------------------+
//! | kind | length (u32, big e.) | payload          |
//! +------+---------------------+------------------+
//!   1      stdout bytes
//!   2      stderr bytes
//!   3      progress, ExecProgress as JSON (also the keep-alive)
//!   4      exit, ExecExit as JSON: the last frame
//!   5      failure, AgentError as JSON: the last frame
//! ```
//!
//! A length over [`MAX_FRAME_BYTES`] or an unknown kind is a protocol error, and nothing of
//! that size is ever allocated. A stream that ends without frame 4 or 5 was cut.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hotcell_types::limits::MAX_FRAME_BYTES;

use crate::{AgentError, ExecExit, ExecProgress, Stream};

const HEADER_BYTES: usize = 5;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Output.
    Output(Stream, Bytes),
    /// Counters of a call that is still running.
    Progress(ExecProgress),
    /// The end of a call.
    Exit(ExecExit),
    /// The call failed without an exit code.
    Failed(AgentError),
}

/// Why a byte stream is no stream of frames.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A kind that this version does not know.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A length over the limit.
    #[error("a frame of {0} bytes is over the limit")]
    TooLong(u32),
    /// A payload that is not what its kind says.
    #[error("the payload of a frame is malformed")]
    Payload(#[from] serde_json::Error),
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame, {0} bytes short")]
    Truncated(usize),
}

impl Frame {
    /// Appends the frame's bytes. Output longer than one frame may carry becomes several.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Output(stream, bytes) => {
                let kind = if *stream == Stream::Stdout { 1 } else { 2 };
                for chunk in bytes.chunks(MAX_FRAME_BYTES) {
                    put(out, kind, chunk);
                }
            }
            Self::Progress(progress) => put_json(out, 3, progress),
            Self::Exit(exit) => put_json(out, 4, exit),
            Self::Failed(error) => put_json(out, 5, error),
        }
    }

    /// The frame's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(&mut out);
        out.freeze()
    }
}

fn put(out: &mut BytesMut, kind: u8, payload: &[u8]) {
    out.reserve(HEADER_BYTES + payload.len());
    out.put_u8(kind);
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_slice(payload);
}

fn put_json(out: &mut BytesMut, kind: u8, payload: &impl serde::Serialize) {
    // These types hold only strings and numbers, which always serialize.
    put(out, kind, &serde_json::to_vec(payload).unwrap_or_default());
}

/// Turns bytes, cut anywhere, back into frames.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
}

impl FrameDecoder {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// When the bytes are no frames; the decoder is of no more use then.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let [kind, a, b, c, d, ..] = self.buffer[..] else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([a, b, c, d]);
        if length as usize > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong(length));
        }
        if !(1..=5).contains(&kind) {
            return Err(FrameError::UnknownKind(kind));
        }
        if self.buffer.len() < HEADER_BYTES + length as usize {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = self.buffer.split_to(length as usize).freeze();
        Ok(Some(match kind {
            1 => Frame::Output(Stream::Stdout, payload),
            2 => Frame::Output(Stream::Stderr, payload),
            3 => Frame::Progress(serde_json::from_slice(&payload)?),
            4 => Frame::Exit(serde_json::from_slice(&payload)?),
            _ => Frame::Failed(serde_json::from_slice(&payload)?),
        }))
    }

    /// Says that the stream has ended.
    ///
    /// # Errors
    /// When it ended inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        let [_, a, b, c, d, ..] = self.buffer[..] else {
            return match self.buffer.len() {
                0 => Ok(()),
                have => Err(FrameError::Truncated(HEADER_BYTES - have)),
            };
        };
        let want = HEADER_BYTES + u32::from_be_bytes([a, b, c, d]) as usize;
        Err(FrameError::Truncated(
            want.saturating_sub(self.buffer.len()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let output = (
            any::<bool>(),
            proptest::collection::vec(any::<u8>(), 1..300),
        )
            .prop_map(|(out, bytes)| {
                let stream = if out { Stream::Stdout } else { Stream::Stderr };
                Frame::Output(stream, bytes.into())
            });
        let progress = any::<(u64, u64)>().prop_map(|(stdout_bytes, stderr_bytes)| {
            Frame::Progress(ExecProgress {
                stdout_bytes,
                stderr_bytes,
            })
        });
        proptest::collection::vec(prop_oneof![output, progress], 0..20)
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_frames(frames in frames(), cut in 1usize..40) {
            let mut bytes = BytesMut::new();
            for frame in &frames {
                frame.encode(&mut bytes);
            }
            let mut decoder = FrameDecoder::default();
            let mut seen = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().expect("frames") {
                    seen.push(frame);
                }
            }
            decoder.finish().expect("whole");
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = FrameDecoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
            let _ = decoder.finish();
        }
    }

    #[test]
    fn bad_streams_are_told_apart() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&[1, 0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(
            decoder.next_frame(),
            Err(FrameError::TooLong(u32::MAX))
        ));
        let mut decoder = FrameDecoder::default();
        decoder.push(&[9, 0, 0, 0, 0]);
        assert!(matches!(
            decoder.next_frame(),
            Err(FrameError::UnknownKind(9))
        ));
        let mut decoder = FrameDecoder::default();
        decoder.push(&[1, 0, 0, 0, 9, b'x']);
        assert!(matches!(decoder.next_frame(), Ok(None)));
        assert!(matches!(decoder.finish(), Err(FrameError::Truncated(8))));
        let mut decoder = FrameDecoder::default();
        decoder.push(&[1, 0, 0, 0, 0]);
        assert!(
            matches!(decoder.next_frame(), Ok(Some(Frame::Output(Stream::Stdout, b))) if b.is_empty())
        );
    }
}
