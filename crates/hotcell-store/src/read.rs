//! What can be read: the same inside a change as from a snapshot.

use hotcell_core::model::{
    AuditRow, Credential, Deployment, LeaseRecord, LeaseState, Organization, OutputRecord,
    Workspace,
};
use hotcell_types::{
    ChatId, CredentialId, LeaseId, OrganizationId, OutputId, UnixMillis, UserId, WorkspaceId,
    limits,
};
use serde::de::DeserializeOwned;

use crate::{
    dto::{
        AuditDto, CredentialDto, DeploymentDto, Keyed, LeaseDto, OrganizationDto, OutputDto,
        WorkspaceDto, broken, decode, id_of_key,
    },
    error::StoreError,
    rows::{Order, Snapshot},
    tables::{
        Span, Table, chat_key, counter, ended_key, joined, lease_of_ended_key, meta_key,
        output_of_key,
    },
};

/// Which rows of the audit trail to read; the newest come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditPage {
    /// Only rows older than the row with this number.
    pub before: Option<u64>,
    /// How many at most; [`limits::MAX_PAGE_ROWS`] caps it.
    pub limit: usize,
}

/// One row of the audit trail with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number: counted up by one, never used again.
    pub number: u64,
    /// The row.
    pub row: AuditRow,
}

