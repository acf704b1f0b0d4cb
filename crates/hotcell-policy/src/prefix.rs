//! Address prefixes, and both families seen as numbers on one line each.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// Why a text is no address or range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The part before `/` is no address.
    #[error("the part before / is not an IP address")]
    Address,
    /// The part after `/` is no number, or has a sign or leading zero.
    #[error("the prefix length must be a plain decimal number")]
    Length,
    /// More bits than the family has.
    #[error("the prefix length is over {0}")]
    TooLong(u8),
}

/// The two address families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4: 32 bits.
    V4,
    /// IPv6: 128 bits.
    V6,
}

impl Family {
    /// Bits of an address.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The last address as a number.
    #[must_use]
    pub const fn last(self) -> u128 {
        match self {
            Self::V4 => u32::MAX as u128,
            Self::V6 => u128::MAX,
        }
    }

    /// The address with this number.
    #[must_use]
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            // Numbers of this family never exceed 32 bits.
            Self::V4 => IpAddr::V4(Ipv4Addr::from((number & 0xffff_ffff) as u32)),
            Self::V6 => IpAddr::V6(Ipv6Addr::from(number)),
        }
    }

    /// The family of an address, and the address as a number.
    #[must_use]
    pub fn of(address: IpAddr) -> (Self, u128) {
        match address {
            IpAddr::V4(v4) => (Self::V4, u128::from(u32::from(v4))),
            IpAddr::V6(v6) => (Self::V6, u128::from(v6)),
        }
    }
}

/// An address range with a common prefix; a single address is the longest one. Host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The range around `address`; host bits are cleared, a length over the family's is cut to it.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Self {
        let (family, number) = Family::of(address);
        let length = length.min(family.bits());
        let first = number & !host_mask(family, length);
        Self {
            address: family.address(first),
            length,
        }
    }

    /// The range of this one address.
    #[must_use]
    pub fn single(address: IpAddr) -> Self {
        let (family, _) = Family::of(address);
        Self {
            address,
            length: family.bits(),
        }
    }

    /// Reads `ADDRESS` or `ADDRESS/LENGTH`. The flag says whether host bits were set and have been cleared.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<(Self, bool), PrefixError> {
        let Some((address, length)) = text.split_once('/') else {
            let address = text.parse().map_err(|_| PrefixError::Address)?;
            return Ok((Self::single(address), false));
        };
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address)?;
        let plain = length.bytes().all(|b| b.is_ascii_digit())
            && (1..=3).contains(&length.len())
            && (length == "0" || !length.starts_with('0'));
        if !plain {
            return Err(PrefixError::Length);
        }
        let (family, _) = Family::of(address);
        let length: u16 = length.parse().map_err(|_| PrefixError::Length)?;
        let length = u8::try_from(length)
            .ok()
            .filter(|length| *length <= family.bits())
            .ok_or(PrefixError::TooLong(family.bits()))?;
        let prefix = Self::new(address, length);
        Ok((prefix, prefix.address != address))
    }

    /// IPv4 ranges written as IPv4-mapped IPv6 (`::ffff:0:0/96` and longer) as what they are on
    /// the wire: IPv4. Everything else unchanged.
    #[must_use]
    pub fn unmapped(self) -> Self {
        match self.address {
            IpAddr::V6(v6) if self.length >= 96 => match v6.to_ipv4_mapped() {
                Some(v4) => Self::new(IpAddr::V4(v4), self.length - 96),
                None => self,
            },
            _ => self,
        }
    }

    /// The first address.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// How many leading bits are fixed.
    #[must_use]
    pub const fn length(self) -> u8 {
        self.length
    }

    /// The family.
    #[must_use]
    pub fn family(self) -> Family {
        Family::of(self.address).0
    }

    /// First and last address as numbers of the family.
    #[must_use]
    pub fn numbers(self) -> (u128, u128) {
        let (family, first) = Family::of(self.address);
        (first, first | host_mask(family, self.length))
    }

    /// Whether it is one address only.
    #[must_use]
    pub fn is_single(self) -> bool {
        self.length == self.family().bits()
    }

    /// Whether every address of `other` is in here.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.family() == other.family() && self.length <= other.length && {
            let (first, last) = self.numbers();
            let (inner, _) = other.numbers();
            (first..=last).contains(&inner)
        }
    }

    /// Whether `address` is in here.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        self.covers(Self::single(address))
    }
}

fn host_mask(family: Family, length: u8) -> u128 {
    match family.bits() - length {
        0 => 0,
        host_bits => u128::MAX >> (128 - host_bits),
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.length)
        }
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefix({self})")
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        Self::parse(text).map(|(prefix, _)| prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_cleared_and_told() {
        let (prefix, cleared) = Prefix::parse("10.0.0.1/8").unwrap();
        assert_eq!((prefix.to_string().as_str(), cleared), ("10.0.0.0/8", true));
        let (prefix, cleared) = Prefix::parse("2001:db8::/32").unwrap();
        assert_eq!(
            (prefix.to_string().as_str(), cleared),
            ("2001:db8::/32", false)
        );
        assert_eq!(Prefix::parse("::/0").unwrap().0.numbers(), (0, u128::MAX));
        assert_eq!(
            Prefix::parse("0.0.0.0/0").unwrap().0.numbers(),
            (0, 0xffff_ffff)
        );
    }

    #[test]
    fn bad_ranges_have_reasons() {
        for (text, error) in [
            ("10.0.0.1/33", PrefixError::TooLong(32)),
            ("2001:db8::1/129", PrefixError::TooLong(128)),
            ("10.0.0.0/999", PrefixError::TooLong(32)),
            ("10.0.0.0/08", PrefixError::Length),
            ("10.0.0.0/+8", PrefixError::Length),
            ("10.0.0.0/", PrefixError::Length),
            ("10.0.0.0/8/8", PrefixError::Length),
            ("010.0.0.0/8", PrefixError::Address),
            ("10.0.0/8", PrefixError::Address),
        ] {
            assert_eq!(Prefix::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn mapped_ranges_are_ipv4() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        assert_eq!(
            prefix("::ffff:10.0.0.0/104").unmapped(),
            prefix("10.0.0.0/8")
        );
        assert_eq!(prefix("::ffff:10.0.0.1").unmapped(), prefix("10.0.0.1"));
        assert_eq!(prefix("::/0").unmapped(), prefix("::/0"));
    }
}
