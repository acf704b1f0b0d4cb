//! Objects that the configuration declares: their marks, and how they are made what they should be.
//!
//! A mark is a row that says that an object is declared. It is written and removed only by
//! [`Tx::reconcile`], when the daemon starts, so it holds for as long as that daemon runs. An object
//! with a mark exists; the API changes and deletes no such object.

use std::collections::BTreeSet;

use hotcell_core::{
    declared::{Declarations, DeclaredObject, DeclaredOrganization, DeclaredWorkspace},
    gate::QuotaSettings,
    model::{Actor, AuditRow, Organization, Workspace},
    network::NetworkPolicyRecord,
};
use hotcell_types::{OrganizationId, UnixMillis, WorkspaceId};
use serde::{Deserialize, Serialize};

use crate::{
    dto::{broken, decode},
    error::StoreError,
    rows::{Order, Snapshot},
    tables::{Span, Table, joined},
    tx::Tx,
};

/// The mark of a declared object, keyed by its kind and id.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum DeclarationDto {
    #[serde(rename = "1")]
    V1 { since: UnixMillis },
}

/// Why the objects that a configuration declares cannot be made so. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// A workspace of this id belongs to another organization.
    #[error(
        "workspaces.{workspace}.organization is {declared}, and the workspace is there and belongs to {stored}: a workspace never changes its organization; declare {stored}, or take another id"
    )]
    WorkspaceOfAnother {
        /// Which.
        workspace: WorkspaceId,
        /// Whose it is.
        stored: OrganizationId,
        /// Whose it should be.
        declared: OrganizationId,
    },
    /// The store refused, or failed.
    #[error("the objects that the configuration declares cannot be stored")]
    Store(#[from] StoreError),
}

/// What was done so that everything is as it is declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reconciled {
    /// What was made or changed, or is declared from now on.
    pub changed: Vec<DeclaredObject>,
    /// What is no longer declared. It stays as it is and can be changed again.
    pub released: Vec<DeclaredObject>,
    /// Workspaces that are being deleted: they are made anew at the next start.
    pub being_deleted: Vec<WorkspaceId>,
}

fn key(object: &DeclaredObject) -> String {
    let id = match object {
        DeclaredObject::Organization(id) | DeclaredObject::NetworkPolicy(id) => id.as_str(),
        DeclaredObject::Workspace(id) => id.as_str(),
    };
    joined(object.kind(), id)
}

fn of_key(key: &[u8]) -> Option<DeclaredObject> {
    let (kind, id) = std::str::from_utf8(key).ok()?.split_once('/')?;
    match kind {
        "organization" => Some(DeclaredObject::Organization(id.parse().ok()?)),
        "network_policy" => Some(DeclaredObject::NetworkPolicy(id.parse().ok()?)),
        "workspace" => Some(DeclaredObject::Workspace(id.parse().ok()?)),
        _ => None,
    }
}

impl Snapshot<'_> {
    /// Whether the configuration declares it.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn is_declared(&self, object: &DeclaredObject) -> Result<bool, StoreError> {
        self.has(Table::Declarations, key(object).as_bytes())
    }

    /// Everything that the configuration declares; bounded by what a configuration may declare.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn declared(&self) -> Result<Vec<DeclaredObject>, StoreError> {
        let table = Table::Declarations;
        self.scan(table, &Span::all(), Order::Ascending, usize::MAX)?
            .iter()
            .map(|(key, value)| {
                let DeclarationDto::V1 { .. } = decode(table, key, value)?;
                of_key(key).ok_or_else(|| broken(table, key, "its key names nothing"))
            })
            .collect()
    }
}

