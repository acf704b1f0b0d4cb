//! What only the daemon may read: its directories, and the files of its secrets.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use hotcell_store::StoreKey;
use hotcell_types::IdSource;

use super::{MAX_TOKEN_FILE_BYTES, MIN_TOKEN_CHARACTERS, StartError};
use crate::{config::Config, http::OperatorToken};

pub(super) fn make_private_dir(path: &Path) -> Result<(), StartError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StartError::File {
            path: path.to_owned(),
            source,
        })
}

/// What a crashed daemon left half-written is of no use.
pub(super) fn empty_dir(path: &Path) -> Result<(), StartError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(StartError::File {
                path: path.to_owned(),
                source,
            });
        }
        _ => {}
    }
    make_private_dir(path)
}

pub(super) fn store_key(config: &Config, ids: &dyn IdSource) -> Result<StoreKey, StartError> {
    let path = &config.store_key_file;
    if !path.exists() {
        let store = config.store_path();
        if store.exists() {
            let key = path.clone();
            return Err(StartError::KeyMissing { store, key });
        }
        let key = StoreKey::generate(ids);
        write_secret(path, &key.to_text())?;
        return Ok(key);
    }
    StoreKey::read(path).map_err(|source| StartError::Key {
        path: path.clone(),
        source,
    })
}

pub(super) fn operator_token(
    config: &Config,
    ids: &dyn IdSource,
) -> Result<OperatorToken, StartError> {
    let path = &config.operator_token_file;
    let failed = |source| StartError::File {
        path: path.clone(),
        source,
    };
    if !path.exists() {
        let text = format!("hot_{:032x}{:032x}", ids.bits(), ids.bits());
        write_secret(path, &text)?;
        return Ok(OperatorToken::new(&text));
    }
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_TOKEN_FILE_BYTES).read_to_string(&mut text))
        .map_err(failed)?;
    let text = text.trim();
    if text.chars().count() < MIN_TOKEN_CHARACTERS {
        return Err(StartError::Token(path.clone()));
    }
    Ok(OperatorToken::new(text))
}

/// Writes a new file that only its owner may read, whole or not at all.
fn write_secret(path: &Path, text: &str) -> Result<(), StartError> {
    let failed = |source| StartError::File {
        path: path.to_owned(),
        source,
    };
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    let next = PathBuf::from(next);
    let write = || {
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&next)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&next, path)?;
        if let Some(parent) = path.parent() {
            fs::File::open(parent)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(failed)
}
