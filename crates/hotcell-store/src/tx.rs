//! What a change can write. Indexes and counters follow by themselves.

use std::ops::Deref;

use hotcell_core::model::{
    AuditRow, Credential, Deployment, LeaseRecord, LeaseState, Organization, OutputRecord,
    Workspace,
};
use hotcell_types::{
    CredentialId, IdSource, OrganizationId, OutputId, UnixMillis, WorkspaceId, limits,
};
use serde::Serialize;

use crate::{
    dto::{
        AuditDto, CredentialDto, DeploymentDto, LeaseDto, OrganizationDto, OutputDto, WorkspaceDto,
        decode, encode,
    },
    error::StoreError,
    rows::{Layer, Order, Snapshot},
    tables::{
        Span, Table, chat_key, counter, ended_key, joined, lease_of_ended_key, meta_key, output_key,
    },
};

/// One change: reads see what it wrote. All of it is kept, or nothing.
pub struct Tx<'a> {
    view: Snapshot<'a>,
    ids: &'a dyn IdSource,
    bytes: usize,
}

impl<'a> Deref for Tx<'a> {
    type Target = Snapshot<'a>;
    fn deref(&self) -> &Snapshot<'a> {
        &self.view
    }
}

impl<'a> Tx<'a> {
    pub(crate) fn new(view: Snapshot<'a>, ids: &'a dyn IdSource) -> Self {
        Self {
            view,
            ids,
            bytes: 0,
        }
    }

    pub(crate) fn into_layer(self) -> Layer {
        self.view.own
    }

    pub(crate) fn put_bytes(
        &mut self,
        table: Table,
        key: &[u8],
        value: Vec<u8>,
    ) -> Result<(), StoreError> {
        self.bytes += key.len() + value.len();
        if self.bytes > limits::MAX_STORE_CHANGE_BYTES {
            return Err(StoreError::TooLarge {
                what: "a change",
                bytes: self.bytes,
                limit: limits::MAX_STORE_CHANGE_BYTES,
            });
        }
        self.view.own.insert((table, key.to_vec()), Some(value));
        Ok(())
    }

    pub(crate) fn put(
        &mut self,
        table: Table,
        key: &str,
        dto: &impl Serialize,
    ) -> Result<(), StoreError> {
        let bytes = encode(dto)?;
        self.put_bytes(table, key.as_bytes(), bytes)
    }

    pub(crate) fn mark(&mut self, table: Table, key: &[u8]) -> Result<(), StoreError> {
        self.put_bytes(table, key, Vec::new())
    }

    pub(crate) fn remove(&mut self, table: Table, key: &[u8]) {
        self.view.own.insert((table, key.to_vec()), None);
    }

    pub(crate) fn count_up(
        &mut self,
        name: &str,
        what: &'static str,
        limit: u64,
    ) -> Result<(), StoreError> {
        let count = self.count(name)?;
        if count >= limit {
            return Err(StoreError::LimitReached { what, limit });
        }
        self.put(Table::Counters, name, &(count + 1))
    }

    pub(crate) fn count_down(&mut self, name: &str) -> Result<(), StoreError> {
        match self.count(name)?.saturating_sub(1) {
            0 => self.remove(Table::Counters, name.as_bytes()),
            count => self.put(Table::Counters, name, &count)?,
        }
        Ok(())
    }

    pub(crate) fn need_organization(&self, id: &OrganizationId) -> Result<(), StoreError> {
        if self.has(Table::Organizations, id.as_str().as_bytes())? {
            Ok(())
        } else {
            Err(StoreError::NotFound {
                what: "organization",
                id: id.to_string(),
            })
        }
    }

    pub(crate) fn need_workspace(&self, id: &WorkspaceId) -> Result<(), StoreError> {
        if self.has(Table::Workspaces, id.as_str().as_bytes())? {
            Ok(())
        } else {
            Err(StoreError::NotFound {
                what: "workspace",
                id: id.to_string(),
            })
        }
    }

    fn is_empty(&self, table: Table, prefix: &str) -> Result<bool, StoreError> {
        let rows = self.scan(table, &Span::below(prefix), Order::Ascending, 1)?;
        Ok(rows.is_empty())
    }

