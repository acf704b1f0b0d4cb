//! Addresses that a sandbox does not reach, whatever its policy says or unless it says so plainly.
//!
//! Two strengths. *Closed* ranges stay closed under every policy. *Private* ranges are closed
//! too, but a rule whose target lies within one opens what it names: `allow 10.1.0.0/16` does,
//! `allow 0.0.0.0/0` does not.
//!
//! The documentation ranges (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32) are
//! deliberately not here: nothing of the appliance lives there, and they stand for public hosts in tests.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::prefix::Prefix;

/// Why an address counts as inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Inside {
    /// A cloud's metadata or platform service.
    Metadata,
    /// An address of the host.
    Host,
    /// An address of the appliance.
    Appliance,
    /// Where other sandboxes live.
    Sandboxes,
    /// Loopback, this-network, multicast, broadcast and reserved ranges.
    Special,
    /// Link-local.
    LinkLocal,
    /// An IPv6 form that carries an IPv4 address and has no business on the wire (mapped,
    /// compatible, 6to4, Teredo, local NAT64), or NAT64 of an inside IPv4 address.
    Transition,
    /// A private range, not opened by a rule.
    Private,
}

impl Inside {
    /// Whether a rule may open it.
    #[must_use]
    pub const fn may_be_opened(self) -> bool {
        matches!(self, Self::Private)
    }
}

impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "cloud metadata",
            Self::Host => "an address of the host",
            Self::Appliance => "an address of the appliance",
            Self::Sandboxes => "the range of the sandboxes",
            Self::Special => "a loopback, multicast or reserved address",
            Self::LinkLocal => "a link-local address",
            Self::Transition => "an IPv6 form of an IPv4 address that is not let through",
            Self::Private => "a private address",
        })
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(first: [u16; 4], last: u16) -> IpAddr {
    let [a, b, c, d] = first;
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, last))
}

/// Metadata and platform services of the large clouds, each with its source.
const METADATA: &[(IpAddr, u8)] = &[
    // The common one (AWS, Azure, Google, Oracle, OpenStack, DigitalOcean, Hetzner, …).
    (v4(169, 254, 169, 254), 32),
    // AWS container credentials and the pod identity agent.
    (v4(169, 254, 170, 2), 32),
    (v4(169, 254, 170, 23), 32),
    // Scaleway.
    (v4(169, 254, 42, 42), 32),
    // Alibaba Cloud; inside 100.64.0.0/10.
    (v4(100, 100, 100, 200), 32),
    // Azure's platform service, on a public address.
    (v4(168, 63, 129, 16), 32),
    // Oracle Cloud's older one.
    (v4(192, 0, 0, 192), 32),
    // AWS over IPv6, and its pod identity agent.
    (v6([0xfd00, 0xec2, 0, 0], 0x254), 128),
    (v6([0xfd00, 0xec2, 0, 0], 0x23), 128),
    // Google over IPv6.
    (v6([0xfd20, 0xce, 0, 0], 0x254), 128),
    // Scaleway over IPv6.
    (v6([0xfd00, 0x42, 0, 0], 0x42), 128),
];

const SPECIAL: &[(IpAddr, u8)] = &[
    (v4(0, 0, 0, 0), 8),
    (v4(127, 0, 0, 0), 8),
    (v4(192, 0, 0, 0), 24),
    (v4(192, 88, 99, 0), 24),
    (v4(224, 0, 0, 0), 4),
    (v4(240, 0, 0, 0), 4),
    (v6([0, 0, 0, 0], 0), 128),
    (v6([0, 0, 0, 0], 1), 128),
    (v6([0xff00, 0, 0, 0], 0), 8),
    // Discard-only (RFC 6666).
    (v6([0x100, 0, 0, 0], 0), 64),
];

const LINK_LOCAL: &[(IpAddr, u8)] = &[
    (v4(169, 254, 0, 0), 16),
    (v6([0xfe80, 0, 0, 0], 0), 10),
    // Site-local, withdrawn but still understood by some stacks.
    (v6([0xfec0, 0, 0, 0], 0), 10),
];

/// Private ranges: closed unless a rule within them says otherwise.
const PRIVATE: &[(IpAddr, u8)] = &[
    (v4(10, 0, 0, 0), 8),
    (v4(172, 16, 0, 0), 12),
    (v4(192, 168, 0, 0), 16),
    (v4(100, 64, 0, 0), 10),
    (v4(198, 18, 0, 0), 15),
    (v6([0xfc00, 0, 0, 0], 0), 7),
];

