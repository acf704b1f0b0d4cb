//! The embedded runtime: sandboxes straight from an OCI runtime binary, without a container
//! daemon.
//!
//! ```text
//!  host namespaces                       gateway namespace (one per installation)
//!  ┌───────────────────────────┐         ┌──────────────────────────────────────┐
//!  │ daemon ── gateway thread ─┼────────►│ sockets that dial agents             │
//!  │   │                       │         │ hc-<lease> 100.64.x.1/30 …           │
//!  │   │ birth thread, gone    │         │ no listener; forwards only what a    │
//!  │   │ after the start       │         │ filter has seen, by the uplink       │
//!  │   │        hcu-… ═════════╪══ veth ═╪══ uplink 100.65.y.2/30               │
//!  │   ▼                       │         └──────┬───────────────────────────────┘
//!  │ own mount namespace:      │                │ veth
//!  │   scratch (ext4 on loop)  │         ┌──────┴───────────────────────────────┐
//!  │   runsc / runc run ───────┼────────►│ sandbox: eth0 100.64.x.2/30          │
//!  └───────────────────────────┘         │ agent as PID 1, uid 1000, no caps    │
//!                                        └──────────────────────────────────────┘
//! ```
//!
//! What follows from it:
//!
//! - **Nothing to unmount.** Every mount of a sandbox lives in a mount namespace that only its own
//!   processes hold. When they are gone, whoever ended them, mounts, loop device, network
//!   namespace and veth are gone too. What is left are directories, a control group and the
//!   engine's state file, all with names that follow from the lease.
//! - **Nothing to reach.** The far end of a sandbox's only link is not in the host's network
//!   namespace but in the gateway's, which leads nowhere, or for filtered sandboxes through a
//!   filter only. That holds when the daemon is dead.
//! - **The disk decides.** A lease's directory is made whole under another name and then renamed,
//!   before anything else happens; [`Runtime::list`](hotcell_runtime::Runtime::list) reads these
//!   directories and the control groups, and asks nobody.
//! - **One engine call.** [`create`](hotcell_runtime::Runtime::create) prepares the disk only;
//!   [`start`](hotcell_runtime::Runtime::start) is a single `run --detach`. Ending needs no engine
//!   at all: the control group says who is to be killed.

mod birth;
mod bundle;
mod cgroup;
mod checks;
mod config;
mod dial;
mod embedded;
mod ending;
mod fault;
mod image;
mod layout;
#[cfg(test)]
mod measure;
mod net;
mod oci;
mod probe;
mod process;
mod record;
mod runtime;
mod scratch;
mod sweep;
mod warm;
mod way_out;

pub use checks::{CHECKS, diagnose};
pub use config::{EmbeddedConfig, NetworkStack, OciKind, RuntimeChoice};
pub use embedded::{Embedded, images_in_use};
pub use image::{ImageError, ImageStore, Progress};
