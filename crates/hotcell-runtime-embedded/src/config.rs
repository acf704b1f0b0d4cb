//! What an embedded runtime is to be.

use std::{path::PathBuf, sync::Arc};

use hotcell_types::{Clock, IdSource, InstallationId, limits};
use serde::{Deserialize, Serialize};

/// Which OCI runtime a binary is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OciKind {
    /// gVisor.
    Runsc,
    /// The reference runtime: namespaces, shared kernel.
    Runc,
    /// The same in C.
    Crun,
}

impl OciKind {
    /// The name of its binary.
    #[must_use]
    pub const fn binary(self) -> &'static str {
        match self {
            Self::Runsc => "runsc",
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }
}

/// Whose network stack a sandbox has. Only `runsc` offers the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkStack {
    /// The one that works: gVisor's own, else the kernel's.
    Auto,
    /// gVisor's own.
    Own,
    /// The kernel's, in the sandbox's network namespace.
    Kernel,
}

/// Which engine to drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeChoice {
    /// The first that works of `runsc`, `crun`, `runc`, as found in `PATH`.
    Auto,
    /// This one and no other.
    Fixed {
        /// What it is.
        kind: OciKind,
        /// Where it is; searched in `PATH` when absent.
        path: Option<PathBuf>,
        /// Whose network stack; what is not `runsc` takes the kernel's whatever this says.
        network: NetworkStack,
    },
}

/// What an embedded runtime is to be.
#[derive(Clone)]
pub struct EmbeddedConfig {
    /// Where sandboxes keep what outlives a reboot. Made with mode 0700.
    pub state_dir: PathBuf,
    /// Where they keep what does not; on a tmpfs, since agent keys pass through it. Keep the path
    /// under 60 bytes: it becomes part of the names of Unix sockets.
    pub run_dir: PathBuf,
    /// Where the unpacked images are.
    pub image_dir: PathBuf,
    /// Every volume that is mounted into a sandbox must lie beneath this directory.
    pub volume_root: PathBuf,
    /// The static agent binary.
    pub agent_binary: PathBuf,
    /// Whose sandboxes these are.
    pub installation: InstallationId,
    /// Which engine to drive.
    pub oci_runtime: RuntimeChoice,
    /// How many sandboxes there may be at once.
    pub max_sandboxes: usize,
    /// Time, for the signatures of requests to agents.
    pub clock: Arc<dyn Clock>,
    /// Nonces, likewise.
    pub ids: Arc<dyn IdSource>,
}

impl EmbeddedConfig {
    /// How many sandboxes there may be: what was asked for, as far as they can be numbered.
    pub(crate) fn sandbox_limit(&self) -> usize {
        self.max_sandboxes.min(limits::MAX_EMBEDDED_SANDBOXES)
    }
}
