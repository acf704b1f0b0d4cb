//! Where a sandbox's packets come out, and a filter for them has its place.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    sync::Arc,
};

/// The addresses of one sandbox's link in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddresses<A> {
    /// The sandbox's own.
    pub sandbox: A,
    /// The gateway's: its next hop, and its only resolver.
    pub gateway: A,
}

/// Where the filter of one sandbox sits. True from [`Runtime::create`](crate::Runtime::create)
/// until it is removed, also for a sandbox that a new daemon adopts.
#[derive(Debug, Clone)]
pub struct FilterSite {
    /// The network namespace that everything here is in; the daemon's own when absent.
    pub namespace: Option<Arc<OwnedFd>>,
    /// The interface that leads out of that namespace, when it holds sandboxes and nothing else.
    /// Absent in a namespace with other users, whose packets are none of our business.
    pub uplink: Option<String>,
    /// The interface that the sandbox's packets come in by. May not exist while the sandbox is
    /// stopped; its name stays the same.
    pub interface: String,
    /// Its IPv4 addresses.
    pub v4: LinkAddresses<Ipv4Addr>,
    /// Its IPv6 addresses, when it has any.
    pub v6: Option<LinkAddresses<Ipv6Addr>>,
    /// The other end of the uplink, in the daemon's own namespace; set when `uplink` is.
    pub way_out: Option<WayOut>,
    /// Ranges that sandboxes of this runtime and their gateways have addresses from: an address and
    /// how many of its bits count.
    pub ranges: Vec<(IpAddr, u8)>,
}

/// A network namespace that a runtime keeps for sandboxes and nothing else, whether or not one is there
/// now.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// The namespace; the daemon's own when absent.
    pub namespace: Option<Arc<OwnedFd>>,
    /// The interface that leads out of it.
    pub uplink: String,
}

/// Where what comes out of a namespace of sandboxes enters the daemon's own. It needs a table there
/// that lets nothing of it reach the host itself, and translates its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WayOut {
    /// The interface.
    pub interface: String,
    /// The only source address that comes in by it.
    pub gateway: Ipv4Addr,
}
