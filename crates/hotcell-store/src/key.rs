//! The key that secrets are sealed with, and the sealing itself.

use std::{fmt, io::Read, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305,
    aead::{Aead, Payload},
};
use hotcell_types::IdSource;
use zeroize::{Zeroize, Zeroizing};

use crate::error::StoreError;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// A key file holds 64 characters and perhaps a line end; more than this is not read.
const MAX_KEY_FILE_BYTES: u64 = 256;

/// Why a key could not be taken from a file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read.
    #[error("the store key file could not be read")]
    Read(#[source] std::io::Error),
    /// The file holds something else.
    #[error("a store key is 64 hexadecimal characters")]
    Malformed,
}

/// The key that everything secret in the store is sealed with. It comes from a file outside of the store.
#[derive(Clone)]
pub struct StoreKey([u8; KEY_BYTES]);

impl StoreKey {
    /// A key from its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// A new key.
    #[must_use]
    pub fn generate(ids: &dyn IdSource) -> Self {
        Self(random_bytes(ids))
    }

    /// A key from its text, 64 hexadecimal characters with or without white space around them.
    ///
    /// # Errors
    /// [`KeyError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_BYTES];
        hex::decode_to_slice(text.trim(), &mut bytes).map_err(|_| KeyError::Malformed)?;
        Ok(Self(bytes))
    }

    /// The key in a file.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let mut text = Zeroizing::new(String::new());
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_KEY_FILE_BYTES).read_to_string(&mut text))
            .map_err(KeyError::Read)?;
        Self::parse(&text)
    }

    /// The key's text, for a key file.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0))
    }
}

impl Drop for StoreKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKey(…)")
    }
}

/// 32 bytes from two draws of the injected source.
pub(crate) fn random_bytes(ids: &dyn IdSource) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&ids.bits().to_le_bytes());
    bytes[16..].copy_from_slice(&ids.bits().to_le_bytes());
    bytes
}

/// Where a sealed value lives. It only opens there, so that nobody can move one by editing the file.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) table: &'static str,
    pub(crate) key: &'a str,
    /// Tells the sealed values of one row apart.
    pub(crate) part: &'a str,
}

impl Place<'_> {
    fn associated_data(&self) -> Vec<u8> {
        format!(
            "hotcell store v1\n{}\n{}\n{}",
            self.table, self.key, self.part
        )
        .into_bytes()
    }
}

/// Seals and opens values.
pub(crate) struct Vault {
    cipher: XChaCha20Poly1305,
}

impl Vault {
    pub(crate) fn new(key: &StoreKey) -> Self {
        Self {
            cipher: XChaCha20Poly1305::new(&key.0.into()),
        }
    }

    /// base64 of nonce and ciphertext. The nonce has 192 random bits, so it never repeats.
    pub(crate) fn seal(
        &self,
        place: Place<'_>,
        secret: &[u8],
        ids: &dyn IdSource,
    ) -> Result<String, StoreError> {
        let random = random_bytes(ids);
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&random[..NONCE_BYTES]);
        let associated = place.associated_data();
        let sealed = self
            .cipher
            .encrypt(
                &nonce.into(),
                Payload {
                    msg: secret,
                    aad: &associated,
                },
            )
            .map_err(|_| place.unsealed())?;
        Ok(BASE64.encode([&nonce[..], &sealed[..]].concat()))
    }

    pub(crate) fn open(
        &self,
        place: Place<'_>,
        sealed: &str,
    ) -> Result<Zeroizing<Vec<u8>>, StoreError> {
        let bytes = BASE64.decode(sealed).map_err(|_| place.unsealed())?;
        let (nonce, ciphertext) = bytes
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or_else(|| place.unsealed())?;
        let associated = place.associated_data();
        self.cipher
            .decrypt(
                &(*nonce).into(),
                Payload {
                    msg: ciphertext,
                    aad: &associated,
                },
            )
            .map(Zeroizing::new)
            .map_err(|_| place.unsealed())
    }
}

impl Place<'_> {
    fn unsealed(&self) -> StoreError {
        StoreError::Sealed {
            table: self.table,
            key: self.key.to_owned(),
        }
    }
}
