//! What an engine's runtime is to be.

use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr, sync::Arc};

use hotcell_runtime::ImageRef;
use hotcell_types::{Clock, IdSource, InstallationId};
use serde::{Deserialize, Serialize};

/// Which engine listens on the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Docker Engine, 20.10 or later.
    Docker,
    /// Podman, 4.3 or later, rootful or rootless.
    Podman,
}

impl EngineKind {
    /// As profiles and [`Facts`](hotcell_runtime::Facts) call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// Why a string names no engine's socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// It is an address in a network.
    #[error(
        "an engine is reached through its Unix socket only; for another machine run the gateway there"
    )]
    Remote,
    /// It is no absolute path.
    #[error("the socket of an engine is an absolute path, or one after unix://")]
    NotAbsolute,
}

/// The Unix socket of an engine: an absolute path, also written `unix:///path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EngineSocket(String);

impl EngineSocket {
    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EngineSocket {
    type Err = SocketError;
    fn from_str(text: &str) -> Result<Self, SocketError> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        if path.contains("://") {
            Err(SocketError::Remote)
        } else if path.starts_with('/') {
            Ok(Self(path.to_owned()))
        } else {
            Err(SocketError::NotAbsolute)
        }
    }
}

impl TryFrom<String> for EngineSocket {
    type Error = SocketError;
    fn try_from(text: String) -> Result<Self, SocketError> {
        text.parse()
    }
}

impl From<EngineSocket> for String {
    fn from(socket: EngineSocket) -> Self {
        socket.0
    }
}

impl fmt::Display for EngineSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an engine's runtime is to be.
#[derive(Clone)]
pub struct DockerConfig {
    /// Which engine it is.
    pub engine: EngineKind,
    /// Where it listens.
    pub socket: EngineSocket,
    /// Which of the engine's OCI runtimes runs sandboxes, such as `runsc`; its default when absent.
    pub oci_runtime: Option<String>,
    /// Every volume that is mounted into a sandbox must lie beneath this directory, and so do the
    /// scratch disks, in `.scratch`. A rootless engine's user must be able to pass through it.
    pub volume_root: PathBuf,
    /// The static agent binary.
    pub agent_binary: PathBuf,
    /// Whose sandboxes these are.
    pub installation: InstallationId,
    /// The images that may run: the digest of an image's configuration (what the engine calls
    /// its id) or of its manifest in a registry.
    pub images: BTreeSet<ImageRef>,
    /// Whether sandboxes are to be made ahead. An engine that cannot is refused then.
    pub warm_pool: bool,
    /// What does not outlive a reboot; best on a tmpfs. Made with mode 0711 when missing.
    pub run_dir: PathBuf,
    /// Time, for the signatures of requests to agents and the comparison with the engine's clock.
    pub clock: Arc<dyn Clock>,
    /// Nonces, likewise.
    pub ids: Arc<dyn IdSource>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_local_and_absolute() {
        for (text, want) in [
            ("/run/docker.sock", Ok("/run/docker.sock")),
            ("unix:///run/docker.sock", Ok("/run/docker.sock")),
            ("tcp://10.0.0.1:2375", Err(SocketError::Remote)),
            ("ssh://host/run/docker.sock", Err(SocketError::Remote)),
            ("docker.sock", Err(SocketError::NotAbsolute)),
            ("", Err(SocketError::NotAbsolute)),
        ] {
            let got = text.parse::<EngineSocket>();
            assert_eq!(
                got.as_ref().map(EngineSocket::as_str),
                want.as_ref().copied()
            );
        }
    }
}
