//! Domain names in the one form in which they are compared.
//!
//! Lower case, A-labels, no trailing dot; labels of printable ASCII without `.`, so that
//! a dot in the text always separates labels. There are two doors in:
//!
//! ```text
//! what an operator typed ── DomainName::from_typed ──┐  letters, digits, - and _; IDN mapped;
//!                                                    │  numeric spellings refused
//!                                                    ├──► DomainName
//! labels of a DNS query ─── DomainName::from_labels ─┘  any printable ASCII, since the sandbox
//!                                                       may ask for anything
//! ```

use std::{fmt, net::Ipv4Addr};

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

/// The longest name as text, without the trailing dot (255 bytes on the wire).
pub const MAX_NAME_BYTES: usize = 253;
/// The longest label.
pub const MAX_LABEL_BYTES: usize = 63;

/// Why a text or a row of labels is no domain name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// Two dots in a row, or one at the start.
    #[error("it has an empty label (a dot too many)")]
    EmptyLabel,
    /// A label over 63 bytes.
    #[error("a label is longer than 63 bytes")]
    LabelTooLong,
    /// A name over 253 bytes.
    #[error("it is longer than 253 bytes")]
    TooLong,
    /// A character that no host name holds.
    #[error("{0:?} cannot be part of a domain name")]
    Character(char),
    /// A label that starts or ends with `-`.
    #[error("a label must not start or end with a hyphen")]
    Hyphen,
    /// The internationalized spelling has no A-label form.
    #[error("it is not a valid internationalized name")]
    Idna,
    /// A number in the place of the top-level domain: a spelling of an address.
    #[error(
        "a name that ends in a number is an address in disguise; {}",
        hint(*.0)
    )]
    Numeric(Option<Ipv4Addr>),
}

fn hint(address: Option<Ipv4Addr>) -> String {
    match address {
        Some(address) => format!("write the address in dotted form: {address}"),
        None => "write an address in dotted form, such as 192.0.2.1".to_owned(),
    }
}

/// A domain name in canonical form. The root is the empty name; it comes only from a query.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(Box<str>);

impl DomainName {
    /// The name that an operator typed. One trailing dot is taken off, letters become lower
    /// case, internationalized labels become A-labels.
    ///
    /// # Errors
    /// When it is no host name, or a numeric spelling of an address.
    pub fn from_typed(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let name = canonical(text)?;
        check_length(&name)?;
        for label in name.split('.') {
            if let Some(bad) = label.chars().find(|c| !is_host_character(*c)) {
                return Err(NameError::Character(bad));
            }
            if label.starts_with('-') || label.ends_with('-') {
                return Err(NameError::Hyphen);
            }
        }
        let name = Self(name.into_boxed_str());
        if name.is_numeric() {
            return Err(NameError::Numeric(as_libc_address(&name.0)));
        }
        Ok(name)
    }

    /// The name that somebody wants explained: like a query, but IDN is mapped.
    ///
    /// # Errors
    /// When it cannot be the name of a query.
    pub fn from_question(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text == "." {
            return Ok(Self(Box::from("")));
        }
        let name = canonical(text)?;
        Self::from_labels(name.split('.').map(str::as_bytes))
    }

    /// The name of a DNS query, from its labels, without the root label.
    ///
    /// # Errors
    /// When a label holds a byte that is not printable ASCII, or a dot. Such names exist in
    /// no public zone as hosts; treating them as unknown keeps "a dot separates labels" true.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, NameError> {
        let mut name = String::with_capacity(64);
        for (index, label) in labels.into_iter().enumerate() {
            if index > 0 {
                name.push('.');
            }
            for byte in label {
                if !byte.is_ascii_graphic() || *byte == b'.' {
                    return Err(NameError::Character(char::from(*byte)));
                }
                name.push(char::from(byte.to_ascii_lowercase()));
            }
            if name.len() > MAX_NAME_BYTES {
                return Err(NameError::TooLong);
            }
            if label.is_empty() {
                return Err(NameError::EmptyLabel);
            }
            if label.len() > MAX_LABEL_BYTES {
                return Err(NameError::LabelTooLong);
            }
        }
        Ok(Self(name.into_boxed_str()))
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The labels from the top-level domain down.
    pub fn labels_from_top(&self) -> impl Iterator<Item = &str> {
        self.0.rsplit('.').filter(|label| !label.is_empty())
    }

    /// Whether this is the DNS root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this name is below `other`, at any depth, and not `other` itself.
    #[must_use]
    pub fn is_below(&self, other: &DomainName) -> bool {
        if other.is_root() {
            return !self.is_root();
        }
        self.0
            .strip_suffix(other.as_str())
            .is_some_and(|front| front.ends_with('.'))
    }

    /// Whether the last label is a number (decimal, or hexadecimal with `0x`): libc reads such
    /// a "name" as an address. No top-level domain is a number.
    #[must_use]
    pub fn is_numeric(&self) -> bool {
        self.labels_from_top().next().is_some_and(is_number)
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "." } else { &self.0 })
    }
}

impl fmt::Debug for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DomainName({self})")
    }
}

