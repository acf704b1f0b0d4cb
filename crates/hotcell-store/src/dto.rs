//! The stored shapes. Rows are JSON of these, never of domain types.
//!
//! Each kind is an enum of its versions, tagged `"v"`. Versions that were ever released stay
//! readable: a new shape is a new variant, and only the newest is written. `tests/shapes.json`
//! holds an example of every variant; a test compares it with what this module writes.

use hotcell_core::model::{
    Actor, AuditRow, Credential, CredentialSecret, Deployment, EndReason, LeaseRecord, LeaseState,
    Organization, OutputRecord, Workspace,
};
use hotcell_types::{
    ChatId, CredentialId, FileName, IdSource, LeaseId, OrganizationId, OutputId, ProfileId,
    ResourceClass, UnixMillis, UserId, WorkspaceId, limits,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    error::StoreError,
    key::{Place, Vault},
    tables::{Table, show},
};

pub(crate) fn encode(dto: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    // Nothing in the DTOs can fail to serialize: no maps with odd keys, no foreign types.
    let bytes = serde_json::to_vec(dto).map_err(|error| StoreError::Row {
        table: "(new)",
        key: String::new(),
        detail: error.to_string(),
    })?;
    if bytes.len() > limits::MAX_STORED_ROW_BYTES {
        return Err(StoreError::TooLarge {
            what: "a row",
            bytes: bytes.len(),
            limit: limits::MAX_STORED_ROW_BYTES,
        });
    }
    Ok(bytes)
}

pub(crate) fn decode<D: DeserializeOwned>(
    table: Table,
    key: &[u8],
    bytes: &[u8],
) -> Result<D, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| broken(table, key, error.to_string()))
}

pub(crate) fn broken(table: Table, key: &[u8], detail: impl Into<String>) -> StoreError {
    StoreError::Row {
        table: table.name(),
        key: show(table, key),
        detail: detail.into(),
    }
}

/// The id that a key is.
pub(crate) fn id_of_key<I: std::str::FromStr>(table: Table, key: &[u8]) -> Result<I, StoreError> {
    std::str::from_utf8(key)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| broken(table, key, "its key is no id"))
}

/// A row: its key and its value.
pub(crate) struct Keyed<I, D>(pub(crate) I, pub(crate) D);

