//! A question in a datagram, read only as far as an answer that is ready needs it: what clients send day
//! in, day out. Everything else is left to the real parser, and so is every complaint.

use hotcell_types::limits::MAX_DNS_UDP_BYTES;

use super::reply::LEAST_UDP_BYTES;

pub(super) const HEADER_BYTES: usize = 12;
/// Behind the name of a question.
pub(super) const KIND_AND_CLASS_BYTES: usize = 4;
const MAX_LABEL_BYTES: usize = 63;
/// The longest name, with the root's label.
const MAX_NAME_BYTES: usize = 255;
const MAX_KEY_BYTES: usize = MAX_NAME_BYTES + 2;
const RECURSION_DESIRED: u8 = 0x01;
const AUTHENTIC_DATA: u8 = 0x20;
const CHECKING_DISABLED: u8 = 0x10;
const CLASS_IN: [u8; 2] = [0, 1];
/// One question and nothing else, but for the number of additional records.
const COUNTS: [u8; 7] = [0, 1, 0, 0, 0, 0, 0];
/// A record of extensions without any.
pub(super) const OPT_BYTES: usize = 11;
/// The root's name, and the kind of the record that carries extensions.
const OPT: [u8; 3] = [0, 0, 41];
/// The code of a cookie, which nobody here looks at.
const COOKIE: [u8; 2] = [0, 10];
/// Its shortest and its longest.
const COOKIE_BYTES: [usize; 2] = [8, 40];

/// What a question is found by: its name in lower case as it is on the wire, and its kind.
#[derive(Clone, Copy)]
pub(super) struct Key {
    bytes: [u8; MAX_KEY_BYTES],
    length: usize,
}

impl Key {
    /// Of labels, without the root's.
    pub(super) fn new<'a>(labels: impl Iterator<Item = &'a [u8]>, kind: u16) -> Option<Self> {
        let mut wire = Vec::with_capacity(MAX_NAME_BYTES);
        for label in labels {
            wire.push(u8::try_from(label.len()).ok()?);
            wire.extend_from_slice(label);
        }
        wire.push(0);
        Self::of_wire(&wire, kind.to_be_bytes())
    }

    fn of_wire(name: &[u8], kind: [u8; 2]) -> Option<Self> {
        let mut key = Self {
            bytes: [0; MAX_KEY_BYTES],
            length: name.len() + 2,
        };
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
        // No length of a label is a letter.
        let (front, back) = key.bytes.split_at_mut(name.len());
        front.copy_from_slice(name);
        front.make_ascii_lowercase();
        back.get_mut(..2)?.copy_from_slice(&kind);
        Some(key)
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl From<Key> for Box<[u8]> {
    fn from(key: Key) -> Self {
        key.as_ref().into()
    }
}

/// One usual question.
pub(super) struct Asked<'a> {
    bytes: &'a [u8],
    question_end: usize,
    key: Key,
    /// What the client says that it takes, if it says anything.
    payload_bytes: Option<u16>,
}

impl<'a> Asked<'a> {
    /// Reads a datagram; `None` for whatever is not usual.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        if header[2] & !RECURSION_DESIRED != 0
            || header[3] & !(AUTHENTIC_DATA | CHECKING_DISABLED) != 0
            || header[4..11] != COUNTS
        {
            return None;
        }
        let mut at = HEADER_BYTES;
        loop {
            let length = usize::from(*bytes.get(at)?);
            if length > MAX_LABEL_BYTES {
                return None;
            }
            at += 1 + length;
            if length == 0 {
                break;
            }
        }
        let name = bytes.get(HEADER_BYTES..at)?;
        let [kind_high, kind_low, class @ ..] =
            *bytes.get(at..)?.first_chunk::<KIND_AND_CLASS_BYTES>()?;
        if class != CLASS_IN {
            return None;
        }
        let key = Key::of_wire(name, [kind_high, kind_low])?;
        let question_end = at + KIND_AND_CLASS_BYTES;
        let rest = bytes.get(question_end..)?;
        let payload_bytes = match header[11] {
            0 if rest.is_empty() => None,
            1 => Some(payload_of(rest)?),
            _ => return None,
        };
        Some(Self {
            bytes,
            question_end,
            key,
            payload_bytes,
        })
    }

    /// What its answer is found by.
    pub(super) const fn key(&self) -> &Key {
        &self.key
    }

    /// The identifier and the flags, those only that an answer repeats.
    pub(super) const fn head(&self) -> [u8; 4] {
        let [first, second, third, fourth, ..] = *self.bytes else {
            return [0; 4];
        };
        [
            first,
            second,
            third & RECURSION_DESIRED,
            fourth & CHECKING_DISABLED,
        ]
    }

    /// The question as it was asked, in its upper and lower case.
    pub(super) fn question(&self) -> &'a [u8] {
        self.bytes
            .get(HEADER_BYTES..self.question_end)
            .unwrap_or_default()
    }

    /// Where in the message the question ends.
    pub(super) const fn question_end(&self) -> usize {
        self.question_end
    }

    /// The size that the answer's own extension names, if the client sent one.
    pub(super) fn extended_bytes(&self) -> Option<u16> {
        self.payload_bytes
            .map(|bytes| bytes.clamp(LEAST_UDP_BYTES, MAX_DNS_UDP_BYTES))
    }

    /// How long an answer the client takes.
    pub(super) fn largest_answer(&self) -> u16 {
        self.extended_bytes().unwrap_or(LEAST_UDP_BYTES)
    }
}

