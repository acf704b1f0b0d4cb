//! What a sandbox is to be.

use std::{fmt, path::PathBuf, str::FromStr};

use hotcell_types::{
    AgentKey, ChatId, InstallationId, LeaseId, Resources, VolumeKind, WorkspaceId,
};
use serde::{Deserialize, Serialize};

/// Why a string names no image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an image is named by its digest: sha256: and 64 lower-case hex digits")]
pub struct ImageRefError;

/// An image by digest: `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageRef(String);

impl ImageRef {
    /// The digest, with its `sha256:`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hex digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.0.trim_start_matches("sha256:")
    }
}

impl FromStr for ImageRef {
    type Err = ImageRefError;
    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        let hex = text.strip_prefix("sha256:").ok_or(ImageRefError)?;
        let good = hex.len() == 64
            && hex
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(ImageRefError)
        }
    }
}

impl TryFrom<String> for ImageRef {
    type Error = ImageRefError;
    fn try_from(text: String) -> Result<Self, ImageRefError> {
        text.parse()
    }
}

impl From<ImageRef> for String {
    fn from(image: ImageRef) -> Self {
        image.0
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who a sandbox belongs to; on every engine object from birth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// The installation.
    pub installation: InstallationId,
    /// The lease.
    pub lease: LeaseId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Its chat.
    pub chat: ChatId,
}

/// A directory of the appliance that the sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Which volume; decides the path inside and whether it is read-only.
    pub kind: VolumeKind,
    /// The directory on this host, beneath the appliance's volume root.
    pub host_path: PathBuf,
}

/// What the sandbox may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// Nothing at all; only the host reaches the agent.
    None,
    /// What the filter at its [`FilterSite`] lets through. The runtime gives the sandbox a way out
    /// and nothing more: until a filter is installed there, not one packet passes.
    Filtered,
}

/// Everything that a runtime needs to make one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// Whose it is.
    pub labels: Labels,
    /// What it runs.
    pub image: ImageRef,
    /// How large it is.
    pub resources: Resources,
    /// The size of `/workspace` (and of `/tmp`, which shares it), in bytes.
    pub scratch_bytes: u64,
    /// Its volumes.
    pub mounts: Vec<VolumeMount>,
    /// Its network.
    pub network: NetworkMode,
    /// The key of its agent.
    pub agent_key: AgentKey,
}

impl SandboxSpec {
    /// What this sandbox is made ahead as, before it is known whose it will be.
    #[must_use]
    pub fn ahead(&self) -> WarmSpec {
        WarmSpec {
            installation: self.labels.installation.clone(),
            lease: self.labels.lease.clone(),
            image: self.image.clone(),
            resources: self.resources,
            scratch_bytes: self.scratch_bytes,
            network: self.network,
            agent_key: self.agent_key.clone(),
        }
    }
}

/// Everything that a runtime needs to make a sandbox ahead, for nobody yet: what a
/// [`SandboxSpec`] says but for whose it is and which volumes it sees.
#[derive(Debug, Clone)]
pub struct WarmSpec {
    /// The installation.
    pub installation: InstallationId,
    /// The lease that it will have, should it be claimed.
    pub lease: LeaseId,
    /// What it runs.
    pub image: ImageRef,
    /// How large it is.
    pub resources: Resources,
    /// The size of `/workspace` (and of `/tmp`, which shares it), in bytes.
    pub scratch_bytes: u64,
    /// Its network.
    pub network: NetworkMode,
    /// The key of its agent.
    pub agent_key: AgentKey,
}
