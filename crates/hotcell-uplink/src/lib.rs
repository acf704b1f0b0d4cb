//! The one way out of a namespace of sandboxes, the gateway: a veth pair to the host's namespace.
//!
//! ```text
//!  host namespace                             gateway namespace
//!  hcu-<installation> 100.65.x.1/30 ══ veth ══ uplink 100.65.x.2/30 ── routes ── hc-<lease> …
//! ```
//! The routes fail closed. A packet that came in is forwarded only when it carries the mark that the
//! filter's table gives to everything that it sees:
//!
//! | order | packets | way |
//! |---|---|---|
//! | 100 | with the mark | to a sandbox's link, by the usual table |
//! | 110 | with the mark | out by the uplink |
//! | 200 | of the gateway itself | the usual table |
//! | 300 | all others | none |
//!
//! So before a filter is there, and after somebody flushed it, nothing is forwarded, not from one
//! sandbox to another either. Forwarding itself is switched on link by link, for filtered sandboxes
//! only: one without a network stays as closed as if there were no uplink.

mod netlink;
mod sysctl;

use std::{
    collections::BTreeSet,
    fs, io,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd},
};

use futures_util::TryStreamExt;
use hotcell_types::net::WAY_OUT_MARK;
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        link::{InfoData, InfoVeth, LinkAttribute},
        route::{RouteAddress, RouteAttribute},
        rule::RuleAction,
    },
};

pub use netlink::{detach, index_of, is_missing, nl};
pub use sysctl::{close_gateway, close_sandbox, forward_from, forwards, make_writable};

/// What the gateway calls its end.
pub const UPLINK: &str = "uplink";
/// Addresses of uplinks: the second half of the range that begins with those of sandboxes.
pub const RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(100, 65, 0, 0), 16);
const PREFIX_BITS: u8 = 30;
/// How many /30 there are in the range.
const NUMBERS: u32 = 1 << (PREFIX_BITS - RANGE.1);
/// The number of the uplink in the gateway: before those of sandboxes' links.
const UPLINK_INDEX: u32 = 1_023;
/// The usual routing table.
const MAIN: u32 = 254;
/// The one with the way out.
const WAY_OUT: u32 = 0x6863;
const LOOPBACK_NAME: &str = "lo";

/// An uplink that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UplinkAddresses {
    /// Of the host's end.
    pub host: Ipv4Addr,
    /// Of the gateway's.
    pub gateway: Ipv4Addr,
}

impl UplinkAddresses {
    fn numbered(number: u32) -> Self {
        let first = u32::from(RANGE.0) + (number % NUMBERS) * 4;
        Self {
            host: Ipv4Addr::from(first + 1),
            gateway: Ipv4Addr::from(first + 2),
        }
    }

    /// Those of the pair whose host's end has this address.
    fn of_host(host: Ipv4Addr) -> Option<Self> {
        let number = u32::from(host).checked_sub(u32::from(RANGE.0))? / 4;
        let addresses = Self::numbered(number);
        (number < NUMBERS && addresses.host == host).then_some(addresses)
    }
}

/// What is known of the host's side before the gateway's is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostSide {
    /// The pair is there.
    Present {
        /// The number of its end there.
        index: u32,
        /// Its addresses.
        addresses: UplinkAddresses,
    },
    /// It is not; these addresses are free.
    Absent(UplinkAddresses),
}

/// Looks at the host's side. `host_end` is its name, `seed` says which addresses to try first.
///
/// # Errors
/// When the kernel refuses.
pub async fn look(handle: &Handle, host_end: &str, seed: u32) -> io::Result<HostSide> {
    let index = match index_of(handle, host_end).await {
        Ok(index) => Some(index),
        Err(error) if is_missing(&error) => None,
        Err(error) => return Err(error),
    };
    let mut taken = BTreeSet::new();
    let mut own = None;
    let addresses: Vec<_> = handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(nl)?;
    for message in addresses {
        for attribute in &message.attributes {
            if let AddressAttribute::Address(std::net::IpAddr::V4(address)) = attribute {
                if Some(message.header.index) == index {
                    own = own.or(UplinkAddresses::of_host(*address));
                }
                taken.insert((*address, message.header.prefix_len));
            }
        }
    }
    if let (Some(index), Some(addresses)) = (index, own) {
        return Ok(HostSide::Present { index, addresses });
    }
    if index.is_some() {
        // Made by a daemon that ended between two steps: it carries nothing yet.
        detach(handle, host_end).await?;
    }
    let query = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let routes: Vec<_> = handle
        .route()
        .get(query)
        .execute()
        .try_collect()
        .await
        .map_err(nl)?;
    for message in routes {
        let bits = message.header.destination_prefix_length;
        for attribute in message.attributes {
            if let RouteAttribute::Destination(RouteAddress::Inet(address)) = attribute
                && bits > 0
            {
                taken.insert((address, bits));
            }
        }
    }
    let free = |number: &u32| {
        let addresses = UplinkAddresses::numbered(*number);
        !taken
            .iter()
            .any(|(address, bits)| overlap(addresses.host, *address, *bits))
    };
    (0..NUMBERS)
        .map(|step| seed.wrapping_add(step) % NUMBERS)
        .find(free)
        .map(|number| HostSide::Absent(UplinkAddresses::numbered(number)))
        .ok_or_else(|| io::Error::other("the host uses every address in 100.65.0.0/16"))
}

