//! What agent and shim say to each other over their socket.

use hotcell_types::limits::agent::MAX_SPEC_BYTES;

use crate::exit::Exit;

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Where.
    pub(crate) cwd: Vec<u8>,
    /// The program and its arguments; never empty.
    pub(crate) argv: Vec<Vec<u8>>,
    /// `NAME=VALUE` each.
    pub(crate) env: Vec<Vec<u8>>,
}

/// Bytes before the strings: their length, how many arguments, how many variables.
pub(crate) const SPEC_HEADER_BYTES: usize = 12;

impl Spec {
    /// Its bytes, or nothing when it is over the limit. No string holds a NUL byte.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let strings = || {
            std::iter::once(&self.cwd)
                .chain(&self.argv)
                .chain(&self.env)
        };
        let length: usize = strings().map(|string| string.len() + 1).sum();
        if length > MAX_SPEC_BYTES {
            return None;
        }
        let mut out = Vec::with_capacity(SPEC_HEADER_BYTES + length);
        for number in [length, self.argv.len(), self.env.len()] {
            out.extend_from_slice(&u32::try_from(number).ok()?.to_be_bytes());
        }
        for string in strings() {
            out.extend_from_slice(string);
            out.push(0);
        }
        Some(out)
    }

    /// How many bytes follow this header, if it is one.
    pub(crate) fn body_bytes(header: &[u8; SPEC_HEADER_BYTES]) -> Option<usize> {
        let [a, b, c, d, ..] = *header;
        usize::try_from(u32::from_be_bytes([a, b, c, d]))
            .ok()
            .filter(|&n| n <= MAX_SPEC_BYTES)
    }

    /// The spec of these bytes, if they are one.
    pub(crate) fn decode(header: &[u8; SPEC_HEADER_BYTES], body: &[u8]) -> Option<Self> {
        let [_, _, _, _, a, b, c, d, e, f, g, h] = *header;
        let arguments = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
        let variables = usize::try_from(u32::from_be_bytes([e, f, g, h])).ok()?;
        let mut strings = body
            .strip_suffix(&[0])?
            .split(|&byte| byte == 0)
            .map(<[u8]>::to_vec);
        let cwd = strings.next()?;
        let argv: Vec<_> = strings.by_ref().take(arguments).collect();
        let env: Vec<_> = strings.by_ref().take(variables).collect();
        (argv.len() == arguments
            && arguments > 0
            && env.len() == variables
            && strings.next().is_none())
        .then_some(Self { cwd, argv, env })
    }
}

/// What a shim reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The child runs, with this process id, which is its process group's too.
    Started(i32),
    /// The working directory cannot be entered: the error number.
    BadCwd(i32),
    /// The child could not be started: the error number.
    SpawnFailed(i32),
    /// The child ended, and whether anything below the shim remains.
    Exited(Exit, bool),
    /// Nothing below the shim remains.
    Gone,
}

/// Bytes of every event: kind, number, flag.
pub(crate) const EVENT_BYTES: usize = 6;

impl Event {
    /// Its bytes.
    pub(crate) fn encode(self) -> [u8; EVENT_BYTES] {
        let (kind, number, flag) = match self {
            Self::Started(pid) => (1, pid, false),
            Self::BadCwd(errno) => (2, errno, false),
            Self::SpawnFailed(errno) => (3, errno, false),
            Self::Exited(Exit::Code(code), remains) => (4, code, remains),
            Self::Exited(Exit::Signal(signal), remains) => (5, signal, remains),
            Self::Gone => (6, 0, false),
        };
        let [a, b, c, d] = number.to_be_bytes();
        [kind, a, b, c, d, u8::from(flag)]
    }

    /// The event of these bytes, if they are one.
    pub(crate) fn decode(bytes: [u8; EVENT_BYTES]) -> Option<Self> {
        let [kind, a, b, c, d, flag] = bytes;
        let number = i32::from_be_bytes([a, b, c, d]);
        Some(match kind {
            1 => Self::Started(number),
            2 => Self::BadCwd(number),
            3 => Self::SpawnFailed(number),
            4 => Self::Exited(Exit::Code(number), flag != 0),
            5 => Self::Exited(Exit::Signal(number), flag != 0),
            6 => Self::Gone,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_and_events_round_trip() {
        let spec = Spec {
            cwd: b"/a b\xff".to_vec(),
            argv: vec![b"x".to_vec(), Vec::new(), b"z".to_vec()],
            env: vec![b"A=".to_vec(), b"B=\n".to_vec()],
        };
        let bytes = spec.encode().unwrap();
        let (header, body) = bytes.split_first_chunk().unwrap();
        assert_eq!(Spec::body_bytes(header), Some(body.len()));
        assert_eq!(Spec::decode(header, body), Some(spec));
        assert_eq!(Spec::decode(header, &body[..body.len() - 1]), None);
        for event in [
            Event::Started(1 << 22),
            Event::BadCwd(2),
            Event::SpawnFailed(-1),
            Event::Exited(Exit::Code(255), true),
            Event::Exited(Exit::Signal(9), false),
            Event::Gone,
        ] {
            assert_eq!(Event::decode(event.encode()), Some(event));
        }
        assert_eq!(Event::decode([0; EVENT_BYTES]), None);
    }
}
