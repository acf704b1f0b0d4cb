//! Who asks: the backend is the identity provider and names the member.

use hotcell_types::{Role, UserId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A member's role in the workspace, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberRole {
    /// May read.
    Viewer,
    /// May run code.
    Editor,
    /// May also manage the workspace.
    Admin,
    /// May do everything in the workspace.
    Owner,
}

impl From<MemberRole> for Role {
    fn from(role: MemberRole) -> Self {
        match role {
            MemberRole::Viewer => Self::Viewer,
            MemberRole::Editor => Self::Editor,
            MemberRole::Admin => Self::Admin,
            MemberRole::Owner => Self::Owner,
        }
    }
}

/// The member that a request acts for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Their id, as the backend names them.
    #[schema(value_type = String, example = "user-1", max_length = 128)]
    pub id: UserId,
    /// Their role in the workspace.
    pub role: MemberRole,
}

/// The member that a request without a JSON body acts for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MemberQuery {
    /// The member's id, as the backend names them.
    #[param(value_type = String, example = "user-1", max_length = 128)]
    pub user: UserId,
    /// The member's role in the workspace.
    #[param(inline)]
    pub role: MemberRole,
}

impl From<MemberQuery> for Member {
    fn from(query: MemberQuery) -> Self {
        Self {
            id: query.user,
            role: query.role,
        }
    }
}
