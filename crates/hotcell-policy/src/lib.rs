//! The network policy of an organization: what a sandbox may look up and connect to. Pure; no I/O.
//!
//! ```text
//!  text ──parse──► Policy ──name_verdict(name)──────────► Verdict      at the name lookup
//!    │               │
//!    │               └─ AddressPlan::new(policy, mode, around) ─┬─ verdict(address)   at the packet
//!    ▼                                                          ├─ opening(address, rule) for an answer
//!  PolicyError                                                  └─ kernel_v4/v6()         for the kernel
//!  (path, reason)…
//! ```
//! Rules are one ordered list over names and addresses; the first that matches wins, and nothing is
//! ever sorted by how specific it is. A name is decided when it is looked up, by the name rules. An
//! address that an allowed name resolved to is compared with the address rules by the place of both
//! rules: `[deny 198.51.100.0/24, allow app.example.org]` keeps the range closed,
//! `[allow app.example.org, deny 198.51.100.0/24]` opens what the name resolves to.
//!
//! What no policy opens, and what only a rule within a private range opens, is in [`inside`].

mod document;
mod explain;
pub mod inside;
mod json;
mod name;
mod names;
mod plan;
mod policy;
mod prefix;
mod target;
mod warning;

pub use document::{Action, PolicyError, Problem, Reason, Rule, RuleIndex};
pub use explain::{Explanation, Layer, Subject};
pub use inside::{Inside, Surroundings};
pub use name::{DomainName, MAX_LABEL_BYTES, MAX_NAME_BYTES, NameError, as_libc_address};
pub use plan::{AddressPlan, AddressRange, KernelRanges, Opening};
pub use policy::{Policy, Verdict, Why};
pub use prefix::{Family, Prefix, PrefixError};
pub use target::{Target, TargetError};
pub use warning::{FilterMode, Warning};
