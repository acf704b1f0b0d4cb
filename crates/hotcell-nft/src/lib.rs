//! The only code that speaks with the kernel's packet filter.
//!
//! ```text
//!  Firewall (async, many callers) ──► requests ──► one thread, in the network namespace ──► netlink
//!                                                   │  merges openings that wait together
//!                                                   │  one transaction a change
//!                                                   └─ reads back what it changed
//!  Watcher ◄── multicast of changes, and the generation now and then: changes that others made
//! ```
//! No `nft` process, no text. Objects are built and read by libnftnl; [`hotcell_egress`] says what
//! shall be there. All `unsafe` code of the daemon's crates is in this one.

mod batch;
mod decode;
mod encode;
mod expression;
mod firewall;
mod netlink;
mod object;
mod table;
mod watcher;

pub use firewall::{NftFirewall, OpenError};
pub use watcher::{ForeignChange, Watcher};
