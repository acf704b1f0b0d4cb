//! Deletions under way: stored shape, changes and reads.

use hotcell_core::{deletion::DeletionRecord, model::Actor};
use hotcell_types::{UnixMillis, UserId, WorkspaceId};
use serde::{Deserialize, Serialize};

use crate::{
    dto::{ActorV1, broken, decode},
    error::StoreError,
    rows::{Order, Snapshot},
    tables::{Span, Table, joined},
    tx::Tx,
};

/// A deletion, keyed by its workspace, or by workspace/user.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum DeletionDto {
    #[serde(rename = "1")]
    V1(DeletionV1),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DeletionV1 {
    actor: ActorV1,
    requested_at: UnixMillis,
    request: Option<String>,
}

impl From<&DeletionRecord> for DeletionDto {
    fn from(deletion: &DeletionRecord) -> Self {
        Self::V1(DeletionV1 {
            actor: (&deletion.actor).into(),
            requested_at: deletion.requested_at,
            request: deletion.request.clone(),
        })
    }
}

impl From<&Actor> for ActorV1 {
    fn from(actor: &Actor) -> Self {
        match actor {
            Actor::Operator => Self::Operator,
            Actor::LocalOperator => Self::LocalOperator,
            Actor::Backend(credential) => Self::Backend {
                credential: credential.clone(),
            },
            Actor::System => Self::System,
        }
    }
}

impl From<ActorV1> for Actor {
    fn from(actor: ActorV1) -> Self {
        match actor {
            ActorV1::Operator => Self::Operator,
            ActorV1::LocalOperator => Self::LocalOperator,
            ActorV1::Backend { credential } => Self::Backend(credential),
            ActorV1::System => Self::System,
        }
    }
}

fn key(workspace: &WorkspaceId, user: Option<&UserId>) -> String {
    user.map_or_else(
        || workspace.to_string(),
        |user| joined(workspace.as_str(), user.as_str()),
    )
}

impl Snapshot<'_> {
    /// The deletion of a workspace, or of a member of it, that is under way.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn deletion(
        &self,
        workspace: &WorkspaceId,
        user: Option<&UserId>,
    ) -> Result<Option<DeletionRecord>, StoreError> {
        let dto: Option<DeletionDto> = self.dto(Table::Deletions, &key(workspace, user))?;
        Ok(dto.map(|DeletionDto::V1(v1)| DeletionRecord {
            workspace: workspace.clone(),
            user: user.cloned(),
            actor: Actor::from(v1.actor),
            requested_at: v1.requested_at,
            request: v1.request,
        }))
    }

    /// All deletions that are under way.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn deletions(&self) -> Result<Vec<DeletionRecord>, StoreError> {
        let table = Table::Deletions;
        self.scan(table, &Span::all(), Order::Ascending, usize::MAX)?
            .iter()
            .map(|(key, value)| {
                let bad = || broken(table, key, "its key names no workspace or member");
                let text = std::str::from_utf8(key).map_err(|_| bad())?;
                let (workspace, user) = text
                    .split_once('/')
                    .map_or((text, None), |(workspace, user)| (workspace, Some(user)));
                let DeletionDto::V1(v1) = decode(table, key, value)?;
                Ok(DeletionRecord {
                    workspace: workspace.parse().map_err(|_| bad())?,
                    user: user.map(str::parse).transpose().map_err(|_| bad())?,
                    actor: v1.actor.into(),
                    requested_at: v1.requested_at,
                    request: v1.request,
                })
            })
            .collect()
    }
}

impl Tx<'_> {
    /// Writes down that something is to be deleted. Whether that is new.
    ///
    /// # Errors
    /// The workspace does not exist, or the store cannot be read.
    pub fn begin_deletion(&mut self, deletion: &DeletionRecord) -> Result<bool, StoreError> {
        self.need_workspace(&deletion.workspace)?;
        let key = key(&deletion.workspace, deletion.user.as_ref());
        if self.has(Table::Deletions, key.as_bytes())? {
            return Ok(false);
        }
        self.put(Table::Deletions, &key, &DeletionDto::from(deletion))?;
        Ok(true)
    }

    /// Forgets a deletion: it is done. Those of members go with that of their workspace.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn finish_deletion(&mut self, deletion: &DeletionRecord) -> Result<(), StoreError> {
        if deletion.user.is_none() {
            let below = Span::below(deletion.workspace.as_str());
            let rows = self.scan(Table::Deletions, &below, Order::Ascending, usize::MAX)?;
            for (key, _) in rows {
                self.remove(Table::Deletions, &key);
            }
        }
        let key = key(&deletion.workspace, deletion.user.as_ref());
        self.remove(Table::Deletions, key.as_bytes());
        Ok(())
    }
}