/// Compatible and mapped (`::/96` is widened to `::/64`, which holds both and nothing else in
/// use), NAT64 for local use, 6to4, Teredo.
const TRANSITION: &[(IpAddr, u8)] = &[
    (v6([0, 0, 0, 0], 0), 64),
    (v6([0x64, 0xff9b, 1, 0], 0), 48),
    (v6([0x2002, 0, 0, 0], 0), 16),
    (v6([0x2001, 0, 0, 0], 0), 32),
];

/// The NAT64 prefix behind which a public IPv4 host may legitimately be reached.
pub(crate) const NAT64: Prefix96 = Prefix96(0x0064_ff9b_0000_0000_0000_0000_0000_0000);

/// An IPv6 `/96` whose last 32 bits are an IPv4 address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix96(u128);

impl Prefix96 {
    /// The number of the IPv6 address that carries this IPv4 number.
    pub(crate) const fn carrying(self, v4: u128) -> u128 {
        self.0 | v4
    }
}

/// What surrounds the sandboxes of one installation; only the caller knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Addresses of the host, every interface.
    pub host: Vec<Prefix>,
    /// Addresses where the appliance itself listens.
    pub appliance: Vec<Prefix>,
    /// Ranges from which sandboxes and their gateways get addresses.
    pub sandboxes: Vec<Prefix>,
    /// Metadata services beyond the built-in ones.
    pub metadata: Vec<Prefix>,
}

fn table(rows: &'static [(IpAddr, u8)]) -> impl Iterator<Item = Prefix> {
    rows.iter()
        .map(|(address, length)| Prefix::new(*address, *length))
}

/// The private ranges.
pub(crate) fn private_ranges() -> impl Iterator<Item = Prefix> {
    table(PRIVATE)
}

/// Every closed range with its reason; where several hold an address, the first says why.
pub(crate) fn closed_ranges(around: &Surroundings) -> Vec<(Inside, Prefix)> {
    let reasons: [(Inside, Vec<Prefix>); 7] = [
        (
            Inside::Metadata,
            table(METADATA)
                .chain(around.metadata.iter().copied())
                .collect(),
        ),
        (Inside::Appliance, around.appliance.clone()),
        (Inside::Host, around.host.clone()),
        (Inside::Sandboxes, around.sandboxes.clone()),
        (Inside::Special, table(SPECIAL).collect()),
        (Inside::LinkLocal, table(LINK_LOCAL).collect()),
        (Inside::Transition, table(TRANSITION).collect()),
    ];
    reasons
        .into_iter()
        .flat_map(|(reason, ranges)| ranges.into_iter().map(move |range| (reason, range)))
        .collect()
}

/// The IPv4 address that an IPv6 address carries: mapped, compatible, NAT64 (well-known and
/// local), 6to4, or the client's of Teredo. For showing what is hidden; the plan closes these
/// forms as ranges.
#[must_use]
pub fn hidden_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let number = u128::from(address);
    let low = (number & 0xffff_ffff) as u32;
    let segments = address.segments();
    let embedded = match segments {
        [0, 0, 0, 0, 0, 0xffff, ..] => low,
        // `::` and `::1` carry nothing.
        [0, 0, 0, 0, 0, 0, ..] if low > 1 => low,
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => low,
        [0x2002, high, low, ..] => u32::from(high) << 16 | u32::from(low),
        [0x2001, 0, ..] => !low,
        _ => return None,
    };
    Some(Ipv4Addr::from(embedded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_addresses_are_seen() {
        let metadata = Some(Ipv4Addr::new(169, 254, 169, 254));
        for text in [
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "2001:0:1:2:3:4:5601:5601",
        ] {
            assert_eq!(hidden_ipv4(text.parse().unwrap()), metadata, "{text}");
        }
        for text in ["::", "::1", "2001:db8::1", "fe80::1", "2606:4700::1111"] {
            assert_eq!(hidden_ipv4(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn documentation_ranges_are_public() {
        for text in ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1"] {
            let address: IpAddr = text.parse().unwrap();
            let closed = closed_ranges(&Surroundings::default());
            assert!(
                !closed.iter().any(|(_, range)| range.contains(address)),
                "{text}"
            );
            assert!(
                !private_ranges().any(|range| range.contains(address)),
                "{text}"
            );
        }
    }
}
