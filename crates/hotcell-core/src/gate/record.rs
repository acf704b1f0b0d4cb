//! What is kept of a refusal, for the operator.

use hotcell_types::{ChatId, OrganizationId, Role, UnixMillis, UserId, WorkspaceId};

use super::{Denial, QuotaValue};

/// One refusal of the gate: who asked, when, and what said no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenialRecord {
    /// When.
    pub at: UnixMillis,
    /// The organization of the credential.
    pub organization: OrganizationId,
    /// The workspace that was acted for.
    pub workspace: WorkspaceId,
    /// The chat.
    pub chat: ChatId,
    /// The member.
    pub user: UserId,
    /// The member's role, as the backend said.
    pub role: Role,
    /// The denial's stable name.
    pub name: String,
    /// What the quota allowed then, when one refused.
    pub limit: Option<QuotaValue>,
    /// The request that was refused.
    pub request: Option<String>,
}

impl DenialRecord {
    /// Writes down what `denial` says.
    #[must_use]
    pub fn of(self, denial: Denial) -> Self {
        Self {
            name: denial.name().to_owned(),
            limit: denial.exceeded().map(|exceeded| exceeded.limit),
            ..self
        }
    }
}
