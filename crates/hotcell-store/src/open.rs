//! Opening: first everything on an overlay, then the file.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use hotcell_types::{Clock, IdSource, limits};
use redb::{Builder, Database, DatabaseError, ReadableDatabase, StorageBackend, StorageError};

use crate::{
    backend::{Direct, Overlay},
    error::{OpenError, StoreError},
    file::{StoreFile, io_error},
    key::Vault,
    meta::{self, Identity},
    migrate::Schema,
    rows::Base,
};

/// An open file.
pub(crate) struct Opened {
    pub(crate) file: Arc<StoreFile>,
    pub(crate) database: Database,
    pub(crate) identity: Identity,
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it gave no reason".to_owned())
}

pub(crate) fn open(
    path: &Path,
    vault: &Vault,
    clock: &dyn Clock,
    ids: &dyn IdSource,
    schema: Schema,
) -> Result<Opened, OpenError> {
    let file = StoreFile::open_or_create(path, |file| fill_new(file, vault, clock, ids, schema))?;
    let found = check(&file, vault, schema)?;
    if found < schema.version {
        let backup = file.backup_before_schema(found, schema.version);
        tracing::info!(
            from = found,
            to = schema.version,
            backup = %backup.display(),
            "migrating the store"
        );
        file.copy_to(&backup)
            .map_err(|error| io_error(&backup, "copying the store before its migration", error))?;
    }
    let io = |doing, error: StoreError| io_error(path, doing, error);
    let database = open_direct(&file).map_err(|error| io("opening it for writing", error))?;
    if found < schema.version {
        migrate(&database, schema).map_err(|source| OpenError::Migration {
            path: path.to_owned(),
            from: found,
            source,
        })?;
    }
    let identity = begin(&database)
        .and_then(|base| meta::identity(&base, vault))
        .map_err(|error| io("reading it", error))?;
    Ok(Opened {
        file,
        database,
        identity,
    })
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(limits::STORE_CACHE_BYTES);
    builder
}

/// redb reports most damage as an error; on damage that it did not think of it may panic.
fn database(builder: &Builder, backend: impl StorageBackend) -> Result<Database, DatabaseError> {
    catch_unwind(AssertUnwindSafe(|| builder.create_with_backend(backend))).unwrap_or_else(
        |payload| {
            Err(DatabaseError::Storage(StorageError::Corrupted(panic_text(
                &*payload,
            ))))
        },
    )
}

/// Opens the file for reading and writing; repairs it after a kill.
pub(crate) fn open_direct(file: &Arc<StoreFile>) -> Result<Database, StoreError> {
    database(&builder(), Direct(file.clone())).map_err(StoreError::io)
}

/// Opens the file under an overlay, with every checksum verified.
pub(crate) fn open_overlay(file: &Arc<StoreFile>) -> Result<Database, DatabaseError> {
    let overlay = Overlay::new(file.clone())?;
    let mut builder = builder();
    builder.set_check_integrity_on_open(true);
    database(&builder, overlay)
}

pub(crate) fn begin(database: &Database) -> Result<Base, StoreError> {
    database.begin_read().map(Base::new).map_err(StoreError::io)
}

fn fill_new(
    file: &Arc<StoreFile>,
    vault: &Vault,
    clock: &dyn Clock,
    ids: &dyn IdSource,
    schema: Schema,
) -> Result<(), OpenError> {
    let fill = || -> Result<(), StoreError> {
        let database = open_direct(file)?;
        let mut transaction = database.begin_write().map_err(StoreError::io)?;
        transaction.set_two_phase_commit(true);
        meta::write_new(&transaction, schema.version, vault, clock, ids)?;
        transaction.commit().map_err(StoreError::io)?;
        database.close().map_err(StoreError::io)
    };
    fill().map_err(|error| io_error(&file.path, "making it", error))
}

/// Everything that can be wrong with the file is found here, where nothing is written to it.
/// Its schema version.
fn check(file: &Arc<StoreFile>, vault: &Vault, schema: Schema) -> Result<u32, OpenError> {
    let path = || file.path.clone();
    let damaged = |detail: String| OpenError::Damaged {
        path: file.path.clone(),
        detail,
    };
    let io = |error: std::io::Error| io_error(&file.path, "reading it", error);
    // redb would make an empty file into an empty store; but nothing here ever leaves one.
    if file.file.metadata().map_err(io)?.len() == 0 {
        return Err(damaged("it is empty".to_owned()));
    }
    let database = match open_overlay(file) {
        Ok(database) => database,
        Err(DatabaseError::Storage(StorageError::Io(error)))
            if !matches!(
                error.kind(),
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
            ) =>
        {
            return Err(io(error));
        }
        Err(error) => return Err(damaged(error.to_string())),
    };
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let base = begin(&database).map_err(|error| damaged(error.to_string()))?;
        let found = meta::schema_version(&base, vault)
            .map_err(|error| damaged(error.to_string()))?
            .ok_or_else(|| damaged("it is a database, but not a store of hotcell".to_owned()))?;
        if found > schema.version {
            return Err(OpenError::NewerSchema {
                path: path(),
                found,
                known: schema.version,
            });
        }
        match meta::identity(&base, vault) {
            Ok(_) => {}
            Err(StoreError::Sealed { .. }) => return Err(OpenError::WrongKey { path: path() }),
            Err(error) => return Err(damaged(error.to_string())),
        }
        drop(base);
        if found < schema.version {
            migrate(&database, schema).map_err(|source| OpenError::Migration {
                path: path(),
                from: found,
                source,
            })?;
        }
        Ok(found)
    }));
    checked.unwrap_or_else(|payload| Err(damaged(panic_text(&*payload))))
}

fn migrate(database: &Database, schema: Schema) -> Result<(), StoreError> {
    let mut transaction = database.begin_write().map_err(StoreError::io)?;
    transaction.set_two_phase_commit(true);
    // Dropping the transaction on an error rolls every step back.
    schema.migrate(&transaction)?;
    transaction.commit().map_err(StoreError::io)
}
