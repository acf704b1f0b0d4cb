//! Messages to and from the parts of netfilter that libnftnl does not speak with, byte by byte.
//!
//! ```text
//! length 4 · kind 2 · flags 2 · sequence 4 · port 4 ║ family 1 · version 1 · resource 2 ║ attributes
//! attribute: length 2 · kind 2 · data, padded to four bytes
//! ```

use nftnl::nftnl_sys::libc;

const HEADER_BYTES: usize = 20;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// An attribute's kind without its flags.
const KIND_MASK: u16 = !((libc::NLA_F_NESTED | libc::NLA_F_NET_BYTEORDER) as u16);

/// A question.
pub(crate) struct Question<'a> {
    /// Which part of netfilter.
    pub(crate) subsystem: i32,
    /// What it is to do.
    pub(crate) kind: i32,
    /// Beside that it is a request and to be acknowledged.
    pub(crate) flags: i32,
    /// Of which addresses.
    pub(crate) family: i32,
    /// Which of several resources, such as a log group.
    pub(crate) resource: u16,
    /// See [`attribute`].
    pub(crate) attributes: &'a [u8],
}

impl Question<'_> {
    pub(crate) fn bytes(&self, sequence: u32) -> Vec<u8> {
        let length = HEADER_BYTES + self.attributes.len();
        let kind = (self.subsystem << 8) | self.kind;
        let flags = self.flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend((length as u32).to_ne_bytes());
        bytes.extend((kind as u16).to_ne_bytes());
        bytes.extend((flags as u16).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend([self.family as u8, 0]);
        bytes.extend(self.resource.to_be_bytes());
        bytes.extend(self.attributes);
        bytes
    }
}

/// One attribute; `data` is at most a few hundred bytes here.
pub(crate) fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE_HEADER_BYTES + data.len();
    let mut bytes = Vec::with_capacity(length.next_multiple_of(4));
    bytes.extend((length as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(data);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

/// One attribute that holds others.
pub(crate) fn nest(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | libc::NLA_F_NESTED as u16, attributes)
}

/// The attributes in `bytes`, by kind. Ends where they are damaged.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.get(..ATTRIBUTE_HEADER_BYTES)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & KIND_MASK;
        let data = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    })
}

/// The data of the first attribute of a kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(of, _)| *of == kind)
        .map(|(_, data)| data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back() {
        let inner = attribute(1, b"abc");
        let mut bytes = nest(7, &inner);
        bytes.extend(attribute(2, b""));
        let all: Vec<_> = attributes(&bytes).collect();
        assert_eq!(all, [(7, inner.as_slice()), (2, &[][..])]);
        assert_eq!(find(&inner, 1), Some(&b"abc"[..]));
        assert_eq!(find(&inner, 9), None);
    }

    #[test]
    fn damaged_attributes_end_the_list() {
        for bytes in [
            &[3, 0, 1, 0][..],
            &[200, 0, 1, 0, 1],
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[1],
            &[255, 255, 255, 255],
        ] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
    }
}
