//! What the file says about itself: schema version, installation, master secret.

use std::sync::Arc;

use hotcell_types::{Clock, IdSource, InstallationId, UnixMillis};
use redb::{ReadableTable, Table as RedbTable, WriteTransaction};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    dto::{broken, decode, encode},
    error::StoreError,
    key::{Place, Vault, random_bytes},
    rows::{Base, Snapshot},
    tables::{Table, meta_key},
};

/// Never versioned: any release can read it in any file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SchemaRow {
    pub(crate) version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum InstallationDto {
    #[serde(rename = "1")]
    V1 {
        id: InstallationId,
        created_at: UnixMillis,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum MasterDto {
    #[serde(rename = "1")]
    V1 { sealed: String },
}

pub(crate) type MasterSecret = Zeroizing<Vec<u8>>;

/// What every open reads.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) installation: InstallationId,
    pub(crate) master: Arc<MasterSecret>,
}

const MASTER_PLACE: Place<'static> = Place {
    table: Table::Meta.name(),
    key: "master",
    part: "",
};

/// The schema version of a file; nothing when it is no store at all.
pub(crate) fn schema_version(base: &Base, vault: &Vault) -> Result<Option<u32>, StoreError> {
    Snapshot::new(base, vault)
        .get(Table::Meta, meta_key::SCHEMA)?
        .map(|bytes| {
            decode::<SchemaRow>(Table::Meta, meta_key::SCHEMA, &bytes).map(|row| row.version)
        })
        .transpose()
}

/// The installation and its master secret. [`StoreError::Sealed`] means that the key is another one.
pub(crate) fn identity(base: &Base, vault: &Vault) -> Result<Identity, StoreError> {
    let view = Snapshot::new(base, vault);
    let row = |key: &[u8]| {
        view.get(Table::Meta, key)?
            .ok_or_else(|| broken(Table::Meta, key, "it is missing"))
    };
    let InstallationDto::V1 { id, .. } = decode(
        Table::Meta,
        meta_key::INSTALLATION,
        &row(meta_key::INSTALLATION)?,
    )?;
    let MasterDto::V1 { sealed } = decode(Table::Meta, meta_key::MASTER, &row(meta_key::MASTER)?)?;
    let master = vault.open(MASTER_PLACE, &sealed)?;
    Ok(Identity {
        installation: id,
        master: Arc::new(master),
    })
}

pub(crate) fn write_schema(transaction: &WriteTransaction, version: u32) -> Result<(), StoreError> {
    let mut meta = open_meta(transaction)?;
    let bytes = encode(&SchemaRow { version })?;
    meta.insert(meta_key::SCHEMA, bytes.as_slice())
        .map_err(StoreError::io)?;
    Ok(())
}

/// The rows of a new file.
pub(crate) fn write_new(
    transaction: &WriteTransaction,
    version: u32,
    vault: &Vault,
    clock: &dyn Clock,
    ids: &dyn IdSource,
) -> Result<(), StoreError> {
    write_schema(transaction, version)?;
    let installation = encode(&InstallationDto::V1 {
        id: InstallationId::from_bits(ids.bits()),
        created_at: clock.now(),
    })?;
    let secret = Zeroizing::new(random_bytes(ids));
    let master = encode(&MasterDto::V1 {
        sealed: vault.seal(MASTER_PLACE, &secret[..], ids)?,
    })?;
    let mut meta = open_meta(transaction)?;
    for (key, value) in [
        (meta_key::INSTALLATION, installation),
        (meta_key::MASTER, master),
    ] {
        meta.insert(key, value.as_slice()).map_err(StoreError::io)?;
    }
    Ok(())
}

/// The number of the last batch that a database holds.
pub(crate) fn batch_number(base: &Base, vault: &Vault) -> Result<u64, StoreError> {
    Snapshot::new(base, vault)
        .get(Table::Meta, meta_key::BATCH)?
        .map_or(Ok(0), |bytes| decode(Table::Meta, meta_key::BATCH, &bytes))
}

pub(crate) fn schema_in(transaction: &WriteTransaction) -> Result<Option<u32>, StoreError> {
    let meta = open_meta(transaction)?;
    let row = meta.get(meta_key::SCHEMA).map_err(StoreError::io)?;
    row.map(|bytes| {
        decode::<SchemaRow>(Table::Meta, meta_key::SCHEMA, bytes.value()).map(|row| row.version)
    })
    .transpose()
}

fn open_meta(
    transaction: &WriteTransaction,
) -> Result<RedbTable<'_, &'static [u8], &'static [u8]>, StoreError> {
    transaction
        .open_table(Table::Meta.definition())
        .map_err(StoreError::io)
}
