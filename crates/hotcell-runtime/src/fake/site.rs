//! Where filters of the fake's sandboxes sit: links with numbers, in a namespace of their own that is
//! only thought of.

use std::net::{IpAddr, Ipv4Addr};

use crate::{FilterSite, Gateway, LinkAddresses, WayOut};

/// Where the addresses are from.
const RANGE: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
/// How many of its bits count.
const RANGE_BITS: u8 = 16;
/// Addresses that each link takes.
const ADDRESSES_PER_LINK: u32 = 4;

const UPLINK: &str = "fkup";

/// Where all of them are.
pub(super) fn gateway() -> Gateway {
    Gateway {
        namespace: None,
        uplink: UPLINK.to_owned(),
    }
}

/// The site of the link with this number.
pub(super) fn of_link(number: u16) -> FilterSite {
    let address = |host: u32| {
        let first = u32::from(RANGE) + u32::from(number) * ADDRESSES_PER_LINK;
        Ipv4Addr::from(first + host)
    };
    FilterSite {
        namespace: None,
        uplink: Some(UPLINK.to_owned()),
        interface: format!("fk{number}"),
        v4: LinkAddresses {
            sandbox: address(2),
            gateway: address(1),
        },
        v6: None,
        way_out: Some(WayOut {
            interface: format!("fku{number}"),
            gateway: address(3),
        }),
        ranges: vec![(IpAddr::V4(RANGE), RANGE_BITS)],
    }
}
