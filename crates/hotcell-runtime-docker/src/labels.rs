//! What is written on a container at its birth, and read back from it.
//!
//! A container's labels cannot be changed. One that is made ahead is nobody's then, so it carries its
//! installation and its lease, and that it was made ahead; workspace and chat stand in its lease's
//! record alone, from the claim on. Whoever lists prefers the record.

use std::collections::{BTreeMap, HashMap};

use hotcell_runtime::{Labels, WarmSpec};
use hotcell_types::{ChatId, InstallationId, LeaseId, WorkspaceId};
use serde::{Deserialize, Serialize};

use crate::container::Role;

/// Label: the installation.
pub(crate) const INSTALLATION: &str = "io.hotcell.installation";
/// Label: the lease.
pub(crate) const LEASE: &str = "io.hotcell.lease";
const WORKSPACE: &str = "io.hotcell.workspace";
const CHAT: &str = "io.hotcell.chat";
/// Label: what the container is for, [`Role`].
pub(crate) const ROLE: &str = "io.hotcell.role";
/// Label: it was made before anybody needed it.
const AHEAD: &str = "io.hotcell.ahead";

/// Which lease's something is, and whose that is, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marks {
    pub(crate) installation: InstallationId,
    pub(crate) lease: LeaseId,
    /// None while nobody has begun to claim it, like the chat.
    workspace: Option<WorkspaceId>,
    chat: Option<ChatId>,
    /// It was made ahead, so that its volumes are attached beneath one mount.
    #[serde(default)]
    pub(crate) ahead: bool,
}

impl Marks {
    /// Of a sandbox that is made for its lease.
    pub(crate) fn of(labels: &Labels) -> Self {
        Self {
            installation: labels.installation.clone(),
            lease: labels.lease.clone(),
            workspace: Some(labels.workspace.clone()),
            chat: Some(labels.chat.clone()),
            ahead: false,
        }
    }

    /// Of one that is made ahead.
    pub(crate) fn ahead(spec: &WarmSpec) -> Self {
        Self {
            installation: spec.installation.clone(),
            lease: spec.lease.clone(),
            workspace: None,
            chat: None,
            ahead: true,
        }
    }

    /// Of what belongs to no lease at all.
    pub(crate) fn of_no_lease(installation: &InstallationId, lease: LeaseId) -> Self {
        Self {
            installation: installation.clone(),
            lease,
            workspace: None,
            chat: None,
            ahead: false,
        }
    }

    /// Whether it was made ahead and nobody has begun to claim it.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.ahead && self.labels().is_none()
    }

    /// Whose it is from now on.
    pub(crate) fn give_to(&mut self, labels: &Labels) {
        self.workspace = Some(labels.workspace.clone());
        self.chat = Some(labels.chat.clone());
    }

    /// All four labels; `None` while it is nobody's.
    pub(crate) fn labels(&self) -> Option<Labels> {
        Some(Labels {
            installation: self.installation.clone(),
            lease: self.lease.clone(),
            workspace: self.workspace.clone()?,
            chat: self.chat.clone()?,
        })
    }

    /// The labels of a container.
    pub(crate) fn on(&self, role: Role) -> HashMap<String, String> {
        let workspace = self.workspace.as_ref().map(WorkspaceId::as_str);
        let chat = self.chat.as_ref().map(ChatId::as_str);
        [
            (INSTALLATION, Some(self.installation.as_str())),
            (LEASE, Some(self.lease.as_str())),
            (WORKSPACE, workspace),
            (CHAT, chat),
            (ROLE, Some(role.name())),
            (AHEAD, self.ahead.then_some("true")),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect()
    }
}

/// Reads labels back. `None` when one is missing or is not what we write.
pub(crate) fn read_labels(found: &BTreeMap<String, String>) -> Option<Labels> {
    Some(Labels {
        installation: found.get(INSTALLATION)?.parse().ok()?,
        lease: found.get(LEASE)?.parse().ok()?,
        workspace: found.get(WORKSPACE)?.parse().ok()?,
        chat: found.get(CHAT)?.parse().ok()?,
    })
}

/// Whether a container is ours, and of this lease.
pub(crate) fn is_ours(
    found: &BTreeMap<String, String>,
    installation: &InstallationId,
    lease: &LeaseId,
) -> bool {
    found.get(INSTALLATION).map(String::as_str) == Some(installation.as_str())
        && found.get(LEASE).map(String::as_str) == Some(lease.as_str())
}

/// Whether a container was made ahead.
pub(crate) fn is_ahead(found: &BTreeMap<String, String>) -> bool {
    found.contains_key(AHEAD)
}

#[cfg(test)]
mod tests {
    use hotcell_runtime::{ImageRef, NetworkMode};
    use hotcell_types::{AgentKey, ResourceClass};

    use super::*;

    fn labels() -> Labels {
        Labels {
            installation: InstallationId::from_bits(1),
            lease: LeaseId::from_bits(2),
            workspace: "w".parse().unwrap(),
            chat: "c".parse().unwrap(),
        }
    }

    fn image() -> ImageRef {
        format!("sha256:{}", "0".repeat(64)).parse().unwrap()
    }

    #[test]
    fn labels_are_read_back() {
        let marks = Marks::of(&labels());
        let on: BTreeMap<_, _> = marks.on(Role::Sandbox).into_iter().collect();
        assert_eq!(read_labels(&on), Some(labels()));
        assert!(is_ours(&on, &labels().installation, &labels().lease));
        assert!(!is_ours(
            &on,
            &InstallationId::from_bits(3),
            &labels().lease
        ));
        assert!(!is_ahead(&on));
    }

    #[test]
    fn what_is_made_ahead_is_its_leases_and_nobodys() {
        let spec = WarmSpec {
            installation: labels().installation,
            lease: labels().lease,
            image: image(),
            resources: ResourceClass::Small.resources(),
            scratch_bytes: 1,
            network: NetworkMode::None,
            agent_key: AgentKey::new([0; 32]),
        };
        let mut marks = Marks::ahead(&spec);
        let on: BTreeMap<_, _> = marks.on(Role::Holder).into_iter().collect();
        assert!(is_ours(&on, &labels().installation, &labels().lease) && is_ahead(&on));
        assert_eq!((read_labels(&on), marks.labels()), (None, None));
        assert!(marks.is_nobodys());
        marks.give_to(&labels());
        assert_eq!(marks.labels(), Some(labels()));
        assert!(!marks.is_nobodys() && !Marks::of(&labels()).is_nobodys());
        let again: Marks = serde_json::from_slice(&serde_json::to_vec(&marks).unwrap()).unwrap();
        assert_eq!(again, marks);
    }
}
