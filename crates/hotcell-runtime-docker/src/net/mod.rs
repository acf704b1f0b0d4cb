//! The network of sandboxes: none that leads anywhere.
//!
//! ```text
//!  kernel's network stack (runc, crun)          own network stack (gVisor)
//!  ┌──────────────────────────┐      ┌─────────────────────────┐   ┌────────────────────────┐
//!  │ sandbox: lo, and nothing │      │ holder: a container that │   │ far end, pinned by us: │
//!  │ else                     │      │ only keeps a namespace   │   │ hc0 100.x.y.1/30       │
//!  │   agent on 127.0.0.1 ◄───┼─┐    │   eth0 100.x.y.2/30 ◄────┼───┼──► a socket of ours    │
//!  └──────────────────────────┘ │    │ sandbox joins it         │   │ no other link, nothing │
//!            a socket of ours,  │    └─────────────────────────┘   │ listens                │
//!            born in there ─────┘                                   └────────────────────────┘
//! ```
//!
//! A socket stays in the namespace that it was born in, whoever uses it; so the daemon reaches an
//! agent without any interface on the host. The engine makes no network for us: there is no
//! bridge, no address of the host and no rule of the engine's that could be missing. A sandbox with
//! a filtered network has a holder under every engine, and its far end is its gateway: see
//! [`way_out`].

mod link;
mod namespace;
mod sockets;
mod way_out;

use std::{
    fs::File,
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
};

use hotcell_agent_proto::AGENT_PORT;
use hotcell_types::{LeaseId, limits::MAX_ENGINE_FILE_BYTES};

pub(crate) use link::plug;
pub(crate) use namespace::{Pin, of_process};
pub(crate) use sockets::Sockets;
pub(crate) use way_out::{connect_out, disconnect, host_end};

/// The two addresses of one lease's link: a /30 out of 100.64.0.0/10, a range that no other network
/// may announce (RFC 6598). It follows from the lease. Two leases may well share one: each pair
/// lives in namespaces of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) far: Ipv4Addr,
    pub(crate) near: Ipv4Addr,
}

impl Ends {
    pub(crate) fn of(lease: &LeaseId) -> Self {
        const BLOCKS: u32 = 1 << 20;
        // FNV-1a: any spread will do.
        let number = lease.as_str().bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let mut base = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + (number % BLOCKS) * 4;
        // Where uplinks have theirs; a far end may have both.
        let (uplinks, bits) = hotcell_uplink::RANGE;
        if base >> (32 - bits) == u32::from(uplinks) >> (32 - bits) {
            base += 1 << (32 - bits);
        }
        Self {
            far: Ipv4Addr::from(base + 1),
            near: Ipv4Addr::from(base + 2),
        }
    }
}

/// What a sandbox calls its link.
const NEAR_NAME: &str = "eth0";
/// What the far end calls it.
pub(crate) const FAR_NAME: &str = "hc0";
const PREFIX_BITS: u8 = 30;

/// How to reach one agent.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// Where sockets to it are born.
    pub(crate) namespace: Arc<OwnedFd>,
    /// Its address, seen from there.
    pub(crate) agent: SocketAddr,
}

impl Way {
    /// From inside the sandbox's own namespace.
    pub(crate) fn inside(namespace: OwnedFd) -> Self {
        Self {
            namespace: Arc::new(namespace),
            agent: SocketAddr::from((Ipv4Addr::LOCALHOST, AGENT_PORT)),
        }
    }

    /// From the far end of its link.
    pub(crate) fn across(namespace: OwnedFd, ends: Ends) -> Self {
        Self {
            namespace: Arc::new(namespace),
            agent: SocketAddr::from((ends.near, AGENT_PORT)),
        }
    }
}

/// Makes a namespace, with a link to another when that is how sandboxes are reached, and lets go
/// of both.
pub(crate) fn probe(with_link: bool) -> io::Result<()> {
    let one = namespace::make()?;
    if !with_link {
        return Ok(());
    }
    let other = namespace::make()?;
    plug(&one, &other, Ends::of(&LeaseId::from_bits(0)), false)
}

