//! The engine's multiplexed stream: stdout and stderr of a container without a terminal.
//!
//! ```text
//!  byte 0   1..3   4..7            8..
//!  stream   zero   length, big     payload
//!           endian
//! ```
//!
//! Whether a stream is framed at all is never guessed from its bytes: a container with a terminal
//! has none of this, and we know how we made it ([`Mode`]). Payloads are passed on as they come,
//! so that a length is never believed enough to reserve memory for it.

use bytes::Bytes;

const HEADER_BYTES: usize = 8;

/// How a container was made, and so what its stream looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Without a terminal: frames.
    Framed,
    /// With one: the bytes as they are.
    Raw,
}

/// Where a piece comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Stream 1 (or 0, an echo of stdin), and everything of a terminal.
    Stdout,
    /// Stream 2.
    Stderr,
}

/// A piece of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) source: Source,
    pub(crate) bytes: Bytes,
}

/// Why a stream cannot be read further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// Stream 3: the engine says that it failed.
    #[error("the engine reports: {0}")]
    Engine(String),
    /// A stream that the protocol does not know.
    #[error("the engine sent a frame of the unknown stream {0}")]
    Unknown(u8),
}

#[derive(Debug)]
enum State {
    Header { have: usize },
    Payload { source: Source, left: u32 },
    Error { left: u32, text: Vec<u8> },
    Broken(FrameError),
}

/// Takes a stream apart, however it was cut.
#[derive(Debug)]
pub(crate) struct Frames {
    mode: Mode,
    header: [u8; HEADER_BYTES],
    state: State,
}

/// What is kept of the engine's own words.
const MAX_ERROR_BYTES: usize = 4_096;

impl Frames {
    pub(crate) const fn new(mode: Mode) -> Self {
        Self {
            mode,
            header: [0; HEADER_BYTES],
            state: State::Header { have: 0 },
        }
    }

    /// Takes what came and calls `piece` for each part of a payload in it.
    pub(crate) fn feed(
        &mut self,
        mut input: Bytes,
        mut piece: impl FnMut(Piece),
    ) -> Result<(), FrameError> {
        if self.mode == Mode::Raw {
            if !input.is_empty() {
                piece(Piece {
                    source: Source::Stdout,
                    bytes: input,
                });
            }
            return Ok(());
        }
        loop {
            // A frame without a payload ends where its header does.
            if let State::Error { left: 0, text } = &self.state {
                let words = String::from_utf8_lossy(text).trim().to_owned();
                self.state = State::Broken(FrameError::Engine(words));
            }
            if let State::Broken(error) = &self.state {
                return Err(error.clone());
            }
            if input.is_empty() {
                return Ok(());
            }
            match &mut self.state {
                State::Header { have } => {
                    let take = input.len().min(HEADER_BYTES - *have);
                    self.header[*have..*have + take].copy_from_slice(&input.split_to(take));
                    *have += take;
                    if *have == HEADER_BYTES {
                        self.state = begin(self.header);
                    }
                }
                State::Payload { source, left } => {
                    let take = input.len().min(*left as usize);
                    piece(Piece {
                        source: *source,
                        bytes: input.split_to(take),
                    });
                    // `take` is at most `left`.
                    *left -= take as u32;
                    if *left == 0 {
                        self.state = State::Header { have: 0 };
                    }
                }
                State::Error { left, text } => {
                    let take = input.len().min(*left as usize);
                    let room = MAX_ERROR_BYTES - text.len();
                    text.extend_from_slice(&input.split_to(take)[..take.min(room)]);
                    *left -= take as u32;
                }
                State::Broken(error) => return Err(error.clone()),
            }
        }
    }

    /// Whether the stream ended in the middle of a frame.
    pub(crate) const fn is_truncated(&self) -> bool {
        match self.state {
            State::Header { have } => have != 0,
            State::Payload { .. } | State::Error { .. } => true,
            State::Broken(_) => false,
        }
    }
}

