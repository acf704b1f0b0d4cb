//! Packets that a lease's chains dropped, and why they did.

use std::{fmt, net::IpAddr};

use hotcell_policy::{Action, RuleIndex, Why};

use crate::{filter::SandboxFilter, layout};

/// A packet that was dropped and told of. What it says was made by the sandbox; whose it is was
/// said by the chain that dropped it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeniedPacket {
    /// The lease's short id.
    pub short: String,
    /// The number of its protocol: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// Where it was going.
    pub destination: IpAddr,
    /// The port, of a protocol that has ports.
    pub port: Option<u16>,
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PacketDenial {
    /// Its destination is closed: by a rule, by the default, or since it is inside.
    Address(Why),
    /// Its protocol is neither TCP nor UDP.
    Protocol,
    /// It goes to a port of DNS and its relatives somewhere else than at the gateway.
    OtherResolver,
    /// It goes to a well-known encrypted resolver.
    EncryptedResolver,
    /// It goes to the gateway, which answers DNS and nothing else.
    Gateway,
}

impl PacketDenial {
    /// The rule that decided, if one did.
    #[must_use]
    pub const fn rule(self) -> Option<RuleIndex> {
        match self {
            Self::Address(Why::Rule(index)) => Some(index),
            _ => None,
        }
    }
}

impl fmt::Display for PacketDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(why) => write!(f, "{why}"),
            Self::Protocol => f.write_str("neither TCP nor UDP"),
            Self::OtherResolver => f.write_str("name lookups go through the gateway only"),
            Self::EncryptedResolver => f.write_str("a well-known encrypted resolver"),
            Self::Gateway => f.write_str("the gateway answers DNS and nothing else"),
        }
    }
}

/// The name of a protocol, where it has one that people know.
#[must_use]
pub fn protocol_name(protocol: u8) -> String {
    match protocol {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        other => format!("protocol {other}"),
    }
}

impl SandboxFilter {
    /// Why the packet filter dropped this packet, in the order of the lease's chains. `gateways` are
    /// the gateway's addresses as the sandbox sees them.
    #[must_use]
    pub fn why_denied(&self, packet: &DeniedPacket, gateways: &[IpAddr]) -> PacketDenial {
        if gateways.contains(&packet.destination) {
            return PacketDenial::Gateway;
        }
        let verdict = self.plan().verdict(packet.destination);
        if let Why::Inside(_) = verdict.why {
            return PacketDenial::Address(verdict.why);
        }
        if !layout::carries_ports(packet.protocol) {
            return PacketDenial::Protocol;
        }
        if packet.port.is_some_and(layout::is_dns_port) {
            return PacketDenial::OtherResolver;
        }
        if self.blocked_addresses().contains(&packet.destination) {
            return PacketDenial::EncryptedResolver;
        }
        match verdict.action {
            Action::Deny => PacketDenial::Address(verdict.why),
            // It was open when the packet filter was asked last: a learned address just ran out.
            Action::Allow => PacketDenial::Address(Why::Default),
        }
    }
}

#[cfg(test)]
mod tests {
    use hotcell_policy::{Inside, Policy, Surroundings};

    use super::*;
    use crate::filter::FilterSettings;

    #[test]
    fn the_reason_is_the_first_that_the_chains_would_find() {
        let policy = Policy::parse(
            r#"{"egress":[{"action":"deny","target":"198.51.100.0/24"},{"action":"allow","target":"203.0.113.0/24"}]}"#,
        )
        .unwrap();
        let filter = SandboxFilter::new(
            Some(policy),
            &Surroundings::default(),
            FilterSettings::default(),
        );
        let gateway: IpAddr = [100, 64, 0, 1].into();
        let why = |protocol, destination: &str, port| {
            let packet = DeniedPacket {
                short: "lease1".to_owned(),
                protocol,
                destination: destination.parse().unwrap(),
                port,
            };
            filter.why_denied(&packet, &[gateway])
        };
        let inside = |inside| PacketDenial::Address(Why::Inside(inside));
        assert_eq!(why(6, "100.64.0.1", Some(22)), PacketDenial::Gateway);
        assert_eq!(
            why(6, "169.254.169.254", Some(80)),
            inside(Inside::Metadata)
        );
        assert_eq!(why(1, "10.0.0.1", None), inside(Inside::Private));
        assert_eq!(why(1, "203.0.113.1", None), PacketDenial::Protocol);
        assert_eq!(
            why(17, "203.0.113.1", Some(53)),
            PacketDenial::OtherResolver
        );
        assert_eq!(
            why(6, "8.8.8.8", Some(443)),
            PacketDenial::EncryptedResolver
        );
        assert_eq!(why(6, "198.51.100.1", Some(443)).rule(), Some(RuleIndex(0)));
        assert_eq!(
            why(6, "192.0.2.1", Some(443)),
            PacketDenial::Address(Why::Default)
        );
    }
}