/// Looks whether the namespace of a process leads nowhere, or by the `gateway` only, and says what it
/// found otherwise.
pub(crate) fn leads_nowhere(pid: u32, gateway: Option<Ipv4Addr>) -> Result<(), String> {
    let read = |name: &str| {
        let path = format!("/proc/{pid}/net/{name}");
        read_text(&path).map_err(|error| format!("{path}: {error}"))
    };
    if let Some(route) = foreign_ipv4_route(&read("route")?, gateway) {
        return Err(format!("the sandbox has a route: {route}"));
    }
    match read("ipv6_route") {
        Ok(table) => match foreign_ipv6_route(&table) {
            Some(route) => Err(format!("the sandbox has an IPv6 route: {route}")),
            None => Ok(()),
        },
        // A kernel without IPv6.
        Err(_) => Ok(()),
    }
}

fn read_text(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(MAX_ENGINE_FILE_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// A line of `/proc/net/route` that is neither the link's own network nor by the gateway.
fn foreign_ipv4_route(table: &str, gateway: Option<Ipv4Addr>) -> Option<&str> {
    // As the kernel shows it: the address as it lies in memory, read as a number.
    let ours = gateway.map(|gateway| format!("{:08X}", u32::from_ne_bytes(gateway.octets())));
    table.lines().skip(1).find(|line| {
        let mut words = line.split_ascii_whitespace();
        let (device, by) = (words.next(), words.nth(1));
        let by_none = by == Some("00000000");
        let by_ours = by.is_some() && by == ours.as_deref();
        !matches!(device, Some(NEAR_NAME | "lo")) || !(by_none || by_ours)
    })
}

/// A line of `/proc/net/ipv6_route` that leads out of the loopback interface.
fn foreign_ipv6_route(table: &str) -> Option<&str> {
    table.lines().find(|line| {
        line.split_ascii_whitespace()
            .next_back()
            .is_some_and(|device| device != "lo")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n";

    #[test]
    fn only_the_links_own_network_is_no_way_out() {
        for (line, foreign) in [
            ("", false),
            ("eth0\t00004064\t00000000\t0001\t0\t0\t0\tFCFFFFFF\n", false),
            ("eth0\t00000000\t01004064\t0003\t0\t0\t0\t00000000\n", true),
            ("eth1\t0000110A\t00000000\t0001\t0\t0\t0\t0000FFFF\n", true),
            ("broken\n", true),
        ] {
            let table = format!("{HEAD}{line}");
            assert_eq!(
                foreign_ipv4_route(&table, None).is_some(),
                foreign,
                "{line:?}"
            );
        }
        let by = format!("{HEAD}eth0\t00000000\t01004064\t0003\t0\t0\t0\t00000000\n");
        let gateway = |last| Some(Ipv4Addr::new(100, 64, 0, last));
        assert_eq!(foreign_ipv4_route(&by, gateway(1)), None);
        assert!(foreign_ipv4_route(&by, gateway(5)).is_some());
    }

    #[test]
    fn ipv6_may_only_loop() {
        let zero = "0".repeat(32);
        let line =
            |device: &str| format!("{zero} 00 {zero} 00 {zero} 00000400 1 0 00200200 {device}\n");
        assert_eq!(foreign_ipv6_route(&line("lo")), None);
        assert!(foreign_ipv6_route(&format!("{}{}", line("lo"), line("eth0"))).is_some());
    }

    #[test]
    fn links_stay_in_the_range() {
        for bits in 0..1_000 {
            let ends = Ends::of(&LeaseId::from_bits(bits));
            let (far, near) = (ends.far.octets(), ends.near.octets());
            assert_eq!((far[0], far[1] & 0xc0, far[3] % 4), (100, 64, 1));
            assert_eq!(
                (near[..3].to_vec(), near[3]),
                (far[..3].to_vec(), far[3] + 1)
            );
        }
    }

    #[test]
    fn the_hosts_own_network_is_never_taken_for_a_sandboxs() {
        let error = of_process(std::process::id()).unwrap_err();
        assert!(error.to_string().contains("host"), "{error}");
    }
}
