//! The chat's sandbox.

use hotcell_types::{
    ChatId, LeaseId, OrganizationId, ProfileId, ResourceClass, UnixMillis, UserId, WorkspaceId,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Admitted; its sandbox is being made.
    Starting,
    /// Its sandbox answers.
    Running,
    /// Its sandbox is stopped after idling; the next call starts it again.
    Idle,
    /// It is being ended.
    Ending,
    /// It is over.
    Ended,
}

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// A member or the backend asked for it.
    Requested,
    /// It reached its hard time limit.
    HardTimeLimit,
    /// Its sandbox did not start.
    StartFailed,
    /// Its sandbox ran out of memory.
    OutOfMemory,
    /// Its sandbox died or was ended from outside.
    SandboxLost,
    /// The engine was restarted under it.
    RuntimeRestarted,
}

/// What stands between user code and the host's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// gVisor.
    Gvisor,
    /// Namespaces and seccomp only: the kernel is shared.
    SharedKernel,
    /// None at all: a fake for tests.
    None,
}

/// The engine that runs a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Engine {
    /// Such as `embedded`.
    pub kind: String,
    /// The engine and its version.
    pub engine: String,
    /// What stands between user code and the host's kernel.
    pub isolation: Isolation,
    /// Whether `/workspace` has a size that cannot be exceeded.
    pub scratch_is_bounded: bool,
}

/// One sandbox granted to one chat of one user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Its id.
    #[schema(value_type = String, example = "ls_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: LeaseId,
    /// The organization of its workspace.
    #[schema(value_type = String)]
    pub organization: OrganizationId,
    /// Its workspace.
    #[schema(value_type = String)]
    pub workspace: WorkspaceId,
    /// Its chat.
    #[schema(value_type = String)]
    pub chat: ChatId,
    /// Whose files it mounts.
    #[schema(value_type = String)]
    pub user: UserId,
    /// The runtime profile that it was made with.
    #[schema(value_type = String)]
    pub profile: ProfileId,
    /// `SMALL`, `MEDIUM` or `LARGE`.
    #[schema(value_type = String, example = "SMALL")]
    pub resource_class: ResourceClass,
    /// Where it stands.
    pub state: LeaseState,
    /// When it was admitted, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub created_at_ms: UnixMillis,
    /// When its state last changed, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub changed_at_ms: UnixMillis,
    /// When it ends at the latest, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub ends_at_ms: UnixMillis,
    /// Since when no call holds it, in milliseconds since the Unix epoch; `null` while one does.
    #[schema(value_type = Option<u64>)]
    pub idle_since_ms: Option<UnixMillis>,
    /// Calls that hold it now.
    pub active_calls: u64,
    /// The engine that runs it, while that is open.
    pub engine: Option<Engine>,
    /// Why it ended, once it has.
    pub end: Option<LeaseEnd>,
    /// More about why it ended.
    pub end_detail: Option<String>,
}

/// The chat's sandbox: the live one, else the last one that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseAnswer {
    /// `null` when the chat never had one.
    pub lease: Option<Lease>,
}

/// All leases that have not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseList {
    /// In the order of their ids.
    pub leases: Vec<Lease>,
}
