//! What a configuration declares: organizations, workspaces and network policies that are as the
//! configuration says, and are changed there and nowhere else.
//!
//! ```text
//!  configuration ──parse──► Declarations ──reconcile at start──► records + marks in the store
//!                                                                        │
//!                                            API: a marked object is read-only and says where it is declared
//! ```
//! What is no longer declared stays as it is and loses its mark; nothing is ever deleted by a configuration.

use std::fmt;

use hotcell_types::{OrganizationId, ProfileId, WorkspaceId};

use crate::gate::QuotaSettings;

/// Everything that a configuration declares. No two have the same id, and every workspace's organization is
/// among the organizations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Declarations {
    /// The organizations, in the order of their ids.
    pub organizations: Vec<DeclaredOrganization>,
    /// The workspaces, in the order of their ids.
    pub workspaces: Vec<DeclaredWorkspace>,
}

/// An organization as it is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredOrganization {
    /// Its id.
    pub id: OrganizationId,
    /// What people call it.
    pub name: String,
    /// Whether its workspaces may run code.
    pub enabled: bool,
    /// Its own profile; the deployment's default when absent.
    pub profile: Option<ProfileId>,
    /// The document of its network policy, checked; when absent, the policy is not declared and is
    /// whatever operators make of it.
    pub network_policy: Option<String>,
}

/// A workspace as it is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredWorkspace {
    /// Its id.
    pub id: WorkspaceId,
    /// Its organization, which is declared too.
    pub organization: OrganizationId,
    /// What people call it.
    pub name: String,
    /// Whether its members may run code.
    pub enabled: bool,
    /// What it may use; what is absent is the default.
    pub quotas: QuotaSettings,
}

/// One object that can be declared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeclaredObject {
    /// An organization, without its network policy.
    Organization(OrganizationId),
    /// The network policy of an organization.
    NetworkPolicy(OrganizationId),
    /// A workspace with its quotas.
    Workspace(WorkspaceId),
}

impl DeclaredObject {
    /// The key of the configuration that declares it.
    #[must_use]
    pub fn key(&self) -> String {
        // Ids hold no quotes and no backslashes.
        let part = |id: &str| {
            let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            if id.bytes().all(is_bare) {
                id.to_owned()
            } else {
                format!("\"{id}\"")
            }
        };
        match self {
            Self::Organization(id) => format!("organizations.{}", part(id.as_str())),
            Self::NetworkPolicy(id) => {
                format!("organizations.{}.network_policy", part(id.as_str()))
            }
            Self::Workspace(id) => format!("workspaces.{}", part(id.as_str())),
        }
    }

    /// What kind of thing it is, as actions of the audit trail name it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Organization(_) => "organization",
            Self::NetworkPolicy(_) => "network_policy",
            Self::Workspace(_) => "workspace",
        }
    }

    /// It as the subject of the audit trail.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::Organization(id) | Self::NetworkPolicy(id) => format!("organization/{id}"),
            Self::Workspace(id) => format!("workspace/{id}"),
        }
    }
}

impl fmt::Display for DeclaredObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Organization(id) => write!(f, "the organization {id}"),
            Self::NetworkPolicy(id) => write!(f, "the network policy of the organization {id}"),
            Self::Workspace(id) => write!(f, "the workspace {id}"),
        }
    }
}

impl Declarations {
    /// How many objects are declared.
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects().len()
    }

    /// All of them, by kind and id.
    #[must_use]
    pub fn objects(&self) -> Vec<DeclaredObject> {
        let organizations = self.organizations.iter();
        let organizations = organizations.map(|one| DeclaredObject::Organization(one.id.clone()));
        let policies = self.organizations.iter();
        let policies = policies
            .filter(|one| one.network_policy.is_some())
            .map(|one| DeclaredObject::NetworkPolicy(one.id.clone()));
        let workspaces = self.workspaces.iter();
        let workspaces = workspaces.map(|one| DeclaredObject::Workspace(one.id.clone()));
        organizations.chain(policies).chain(workspaces).collect()
    }
}
