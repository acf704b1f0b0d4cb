//! Sandboxes as containers of a Docker Engine or a Podman.
//!
//! ```text
//!  daemon ── bollard, Unix socket ──► engine ──► OCI runtime (runc, crun, runsc)
//!    │                                                │
//!    │   scratch: ext4 on loop, mounted where         ▼
//!    │   the engine sees it ───────────────► container: agent as PID 1, uid 1000, no caps
//!    │                                        no network of the engine's
//!    ├── sockets born in its network namespace ──► agent, TCP 8888
//!    └── pidfd of its first process: the end, whoever caused it
//! ```
//!
//! What follows from it:
//!
//! - **The engine makes containers and nothing else.** No network, no volume, no exec. What a
//!   sandbox may reach and how large its disk is does not depend on the engine's configuration.
//! - **A claim is checked.** What the engine made is compared with what was asked for, and the
//!   kernel is asked about the first process before anybody may use it ([`truth`]).
//! - **Nothing is remembered that cannot be found again.** Names follow from the lease, labels are
//!   there from birth, and a lease's directory tells whose it is before a container does.
//! - **One that was made ahead** sees its volumes beneath one mount, to which the host attaches them when
//!   it is claimed (`attach.rs`, `warm.rs`).
//! - **One code path.** Everything in which Docker and Podman differ is in [`engine`].

mod api;
mod attach;
mod cgroup;
mod checks;
mod config;
mod container;
mod dial;
mod effects;
mod engine;
mod fault;
mod frames;
mod labels;
mod mounted;
mod net;
mod presence;
mod raw;
mod runtime;
mod scratch;
mod shown;
mod site;
mod tool;
mod truth;
mod volumes;
mod wait;
mod warm;

pub use checks::{CHECKS, diagnose};
pub use config::{DockerConfig, EngineKind, EngineSocket, SocketError};
pub use runtime::DockerRuntime;