/// Whether the /30 of `uplink` and the other network have addresses in common.
fn overlap(uplink: Ipv4Addr, other: Ipv4Addr, other_bits: u8) -> bool {
    let bits = u32::from(other_bits.min(PREFIX_BITS));
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    u32::from(uplink) & mask == u32::from(other) & mask
}

/// Makes the routes, and the pair when the host's side is not there. In the gateway.
///
/// # Errors
/// When the kernel refuses.
pub async fn make(
    handle: &Handle,
    host_end: &str,
    host: impl AsFd,
    side: &HostSide,
) -> io::Result<UplinkAddresses> {
    make_rules(handle).await?;
    let addresses = match side {
        HostSide::Present { addresses, .. } | HostSide::Absent(addresses) => *addresses,
    };
    if let HostSide::Absent(_) = side {
        // One whose other end has another name now is nobody's.
        detach(handle, UPLINK).await?;
        let peer = LinkUnspec::new_with_name(host_end)
            .append_extra_attribute(LinkAttribute::NetNsFd(host.as_fd().as_raw_fd()))
            .build();
        let pair = LinkMessageBuilder::<LinkVeth>::new(UPLINK, host_end)
            .index(UPLINK_INDEX)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        handle.link().add(pair).execute().await.map_err(nl)?;
    }
    let index = index_of(handle, UPLINK).await?;
    existing(
        handle
            .address()
            .add(index, addresses.gateway.into(), PREFIX_BITS)
            .execute()
            .await,
    )?;
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(nl)?;
    Ok(addresses)
}

/// The way out. In the gateway, when both ends are up: a route by a link that is down is refused.
///
/// # Errors
/// When the kernel refuses.
pub async fn route(handle: &Handle, addresses: UplinkAddresses) -> io::Result<()> {
    let out = RouteMessageBuilder::<Ipv4Addr>::new()
        .gateway(addresses.host)
        .table_id(WAY_OUT)
        .build();
    handle
        .route()
        .add(out)
        .replace()
        .execute()
        .await
        .map_err(nl)?;
    sysctl::forward_from(UPLINK)
}

async fn make_rules(handle: &Handle) -> io::Result<()> {
    let rule = |priority| handle.rule().add().v4().priority(priority);
    let to = RuleAction::ToTable;
    for (priority, table) in [(100, MAIN), (110, WAY_OUT)] {
        let rule = rule(priority)
            .fw_mark(WAY_OUT_MARK)
            .table_id(table)
            .action(to);
        existing(rule.execute().await)?;
    }
    let own = rule(200)
        .input_interface(LOOPBACK_NAME)
        .table_id(MAIN)
        .action(to);
    existing(own.execute().await)?;
    existing(rule(300).action(RuleAction::Blackhole).execute().await)
}

/// The host's side of a pair: its address, and up.
///
/// # Errors
/// When the kernel refuses.
pub async fn finish_host(
    handle: &Handle,
    host_end: &str,
    addresses: UplinkAddresses,
) -> io::Result<()> {
    let index = index_of(handle, host_end).await?;
    // Nothing of IPv6 is ever sent there. Where /proc/sys cannot be written the table drops it.
    let no_v6 = format!("/proc/sys/net/ipv6/conf/{host_end}/disable_ipv6");
    if let Err(error) = fs::write(no_v6, "1") {
        tracing::debug!(%error, "the uplink has IPv6 on the host's side");
    }
    existing(
        handle
            .address()
            .add(index, addresses.host.into(), PREFIX_BITS)
            .execute()
            .await,
    )?;
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(nl)
}

/// Whether the gateway's end belongs to the pair whose host's end has this number there.
///
/// # Errors
/// When the kernel refuses.
pub async fn is_peer(handle: &Handle, host_index: u32) -> io::Result<bool> {
    let link = handle
        .link()
        .get()
        .match_name(UPLINK.to_owned())
        .execute()
        .try_next()
        .await;
    match link.map_err(nl) {
        Ok(Some(link)) => Ok(link.attributes.contains(&LinkAttribute::Link(host_index))),
        Ok(None) => Ok(false),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What is there already is as good as made.
fn existing(outcome: Result<(), rtnetlink::Error>) -> io::Result<()> {
    match outcome.map_err(nl) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_again_by_the_hosts() {
        for number in [0, 1, 77, NUMBERS - 1, NUMBERS + 5] {
            let addresses = UplinkAddresses::numbered(number);
            assert_eq!(UplinkAddresses::of_host(addresses.host), Some(addresses));
            assert_eq!(UplinkAddresses::of_host(addresses.gateway), None);
        }
        assert_eq!(UplinkAddresses::of_host(Ipv4Addr::new(10, 0, 0, 1)), None);
        assert_eq!(UplinkAddresses::of_host(Ipv4Addr::new(100, 66, 0, 1)), None);
    }

    #[test]
    fn networks_of_the_host_are_kept_away_from() {
        let ours = UplinkAddresses::numbered(3).host;
        for (other, bits, meets) in [
            ([100, 65, 0, 12], 30, true),
            ([100, 65, 0, 14], 32, true),
            ([100, 65, 0, 0], 16, true),
            ([100, 64, 0, 0], 10, true),
            ([100, 65, 0, 16], 30, false),
            ([10, 0, 0, 0], 8, false),
        ] {
            assert_eq!(
                overlap(ours, Ipv4Addr::from(other), bits),
                meets,
                "{other:?}/{bits}"
            );
        }
    }
}
