//! A packet filter table as a value: what shall be in the kernel, without a word about how it gets there.
//!
//! Only what hotcell uses of nf_tables: an `inet` table, base and plain chains, rules of a few
//! statements, and four kinds of named sets. No anonymous sets, no counters: what the kernel
//! reports can then be compared with what was meant, word for word.

use std::{fmt, net::IpAddr, str::FromStr};

pub use hotcell_policy::{AddressRange, Family};

/// The longest name of a network interface.
pub const MAX_INTERFACE_NAME_BYTES: usize = 15;
/// The longest name of a table, chain or set that hotcell makes.
pub const MAX_OBJECT_NAME_BYTES: usize = 63;

/// Why a text is no name in a ruleset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RulesetNameError {
    /// Nothing, or more than the kernel takes.
    #[error("it must have between 1 and {0} bytes")]
    Length(usize),
    /// Something that needs quoting somewhere.
    #[error("only letters, digits and _ - . are allowed")]
    Character,
}

fn check(text: &str, longest: usize) -> Result<(), RulesetNameError> {
    if text.is_empty() || text.len() > longest {
        return Err(RulesetNameError::Length(longest));
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if text.bytes().all(fine) {
        Ok(())
    } else {
        Err(RulesetNameError::Character)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $longest:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = RulesetNameError;
            fn from_str(text: &str) -> Result<Self, RulesetNameError> {
                check(text, $longest)?;
                Ok(Self(Box::from(text)))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

name!(
    /// A network interface.
    InterfaceName,
    MAX_INTERFACE_NAME_BYTES
);
name!(
    /// A table, chain or set.
    ObjectName,
    MAX_OBJECT_NAME_BYTES
);

impl ObjectName {
    /// A name known when the program was written.
    ///
    /// # Panics
    /// When it is no name.
    #[must_use]
    #[track_caller]
    pub fn fixed(text: &'static str) -> Self {
        text.parse().expect("a literal that is a name")
    }
}

/// What a set's keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// IPv4 addresses.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
    /// Names of interfaces.
    Interface,
    /// IP protocol numbers.
    Protocol,
    /// TCP or UDP ports.
    Port,
}

impl Key {
    /// The key of a set of this family's addresses.
    #[must_use]
    pub const fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ipv4,
            Family::V6 => Self::Ipv6,
        }
    }
}

/// How a set keeps its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// Single elements, for good.
    Plain,
    /// Single elements that leave after their time. What is in it is not part of the ruleset.
    Timed,
    /// Disjoint intervals.
    Interval,
    /// From element to verdict.
    Verdicts,
}

/// One element.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// IPv4 addresses from first to last.
    Ipv4(AddressRange<std::net::Ipv4Addr>),
    /// IPv6 addresses from first to last.
    Ipv6(AddressRange<std::net::Ipv6Addr>),
    /// A protocol number.
    Protocol(u8),
    /// A port.
    Port(u16),
    /// An interface and what happens to its packets.
    Interface(InterfaceName, Verdict),
}

impl Element {
    /// One address.
    #[must_use]
    pub const fn address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(a) => Self::Ipv4(AddressRange { first: a, last: a }),
            IpAddr::V6(a) => Self::Ipv6(AddressRange { first: a, last: a }),
        }
    }
}

/// A named set or verdict map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: ObjectName,
    /// What its keys are.
    pub key: Key,
    /// How it keeps them.
    pub kind: SetKind,
    /// What is in it; always empty for timed sets.
    pub elements: Vec<Element>,
}

/// What happens to a packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It passes this table.
    Accept,
    /// It is gone.
    Drop,
    /// Another chain looks at it.
    Jump(ObjectName),
}

/// Where a base chain sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Packets for this namespace.
    Input,
    /// Packets through this namespace.
    Forward,
    /// Packets that came in, before their way is chosen.
    Prerouting,
    /// Packets that leave, for address translation.
    PostroutingNat,
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Where it sits.
    pub hook: Hook,
    /// Lower sees packets earlier.
    pub priority: i32,
    /// Whether packets that no rule decided about pass.
    pub accepts: bool,
}

/// Connection states; several in one match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// Belongs to no connection and starts none.
    pub invalid: bool,
    /// Of a connection seen in both directions.
    pub established: bool,
    /// An error message or helper connection of one.
    pub related: bool,
}

/// One part of a rule: a match that must hold for the next part to be looked at, or what happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// It came in here.
    InInterface(InterfaceName),
    /// It goes out here.
    OutInterface(InterfaceName),
    /// The verdict of this map for where it came in.
    InInterfaceVerdict(ObjectName),
    /// The verdict of this map for where it goes out.
    OutInterfaceVerdict(ObjectName),
    /// It is of this family.
    Family(Family),
    /// It is of the address's family, and from another address.
    SourceIsNot(IpAddr),
    /// It is from this address.
    Source(IpAddr),
    /// It is for this address.
    Destination(IpAddr),
    /// It is for an address of this namespace's own, whichever these are at the time.
    DestinationIsLocal,
    /// It is of this family and for an address in this set.
    DestinationIn(Family, ObjectName),
    /// Its connection is in one of these states.
    State(States),
    /// Its protocol is in this set.
    ProtocolIn(ObjectName),
    /// Its protocol is not in this set.
    ProtocolNotIn(ObjectName),
    /// It is for this TCP or UDP port. To follow a match of the protocol.
    Port(u16),
    /// It is for a TCP or UDP port in this set. To follow a match of the protocol.
    PortIn(ObjectName),
    /// It asks for a neighbour or a router, or answers (ICMPv6 133–136).
    NeighbourDiscovery,
    /// It has an IPv4 option that chooses its way (loose or strict source route).
    SourceRouted(SourceRoute),
    /// Listeners on this netfilter log group get a copy of its head, at a bounded rate, with this
    /// label.
    Log(LogGroup, ObjectName),
    /// It carries this mark from now on.
    SetMark(u32),
    /// Its source becomes the address of the interface it leaves by.
    Masquerade,
    /// What happens to it.
    Verdict(Verdict),
}

/// The two source routes of IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceRoute {
    /// LSRR.
    Loose,
    /// SSRR.
    Strict,
}

/// Where denials are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogGroup {
    /// The number of the group.
    pub group: u16,
    /// At most so many a second; the rest is not told.
    pub per_second: u32,
}

/// Statements in order; all matches must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(pub Vec<Statement>);

/// A chain of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: ObjectName,
    /// Set when packets enter it by themselves.
    pub base: Option<Base>,
    /// Its rules in order.
    pub rules: Vec<Rule>,
}

/// An `inet` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// Its name.
    pub table: ObjectName,
    /// Its sets and maps.
    pub sets: Vec<Set>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

impl Ruleset {
    /// The set of this name.
    pub fn set_mut(&mut self, name: &ObjectName) -> Option<&mut Set> {
        self.sets.iter_mut().find(|set| set.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_no_quotes() {
        assert!("hc-abc.1_x".parse::<InterfaceName>().is_ok());
        assert!("x".repeat(16).parse::<InterfaceName>().is_err());
        for bad in ["", "a b", "a\"", "a\0", "ü", "a/b"] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad:?}");
        }
    }
}
