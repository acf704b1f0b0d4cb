//! What filters decide, as operators see it.

use std::{fmt, net::IpAddr};

use hotcell_egress::denied::protocol_name;
use hotcell_policy::RuleIndex;
use hotcell_types::{
    LeaseId, OrganizationId, UnixMillis, WorkspaceId, limits::MAX_EGRESS_NOTE_CHARACTERS,
};

/// Whose filter it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whose {
    /// The lease.
    pub lease: LeaseId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// The organization whose policy it was created with.
    pub organization: OrganizationId,
}

/// Where it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// When a name was looked up.
    Name,
    /// When a packet was sent.
    Packet,
    /// By the filter itself.
    Filter,
}

impl Layer {
    /// Its stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Packet => "packet",
            Self::Filter => "filter",
        }
    }
}

/// Something that a filter did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// A name was not looked up.
    NameDenied {
        /// The name, where it is one.
        name: Option<String>,
        /// The rule that decided, if one did.
        rule: Option<RuleIndex>,
        /// Why, in words.
        why: String,
    },
    /// A name was answered.
    NameAllowed {
        /// The name.
        name: String,
        /// The rule that allowed it; none when the default did.
        rule: Option<RuleIndex>,
        /// Addresses that were opened or renewed for it.
        opened: usize,
    },
    /// A name was answered again, as it was when it was allowed; nothing had to be opened.
    NameAllowedAgain {
        /// The name.
        name: String,
        /// The rule that allowed it; none when the default did.
        rule: Option<RuleIndex>,
        /// How often, since the last event about this name.
        times: u32,
    },
    /// An address was taken out of the answer for an allowed name.
    AddressHidden {
        /// The name.
        name: String,
        /// The address.
        address: IpAddr,
        /// The rule that decided, if one did.
        rule: Option<RuleIndex>,
        /// Why, in words.
        why: String,
    },
    /// More addresses were taken out of one answer than have an event of their own.
    MoreAddressesHidden {
        /// The name.
        name: String,
        /// How many more.
        count: usize,
    },
    /// Open addresses had to make room for those of an answer.
    CeilingReached {
        /// The name that was answered.
        name: String,
        /// How many had to go.
        closed: usize,
    },
    /// A packet was dropped.
    PacketDenied {
        /// Its protocol.
        protocol: u8,
        /// Where it was going.
        destination: IpAddr,
        /// The port, of a protocol that has ports.
        port: Option<u16>,
        /// The rule that decided, if one did.
        rule: Option<RuleIndex>,
        /// Why, in words.
        why: String,
    },
    /// More questions came than the rate allows.
    RateExceeded,
    /// No upstream resolver answered.
    UpstreamFailed {
        /// The name that was asked for.
        name: String,
        /// What went wrong.
        why: String,
    },
    /// The packet filter did not do what it should.
    PacketFilterFailed {
        /// The name that was asked for, if one was.
        name: Option<String>,
        /// What went wrong.
        why: String,
    },
    /// Somebody else changed the packet filter.
    ForeignChange {
        /// The process that did, when the kernel told.
        process: Option<String>,
        /// How what was there differed, the first few.
        differences: Vec<String>,
        /// Whether it is as it should be again; if not, the sandbox is cut off and it is tried again.
        restored: bool,
    },
    /// The filter was installed.
    Installed {
        /// Whether it was there already, from an earlier life of the daemon or of its actor.
        adopted: bool,
    },
    /// The filter could not be installed.
    NotInstalled {
        /// Why.
        why: String,
    },
}

impl Happened {
    /// Every name that [`kind`](Self::kind) can give.
    pub(super) const KINDS: [&'static str; 12] = [
        "name_denied",
        "name_allowed",
        "address_hidden",
        "more_addresses_hidden",
        "ceiling_reached",
        "packet_denied",
        "rate_exceeded",
        "upstream_failed",
        "packet_filter_failed",
        "foreign_change",
        "filter_installed",
        "filter_not_installed",
    ];

