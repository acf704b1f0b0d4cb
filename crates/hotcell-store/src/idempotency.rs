//! Idempotency keys: what became of the request that came with one.
//!
//! ```text
//!   (none) ──begin──▶ begun ──act──▶ acting ──finish──▶ done(answer)
//!                       │ └──────────finish──────────────▲
//!                       └─release─▶ (none)                      by time ─▶ (none)
//! ```
//! *Begun* has done nothing yet: a key that a crash left there is taken over. *Acting* may have
//! done something: what a crash left there is never done again, and whoever asks is told so.

use hotcell_types::{UnixMillis, WorkspaceId, limits};
use serde::{Deserialize, Serialize};

use crate::{
    error::StoreError,
    rows::{Order, Snapshot},
    tables::{Span, Table, counter, joined},
    tx::Tx,
};

/// An idempotency key, keyed by workspace and key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum IdempotencyDto {
    #[serde(rename = "1")]
    V1 {
        at: UnixMillis,
        fingerprint: String,
        state: StateV1,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum StateV1 {
    Begun { by: String },
    Acting { by: String },
    Done { answer: Option<String> },
}

/// How far the request with a key got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdempotencyState {
    /// It has done nothing yet. `by` is the daemon's start that began it.
    Begun {
        /// Of which start.
        by: String,
    },
    /// It may have done something.
    Acting {
        /// Of which start.
        by: String,
    },
    /// It has ended; the answer is absent when it was too long to keep.
    Done {
        /// JSON.
        answer: Option<String>,
    },
}

/// A request that came with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewIdempotencyKey {
    /// The workspace in which the key counts.
    pub workspace: WorkspaceId,
    /// The key, at most [`limits::MAX_IDEMPOTENCY_KEY_CHARACTERS`] of printable ASCII.
    pub key: String,
    /// Tells one request from another.
    pub fingerprint: String,
    /// This start of the daemon.
    pub by: String,
    /// The time.
    pub at: UnixMillis,
}

/// What the store knows of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdempotencyBegin {
    /// Nothing, or nothing that matters any more: it is begun now.
    Fresh,
    /// It came with another request.
    OtherRequest,
    /// This start of the daemon has begun it, and not ended.
    InProgress,
    /// An earlier start was cut off while it may have done something.
    CutOff,
    /// It has ended.
    Done {
        /// JSON; absent when it was too long to keep.
        answer: Option<String>,
    },
}

fn age_key(at: UnixMillis, row: &str) -> Vec<u8> {
    [&at.0.to_be_bytes()[..], row.as_bytes()].concat()
}

fn is_over(at: UnixMillis, now: UnixMillis) -> bool {
    at.plus_millis(limits::IDEMPOTENCY_RETENTION_MS) <= now
}

impl Snapshot<'_> {
    fn idempotency_row(
        &self,
        row: &str,
    ) -> Result<Option<(UnixMillis, String, StateV1)>, StoreError> {
        let dto: Option<IdempotencyDto> = self.dto(Table::IdempotencyKeys, row)?;
        Ok(dto.map(
            |IdempotencyDto::V1 {
                 at,
                 fingerprint,
                 state,
             }| (at, fingerprint, state),
        ))
    }

    /// How far the request with a key got.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn idempotency_state(
        &self,
        workspace: &WorkspaceId,
        key: &str,
    ) -> Result<Option<IdempotencyState>, StoreError> {
        let row = self.idempotency_row(&joined(workspace.as_str(), key))?;
        Ok(row.map(|(_, _, state)| match state {
            StateV1::Begun { by } => IdempotencyState::Begun { by },
            StateV1::Acting { by } => IdempotencyState::Acting { by },
            StateV1::Done { answer } => IdempotencyState::Done { answer },
        }))
    }
}