impl Tx<'_> {
    /// Makes everything as it is declared, and lets go of what no longer is: all of it with its audit rows,
    /// or nothing. Writes nothing when everything is so already.
    ///
    /// # Errors
    /// See [`DeclareError`].
    pub fn reconcile(
        &mut self,
        declarations: &Declarations,
        at: UnixMillis,
    ) -> Result<Reconciled, DeclareError> {
        let mut done = Reconciled::default();
        let wanted: BTreeSet<DeclaredObject> = declarations.objects().into_iter().collect();
        for old in self.declared()? {
            if !wanted.contains(&old) {
                self.remove(Table::Declarations, key(&old).as_bytes());
                self.note(at, &old, "released", &[])?;
                done.released.push(old);
            }
        }
        for organization in &declarations.organizations {
            self.declare_organization(organization, at, &mut done)?;
        }
        for workspace in &declarations.workspaces {
            self.declare_workspace(workspace, at, &mut done)?;
        }
        Ok(done)
    }

    fn declare_organization(
        &mut self,
        wanted: &DeclaredOrganization,
        at: UnixMillis,
        done: &mut Reconciled,
    ) -> Result<(), StoreError> {
        let object = DeclaredObject::Organization(wanted.id.clone());
        let old = self.organization(&wanted.id)?;
        let new = Organization {
            id: wanted.id.clone(),
            name: wanted.name.clone(),
            enabled: wanted.enabled,
            profile: wanted.profile.clone(),
            created_at: old.as_ref().map_or(at, |old| old.created_at),
        };
        let mut fields = Vec::new();
        let differs = |same: fn(&Organization, &Organization) -> bool| {
            old.as_ref().is_none_or(|old| !same(old, &new))
        };
        for (field, differs) in [
            ("name", differs(|a, b| a.name == b.name)),
            ("enabled", differs(|a, b| a.enabled == b.enabled)),
            ("profile", differs(|a, b| a.profile == b.profile)),
        ] {
            fields.extend(differs.then_some(field));
        }
        if old.as_ref() != Some(&new) {
            self.put_organization(&new)?;
        }
        self.mark_declared(object, old.is_none(), &fields, at, done)?;
        if let Some(text) = &wanted.network_policy {
            self.declare_network_policy(&wanted.id, text, at, done)?;
        }
        Ok(())
    }

    fn declare_network_policy(
        &mut self,
        organization: &OrganizationId,
        text: &str,
        at: UnixMillis,
        done: &mut Reconciled,
    ) -> Result<(), StoreError> {
        let old = self.network_policy(organization)?;
        let differs = old.as_ref().is_none_or(|old| old.text != text);
        if differs {
            self.put_network_policy(&NetworkPolicyRecord {
                organization: organization.clone(),
                text: text.to_owned(),
                changed_at: at,
            })?;
        }
        let fields: &[&str] = if differs { &["network_policy"] } else { &[] };
        let object = DeclaredObject::NetworkPolicy(organization.clone());
        self.mark_declared(object, old.is_none(), fields, at, done)
    }

    fn declare_workspace(
        &mut self,
        wanted: &DeclaredWorkspace,
        at: UnixMillis,
        done: &mut Reconciled,
    ) -> Result<(), DeclareError> {
        if self.deletion(&wanted.id, None)?.is_some() {
            done.being_deleted.push(wanted.id.clone());
            return Ok(());
        }
        let old = self.workspace(&wanted.id)?;
        if let Some(old) = &old
            && old.organization != wanted.organization
        {
            return Err(DeclareError::WorkspaceOfAnother {
                workspace: wanted.id.clone(),
                stored: old.organization.clone(),
                declared: wanted.organization.clone(),
            });
        }
        let new = Workspace {
            id: wanted.id.clone(),
            organization: wanted.organization.clone(),
            name: wanted.name.clone(),
            enabled: wanted.enabled,
            created_at: old.as_ref().map_or(at, |old| old.created_at),
        };
        let mut fields = Vec::new();
        if old.is_none() {
            fields.push("organization");
        }
        if old.as_ref().is_none_or(|old| old.name != new.name) {
            fields.push("name");
        }
        if old.as_ref().is_none_or(|old| old.enabled != new.enabled) {
            fields.push("enabled");
        }
        if old.as_ref() != Some(&new) {
            self.put_workspace(&new)?;
        }
        let quotas = self.quota_settings(&wanted.id)?;
        if quotas != wanted.quotas {
            fields.extend(quota_fields(&quotas, &wanted.quotas));
            self.put_quotas(&wanted.id, &wanted.quotas)?;
        }
        let object = DeclaredObject::Workspace(wanted.id.clone());
        self.mark_declared(object, old.is_none(), &fields, at, done)?;
        Ok(())
    }

    /// Marks what is now as it is declared, and writes down what that took.
    fn mark_declared(
        &mut self,
        object: DeclaredObject,
        made: bool,
        fields: &[&str],
        at: UnixMillis,
        done: &mut Reconciled,
    ) -> Result<(), StoreError> {
        let is_new = !self.is_declared(&object)?;
        if made || !fields.is_empty() {
            let action = match (&object, made) {
                (DeclaredObject::NetworkPolicy(_), _) => "saved",
                (_, true) => "created",
                (_, false) => "updated",
            };
            self.note(at, &object, action, fields)?;
        }
        if is_new {
            let mark = DeclarationDto::V1 { since: at };
            self.put(Table::Declarations, &key(&object), &mark)?;
            self.note(at, &object, "declared", &[])?;
        }
        if is_new || made || !fields.is_empty() {
            done.changed.push(object);
        }
        Ok(())
    }

    fn note(
        &mut self,
        at: UnixMillis,
        object: &DeclaredObject,
        action: &str,
        fields: &[&str],
    ) -> Result<(), StoreError> {
        self.audit(AuditRow {
            at,
            actor: Actor::System,
            action: format!("{}.{action}", object.kind()),
            subject: object.subject(),
            fields: fields.iter().map(|&field| field.to_owned()).collect(),
            request: None,
        })?;
        Ok(())
    }
}

fn quota_fields(old: &QuotaSettings, new: &QuotaSettings) -> Vec<&'static str> {
    [
        (
            "quotas.max_concurrent",
            old.max_concurrent != new.max_concurrent,
        ),
        (
            "quotas.max_resource_class",
            old.max_resource_class != new.max_resource_class,
        ),
        (
            "quotas.max_job_seconds",
            old.max_job_seconds != new.max_job_seconds,
        ),
        (
            "quotas.max_artifact_bytes_per_day",
            old.max_artifact_bytes_per_day != new.max_artifact_bytes_per_day,
        ),
        (
            "quotas.max_jobs_per_hour",
            old.max_jobs_per_hour != new.max_jobs_per_hour,
        ),
    ]
    .into_iter()
    .filter_map(|(field, differs)| differs.then_some(field))
    .collect()
}
