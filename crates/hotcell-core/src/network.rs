//! What is kept of network policies: the organization's, and the one that a sandbox was created with.

use hotcell_types::{OrganizationId, UnixMillis};

/// The network policy of an organization, for sandboxes that are created from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicyRecord {
    /// Whose it is.
    pub organization: OrganizationId,
    /// The document, exactly as it was typed.
    pub text: String,
    /// When it was last saved.
    pub changed_at: UnixMillis,
}

/// The filter that a sandbox was created with. It stays so for as long as the sandbox exists,
/// whatever becomes of its organization's policy or of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseFilterRecord {
    /// The policy document; `None` means no restriction but what is never reachable.
    pub policy: Option<String>,
    /// Whether address rules and the default are enforced on packets, not only on names.
    pub enforces_addresses: bool,
    /// Whether well-known encrypted resolvers are blocked where that is needed.
    pub blocks_encrypted_dns: bool,
}
