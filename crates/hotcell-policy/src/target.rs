//! What one rule aims at.

use std::fmt;

use hotcell_types::limits::MAX_QUOTED_CHARACTERS;

use crate::{
    name::{DomainName, NameError, as_libc_address},
    prefix::{Prefix, PrefixError},
};

/// A target in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// This name and no other.
    Name(DomainName),
    /// Every name below this one, at any depth, and not the name itself.
    Below(DomainName),
    /// An address or a range.
    Range(Prefix),
}

impl Target {
    /// Whether it aims at addresses.
    #[must_use]
    pub const fn is_range(&self) -> bool {
        matches!(self, Self::Range(_))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name}"),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::Range(prefix) => write!(f, "{prefix}"),
        }
    }
}

/// Why a target is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Nothing there.
    #[error("it is empty; write a domain, *.domain, an IP address or a CIDR range")]
    Empty,
    /// White space or a control character.
    #[error("it holds a space or control character")]
    Space,
    /// A URL.
    #[error("it is a URL; write only the host")]
    Url,
    /// A path or a regular expression.
    #[error("it holds a / and is not a CIDR range; write only the host")]
    Path,
    /// A port behind the host.
    #[error("it names a port; rules are for hosts, every port of them")]
    Port,
    /// A zone behind an IPv6 address.
    #[error("it names a zone (%); link-local addresses are never reachable")]
    Zone,
    /// An IPv6 address in brackets.
    #[error("write the IPv6 address without brackets")]
    Brackets,
    /// `*` or `*.` alone.
    #[error("it stands for everything; set defaultAction instead")]
    Everything,
    /// A star that does not stand for whole labels in front.
    #[error("a * may stand only in front, as a label of its own, as in *.example.org")]
    Star,
    /// Neither a good name nor an address.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Looks like a range and is none.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}

/// A target as read, and whether host bits were cleared or a mapped range was turned into IPv4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) target: Target,
    pub(crate) normalised: bool,
}

/// Reads a target. Everything that is not clearly a name, `*.name`, an address or a range is refused.
pub(crate) fn read(text: &str) -> Result<Read, TargetError> {
    if text.is_empty() {
        return Err(TargetError::Empty);
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(TargetError::Space);
    }
    if let Ok((prefix, cleared)) = Prefix::parse(text) {
        let plain = prefix.unmapped();
        return Ok(Read {
            target: Target::Range(plain),
            normalised: cleared || plain != prefix,
        });
    }
    refuse_what_is_no_host(text)?;
    let target = match text.strip_prefix("*.") {
        Some("") => return Err(TargetError::Everything),
        Some(rest) if rest.contains('*') => return Err(TargetError::Star),
        Some(rest) => Target::Below(DomainName::from_typed(rest)?),
        None if text == "*" => return Err(TargetError::Everything),
        None if text.contains('*') => return Err(TargetError::Star),
        None => Target::Name(DomainName::from_typed(text)?),
    };
    Ok(Read {
        target,
        normalised: false,
    })
}

fn refuse_what_is_no_host(text: &str) -> Result<(), TargetError> {
    if text.contains("://") {
        return Err(TargetError::Url);
    }
    if text.contains('%') {
        return Err(TargetError::Zone);
    }
    if text.starts_with('[') {
        return Err(TargetError::Brackets);
    }
    if let Some((front, _)) = text.split_once('/') {
        let is_range = front.contains(':') || front.parse::<std::net::IpAddr>().is_ok();
        if is_range {
            Prefix::parse(text)?;
        }
        if let Some(address) = as_libc_address(front) {
            return Err(NameError::Numeric(Some(address)).into());
        }
        return Err(TargetError::Path);
    }
    if let Some((_, port)) = text.rsplit_once(':') {
        let one_colon = text.bytes().filter(|b| *b == b':').count() == 1;
        return Err(if one_colon && port.bytes().all(|b| b.is_ascii_digit()) {
            TargetError::Port
        } else {
            NameError::Character(':').into()
        });
    }
    Ok(())
}

/// A text of unknown length and content, fit to be repeated in a message.
pub(crate) fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_QUOTED_CHARACTERS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        for (text, canonical, normalised) in [
            ("pypi.org", "pypi.org", false),
            ("*.Example.ORG.", "*.example.org", false),
            ("10.0.0.1/8", "10.0.0.0/8", true),
            ("192.0.2.1", "192.0.2.1", false),
            ("2001:DB8::5", "2001:db8::5", false),
            ("::ffff:198.51.100.0/120", "198.51.100.0/24", true),
            ("0.0.0.0/0", "0.0.0.0/0", false),
        ] {
            let got = read(text).map(|r| (r.target.to_string(), r.normalised));
            assert_eq!(got, Ok((canonical.to_owned(), normalised)), "{text}");
        }
    }
}