impl Tx<'_> {
    /// Begins a request with a key, unless one has begun.
    ///
    /// # Errors
    /// [`StoreError::LimitReached`] when the workspace has too many keys; the store cannot be
    /// read.
    pub fn begin_idempotent(
        &mut self,
        new: &NewIdempotencyKey,
    ) -> Result<IdempotencyBegin, StoreError> {
        self.forget_idempotency(new.at, limits::IDEMPOTENCY_KEYS_FORGOTTEN_AT_ONCE)?;
        let row = joined(new.workspace.as_str(), &new.key);
        if let Some((at, fingerprint, state)) = self.idempotency_row(&row)? {
            if !is_over(at, new.at) {
                if fingerprint != new.fingerprint {
                    return Ok(IdempotencyBegin::OtherRequest);
                }
                match state {
                    StateV1::Done { answer } => return Ok(IdempotencyBegin::Done { answer }),
                    StateV1::Begun { by } | StateV1::Acting { by } if by == new.by => {
                        return Ok(IdempotencyBegin::InProgress);
                    }
                    StateV1::Acting { .. } => return Ok(IdempotencyBegin::CutOff),
                    StateV1::Begun { .. } => {}
                }
            }
            self.remove_idempotency(&new.workspace, &row, at)?;
        }
        self.count_up(
            &counter::idempotency_keys(&new.workspace),
            "idempotency keys of the workspace",
            limits::MAX_IDEMPOTENCY_KEYS_PER_WORKSPACE,
        )?;
        self.mark(Table::IdempotencyAges, &age_key(new.at, &row))?;
        let dto = IdempotencyDto::V1 {
            at: new.at,
            fingerprint: new.fingerprint.clone(),
            state: StateV1::Begun { by: new.by.clone() },
        };
        self.put(Table::IdempotencyKeys, &row, &dto)?;
        Ok(IdempotencyBegin::Fresh)
    }

    fn set_idempotency(
        &mut self,
        workspace: &WorkspaceId,
        key: &str,
        state: StateV1,
    ) -> Result<(), StoreError> {
        let row = joined(workspace.as_str(), key);
        // Its workspace was deleted meanwhile: then nobody asks any more.
        let Some((at, fingerprint, _)) = self.idempotency_row(&row)? else {
            return Ok(());
        };
        let dto = IdempotencyDto::V1 {
            at,
            fingerprint,
            state,
        };
        self.put(Table::IdempotencyKeys, &row, &dto)
    }

    /// From now on the request may have done something.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn act_idempotent(
        &mut self,
        workspace: &WorkspaceId,
        key: &str,
        by: &str,
    ) -> Result<(), StoreError> {
        let by = by.to_owned();
        self.set_idempotency(workspace, key, StateV1::Acting { by })
    }

    /// The request has ended with this answer, which is kept unless it is longer than
    /// [`limits::MAX_IDEMPOTENT_ANSWER_BYTES`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn finish_idempotent(
        &mut self,
        workspace: &WorkspaceId,
        key: &str,
        answer: String,
    ) -> Result<(), StoreError> {
        let fits = answer.len() <= limits::MAX_IDEMPOTENT_ANSWER_BYTES;
        let answer = fits.then_some(answer);
        self.set_idempotency(workspace, key, StateV1::Done { answer })
    }

    /// The request has done nothing and will do nothing: the key is as good as new. One that is
    /// done stays so: its end may have been written by a commit that seemed to fail.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn release_idempotent(
        &mut self,
        workspace: &WorkspaceId,
        key: &str,
    ) -> Result<(), StoreError> {
        let row = joined(workspace.as_str(), key);
        match self.idempotency_row(&row)? {
            None | Some((_, _, StateV1::Done { .. })) => Ok(()),
            Some((at, ..)) => self.remove_idempotency(workspace, &row, at),
        }
    }

    fn remove_idempotency(
        &mut self,
        workspace: &WorkspaceId,
        row: &str,
        at: UnixMillis,
    ) -> Result<(), StoreError> {
        self.remove(Table::IdempotencyKeys, row.as_bytes());
        self.remove(Table::IdempotencyAges, &age_key(at, row));
        self.count_down(&counter::idempotency_keys(workspace))
    }

    /// Forgets keys past their time, the oldest first, at most `limit`. How many.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn forget_idempotency(
        &mut self,
        now: UnixMillis,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let before = now.0.saturating_sub(limits::IDEMPOTENCY_RETENTION_MS);
        // Up to and including that time.
        let span = Span::before(before.saturating_add(1).to_be_bytes());
        let limit = limit.min(limits::MAX_PAGE_ROWS);
        let rows = self.scan(Table::IdempotencyAges, &span, Order::Ascending, limit)?;
        for (age, _) in &rows {
            let row = std::str::from_utf8(age.get(8..).unwrap_or_default()).unwrap_or_default();
            let workspace = row.split('/').next().and_then(|id| id.parse().ok());
            self.remove(Table::IdempotencyAges, age);
            if let Some(workspace) = workspace
                && self.has(Table::IdempotencyKeys, row.as_bytes())?
            {
                self.remove(Table::IdempotencyKeys, row.as_bytes());
                self.count_down(&counter::idempotency_keys(&workspace))?;
            }
        }
        Ok(rows.len())
    }

    /// Forgets all keys of a workspace that is being deleted.
    pub(crate) fn forget_idempotency_keys(
        &mut self,
        workspace: &WorkspaceId,
    ) -> Result<(), StoreError> {
        let span = Span::below(workspace.as_str());
        let table = Table::IdempotencyKeys;
        for (key, _) in self.scan(table, &span, Order::Ascending, usize::MAX)? {
            let row = String::from_utf8_lossy(&key).into_owned();
            if let Some((at, ..)) = self.idempotency_row(&row)? {
                self.remove_idempotency(workspace, &row, at)?;
            }
        }
        Ok(())
    }
}
