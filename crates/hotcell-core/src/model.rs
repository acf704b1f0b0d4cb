//! The records that hotcell keeps, as the domain sees them. What is stored is a versioned copy
//! of each, in `hotcell-store`.

use hotcell_types::{
    ChatId, CredentialId, FileName, LeaseId, OrganizationId, OutputId, ProfileId, ResourceClass,
    UnixMillis, UserId, WorkspaceId,
};
use serde::{Deserialize, Serialize};

/// The one switch for the whole deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Deployment {
    /// Whether any sandbox may run; off until an operator says so.
    pub enabled: bool,
    /// The profile of organizations that have none of their own.
    pub default_profile: Option<ProfileId>,
}

/// Who owns workspaces and backend credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Organization {
    /// Its id, chosen by the operator.
    pub id: OrganizationId,
    /// What people call it; shown on published pages.
    pub name: String,
    /// Whether its workspaces may run code; off until an operator says so.
    pub enabled: bool,
    /// Its own profile; the deployment's default when absent.
    pub profile: Option<ProfileId>,
    /// When it was made.
    pub created_at: UnixMillis,
}

/// A workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its id, chosen by the operator; unique in the deployment.
    pub id: WorkspaceId,
    /// Its organization.
    pub organization: OrganizationId,
    /// What people call it.
    pub name: String,
    /// Whether its members may run code; off until an operator says so.
    pub enabled: bool,
    /// When it was made.
    pub created_at: UnixMillis,
}

/// A secret of a credential. Never shown after it was handed out.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialSecret {
    /// The secret's text, as it was handed out: the HMAC key.
    pub text: String,
    /// When it was issued.
    pub issued_at: UnixMillis,
}

impl std::fmt::Debug for CredentialSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CredentialSecret")
            .field("issued_at", &self.issued_at)
            .finish_non_exhaustive()
    }
}

/// What a chat backend signs with: one key id, one secret, two during a rotation (newest first).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// `Hotcell-Key`.
    pub id: CredentialId,
    /// The organization whose workspaces it may act for.
    pub organization: OrganizationId,
    /// One or two live secrets, newest first.
    pub secrets: Vec<CredentialSecret>,
    /// When it was made.
    pub created_at: UnixMillis,
}

/// Where a lease stands, as it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Admitted; the engine has been or will be asked for its sandbox.
    Starting,
    /// Its sandbox answers.
    Running,
    /// Its sandbox is stopped after idling; the next call starts it again.
    Idle,
    /// It is being ended; its sandbox has been or will be removed.
    Ending,
    /// It is over.
    Ended,
}

/// Why a lease ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// A member or the backend asked for it.
    Requested,
    /// It reached its hard time limit.
    HardTimeLimit,
    /// Its sandbox did not start; the words say why.
    StartFailed(String),
    /// Its sandbox used more memory than it has.
    OutOfMemory,
    /// Its sandbox died or was killed from outside.
    SandboxLost,
    /// The engine was restarted under it.
    RuntimeRestarted,
}

/// One sandbox granted to one chat of one user, from admission to destruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Its id.
    pub id: LeaseId,
    /// The organization of its workspace.
    pub organization: OrganizationId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Its chat.
    pub chat: ChatId,
    /// Whose user data it mounts.
    pub user: UserId,
    /// The profile that it was made with; never changes.
    pub profile: ProfileId,
    /// Its size.
    pub resource_class: ResourceClass,
    /// Where it stands.
    pub state: LeaseState,
    /// When it was admitted.
    pub created_at: UnixMillis,
    /// When its state last changed.
    pub changed_at: UnixMillis,
    /// Why it ended, once it has.
    pub end: Option<EndReason>,
}

/// A file collected from a sandbox into a chat. Immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputRecord {
    /// Its id.
    pub id: OutputId,
    /// The workspace of its chat.
    pub workspace: WorkspaceId,
    /// Its chat.
    pub chat: ChatId,
    /// Who ran the chat.
    pub user: UserId,
    /// The lease that it came from.
    pub lease: LeaseId,
    /// Its name, without directories.
    pub name: FileName,
    /// Where it was in the sandbox.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its media type, from its last extension.
    pub media_type: String,
    /// Lower-case hex SHA-256 of its content.
    pub sha256: String,
    /// When it was collected.
    pub created_at: UnixMillis,
}

/// Who did something that is audited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// An operator with the operator token.
    Operator,
    /// Whoever holds the local socket.
    LocalOperator,
    /// A chat backend, by its credential.
    Backend(CredentialId),
    /// hotcell itself.
    System,
}

/// One row of the audit trail: names of what changed, never values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// When.
    pub at: UnixMillis,
    /// Who.
    pub actor: Actor,
    /// What was done, such as `workspace.updated`.
    pub action: String,
    /// To what, such as `workspace/w1`.
    pub subject: String,
    /// The names of the fields that changed.
    pub fields: Vec<String>,
    /// The request that caused it, when one did.
    pub request: Option<String>,
}
