//! The gate: whether a member of a workspace may run code now, and on which profile.
//!
//! ```text
//!  deployment ──▶ organization ──▶ workspace ──▶ role ──▶ profile ──▶ admitted
//!   enabled?       exists,          exists, of    runs     one is
//!                  enabled?         it, enabled?  code?    active?
//! ```
//! The first level that says no names the denial. A level that is missing says no: the gate
//! fails closed.

use hotcell_types::{ProfileId, Role};
use serde::{Deserialize, Serialize};

use crate::model::{Deployment, Organization, Workspace};

/// What the gate looks at.
#[derive(Debug, Clone, Copy)]
pub struct GateFacts<'a> {
    /// The deployment; absent when nobody has set it up.
    pub deployment: Option<&'a Deployment>,
    /// The organization that the caller acts for.
    pub organization: Option<&'a Organization>,
    /// The workspace that the caller named.
    pub workspace: Option<&'a Workspace>,
    /// The member's role in it.
    pub role: Role,
    /// The profiles that can take sandboxes now.
    pub active_profiles: &'a [ProfileId],
}

/// The gate said yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The profile that the sandbox is made with.
    pub profile: ProfileId,
}

/// The gate said no: which level did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    /// The deployment's switch is off.
    #[error("code execution is switched off for this deployment; an operator can switch it on")]
    Deployment,
    /// The organization is unknown or its switch is off.
    #[error("code execution is switched off for this organization; an operator can switch it on")]
    Organization,
    /// The workspace is unknown, belongs to another organization, or its switch is off.
    #[error("code execution is switched off for this workspace; an operator can switch it on")]
    Workspace,
    /// The member's role does not carry `code_execution:run`.
    #[error("this member's role may not run code; it takes the role editor, admin or owner")]
    Role,
    /// Neither the organization nor the deployment names a profile that is active.
    #[error("no runtime profile is active for this organization; an operator can activate one")]
    Profile,
}

impl Denial {
    /// Every denial, in the order of the gate.
    pub const ALL: [Self; 5] = [
        Self::Deployment,
        Self::Organization,
        Self::Workspace,
        Self::Role,
        Self::Profile,
    ];

    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::Organization => "organization",
            Self::Workspace => "workspace",
            Self::Role => "role",
            Self::Profile => "profile",
        }
    }
}

/// Whether code may run, and on which profile: the organization's own, else the deployment's default.
///
/// # Errors
/// The first level that says no.
pub fn admit(facts: &GateFacts<'_>) -> Result<Admission, Denial> {
    let deployment = facts
        .deployment
        .filter(|deployment| deployment.enabled)
        .ok_or(Denial::Deployment)?;
    let organization = facts
        .organization
        .filter(|organization| organization.enabled)
        .ok_or(Denial::Organization)?;
    facts
        .workspace
        .filter(|workspace| workspace.enabled && workspace.organization == organization.id)
        .ok_or(Denial::Workspace)?;
    if !facts.role.may_run_code() {
        return Err(Denial::Role);
    }
    organization
        .profile
        .as_ref()
        .or(deployment.default_profile.as_ref())
        .filter(|profile| facts.active_profiles.contains(profile))
        .map(|profile| Admission {
            profile: profile.clone(),
        })
        .ok_or(Denial::Profile)
}

#[cfg(test)]
mod tests {
    use hotcell_types::UnixMillis;

    use super::*;

    /// One level's switch as the tests see it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Level {
        Missing,
        Off,
        On,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Place {
        Missing,
        Off,
        OfAnother,
        On,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Profile {
        None,
        Inactive,
        Active,
    }

    fn profile(kind: Profile, active: &str) -> Option<ProfileId> {
        match kind {
            Profile::None => None,
            Profile::Inactive => Some("dormant".parse().unwrap()),
            Profile::Active => Some(active.parse().unwrap()),
        }
    }

    /// What the documentation says, level by level, without looking at the code above.
    fn expected(
        deployment: Level,
        organization: Level,
        workspace: Place,
        role: Role,
        own: Profile,
        default: Profile,
    ) -> Result<&'static str, &'static str> {
        if deployment != Level::On {
            return Err("deployment");
        }
        if organization != Level::On {
            return Err("organization");
        }
        if workspace != Place::On {
            return Err("workspace");
        }
        if role == Role::Viewer {
            return Err("role");
        }
        match (own, default) {
            (Profile::Active, _) => Ok("own"),
            (Profile::None, Profile::Active) => Ok("standard"),
            _ => Err("profile"),
        }
    }

    #[test]
    fn every_combination_gives_the_first_refusing_level_or_the_right_profile() {
        let levels = [Level::Missing, Level::Off, Level::On];
        let places = [Place::Missing, Place::Off, Place::OfAnother, Place::On];
        let profiles = [Profile::None, Profile::Inactive, Profile::Active];
        let roles = [Role::Viewer, Role::Editor, Role::Admin, Role::Owner];
        let active: Vec<ProfileId> = ["own", "standard"].map(|id| id.parse().unwrap()).to_vec();
        let mut combinations = 0;
        for deployment in levels {
            for organization in levels {
                for workspace in places {
                    for role in roles {
                        for own in profiles {
                            for default in profiles {
                                let wanted = expected(
                                    deployment,
                                    organization,
                                    workspace,
                                    role,
                                    own,
                                    default,
                                );
                                let deployment_row = Deployment {
                                    enabled: deployment == Level::On,
                                    default_profile: profile(default, "standard"),
                                };
                                let organization_row = Organization {
                                    id: "o1".parse().unwrap(),
                                    name: "One".to_owned(),
                                    enabled: organization == Level::On,
                                    profile: profile(own, "own"),
                                    created_at: UnixMillis(1),
                                };
                                let owner = if workspace == Place::OfAnother {
                                    "o2"
                                } else {
                                    "o1"
                                };
                                let workspace_row = Workspace {
                                    id: "w1".parse().unwrap(),
                                    organization: owner.parse().unwrap(),
                                    name: "First".to_owned(),
                                    enabled: workspace != Place::Off,
                                    created_at: UnixMillis(1),
                                };
                                let facts = GateFacts {
                                    deployment: (deployment != Level::Missing)
                                        .then_some(&deployment_row),
                                    organization: (organization != Level::Missing)
                                        .then_some(&organization_row),
                                    workspace: (workspace != Place::Missing)
                                        .then_some(&workspace_row),
                                    role,
                                    active_profiles: &active,
                                };
                                let admitted = admit(&facts);
                                let got = match &admitted {
                                    Ok(admission) => Ok(admission.profile.as_str()),
                                    Err(denial) => Err(denial.name()),
                                };
                                assert_eq!(got, wanted, "{facts:?}");
                                combinations += 1;
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(combinations, 3 * 3 * 4 * 4 * 3 * 3);
    }

    #[test]
    fn names_are_stable_and_distinct() {
        let names = Denial::ALL.map(Denial::name);
        assert_eq!(
            names,
            ["deployment", "organization", "workspace", "role", "profile"]
        );
        for denial in Denial::ALL {
            assert_eq!(
                serde_json::to_string(&denial).unwrap(),
                format!("\"{}\"", denial.name())
            );
        }
    }
}
