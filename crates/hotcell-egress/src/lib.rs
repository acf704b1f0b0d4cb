//! The egress filter, seen from one sandbox.
//!
//! ```text
//!  query ──► verdict on the name ──deny──► NXDOMAIN, here and now
//!                  │allow
//!                  ▼
//!            upstream or cache ──► answer ──► what of it may be opened ──► Firewall::open ──► reply leaves
//!                                                     │
//!                                                     └─► learned addresses: ceiling, grace, renewal
//!
//!  policy ──► AddressPlan ──► layout::LeaseFilter ──► Ruleset (a value) ──► Firewall ──► kernel
//!                                                        ▲                                 │
//!                                                        └──────── Report, compared ◄──────┘
//! ```

pub mod blocklist;
pub mod denied;
pub mod dns;
#[cfg(feature = "fake")]
pub mod fake;
pub mod filter;
pub mod firewall;
pub mod host;
pub mod layout;
pub mod learned;
pub mod report;
pub mod ruleset;
pub mod way_out;
