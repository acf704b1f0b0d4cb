//! The only code that speaks with the kernel's packet filter.
//!
//! ```text
//!  Firewall (async, many callers) ──► requests ──► one thread, in the network namespace ──► netlink
//!                                                   │  merges openings that wait together
//!                                                   │  one transaction a change
//!                                                   └─ reads back what it changed
//!  Conntrack ──► another thread: which connections are open, and forgetting those of a lease
//!  DeniedPackets ◄── the log group of denials
//!  Watcher ◄── multicast of changes, and the generation now and then: changes that others made
//! ```
//! No `nft` process, no text. Objects are built and read by libnftnl; [`hotcell_egress`] says what
//! shall be there. All `unsafe` code of the daemon's crates is in this one, and so is a call that is not
//! about packets: [`default_internal_signals`].

mod askers;
mod batch;
mod conntrack;
mod decode;
mod denied;
mod encode;
mod expression;
mod firewall;
mod foreign;
mod message;
mod netlink;
mod object;
mod signals;
mod sockets;
mod table;
mod watcher;

pub use conntrack::{Conntrack, SandboxConnections};
pub use denied::{DeniedPacket, DeniedPackets};
pub use firewall::{NftFirewall, OpenError};
pub use foreign::{ForwardDrop, forward_drops};
pub use signals::default_internal_signals;
pub use sockets::{DnsSockets, dns_sockets};
pub use watcher::{ForeignChange, Watcher};
