//! The two seams to whatever runs sandboxes: [`Runtime`] and [`Sandbox`].
//!
//! ```text
//!   actors ──► Runtime   create · start · stop · remove · list · wait · stats · preflight · images
//!      │
//!      └─────► Sandbox   ready · exec · jobs · files · disk · stdio      (through the agent)
//! ```
//!
//! Rules that every implementation keeps, and that the conformance suite checks:
//!
//! - Every effect is idempotent: creating what is there, stopping what is stopped, and removing
//!   what is gone all succeed. The caller writes its intent down first and repeats after a crash.
//! - Every object that an engine holds carries the installation id and the lease id from birth,
//!   so that [`Runtime::list`] finds exactly ours, also half-made ones.
//! - What was asked for and cannot be had is refused at `create` with a typed reason; nothing is
//!   left out silently.
//! - Nothing that comes out of a sandbox is trusted: every length is bounded here.

mod checks;
pub mod disk;
mod error;
mod locks;
mod runtime;
mod sandbox;
mod site;
mod spec;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "fake")]
pub mod fake;

#[cfg(any(feature = "conformance", feature = "fake"))]
pub use checks::assert_listed;
pub use checks::{Check, CheckStatus};
pub use error::{RuntimeError, SandboxError};
pub use locks::LeaseLocks;
pub use runtime::{
    Facts, ImageInfo, Isolation, Observed, ObservedState, Runtime, SandboxEnd, Stats,
};
pub use sandbox::{ByteStream, ExecEvent, ExecStream, JobOutput, OutputStream, Sandbox, Stdio};
pub use site::{FilterSite, Gateway, LinkAddresses, WayOut};
pub use spec::{ImageRef, ImageRefError, Labels, NetworkMode, SandboxSpec, VolumeMount, WarmSpec};