macro_rules! versions {
    ($(#[$doc:meta])* $name:ident { $($tag:literal => $variant:ident($shape:ty),)* }) => {
        $(#[$doc])*
        #[derive(Debug, Serialize, Deserialize)]
        #[serde(tag = "v")]
        pub(crate) enum $name {
            $(#[serde(rename = $tag)] $variant($shape),)*
        }
    };
}

// ---- deployment ----

versions!(
    /// The one row of the deployment.
    DeploymentDto { "1" => V1(DeploymentV1), }
);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DeploymentV1 {
    enabled: bool,
    default_profile: Option<ProfileId>,
}

impl From<&Deployment> for DeploymentDto {
    fn from(deployment: &Deployment) -> Self {
        Self::V1(DeploymentV1 {
            enabled: deployment.enabled,
            default_profile: deployment.default_profile.clone(),
        })
    }
}

impl From<DeploymentDto> for Deployment {
    fn from(dto: DeploymentDto) -> Self {
        let DeploymentDto::V1(v1) = dto;
        Self {
            enabled: v1.enabled,
            default_profile: v1.default_profile,
        }
    }
}

// ---- organization ----

versions!(
    /// An organization, keyed by its id.
    OrganizationDto { "1" => V1(OrganizationV1), }
);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrganizationV1 {
    name: String,
    enabled: bool,
    profile: Option<ProfileId>,
    created_at: UnixMillis,
}

impl From<&Organization> for OrganizationDto {
    fn from(organization: &Organization) -> Self {
        Self::V1(OrganizationV1 {
            name: organization.name.clone(),
            enabled: organization.enabled,
            profile: organization.profile.clone(),
            created_at: organization.created_at,
        })
    }
}

impl From<Keyed<OrganizationId, OrganizationDto>> for Organization {
    fn from(Keyed(id, OrganizationDto::V1(v1)): Keyed<OrganizationId, OrganizationDto>) -> Self {
        Self {
            id,
            name: v1.name,
            enabled: v1.enabled,
            profile: v1.profile,
            created_at: v1.created_at,
        }
    }
}

// ---- workspace ----

versions!(
    /// A workspace, keyed by its id.
    WorkspaceDto { "1" => V1(WorkspaceV1), }
);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkspaceV1 {
    organization: OrganizationId,
    name: String,
    enabled: bool,
    created_at: UnixMillis,
}

impl From<&Workspace> for WorkspaceDto {
    fn from(workspace: &Workspace) -> Self {
        Self::V1(WorkspaceV1 {
            organization: workspace.organization.clone(),
            name: workspace.name.clone(),
            enabled: workspace.enabled,
            created_at: workspace.created_at,
        })
    }
}

impl From<Keyed<WorkspaceId, WorkspaceDto>> for Workspace {
    fn from(Keyed(id, WorkspaceDto::V1(v1)): Keyed<WorkspaceId, WorkspaceDto>) -> Self {
        Self {
            id,
            organization: v1.organization,
            name: v1.name,
            enabled: v1.enabled,
            created_at: v1.created_at,
        }
    }
}

// ---- credential ----

versions!(
    /// A credential, keyed by its id. Its secrets are sealed.
    CredentialDto { "1" => V1(CredentialV1), }
);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CredentialV1 {
    organization: OrganizationId,
    secrets: Vec<SecretV1>,
    created_at: UnixMillis,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SecretV1 {
    sealed: String,
    issued_at: UnixMillis,
}

impl CredentialDto {
    pub(crate) fn seal(
        credential: &Credential,
        vault: &Vault,
        ids: &dyn IdSource,
    ) -> Result<Self, StoreError> {
        let secrets = credential
            .secrets
            .iter()
            .map(|secret| {
                let part = secret.issued_at.0.to_string();
                let place = credential_place(&credential.id, &part);
                Ok(SecretV1 {
                    sealed: vault.seal(place, secret.text.as_bytes(), ids)?,
                    issued_at: secret.issued_at,
                })
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(Self::V1(CredentialV1 {
            organization: credential.organization.clone(),
            secrets,
            created_at: credential.created_at,
        }))
    }

    pub(crate) fn open(self, id: CredentialId, vault: &Vault) -> Result<Credential, StoreError> {
        let Self::V1(v1) = self;
        let secrets = v1
            .secrets
            .into_iter()
            .map(|secret| {
                let part = secret.issued_at.0.to_string();
                let bytes = vault.open(credential_place(&id, &part), &secret.sealed)?;
                let text = std::str::from_utf8(&bytes)
                    .map_err(|_| {
                        broken(
                            Table::Credentials,
                            id.as_str().as_bytes(),
                            "its secret is no text",
                        )
                    })?
                    .to_owned();
                Ok(CredentialSecret {
                    text,
                    issued_at: secret.issued_at,
                })
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(Credential {
            id,
            organization: v1.organization,
            secrets,
            created_at: v1.created_at,
        })
    }

    /// Whose it is, without opening its secrets.
    pub(crate) fn organization(&self) -> &OrganizationId {
        let Self::V1(v1) = self;
        &v1.organization
    }
}

fn credential_place<'a>(id: &'a CredentialId, part: &'a str) -> Place<'a> {
    Place {
        table: Table::Credentials.name(),
        key: id.as_str(),
        part,
    }
}

// ---- lease ----

versions!(
    /// A lease, keyed by its id.
    LeaseDto { "1" => V1(LeaseV1), }
);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LeaseV1 {
    organization: OrganizationId,
    workspace: WorkspaceId,
    chat: ChatId,
    user: UserId,
    profile: ProfileId,
    resource_class: ClassV1,
    state: LeaseStateV1,
    created_at: UnixMillis,
    changed_at: UnixMillis,
    end: Option<EndReasonV1>,
}

/// Declares a stored copy of a domain enum without fields.
macro_rules! mirrored {
    ($dto:ident = $domain:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) enum $dto { $(#[serde(rename = $text)] $variant,)* }
        impl From<$domain> for $dto {
            fn from(value: $domain) -> Self {
                match value { $($domain::$variant => Self::$variant,)* }
            }
        }
        impl From<$dto> for $domain {
            fn from(value: $dto) -> Self {
                match value { $($dto::$variant => Self::$variant,)* }
            }
        }
        #[cfg(test)]
        impl $dto {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
}

mirrored!(ClassV1 = ResourceClass {
    Small = "small",
    Medium = "medium",
    Large = "large",
});
mirrored!(LeaseStateV1 = LeaseState {
    Starting = "starting",
    Running = "running",
    Idle = "idle",
    Ending = "ending",
    Ended = "ended",
});

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub(crate) enum EndReasonV1 {
    Requested,
    HardTimeLimit,
    StartFailed { detail: String },
    OutOfMemory,
    SandboxLost,
    RuntimeRestarted,
}

impl From<&EndReason> for EndReasonV1 {
    fn from(reason: &EndReason) -> Self {
        match reason {
            EndReason::Requested => Self::Requested,
            EndReason::HardTimeLimit => Self::HardTimeLimit,
            EndReason::StartFailed(detail) => Self::StartFailed {
                detail: detail.clone(),
            },
            EndReason::OutOfMemory => Self::OutOfMemory,
            EndReason::SandboxLost => Self::SandboxLost,
            EndReason::RuntimeRestarted => Self::RuntimeRestarted,
        }
    }
}

impl From<EndReasonV1> for EndReason {
    fn from(reason: EndReasonV1) -> Self {
        match reason {
            EndReasonV1::Requested => Self::Requested,
            EndReasonV1::HardTimeLimit => Self::HardTimeLimit,
            EndReasonV1::StartFailed { detail } => Self::StartFailed(detail),
            EndReasonV1::OutOfMemory => Self::OutOfMemory,
            EndReasonV1::SandboxLost => Self::SandboxLost,
            EndReasonV1::RuntimeRestarted => Self::RuntimeRestarted,
        }
    }
}

impl From<&LeaseRecord> for LeaseDto {
    fn from(lease: &LeaseRecord) -> Self {
        Self::V1(LeaseV1 {
            organization: lease.organization.clone(),
            workspace: lease.workspace.clone(),
            chat: lease.chat.clone(),
            user: lease.user.clone(),
            profile: lease.profile.clone(),
            resource_class: lease.resource_class.into(),
            state: lease.state.into(),
            created_at: lease.created_at,
            changed_at: lease.changed_at,
            end: lease.end.as_ref().map(EndReasonV1::from),
        })
    }
}

impl From<Keyed<LeaseId, LeaseDto>> for LeaseRecord {
    fn from(Keyed(id, LeaseDto::V1(v1)): Keyed<LeaseId, LeaseDto>) -> Self {
        Self {
            id,
            organization: v1.organization,
            workspace: v1.workspace,
            chat: v1.chat,
            user: v1.user,
            profile: v1.profile,
            resource_class: v1.resource_class.into(),
            state: v1.state.into(),
            created_at: v1.created_at,
            changed_at: v1.changed_at,
            end: v1.end.map(EndReason::from),
        }
    }
}

// ---- output ----

versions!(
    /// A collected file, keyed by its id.
    OutputDto { "1" => V1(OutputV1), }
);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutputV1 {
    workspace: WorkspaceId,
    chat: ChatId,
    user: UserId,
    lease: LeaseId,
    name: FileName,
    path: String,
    bytes: u64,
    media_type: String,
    sha256: String,
    created_at: UnixMillis,
}

impl From<&OutputRecord> for OutputDto {
    fn from(output: &OutputRecord) -> Self {
        Self::V1(OutputV1 {
            workspace: output.workspace.clone(),
            chat: output.chat.clone(),
            user: output.user.clone(),
            lease: output.lease.clone(),
            name: output.name.clone(),
            path: output.path.clone(),
            bytes: output.bytes,
            media_type: output.media_type.clone(),
            sha256: output.sha256.clone(),
            created_at: output.created_at,
        })
    }
}

impl From<Keyed<OutputId, OutputDto>> for OutputRecord {
    fn from(Keyed(id, OutputDto::V1(v1)): Keyed<OutputId, OutputDto>) -> Self {
        Self {
            id,
            workspace: v1.workspace,
            chat: v1.chat,
            user: v1.user,
            lease: v1.lease,
            name: v1.name,
            path: v1.path,
            bytes: v1.bytes,
            media_type: v1.media_type,
            sha256: v1.sha256,
            created_at: v1.created_at,
        }
    }
}

// ---- audit ----

versions!(
    /// A row of the audit trail, keyed by its number.
    AuditDto { "1" => V1(AuditV1), }
);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AuditV1 {
    at: UnixMillis,
    actor: ActorV1,
    action: String,
    subject: String,
    fields: Vec<String>,
    request: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum ActorV1 {
    Operator,
    LocalOperator,
    Backend { credential: CredentialId },
    System,
}

impl From<&AuditRow> for AuditDto {
    fn from(row: &AuditRow) -> Self {
        Self::V1(AuditV1 {
            at: row.at,
            actor: match &row.actor {
                Actor::Operator => ActorV1::Operator,
                Actor::LocalOperator => ActorV1::LocalOperator,
                Actor::Backend(credential) => ActorV1::Backend {
                    credential: credential.clone(),
                },
                Actor::System => ActorV1::System,
            },
            action: row.action.clone(),
            subject: row.subject.clone(),
            fields: row.fields.clone(),
            request: row.request.clone(),
        })
    }
}

impl From<AuditDto> for AuditRow {
    fn from(AuditDto::V1(v1): AuditDto) -> Self {
        Self {
            at: v1.at,
            actor: match v1.actor {
                ActorV1::Operator => Actor::Operator,
                ActorV1::LocalOperator => Actor::LocalOperator,
                ActorV1::Backend { credential } => Actor::Backend(credential),
                ActorV1::System => Actor::System,
            },
            action: v1.action,
            subject: v1.subject,
            fields: v1.fields,
            request: v1.request,
        }
    }
}