/// `_` is no host name character, but names such as `_dmarc.example.org` are asked for.
fn is_host_character(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_'
}

fn canonical(text: &str) -> Result<String, NameError> {
    // A-labels are longer than what they encode by less than this; it bounds the work below.
    if text.len() > 4 * MAX_NAME_BYTES {
        return Err(NameError::TooLong);
    }
    let has_a_label = text.split('.').any(|label| {
        label
            .get(..4)
            .is_some_and(|p| p.eq_ignore_ascii_case("xn--"))
    });
    let mut name = if text.is_ascii() && !has_a_label {
        text.to_ascii_lowercase()
    } else {
        Uts46::new()
            .to_ascii(
                text.as_bytes(),
                AsciiDenyList::EMPTY,
                Hyphens::Allow,
                DnsLength::Ignore,
            )
            .map_err(|_| NameError::Idna)?
            .into_owned()
    };
    if name.ends_with('.') {
        name.pop();
    }
    Ok(name)
}

fn check_length(name: &str) -> Result<(), NameError> {
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong);
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(NameError::EmptyLabel);
        }
        if label.len() > MAX_LABEL_BYTES {
            return Err(NameError::LabelTooLong);
        }
    }
    Ok(())
}

fn is_number(label: &str) -> bool {
    let digits = label.strip_prefix("0x").unwrap_or(label);
    if digits.len() < label.len() {
        digits.bytes().all(|b| b.is_ascii_hexdigit())
    } else {
        digits.bytes().all(|b| b.is_ascii_digit())
    }
}

/// What `inet_aton` makes of it: one to four parts, each decimal, octal (`0`) or hexadecimal
/// (`0x`), the last filling the bytes that are left.
#[must_use]
pub fn as_libc_address(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.split('.').collect();
    let (last, front) = parts.split_last()?;
    if front.len() > 3 {
        return None;
    }
    let mut value: u32 = 0;
    for part in front {
        let byte = u8::try_from(libc_number(part)?).ok()?;
        value = value << 8 | u32::from(byte);
    }
    let rest_bits = 32 - 8 * u32::try_from(front.len()).ok()?;
    let rest = libc_number(last)?;
    if u64::from(rest) >= 1_u64 << rest_bits {
        return None;
    }
    let high = u32::try_from(u64::from(value) << rest_bits).ok()?;
    Some(Ipv4Addr::from(high | rest))
}

fn libc_number(part: &str) -> Option<u32> {
    let hex = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"));
    let (digits, radix) = match hex {
        Some(digits) => (digits, 16),
        None if part.len() > 1 && part.starts_with('0') => (&part[1..], 8),
        None => (part, 10),
    };
    if !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_names_become_canonical() {
        for (typed, canonical) in [
            ("Bad.Example.org", "bad.example.org"),
            ("BAD.EXAMPLE.ORG.", "bad.example.org"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("a。example。org", "a.example.org"),
            ("_dmarc.example.org", "_dmarc.example.org"),
            ("localhost", "localhost"),
        ] {
            let name = DomainName::from_typed(typed).map(|n| n.to_string());
            assert_eq!(name, Ok(canonical.to_owned()), "{typed:?}");
        }
    }

    #[test]
    fn full_width_digits_are_numbers_too() {
        assert_eq!(
            DomainName::from_typed("１２７.0.0.1"),
            Err(NameError::Numeric(Some(Ipv4Addr::LOCALHOST)))
        );
    }

    #[test]
    fn libc_spellings_are_read_as_libc_does() {
        let metadata = Some(Ipv4Addr::new(169, 254, 169, 254));
        for text in [
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "169.254.43518",
        ] {
            assert_eq!(as_libc_address(text), metadata, "{text}");
        }
        assert_eq!(as_libc_address("127.1"), Some(Ipv4Addr::LOCALHOST));
        assert_eq!(as_libc_address("0"), Some(Ipv4Addr::UNSPECIFIED));
        assert_eq!(as_libc_address("4294967295"), Some(Ipv4Addr::BROADCAST));
        for text in [
            "4294967296",
            "1.2.3.256",
            "256.1",
            "1.2.3.4.5",
            "09",
            "+1",
            "",
            "1..2",
        ] {
            assert_eq!(as_libc_address(text), None, "{text}");
        }
    }

    #[test]
    fn labels_of_a_query_keep_the_dot_a_separator() {
        let odd: [&[u8]; 2] = [b"a.b", b"org"];
        assert!(DomainName::from_labels(odd).is_err());
        let star: [&[u8]; 3] = [b"*", b"Example", b"ORG"];
        assert_eq!(
            DomainName::from_labels(star).map(|n| n.to_string()),
            Ok("*.example.org".to_owned())
        );
        assert!(DomainName::from_labels(std::iter::empty()).is_ok_and(|n| n.is_root()));
    }

    #[test]
    fn below_means_below() {
        let name = |text: &str| DomainName::from_question(text).unwrap();
        assert!(name("a.b.example.org").is_below(&name("example.org")));
        assert!(!name("example.org").is_below(&name("example.org")));
        assert!(!name("xexample.org").is_below(&name("example.org")));
    }
}