impl Snapshot<'_> {
    pub(crate) fn dto<D: DeserializeOwned>(
        &self,
        table: Table,
        key: &str,
    ) -> Result<Option<D>, StoreError> {
        self.get(table, key.as_bytes())?
            .map(|bytes| decode(table, key.as_bytes(), &bytes))
            .transpose()
    }

    /// The ids after the prefix of an index such as organization/workspace.
    fn ids_below<I: std::str::FromStr>(
        &self,
        table: Table,
        prefix: &str,
    ) -> Result<Vec<I>, StoreError> {
        self.scan(table, &Span::below(prefix), Order::Ascending, usize::MAX)?
            .iter()
            .map(|(key, _)| id_of_key(table, &key[prefix.len() + 1..]))
            .collect()
    }

    pub(crate) fn count(&self, name: &str) -> Result<u64, StoreError> {
        self.get(Table::Counters, name.as_bytes())?
            .map_or(Ok(0), |bytes| {
                decode(Table::Counters, name.as_bytes(), &bytes)
            })
    }

    /// The deployment; all off when nobody has set it yet.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn deployment(&self) -> Result<Deployment, StoreError> {
        let stored = self.get(Table::Meta, meta_key::DEPLOYMENT)?;
        stored.map_or_else(
            || Ok(Deployment::default()),
            |bytes| {
                decode::<DeploymentDto>(Table::Meta, meta_key::DEPLOYMENT, &bytes).map(Into::into)
            },
        )
    }

    /// An organization.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn organization(&self, id: &OrganizationId) -> Result<Option<Organization>, StoreError> {
        let dto: Option<OrganizationDto> = self.dto(Table::Organizations, id.as_str())?;
        Ok(dto.map(|dto| Keyed(id.clone(), dto).into()))
    }

    /// All organizations by id; there are at most [`limits::MAX_ORGANIZATIONS`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn organizations(&self) -> Result<Vec<Organization>, StoreError> {
        let table = Table::Organizations;
        self.scan(table, &Span::all(), Order::Ascending, usize::MAX)?
            .iter()
            .map(|(key, value)| {
                let dto: OrganizationDto = decode(table, key, value)?;
                Ok(Keyed(id_of_key(table, key)?, dto).into())
            })
            .collect()
    }

    /// A workspace.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn workspace(&self, id: &WorkspaceId) -> Result<Option<Workspace>, StoreError> {
        let dto: Option<WorkspaceDto> = self.dto(Table::Workspaces, id.as_str())?;
        Ok(dto.map(|dto| Keyed(id.clone(), dto).into()))
    }

    /// The workspaces of one organization, or all, by id; there are at most [`limits::MAX_WORKSPACES`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn workspaces(
        &self,
        organization: Option<&OrganizationId>,
    ) -> Result<Vec<Workspace>, StoreError> {
        let table = Table::Workspaces;
        if let Some(organization) = organization {
            let ids: Vec<WorkspaceId> =
                self.ids_below(Table::WorkspacesOfOrganization, organization.as_str())?;
            return ids
                .iter()
                .map(|id| {
                    self.workspace(id)?
                        .ok_or_else(|| dangling(table, id.as_str()))
                })
                .collect();
        }
        self.scan(table, &Span::all(), Order::Ascending, usize::MAX)?
            .iter()
            .map(|(key, value)| {
                let dto: WorkspaceDto = decode(table, key, value)?;
                Ok(Keyed(id_of_key(table, key)?, dto).into())
            })
            .collect()
    }

    /// A credential with its secrets.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn credential(&self, id: &CredentialId) -> Result<Option<Credential>, StoreError> {
        let dto: Option<CredentialDto> = self.dto(Table::Credentials, id.as_str())?;
        dto.map(|dto| dto.open(id.clone(), self.vault)).transpose()
    }

    /// The credentials of one organization; there are at most [`limits::MAX_CREDENTIALS_PER_ORGANIZATION`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn credentials(
        &self,
        organization: &OrganizationId,
    ) -> Result<Vec<Credential>, StoreError> {
        let ids: Vec<CredentialId> =
            self.ids_below(Table::CredentialsOfOrganization, organization.as_str())?;
        ids.iter()
            .map(|id| {
                self.credential(id)?
                    .ok_or_else(|| dangling(Table::Credentials, id.as_str()))
            })
            .collect()
    }

    /// A lease, live or ended.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn lease(&self, id: &LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
        let dto: Option<LeaseDto> = self.dto(Table::Leases, id.as_str())?;
        Ok(dto.map(|dto| Keyed(id.clone(), dto).into()))
    }

    /// All leases that have not ended, by workspace; there are at most [`limits::MAX_LIVE_LEASES`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn leases(&self) -> Result<Vec<LeaseRecord>, StoreError> {
        let table = Table::LiveLeases;
        self.scan(table, &Span::all(), Order::Ascending, usize::MAX)?
            .iter()
            .map(|(key, _)| {
                let separator = key.iter().position(|byte| *byte == b'/');
                let id = &key[separator.map_or(0, |at| at + 1)..];
                let id: LeaseId = id_of_key(table, id)?;
                self.lease(&id)?
                    .ok_or_else(|| dangling(Table::Leases, id.as_str()))
            })
            .collect()
    }

    /// How many leases have not ended.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn live_lease_count(&self) -> Result<u64, StoreError> {
        self.count(counter::LIVE_LEASES)
    }

    /// The chat's lease that has not ended.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn live_lease_of_chat(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
    ) -> Result<Option<LeaseRecord>, StoreError> {
        let newest = self.newest_lease_of_chat(workspace, chat)?;
        Ok(newest.filter(|lease| lease.state != LeaseState::Ended))
    }

    /// The chat's newest lease, live or ended.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn newest_lease_of_chat(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
    ) -> Result<Option<LeaseRecord>, StoreError> {
        let key = chat_key(workspace, chat);
        let Some(value) = self.get(Table::LeaseOfChat, key.as_bytes())? else {
            return Ok(None);
        };
        let id: LeaseId = id_of_key(Table::LeaseOfChat, &value)?;
        self.lease(&id)?
            .ok_or_else(|| dangling(Table::Leases, id.as_str()))
            .map(Some)
    }

    /// Leases that ended before `before` (all when absent), the last ended first, at most `limit`
    /// ([`limits::MAX_PAGE_ROWS`] caps it).
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn ended_leases(
        &self,
        before: Option<UnixMillis>,
        limit: usize,
    ) -> Result<Vec<LeaseRecord>, StoreError> {
        let span = before.map_or_else(Span::all, |before| Span::before(before.0.to_be_bytes()));
        let limit = limit.min(limits::MAX_PAGE_ROWS);
        self.scan(Table::EndedLeases, &span, Order::Descending, limit)?
            .iter()
            .map(|(key, _)| {
                let id = lease_of_ended_key(key)
                    .ok_or_else(|| broken(Table::EndedLeases, key, "its key is no lease"))?;
                self.lease(&id)?
                    .ok_or_else(|| dangling(Table::Leases, id.as_str()))
            })
            .collect()
    }

    pub(crate) fn is_listed_as_ended(&self, lease: &LeaseRecord) -> Result<bool, StoreError> {
        self.has(Table::EndedLeases, &ended_key(lease.changed_at, &lease.id))
    }

    /// A collected file.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn output(&self, id: &OutputId) -> Result<Option<OutputRecord>, StoreError> {
        let dto: Option<OutputDto> = self.dto(Table::Outputs, id.as_str())?;
        Ok(dto.map(|dto| Keyed(id.clone(), dto).into()))
    }

    /// The collected files of a chat, the newest first; there are at most [`limits::MAX_OUTPUTS_PER_CHAT`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn outputs_of_chat(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
    ) -> Result<Vec<OutputRecord>, StoreError> {
        self.outputs_below(&joined(workspace.as_str(), chat.as_str()), usize::MAX)
    }

    /// Some collected files of a workspace, at most `limit` ([`limits::MAX_PAGE_ROWS`] caps it): to
    /// delete them all, a page at a time.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn outputs_of_workspace(
        &self,
        workspace: &WorkspaceId,
        limit: usize,
    ) -> Result<Vec<OutputRecord>, StoreError> {
        self.outputs_below(workspace.as_str(), limit.min(limits::MAX_PAGE_ROWS))
    }

    /// Some files that were collected for one member of a workspace, at most `limit`
    /// ([`limits::MAX_PAGE_ROWS`] caps it): to delete them all, a page at a time.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn outputs_of_user(
        &self,
        workspace: &WorkspaceId,
        user: &UserId,
        limit: usize,
    ) -> Result<Vec<OutputRecord>, StoreError> {
        let mut outputs = self.outputs_below(workspace.as_str(), usize::MAX)?;
        outputs.retain(|output| output.user == *user);
        outputs.truncate(limit.min(limits::MAX_PAGE_ROWS));
        Ok(outputs)
    }

    fn outputs_below(&self, prefix: &str, limit: usize) -> Result<Vec<OutputRecord>, StoreError> {
        let table = Table::OutputsOfChat;
        self.scan(table, &Span::below(prefix), Order::Descending, limit)?
            .iter()
            .map(|(key, _)| {
                let id =
                    output_of_key(key).ok_or_else(|| broken(table, key, "its key is no output"))?;
                self.output(&id)?
                    .ok_or_else(|| dangling(Table::Outputs, id.as_str()))
            })
            .collect()
    }

    /// A page of the audit trail, the newest rows first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn audit(&self, page: AuditPage) -> Result<Vec<AuditEntry>, StoreError> {
        let table = Table::Audit;
        let span = page
            .before
            .map_or_else(Span::all, |before| Span::before(before.to_be_bytes()));
        let limit = page.limit.min(limits::MAX_PAGE_ROWS);
        self.scan(table, &span, Order::Descending, limit)?
            .iter()
            .map(|(key, value)| {
                let number = <[u8; 8]>::try_from(key.as_slice())
                    .map(u64::from_be_bytes)
                    .map_err(|_| broken(table, key, "its key is no number"))?;
                let dto: AuditDto = decode(table, key, value)?;
                Ok(AuditEntry {
                    number,
                    row: dto.into(),
                })
            })
            .collect()
    }
}

/// An index names a row that is not there.
fn dangling(table: Table, key: &str) -> StoreError {
    broken(
        table,
        key.as_bytes(),
        "an index names it, but it is missing",
    )
}