    /// Its stable name.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NameDenied { .. } => "name_denied",
            Self::NameAllowed { .. } | Self::NameAllowedAgain { .. } => "name_allowed",
            Self::AddressHidden { .. } => "address_hidden",
            Self::MoreAddressesHidden { .. } => "more_addresses_hidden",
            Self::CeilingReached { .. } => "ceiling_reached",
            Self::PacketDenied { .. } => "packet_denied",
            Self::RateExceeded => "rate_exceeded",
            Self::UpstreamFailed { .. } => "upstream_failed",
            Self::PacketFilterFailed { .. } => "packet_filter_failed",
            Self::ForeignChange { .. } => "foreign_change",
            Self::Installed { .. } => "filter_installed",
            Self::NotInstalled { .. } => "filter_not_installed",
        }
    }

    /// Where it was decided.
    #[must_use]
    pub const fn layer(&self) -> Layer {
        match self {
            Self::NameDenied { .. }
            | Self::NameAllowed { .. }
            | Self::NameAllowedAgain { .. }
            | Self::AddressHidden { .. }
            | Self::MoreAddressesHidden { .. }
            | Self::RateExceeded
            | Self::UpstreamFailed { .. } => Layer::Name,
            Self::PacketDenied { .. } => Layer::Packet,
            Self::CeilingReached { .. }
            | Self::PacketFilterFailed { .. }
            | Self::ForeignChange { .. }
            | Self::Installed { .. }
            | Self::NotInstalled { .. } => Layer::Filter,
        }
    }

    /// The rule that decided, if one did.
    #[must_use]
    pub const fn rule(&self) -> Option<RuleIndex> {
        match self {
            Self::NameDenied { rule, .. }
            | Self::NameAllowed { rule, .. }
            | Self::NameAllowedAgain { rule, .. }
            | Self::AddressHidden { rule, .. }
            | Self::PacketDenied { rule, .. } => *rule,
            _ => None,
        }
    }

    /// Whether it is everyday life and may be forgotten sooner than a denial.
    pub(super) const fn is_usual(&self) -> bool {
        matches!(
            self,
            Self::NameAllowed { .. } | Self::NameAllowedAgain { .. }
        )
    }

    /// How often it happened: what only repeats itself is told together.
    pub(super) const fn times(&self) -> u32 {
        match self {
            Self::NameAllowedAgain { times, .. } => *times,
            _ => 1,
        }
    }

    /// Whether somebody must look.
    pub(super) const fn is_alarming(&self) -> bool {
        matches!(
            self,
            Self::ForeignChange { .. }
                | Self::PacketFilterFailed { .. }
                | Self::NotInstalled { .. }
        )
    }

    /// What the member should know about it, in words.
    pub(super) fn note(&self) -> Option<String> {
        const BLOCKED: &str = "blocked by network policy";
        let text = match self {
            Self::NameDenied {
                name: Some(name),
                rule: None,
                why,
            } if why == ENCRYPTED => format!("{BLOCKED}: {name} ({why})"),
            Self::NameDenied {
                name: Some(name), ..
            } => format!("{BLOCKED}: {name}"),
            Self::AddressHidden {
                name, address, why, ..
            } => format!("{BLOCKED}: {name} at {address} ({why})"),
            Self::PacketDenied {
                protocol,
                destination,
                port,
                ..
            } => format!("{BLOCKED}: {}", Place(*protocol, *destination, *port)),
            Self::RateExceeded => "too many name lookups at once; some were refused".to_owned(),
            Self::UpstreamFailed { name, .. } => {
                format!("the lookup of {name} failed: no resolver answered")
            }
            _ => return None,
        };
        Some(text.chars().take(MAX_EGRESS_NOTE_CHARACTERS).collect())
    }
}

/// Why a well-known encrypted resolver is not looked up.
pub(super) const ENCRYPTED: &str = "a well-known encrypted resolver";

struct Place(u8, IpAddr, Option<u16>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(protocol, destination, port) = self;
        let protocol = protocol_name(*protocol);
        match (destination, port) {
            (IpAddr::V6(address), Some(port)) => write!(f, "[{address}]:{port} ({protocol})"),
            (address, Some(port)) => write!(f, "{address}:{port} ({protocol})"),
            (address, None) => write!(f, "{address} ({protocol})"),
        }
    }
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameDenied {
                name: Some(name),
                why,
                ..
            } => write!(f, "the lookup of {name} was denied: {why}"),
            Self::NameDenied {
                name: None, why, ..
            } => write!(f, "a lookup was denied: {why}"),
            Self::NameAllowed { name, opened, .. } => {
                write!(
                    f,
                    "the lookup of {name} was answered, {opened} addresses opened"
                )
            }
            Self::NameAllowedAgain { name, times, .. } => {
                write!(f, "the lookup of {name} was answered {times} times more")
            }
            Self::AddressHidden {
                name, address, why, ..
            } => write!(f, "{address} was taken out of the answer for {name}: {why}"),
            Self::MoreAddressesHidden { name, count } => write!(
                f,
                "{count} more addresses were taken out of the answer for {name}"
            ),
            Self::CeilingReached { name, closed } => write!(
                f,
                "{closed} open addresses had to make room for those of {name}"
            ),
            Self::PacketDenied {
                protocol,
                destination,
                port,
                why,
                ..
            } => write!(
                f,
                "a packet to {} was dropped: {why}",
                Place(*protocol, *destination, *port)
            ),
            Self::RateExceeded => f.write_str("more lookups came than the rate allows"),
            Self::UpstreamFailed { name, why } => {
                write!(f, "the lookup of {name} failed: {why}")
            }
            Self::PacketFilterFailed {
                name: Some(name),
                why,
            } => write!(
                f,
                "the packet filter did not open the addresses of {name}: {why}"
            ),
            Self::PacketFilterFailed { name: None, why } => {
                write!(f, "the packet filter failed: {why}")
            }
            Self::ForeignChange {
                process,
                differences,
                restored,
            } => {
                f.write_str("the packet filter was changed by ")?;
                f.write_str(process.as_deref().unwrap_or("somebody else"))?;
                for (index, difference) in differences.iter().enumerate() {
                    f.write_str(if index == 0 { ": " } else { ", " })?;
                    f.write_str(difference)?;
                }
                f.write_str(if *restored {
                    "; it was restored"
                } else {
                    "; the sandbox is cut off until it can be restored"
                })
            }
            Self::Installed { adopted: false } => f.write_str("the filter was installed"),
            Self::Installed { adopted: true } => {
                f.write_str("the filter that was there was verified and taken over")
            }
            Self::NotInstalled { why } => write!(f, "the filter could not be installed: {why}"),
        }
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressEvent {
    /// Its number: greater than that of every event before it, also of earlier lives of the daemon.
    pub number: u64,
    /// When.
    pub at: UnixMillis,
    /// Whose filter.
    pub whose: Whose,
    /// What.
    pub happened: Happened,
}
