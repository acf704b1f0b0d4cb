//! The egress filter, seen from the daemon: what it is made of that is no actor.
//!
//! ```text
//!  filter actors ──► Journal ──► events of operators, notes for members, the log
//!       │
//!       └──► Host ──► kernel: packet filters, sockets in namespaces, addresses
//! ```
//! The actors are in [`crate::actors`], the pure part in [`hotcell_egress`].

mod event;
mod journal;
mod kernel;
mod told;
mod upstream;

use std::sync::Arc;

use hotcell_egress::{dns::upstream::Upstream, host::Host};
use hotcell_policy::Prefix;

pub use event::{EgressEvent, Happened, Layer, Whose};
pub use journal::{EventPage, EventQuery, Journal};
pub use kernel::KernelHost;
pub(crate) use told::{of_differences, of_lookup, of_packet};
pub use upstream::resolvers;

use crate::config::NetworkConfig;

/// What filters are made with.
#[derive(Clone)]
pub struct EgressParts {
    /// The network of the profile.
    pub network: NetworkConfig,
    /// The host.
    pub host: Arc<dyn Host>,
    /// Where answers come from; the reason when there is nobody to ask.
    pub upstream: Result<Arc<dyn Upstream>, String>,
    /// Addresses where the appliance itself listens.
    pub appliance: Vec<Prefix>,
}

impl EgressParts {
    /// For sandboxes that reach nothing.
    #[must_use]
    pub fn none() -> Self {
        Self {
            network: NetworkConfig::default(),
            host: Arc::new(KernelHost),
            upstream: Err("no sandbox may look anything up".to_owned()),
            appliance: Vec::new(),
        }
    }
}
