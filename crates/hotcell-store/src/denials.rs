//! What the gate refused, the last [`limits::MAX_DENIALS`] of them.

use hotcell_core::gate::{DenialRecord, QuotaValue};
use hotcell_types::{
    ChatId, OrganizationId, ResourceClass, Role, UnixMillis, UserId, WorkspaceId, limits,
};
use serde::{Deserialize, Serialize};

use crate::{
    dto::{ClassV1, broken, decode, encode},
    error::StoreError,
    rows::{Order, Snapshot},
    tables::{Span, Table, meta_key},
    tx::Tx,
};

/// A denial, keyed by its number.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum DenialDto {
    #[serde(rename = "1")]
    V1(DenialV1),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DenialV1 {
    at: UnixMillis,
    organization: OrganizationId,
    workspace: WorkspaceId,
    chat: ChatId,
    user: UserId,
    role: RoleV1,
    name: String,
    limit: Option<LimitV1>,
    request: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoleV1 {
    Viewer,
    Editor,
    Admin,
    Owner,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitV1 {
    Count(u64),
    Seconds(u64),
    Bytes(u64),
    Class(ClassV1),
}

impl From<&DenialRecord> for DenialDto {
    fn from(record: &DenialRecord) -> Self {
        Self::V1(DenialV1 {
            at: record.at,
            organization: record.organization.clone(),
            workspace: record.workspace.clone(),
            chat: record.chat.clone(),
            user: record.user.clone(),
            role: match record.role {
                Role::Viewer => RoleV1::Viewer,
                Role::Editor => RoleV1::Editor,
                Role::Admin => RoleV1::Admin,
                Role::Owner => RoleV1::Owner,
            },
            name: record.name.clone(),
            limit: record.limit.map(|limit| match limit {
                QuotaValue::Count(limit) => LimitV1::Count(limit),
                QuotaValue::Seconds(limit) => LimitV1::Seconds(limit),
                QuotaValue::Bytes(limit) => LimitV1::Bytes(limit),
                QuotaValue::Class(class) => LimitV1::Class(class.into()),
            }),
            request: record.request.clone(),
        })
    }
}

impl From<DenialDto> for DenialRecord {
    fn from(DenialDto::V1(v1): DenialDto) -> Self {
        Self {
            at: v1.at,
            organization: v1.organization,
            workspace: v1.workspace,
            chat: v1.chat,
            user: v1.user,
            role: match v1.role {
                RoleV1::Viewer => Role::Viewer,
                RoleV1::Editor => Role::Editor,
                RoleV1::Admin => Role::Admin,
                RoleV1::Owner => Role::Owner,
            },
            name: v1.name,
            limit: v1.limit.map(|limit| match limit {
                LimitV1::Count(limit) => QuotaValue::Count(limit),
                LimitV1::Seconds(limit) => QuotaValue::Seconds(limit),
                LimitV1::Bytes(limit) => QuotaValue::Bytes(limit),
                LimitV1::Class(class) => QuotaValue::Class(ResourceClass::from(class)),
            }),
            request: v1.request,
        }
    }
}

/// Which denials to read; the newest come first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DenialFilter {
    /// Only of this workspace.
    pub workspace: Option<WorkspaceId>,
    /// Only with this name.
    pub name: Option<String>,
    /// Only older than the one with this number.
    pub before: Option<u64>,
    /// How many at most; [`limits::MAX_PAGE_ROWS`] caps it.
    pub limit: usize,
}

/// A denial with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenialEntry {
    /// Counted up by one, never used again.
    pub number: u64,
    /// The denial.
    pub record: DenialRecord,
}

impl Snapshot<'_> {
    /// A page of the denials. Looks at [`limits::MAX_DENIALS`] rows at most: there are no more.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn denials(&self, filter: &DenialFilter) -> Result<Vec<DenialEntry>, StoreError> {
        let table = Table::Denials;
        let span = filter
            .before
            .map_or_else(Span::all, |before| Span::before(before.to_be_bytes()));
        let limit = filter.limit.min(limits::MAX_PAGE_ROWS);
        let mut found = Vec::new();
        for (key, value) in self.scan(table, &span, Order::Descending, usize::MAX)? {
            if found.len() >= limit {
                break;
            }
            let record: DenialRecord = decode::<DenialDto>(table, &key, &value)?.into();
            let is_of = |workspace: &WorkspaceId| record.workspace == *workspace;
            let is_named = |name: &String| record.name == *name;
            if filter.workspace.as_ref().is_none_or(is_of)
                && filter.name.as_ref().is_none_or(is_named)
            {
                let number = <[u8; 8]>::try_from(key.as_slice())
                    .map(u64::from_be_bytes)
                    .map_err(|_| broken(table, &key, "its key is no number"))?;
                found.push(DenialEntry { number, record });
            }
        }
        Ok(found)
    }
}

impl Tx<'_> {
    /// Writes denials down; the oldest beyond [`limits::MAX_DENIALS`] are forgotten.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn put_denials(&mut self, records: &[DenialRecord]) -> Result<(), StoreError> {
        let mut number: u64 = self
            .get(Table::Meta, meta_key::NEXT_DENIAL)?
            .map_or(Ok(1), |bytes| {
                decode(Table::Meta, meta_key::NEXT_DENIAL, &bytes)
            })?;
        for record in records {
            let value = encode(&DenialDto::from(record))?;
            self.put_bytes(Table::Denials, &number.to_be_bytes(), value)?;
            if let Some(oldest) = number.checked_sub(limits::MAX_DENIALS) {
                self.remove(Table::Denials, &oldest.to_be_bytes());
            }
            number += 1;
        }
        self.put_bytes(Table::Meta, meta_key::NEXT_DENIAL, encode(&number)?)
    }
}
