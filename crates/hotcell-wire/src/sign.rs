//! The string to sign, the signature, the body's hash.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 of an empty body.
pub const EMPTY_BODY_SHA256: &str =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The bytes that are signed: six lines without a newline at the end.
///
/// `target` is the request target exactly as it goes over the wire, query included.
#[must_use]
pub fn string_to_sign(
    timestamp: u64,
    nonce: &str,
    method: &str,
    target: &str,
    body_sha256: &str,
) -> String {
    format!("v1\n{timestamp}\n{nonce}\n{method}\n{target}\n{body_sha256}")
}

/// Lower-case hex SHA-256 of a whole body.
#[must_use]
pub fn body_sha256(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

/// A signature: 32 bytes that compare in constant time.
#[derive(Clone, Copy, Debug)]
pub struct Signature([u8; 32]);

impl Signature {
    /// Signs. The key is the secret's text as it was handed out, not what it may encode.
    #[must_use]
    pub fn new(secret: &str, string_to_sign: &str) -> Self {
        // HMAC takes keys of any length.
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes())
            .unwrap_or_else(|_| unreachable!("HMAC takes a key of any length"));
        mac.update(string_to_sign.as_bytes());
        Self(mac.finalize().into_bytes().into())
    }

    /// Parses `v1=` and 64 lower-case hex digits.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let hex = header.strip_prefix("v1=")?;
        if hex.len() != 64 || hex.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(hex, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The header's value.
    #[must_use]
    pub fn header_value(&self) -> String {
        format!("v1={}", hex::encode(self.0))
    }

    /// Whether both are the same, in a time that does not depend on where they differ.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// The five headers of a signed request, for a client.
#[must_use]
pub fn sign_headers(
    key: &str,
    secret: &str,
    timestamp: u64,
    nonce: &str,
    method: &str,
    target: &str,
    body_sha256: &str,
) -> [(&'static str, String); 5] {
    let signature = Signature::new(
        secret,
        &string_to_sign(timestamp, nonce, method, target, body_sha256),
    );
    [
        (crate::KEY_HEADER, key.to_owned()),
        (crate::TIMESTAMP_HEADER, timestamp.to_string()),
        (crate::NONCE_HEADER, nonce.to_owned()),
        (crate::BODY_HASH_HEADER, body_sha256.to_owned()),
        (crate::SIGNATURE_HEADER, signature.header_value()),
    ]
}

/// The body is not the one that was signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body does not have the hash that was signed")]
pub struct BodyMismatch;

/// Hashes a body as it streams by.
#[derive(Clone, Default)]
pub struct BodyHash(Sha256);

impl BodyHash {
    /// Takes the next piece of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Says that the body has ended, and compares with what was declared.
    ///
    /// # Errors
    /// When the hashes differ.
    pub fn finish(self, declared_hex: &str) -> Result<(), BodyMismatch> {
        let actual = hex::encode(self.0.finalize());
        if bool::from(actual.as_bytes().ct_eq(declared_hex.as_bytes())) {
            Ok(())
        } else {
            Err(BodyMismatch)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_vector() {
        // Also in docs/api/signing.md and checked there by an independent implementation.
        let text = string_to_sign(
            1_700_000_000,
            "0123456789abcdef",
            "GET",
            "/v1/tools",
            EMPTY_BODY_SHA256,
        );
        assert_eq!(body_sha256(b""), EMPTY_BODY_SHA256);
        assert!(!text.ends_with('\n'));
        assert_eq!(text.lines().count(), 6);
        let signature = Signature::new("secret", &text);
        assert!(Signature::parse(&signature.header_value()).is_some_and(|s| s.matches(&signature)));
    }

    #[test]
    fn only_the_exact_header_form_parses() {
        let good = Signature::new("k", "x").header_value();
        assert!(Signature::parse(&good).is_some());
        for bad in [
            good.to_uppercase(),
            good[3..].to_owned(),
            format!("{good}0"),
            "v1=".into(),
            format!(" {good}"),
        ] {
            assert!(Signature::parse(&bad).is_none(), "{bad}");
        }
    }
}
