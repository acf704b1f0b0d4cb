//! The table `[runtime]`: the engine of the profile `default`, and what it runs.

use std::{path::PathBuf, str::FromStr};

use hotcell_runtime::ImageRef;
use hotcell_runtime_docker::{EngineKind, EngineSocket};
use hotcell_runtime_embedded::{NetworkStack, OciKind, RuntimeChoice};
use serde::Deserialize;

use super::{
    ConfigError,
    network::{FilterModeKey, NetworkConfig, NetworkKeys, NetworkModeKey},
    value,
};

/// The engine of the profile `default`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Which engine.
    pub engine: EngineChoice,
    /// What sandboxes run.
    pub image: ImageChoice,
    /// What sandboxes may reach.
    pub network: NetworkConfig,
}

/// What makes the sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineChoice {
    /// An OCI runtime, driven directly.
    Embedded(RuntimeChoice),
    /// A container engine.
    Containers {
        /// Which.
        kind: EngineKind,
        /// Where it listens.
        socket: EngineSocket,
        /// Which of its OCI runtimes; its default when absent.
        oci_runtime: Option<String>,
    },
}

/// Which image sandboxes run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageChoice {
    /// The image that has this name now.
    Named(String),
    /// This image and no other.
    Exactly(ImageRef),
}

impl FromStr for ImageChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("sha256:") {
            return text
                .parse()
                .map(Self::Exactly)
                .map_err(|error: hotcell_runtime::ImageRefError| error.to_string());
        }
        let good = !text.is_empty()
            && text.len() <= 128
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            && text.as_bytes()[0].is_ascii_alphanumeric();
        if good {
            Ok(Self::Named(text.to_owned()))
        } else {
            Err("an image is named by letters, digits and . _ -, or by its digest".into())
        }
    }
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum KindKey {
    #[default]
    Embedded,
    Docker,
    Podman,
}

#[derive(Deserialize, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum NetworkKey {
    #[default]
    Auto,
    Sandbox,
    Host,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RuntimeTable {
    kind: KindKey,
    socket: Option<String>,
    oci_runtime: Option<String>,
    runsc_network: NetworkKey,
    image: Option<String>,
    network: NetworkModeKey,
    filter_mode: Option<FilterModeKey>,
    dns_upstreams: Option<Vec<String>>,
    block_encrypted_dns: Option<bool>,
    learned_grace_ms: Option<u64>,
}

impl RuntimeTable {
    pub(super) fn check(mut self) -> Result<RuntimeConfig, ConfigError> {
        let network = NetworkKeys {
            network: self.network,
            filter_mode: self.filter_mode,
            dns_upstreams: self.dns_upstreams.take(),
            block_encrypted_dns: self.block_encrypted_dns,
            learned_grace_ms: self.learned_grace_ms,
        };
        let network = network.check()?;
        let image = self.image.as_deref().unwrap_or("base");
        let image: ImageChoice = image
            .parse()
            .map_err(|problem: String| value("runtime.image", problem))?;
        let engine = match self.kind {
            KindKey::Embedded if self.socket.is_some() => {
                return Err(value(
                    "runtime.socket",
                    "is only for kind docker and podman",
                ));
            }
            KindKey::Embedded => {
                EngineChoice::Embedded(embedded(self.oci_runtime.as_deref(), self.runsc_network)?)
            }
            KindKey::Docker => self.containers(EngineKind::Docker, "/run/docker.sock", &image)?,
            KindKey::Podman => {
                self.containers(EngineKind::Podman, "/run/podman/podman.sock", &image)?
            }
        };
        Ok(RuntimeConfig {
            engine,
            image,
            network,
        })
    }

    fn containers(
        self,
        kind: EngineKind,
        default_socket: &str,
        image: &ImageChoice,
    ) -> Result<EngineChoice, ConfigError> {
        if self.runsc_network != NetworkKey::Auto {
            let problem = "is only for kind embedded";
            return Err(value("runtime.runsc_network", problem));
        }
        if !matches!(image, ImageChoice::Exactly(_)) {
            let problem = "must be a digest: an engine's names can be moved to another image";
            return Err(value("runtime.image", problem));
        }
        let socket = self.socket.as_deref().unwrap_or(default_socket).parse();
        Ok(EngineChoice::Containers {
            kind,
            socket: socket.map_err(|problem: hotcell_runtime_docker::SocketError| {
                value("runtime.socket", problem.to_string())
            })?,
            oci_runtime: self.oci_runtime.filter(|name| name != "auto"),
        })
    }
}

fn embedded(set: Option<&str>, network: NetworkKey) -> Result<RuntimeChoice, ConfigError> {
    let stack = match network {
        NetworkKey::Auto => NetworkStack::Auto,
        NetworkKey::Sandbox => NetworkStack::Own,
        NetworkKey::Host => NetworkStack::Kernel,
    };
    let fixed = |kind, path| RuntimeChoice::Fixed {
        kind,
        path,
        network: stack,
    };
    let by_name = |name: &str| match name {
        "runsc" => Some(OciKind::Runsc),
        "runc" => Some(OciKind::Runc),
        "crun" => Some(OciKind::Crun),
        _ => None,
    };
    let text = set.unwrap_or("auto");
    if text == "auto" {
        return match stack {
            NetworkStack::Auto => Ok(RuntimeChoice::Auto),
            _ => Err(value(
                "runtime.runsc_network",
                "can only be set with oci_runtime = \"runsc\"",
            )),
        };
    }
    if let Some(kind) = by_name(text) {
        return Ok(fixed(kind, None));
    }
    let path = PathBuf::from(text);
    let kind = path
        .file_name()
        .and_then(|name| by_name(name.to_str()?))
        .filter(|_| path.is_absolute());
    kind.map(|kind| fixed(kind, Some(path))).ok_or_else(|| {
        value(
            "runtime.oci_runtime",
            "must be auto, runsc, crun, runc, or an absolute path that ends in one of the three",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    fn engine(text: &str) -> EngineChoice {
        let config = Config::parse(&format!("[runtime]\n{text}"), &Overrides::default());
        config.unwrap().runtime.engine
    }

    #[test]
    fn runtimes_by_name_or_path() {
        let embedded = EngineChoice::Embedded;
        assert_eq!(
            engine("oci_runtime = '/opt/bin/runsc'\nrunsc_network = 'sandbox'"),
            embedded(RuntimeChoice::Fixed {
                kind: OciKind::Runsc,
                path: Some("/opt/bin/runsc".into()),
                network: NetworkStack::Own,
            })
        );
        assert_eq!(
            engine("oci_runtime = 'runc'"),
            embedded(RuntimeChoice::Fixed {
                kind: OciKind::Runc,
                path: None,
                network: NetworkStack::Auto,
            })
        );
    }

    #[test]
    fn an_engine_needs_a_digest_and_has_a_usual_socket() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(
            engine(&format!(
                "kind = 'docker'\nimage = '{digest}'\noci_runtime = 'runsc'"
            )),
            EngineChoice::Containers {
                kind: EngineKind::Docker,
                socket: "/run/docker.sock".parse().unwrap(),
                oci_runtime: Some("runsc".into()),
            }
        );
        assert_eq!(
            engine(&format!(
                "kind = 'podman'\nimage = '{digest}'\nsocket = 'unix:///run/p.sock'"
            )),
            EngineChoice::Containers {
                kind: EngineKind::Podman,
                socket: "/run/p.sock".parse().unwrap(),
                oci_runtime: None,
            }
        );
    }
}
