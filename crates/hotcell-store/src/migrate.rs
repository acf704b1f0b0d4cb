//! The schema version and the steps between versions.
//!
//! A step changes what rows mean or where they are: tables, keys, indexes. A new shape of a value
//! needs no step, only a new variant of its DTO. Steps are ordered, all pending ones run in one
//! transaction, and they are tried on an overlay before the file is copied and changed.

use redb::WriteTransaction;

use crate::{
    error::StoreError,
    meta::{schema_in, write_schema},
    tables::Table,
};

/// One step from the version before.
pub(crate) struct Migration {
    /// The version that it leads to.
    pub(crate) to: u32,
    pub(crate) run: fn(&WriteTransaction) -> Result<(), StoreError>,
}

/// What a release knows.
#[derive(Clone, Copy)]
pub(crate) struct Schema {
    pub(crate) version: u32,
    /// In order, each one version further than the one before.
    pub(crate) migrations: &'static [Migration],
}

/// The schema of this release.
///
/// - 1: the first.
/// - 2: marks of declared objects. A mark's object exists, which a release that knows no marks would
///   not see to when it deletes one: it must not open such a file.
pub(crate) const CURRENT: Schema = Schema {
    version: 2,
    migrations: &[Migration {
        to: 2,
        run: declarations,
    }],
};

/// There are none yet. The table is made, so that a file shows which schema it has.
fn declarations(transaction: &WriteTransaction) -> Result<(), StoreError> {
    transaction
        .open_table(Table::Declarations.definition())
        .map_err(StoreError::io)?;
    Ok(())
}

impl Schema {
    /// Runs what is pending, without committing.
    pub(crate) fn migrate(&self, transaction: &WriteTransaction) -> Result<(), StoreError> {
        let from = schema_in(transaction)?.unwrap_or(self.version);
        for migration in self.migrations.iter().filter(|step| step.to > from) {
            (migration.run)(transaction)?;
        }
        write_schema(transaction, self.version)
    }
}