    /// Writes the deployment's switches.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn put_deployment(&mut self, deployment: &Deployment) -> Result<(), StoreError> {
        let bytes = encode(&DeploymentDto::from(deployment))?;
        self.put_bytes(Table::Meta, meta_key::DEPLOYMENT, bytes)
    }

    /// Makes or replaces an organization.
    ///
    /// # Errors
    /// There would be too many, or the store cannot be read.
    pub fn put_organization(&mut self, organization: &Organization) -> Result<(), StoreError> {
        let key = organization.id.as_str();
        if !self.has(Table::Organizations, key.as_bytes())? {
            let limit = limits::MAX_ORGANIZATIONS;
            self.count_up(counter::ORGANIZATIONS, "organizations", limit)?;
        }
        self.put(
            Table::Organizations,
            key,
            &OrganizationDto::from(organization),
        )
    }

    /// Deletes an organization with its credentials. Whether there was one.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while it has workspaces; the store cannot be read.
    pub fn delete_organization(&mut self, id: &OrganizationId) -> Result<bool, StoreError> {
        let key = id.as_str();
        if !self.has(Table::Organizations, key.as_bytes())? {
            return Ok(false);
        }
        if !self.is_empty(Table::WorkspacesOfOrganization, key)? {
            return Err(StoreError::InUse {
                what: "organization",
                id: id.to_string(),
                by: "workspaces",
            });
        }
        for credential in self.credentials(id)? {
            self.delete_credential(&credential.id)?;
        }
        self.delete_network_policy(id)?;
        self.remove(Table::Organizations, key.as_bytes());
        self.count_down(counter::ORGANIZATIONS)?;
        Ok(true)
    }

    /// Makes or replaces a workspace.
    ///
    /// # Errors
    /// Its organization does not exist or would change, there would be too many, or the store cannot be read.
    pub fn put_workspace(&mut self, workspace: &Workspace) -> Result<(), StoreError> {
        let key = workspace.id.as_str();
        match self.workspace(&workspace.id)? {
            Some(old) if old.organization != workspace.organization => {
                return Err(StoreError::Immutable {
                    what: "workspace",
                    id: workspace.id.to_string(),
                    field: "organization",
                });
            }
            Some(_) => {}
            None => {
                self.need_organization(&workspace.organization)?;
                self.count_up(counter::WORKSPACES, "workspaces", limits::MAX_WORKSPACES)?;
                let index = joined(workspace.organization.as_str(), key);
                self.mark(Table::WorkspacesOfOrganization, index.as_bytes())?;
            }
        }
        self.put(Table::Workspaces, key, &WorkspaceDto::from(workspace))
    }

    /// Deletes a workspace. Whether there was one.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while it has live leases or collected files; the store cannot be read.
    pub fn delete_workspace(&mut self, id: &WorkspaceId) -> Result<bool, StoreError> {
        let Some(workspace) = self.workspace(id)? else {
            return Ok(false);
        };
        for (table, by) in [
            (Table::LiveLeases, "live leases"),
            (Table::OutputsOfChat, "collected files"),
        ] {
            if !self.is_empty(table, id.as_str())? {
                return Err(StoreError::InUse {
                    what: "workspace",
                    id: id.to_string(),
                    by,
                });
            }
        }
        let index = joined(workspace.organization.as_str(), id.as_str());
        self.remove(Table::WorkspacesOfOrganization, index.as_bytes());
        self.remove(Table::Workspaces, id.as_str().as_bytes());
        self.forget_quotas(id)?;
        self.forget_idempotency_keys(id)?;
        self.count_down(counter::WORKSPACES)?;
        Ok(true)
    }

    /// Makes or replaces a credential; its secrets are sealed.
    ///
    /// # Errors
    /// Its organization does not exist or would change, there would be too many of them or too
    /// many secrets, or the store cannot be read.
    pub fn put_credential(&mut self, credential: &Credential) -> Result<(), StoreError> {
        if credential.secrets.len() > limits::MAX_SECRETS_PER_CREDENTIAL {
            return Err(StoreError::LimitReached {
                what: "secrets of the credential",
                limit: limits::MAX_SECRETS_PER_CREDENTIAL as u64,
            });
        }
        let key = credential.id.as_str();
        let old: Option<CredentialDto> = self.dto(Table::Credentials, key)?;
        match old {
            Some(old) if *old.organization() != credential.organization => {
                return Err(StoreError::Immutable {
                    what: "credential",
                    id: credential.id.to_string(),
                    field: "organization",
                });
            }
            Some(_) => {}
            None => {
                self.need_organization(&credential.organization)?;
                self.count_up(
                    &counter::credentials(&credential.organization),
                    "credentials of the organization",
                    limits::MAX_CREDENTIALS_PER_ORGANIZATION as u64,
                )?;
                let index = joined(credential.organization.as_str(), key);
                self.mark(Table::CredentialsOfOrganization, index.as_bytes())?;
            }
        }
        let dto = CredentialDto::seal(credential, self.view.vault, self.ids)?;
        self.put(Table::Credentials, key, &dto)
    }

    /// Deletes a credential. Whether there was one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn delete_credential(&mut self, id: &CredentialId) -> Result<bool, StoreError> {
        let old: Option<CredentialDto> = self.dto(Table::Credentials, id.as_str())?;
        let Some(old) = old else {
            return Ok(false);
        };
        let index = joined(old.organization().as_str(), id.as_str());
        self.remove(Table::CredentialsOfOrganization, index.as_bytes());
        self.remove(Table::Credentials, id.as_str().as_bytes());
        self.count_down(&counter::credentials(old.organization()))?;
        Ok(true)
    }

    /// Makes or replaces a lease.
    ///
    /// # Errors
    /// [`StoreError::ChatHasLiveLease`] when the chat has another one that has not ended; a field
    /// that never changes would change; an ended lease would come back to life; its workspace does not
    /// exist; the store cannot be read.
    pub fn put_lease(&mut self, lease: &LeaseRecord) -> Result<(), StoreError> {
        let old = self.lease(&lease.id)?;
        if let Some(old) = &old {
            let fields = [
                ("organization", old.organization == lease.organization),
                ("workspace", old.workspace == lease.workspace),
                ("chat", old.chat == lease.chat),
                ("user", old.user == lease.user),
                ("profile", old.profile == lease.profile),
                ("time of creation", old.created_at == lease.created_at),
                (
                    "end",
                    old.state != LeaseState::Ended || lease.state == LeaseState::Ended,
                ),
            ];
            if let Some((field, _)) = fields.into_iter().find(|(_, same)| !same) {
                return Err(StoreError::Immutable {
                    what: "lease",
                    id: lease.id.to_string(),
                    field,
                });
            }
        } else {
            self.need_workspace(&lease.workspace)?;
        }
        let was_live = old
            .as_ref()
            .is_some_and(|old| old.state != LeaseState::Ended);
        let is_live = lease.state != LeaseState::Ended;
        let live = joined(lease.workspace.as_str(), lease.id.as_str());
        if is_live && !was_live {
            if let Some(other) = self.live_lease_of_chat(&lease.workspace, &lease.chat)? {
                return Err(StoreError::ChatHasLiveLease(other.id));
            }
            let limit = limits::MAX_LIVE_LEASES;
            self.count_up(counter::LIVE_LEASES, "live leases", limit)?;
            let of_workspace = counter::live_leases_of(&lease.workspace);
            self.count_up(&of_workspace, "live leases of the workspace", limit)?;
            self.mark(Table::LiveLeases, live.as_bytes())?;
            let chat = chat_key(&lease.workspace, &lease.chat);
            let id = lease.id.as_str().as_bytes().to_vec();
            self.put_bytes(Table::LeaseOfChat, chat.as_bytes(), id)?;
        }
        if was_live && !is_live {
            self.count_down(counter::LIVE_LEASES)?;
            self.count_down(&counter::live_leases_of(&lease.workspace))?;
            self.remove(Table::LiveLeases, live.as_bytes());
        }
        if !is_live {
            self.delete_lease_filter(&lease.id)?;
            if let Some(old) = &old
                && self.is_listed_as_ended(old)?
            {
                self.remove(Table::EndedLeases, &ended_key(old.changed_at, &old.id));
            }
            self.mark(Table::EndedLeases, &ended_key(lease.changed_at, &lease.id))?;
        }
        self.put(Table::Leases, lease.id.as_str(), &LeaseDto::from(lease))
    }

    /// Forgets leases that ended before `before`, the oldest first, at most `limit`
    /// ([`limits::MAX_PAGE_ROWS`] caps it). How many.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn forget_ended_leases(
        &mut self,
        before: UnixMillis,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let span = Span::before(before.0.to_be_bytes());
        let limit = limit.min(limits::MAX_PAGE_ROWS);
        let rows = self.scan(Table::EndedLeases, &span, Order::Ascending, limit)?;
        for (key, _) in &rows {
            self.remove(Table::EndedLeases, key);
            let Some(id) = lease_of_ended_key(key) else {
                continue;
            };
            if let Some(lease) = self.lease(&id)? {
                self.forget_jobs_of(&lease)?;
                let chat = chat_key(&lease.workspace, &lease.chat);
                let newest = self.get(Table::LeaseOfChat, chat.as_bytes())?;
                if newest.as_deref() == Some(id.as_str().as_bytes()) {
                    self.remove(Table::LeaseOfChat, chat.as_bytes());
                }
                self.remove(Table::Leases, id.as_str().as_bytes());
            }
        }
        Ok(rows.len())
    }

    /// Records a collected file. Records never change.
    ///
    /// # Errors
    /// There is one with this id already, its workspace does not exist, its chat has too many, or the store cannot be read.
    pub fn put_output(&mut self, output: &OutputRecord) -> Result<(), StoreError> {
        match self.output(&output.id)? {
            Some(same) if same == *output => return Ok(()),
            Some(_) => {
                return Err(StoreError::Immutable {
                    what: "output",
                    id: output.id.to_string(),
                    field: "record",
                });
            }
            None => {}
        }
        self.need_workspace(&output.workspace)?;
        self.count_up(
            &counter::outputs(&output.workspace, &output.chat),
            "collected files of the chat",
            limits::MAX_OUTPUTS_PER_CHAT,
        )?;
        let index = output_key(
            &output.workspace,
            &output.chat,
            output.created_at,
            &output.id,
        );
        self.mark(Table::OutputsOfChat, index.as_bytes())?;
        self.put(Table::Outputs, output.id.as_str(), &OutputDto::from(output))
    }

    /// Deletes the record of a collected file. Whether there was one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn delete_output(&mut self, id: &OutputId) -> Result<bool, StoreError> {
        let Some(output) = self.output(id)? else {
            return Ok(false);
        };
        let index = output_key(&output.workspace, &output.chat, output.created_at, id);
        self.remove(Table::OutputsOfChat, index.as_bytes());
        self.remove(Table::Outputs, id.as_str().as_bytes());
        self.count_down(&counter::outputs(&output.workspace, &output.chat))?;
        Ok(true)
    }

    /// Writes the time down, to see that the store can be written.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn probe(&mut self, now: UnixMillis) -> Result<(), StoreError> {
        let value = encode(&now)?;
        self.put_bytes(Table::Meta, meta_key::PROBE, value)
    }

    /// Adds a row to the audit trail. Its number.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn audit(&mut self, row: AuditRow) -> Result<u64, StoreError> {
        let number: u64 = self
            .get(Table::Meta, meta_key::NEXT_AUDIT)?
            .map_or(Ok(1), |bytes| {
                decode(Table::Meta, meta_key::NEXT_AUDIT, &bytes)
            })?;
        let next = encode(&(number + 1))?;
        self.put_bytes(Table::Meta, meta_key::NEXT_AUDIT, next)?;
        let value = encode(&AuditDto::from(&row))?;
        self.put_bytes(Table::Audit, &number.to_be_bytes(), value)?;
        Ok(number)
    }

    /// Forgets audit rows older than `before`, the oldest first, at most `limit`
    /// ([`limits::MAX_PAGE_ROWS`] caps it). How many.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn forget_audit(&mut self, before: UnixMillis, limit: usize) -> Result<usize, StoreError> {
        let limit = limit.min(limits::MAX_PAGE_ROWS);
        let rows = self.scan(Table::Audit, &Span::all(), Order::Ascending, limit)?;
        let mut forgotten = 0;
        for (key, value) in &rows {
            let row: AuditRow = decode::<AuditDto>(Table::Audit, key, value)?.into();
            if row.at >= before {
                break;
            }
            self.remove(Table::Audit, key);
            forgotten += 1;
        }
        Ok(forgotten)
    }
}
