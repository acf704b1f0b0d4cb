//! The durable state of hotcell: one redb file.
//!
//! ```text
//!  callers ──write(change)──▶ bounded queue ──▶ writer thread
//!                                                 │ runs each change on a view of
//!                                                 │   committed rows + the batch so far
//!                                                 │ a change that fails or panics is dropped alone
//!                                                 ▼
//!                                     one redb transaction, one commit on disk
//!                                                 │
//!  callers ◀──────────── results ─────────────────┘
//!
//!  callers ──read / read_now──▶ a snapshot of the last commit, beside the writer
//! ```
//!
//! What the store promises:
//!
//! - **Acknowledged is durable.** [`Store::write`] answers after the commit is on disk. A process
//!   that is killed at any moment loses nothing that was acknowledged.
//! - **One change is all or nothing**, and its audit row is part of it. Changes that happened to share a
//!   commit do not see each other's failures.
//! - **A file that cannot be trusted is left alone.** Every open first checks the whole file
//!   (checksums, schema, key, pending migrations) on an overlay in memory; only a file that passes
//!   is opened for writing. [`OpenError`] says what is wrong and what to do.
//! - **Stored shapes are versioned.** Rows are DTOs (module `dto`), never domain types; a test compares
//!   them with `tests/shapes.json`. The schema has a version and ordered migrations, which run
//!   all in one transaction after a backup of the file.
//! - **Secrets are sealed** with [`StoreKey`] and bound to the row that they belong to.
//! - **A full disk is survived.** A write then fails with [`StoreError::DiskFull`], reads go on, and
//!   writes work again as soon as there is space.
//!
//! Restoring: stop the daemon, put a backup (made by [`Store::backup`], or the
//! `store.redb.before-schema-…` of a migration) in the place of the damaged file, start. Nothing of
//! hotcell deletes or overwrites a damaged file.

mod audit;
mod backend;
mod declared;
mod deletions;
mod denials;
mod dto;
mod error;
mod file;
mod idempotency;
mod jobs;
mod key;
mod meta;
mod migrate;
mod open;
mod policies;
mod quota;
mod read;
mod rows;
mod store;
mod tables;
mod tx;
mod writer;

#[cfg(test)]
mod tests;

pub use audit::AuditFilter;
pub use declared::{DeclareError, Reconciled};
pub use denials::{DenialEntry, DenialFilter};
pub use error::{OpenError, StoreError};
pub use idempotency::{IdempotencyBegin, IdempotencyState, NewIdempotencyKey};
pub use key::{KeyError, StoreKey};
pub use quota::{GateAsk, NewLease, QuotaUsage};
pub use read::{AuditEntry, AuditPage};
pub use rows::Snapshot;
pub use store::{Store, StoreStats};
pub use tx::Tx;
pub use writer::CommitObserver;
