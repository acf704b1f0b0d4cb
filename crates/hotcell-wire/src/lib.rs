//! Request signing as in `docs/api/signing.md`, for the public API and for the agent alike.
//!
//! ```text
//! string to sign = "v1" LF timestamp LF nonce LF method LF request target LF body hash
//! signature      = lower-case hex of HMAC-SHA256(secret's text, string to sign)
//! ```
//!
//! Everything that can be decided from the headers is decided before the body is read:
//! [`SignedHead::parse`], the clock, the key, the nonce and the signature over the *declared*
//! body hash. The body then streams through a [`BodyHash`], and only the last step,
//! [`BodyHash::finish`], can still refuse it.

mod head;
mod nonce;
mod sign;

pub use head::{HeadError, SignedHead};
pub use nonce::{NonceCache, NonceError};
pub use sign::{
    BodyHash, BodyMismatch, EMPTY_BODY_SHA256, Signature, body_sha256, sign_headers, string_to_sign,
};

/// Names the credential.
pub const KEY_HEADER: &str = "hotcell-key";
/// Decimal Unix seconds.
pub const TIMESTAMP_HEADER: &str = "hotcell-timestamp";
/// 16 to 64 characters of `A-Za-z0-9_-`, never used before.
pub const NONCE_HEADER: &str = "hotcell-nonce";
/// Lower-case hex SHA-256 of the body.
pub const BODY_HASH_HEADER: &str = "hotcell-content-sha256";
/// `v1=` and the lower-case hex signature.
pub const SIGNATURE_HEADER: &str = "hotcell-signature";