fn begin(header: [u8; HEADER_BYTES]) -> State {
    let left = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let source = match header[0] {
        0 | 1 => Source::Stdout,
        2 => Source::Stderr,
        3 => {
            return State::Error {
                left,
                text: Vec::new(),
            };
        }
        other => return State::Broken(FrameError::Unknown(other)),
    };
    if left == 0 {
        State::Header { have: 0 }
    } else {
        State::Payload { source, left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![stream, 0, 0, 0];
        out.extend((payload.len() as u32).to_be_bytes());
        out.extend(payload);
        out
    }

    type Joined = (Source, Vec<u8>);

    /// Feeds the cuts and joins what belongs together.
    fn read<'a>(
        mode: Mode,
        cuts: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<Joined>, Result<bool, FrameError>) {
        let mut frames = Frames::new(mode);
        let mut got: Vec<Joined> = Vec::new();
        for cut in cuts {
            let fed = frames.feed(Bytes::copy_from_slice(cut), |piece| match got.last_mut() {
                Some((source, bytes)) if *source == piece.source => bytes.extend(&piece.bytes),
                _ => got.push((piece.source, piece.bytes.to_vec())),
            });
            if let Err(error) = fed {
                return (got, Err(error));
            }
        }
        (got, Ok(frames.is_truncated()))
    }

    fn three() -> (Vec<u8>, Vec<Joined>) {
        let stream = [frame(1, b"one"), frame(2, b"two\n"), frame(1, b"three")].concat();
        let want = vec![
            (Source::Stdout, b"one".to_vec()),
            (Source::Stderr, b"two\n".to_vec()),
            (Source::Stdout, b"three".to_vec()),
        ];
        (stream, want)
    }

    #[test]
    fn ex_10_a_to_c_however_it_is_cut() {
        let (stream, want) = three();
        assert_eq!(read(Mode::Framed, [&stream[..]]), (want.clone(), Ok(false)));
        assert_eq!(
            read(Mode::Framed, stream.chunks(1)),
            (want.clone(), Ok(false))
        );
        for cut in 0..stream.len() {
            let (head, tail) = stream.split_at(cut);
            assert_eq!(
                read(Mode::Framed, [head, tail]),
                (want.clone(), Ok(false)),
                "cut {cut}"
            );
        }
        let (_, truncated) = read(Mode::Framed, [&stream[..5]]);
        assert_eq!(truncated, Ok(true), "cut in the header");
    }

    #[test]
    fn ex_10_d_a_frame_of_no_bytes() {
        let stream = [frame(1, b"a"), frame(2, b""), frame(1, b"b")].concat();
        let want = vec![(Source::Stdout, b"ab".to_vec())];
        assert_eq!(read(Mode::Framed, [&stream[..]]), (want.clone(), Ok(false)));
        assert_eq!(read(Mode::Framed, stream.chunks(1)), (want, Ok(false)));
    }

    #[test]
    fn ex_10_e_g_a_length_that_does_not_come_costs_nothing() {
        for length in [16 << 20, u32::MAX] {
            let mut stream = vec![1, 0, 0, 0];
            stream.extend(length.to_be_bytes());
            stream.extend(b"0123456789");
            let want = vec![(Source::Stdout, b"0123456789".to_vec())];
            assert_eq!(read(Mode::Framed, [&stream[..]]), (want, Ok(true)));
        }
    }

    #[test]
    fn ex_10_f_the_engines_errors_and_unknown_streams() {
        let stream = [
            frame(1, b"out"),
            frame(3, b"it broke\n"),
            frame(1, b"never"),
        ]
        .concat();
        for cuts in [stream.chunks(stream.len()), stream.chunks(1)] {
            let (got, end) = read(Mode::Framed, cuts);
            assert_eq!(got, [(Source::Stdout, b"out".to_vec())]);
            assert_eq!(end, Err(FrameError::Engine("it broke".into())));
        }
        let (_, end) = read(Mode::Framed, [&frame(9, b"x")[..]]);
        assert_eq!(end, Err(FrameError::Unknown(9)));
        let (_, end) = read(Mode::Framed, [&frame(3, b"")[..]]);
        assert_eq!(end, Err(FrameError::Engine(String::new())));
    }

    #[test]
    fn an_engines_endless_error_is_bounded() {
        let mut frames = Frames::new(Mode::Framed);
        let mut header = vec![3, 0, 0, 0];
        header.extend(u32::MAX.to_be_bytes());
        frames.feed(header.into(), |_| panic!()).unwrap();
        for _ in 0..100 {
            frames
                .feed(vec![b'x'; 65_536].into(), |_| panic!())
                .unwrap();
        }
        assert!(
            matches!(&frames.state, State::Error { text, .. } if text.len() == MAX_ERROR_BYTES)
        );
    }

    #[test]
    fn ex_11_the_mode_comes_from_how_it_was_made() {
        let looks_framed = b"\x01\x00\x00\x00\x00\x00\x00\x05hello, terminal";
        let want = vec![(Source::Stdout, looks_framed.to_vec())];
        assert_eq!(
            read(Mode::Raw, [&looks_framed[..]]),
            (want.clone(), Ok(false))
        );
        let framed = frame(1, looks_framed);
        assert_eq!(read(Mode::Framed, framed.chunks(3)), (want, Ok(false)));
    }
}