/// The payload size out of a record of extensions that holds nothing else to be answered, and ends the message.
fn payload_of(record: &[u8]) -> Option<u16> {
    let (fixed, options) = record.split_first_chunk::<OPT_BYTES>()?;
    let [
        root,
        kind_high,
        kind_low,
        high,
        low,
        extended,
        version,
        _,
        _,
        length @ ..,
    ] = *fixed;
    if [root, kind_high, kind_low] != OPT || extended != 0 || version != 0 {
        return None;
    }
    if options.len() != usize::from(u16::from_be_bytes(length)) {
        return None;
    }
    (options.is_empty() || is_cookie(options)).then(|| u16::from_be_bytes([high, low]))
}

fn is_cookie(options: &[u8]) -> bool {
    let Some(([code_high, code_low, high, low], value)) = options.split_first_chunk::<4>() else {
        return false;
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let [least, most] = COOKIE_BYTES;
    [*code_high, *code_low] == COOKIE && length == value.len() && (least..=most).contains(&length)
}

#[cfg(test)]
mod tests {
    use hickory_net::xfer::Protocol;
    use hickory_server::server::Request;
    use proptest::prelude::*;

    use super::*;

    fn usual() -> Vec<u8> {
        let mut bytes = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(b"\x03wWw\x07eXample\x03org\x00\x00\x01\x00\x01");
        bytes
    }

    fn with_options(options: &[u8]) -> Vec<u8> {
        let mut bytes = usual();
        bytes[11] = 1;
        bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, options.len() as u8]);
        bytes.extend(options);
        bytes
    }

    #[test]
    fn usual_questions_are_read_and_others_are_left() {
        let bytes = usual();
        let asked = Asked::read(&bytes).unwrap();
        assert_eq!(
            asked.key().as_ref(),
            b"\x03www\x07example\x03org\x00\x00\x01"
        );
        assert_eq!(asked.question(), &bytes[12..]);
        assert_eq!(
            (asked.extended_bytes(), asked.largest_answer()),
            (None, 512)
        );
        let labels = [b"www".as_slice(), b"example", b"org"];
        let key = Key::new(labels.into_iter(), 1).unwrap();
        assert_eq!(key.as_ref(), asked.key().as_ref());
        let cookie = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        for bytes in [with_options(&[]), with_options(&cookie)] {
            let asked = Asked::read(&bytes).unwrap();
            assert_eq!(asked.extended_bytes(), Some(1232));
        }
        let changed = |at: usize, to: u8| {
            let mut bytes = usual();
            bytes[at] = to;
            bytes
        };
        let client_subnet = [0, 8, 0, 4, 0, 1, 0, 0];
        let left: [Vec<u8>; 12] = [
            Vec::new(),
            bytes[..11].to_vec(),
            bytes[..bytes.len() - 1].to_vec(),
            [usual(), vec![0]].concat(),
            changed(2, 0x81),
            changed(2, 0x28),
            changed(3, 0x80),
            changed(5, 2),
            changed(9, 1),
            changed(11, 1),
            changed(12, 0xc0),
            with_options(&client_subnet),
        ];
        for bytes in left {
            assert!(Asked::read(&bytes).is_none(), "{bytes:?}");
        }
    }

    proptest! {
        /// Whatever comes in: nothing panics, and what is read here means the same to the real parser.
        #[test]
        fn the_real_parser_agrees(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            options in prop::collection::vec(any::<u8>(), 0..16),
            extended: bool,
            cut in 0_usize..4,
        ) {
            let mut bytes = if extended { with_options(&options) } else { usual() };
            for (at, to) in changes {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            bytes.truncate(bytes.len() - cut);
            let Some(asked) = Asked::read(&bytes) else {
                return Ok(());
            };
            let from = "192.0.2.1:53".parse().unwrap();
            let request = Request::from_bytes(bytes.clone(), from, Protocol::Udp).unwrap();
            let info = request.request_info().unwrap();
            let query = info.query;
            let key = Key::new(query.name().iter(), query.query_type().into()).unwrap();
            prop_assert_eq!(key.as_ref(), asked.key().as_ref());
            let payload = request.edns.as_ref().map(|edns| edns.max_payload());
            let clamped = payload.map(|bytes| bytes.clamp(512, MAX_DNS_UDP_BYTES));
            prop_assert_eq!(clamped, asked.extended_bytes());
        }
    }
}
