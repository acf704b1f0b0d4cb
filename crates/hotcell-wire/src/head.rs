//! The signed part of a request's head, parsed strictly.

use hotcell_types::{UnixMillis, limits::MAX_CLOCK_SKEW_SECONDS};
use http::{HeaderMap, HeaderValue};

use crate::{
    BODY_HASH_HEADER, KEY_HEADER, NONCE_HEADER, SIGNATURE_HEADER, Signature, TIMESTAMP_HEADER,
    string_to_sign,
};

/// Why a head is not acceptable. Nothing here depends on a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A header is missing.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// A header stands there more than once.
    #[error("the header {0} is there more than once")]
    Repeated(&'static str),
    /// A header does not have its form.
    #[error("the header {0} is malformed")]
    Malformed(&'static str),
    /// The request's clock is too far from ours.
    #[error(
        "the timestamp is more than {MAX_CLOCK_SKEW_SECONDS} s away from the server's time, {server_seconds}"
    )]
    ClockSkew {
        /// The server's time in Unix seconds.
        server_seconds: u64,
    },
}

/// What a request says about its own signature.
#[derive(Debug, Clone)]
pub struct SignedHead {
    /// `Hotcell-Key`.
    pub key: String,
    /// `Hotcell-Timestamp`, Unix seconds.
    pub timestamp: u64,
    /// `Hotcell-Nonce`.
    pub nonce: String,
    /// `Hotcell-Content-Sha256`, 64 lower-case hex digits.
    pub body_sha256: String,
    /// `Hotcell-Signature`.
    pub signature: Signature,
}

fn one<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<&'h str, HeadError> {
    let mut values = headers.get_all(name).iter();
    let value: &HeaderValue = values.next().ok_or(HeadError::Missing(name))?;
    if values.next().is_some() {
        return Err(HeadError::Repeated(name));
    }
    value.to_str().map_err(|_| HeadError::Malformed(name))
}

fn checked<'h>(
    headers: &'h HeaderMap,
    name: &'static str,
    good: impl Fn(&str) -> bool,
) -> Result<&'h str, HeadError> {
    one(headers, name).and_then(|text| {
        if good(text) {
            Ok(text)
        } else {
            Err(HeadError::Malformed(name))
        }
    })
}

fn is_token(text: &str, lengths: std::ops::RangeInclusive<usize>) -> bool {
    lengths.contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

impl SignedHead {
    /// Reads and checks the five headers and the clock.
    ///
    /// # Errors
    /// See [`HeadError`]; the caller turns each into a 401.
    pub fn parse(headers: &HeaderMap, now: UnixMillis) -> Result<Self, HeadError> {
        let key = checked(headers, KEY_HEADER, |text| is_token(text, 1..=64))?;
        // Digits only: no sign, no space, no exponent. Ten digits reach beyond the year 2280,
        // and milliseconds are thirteen.
        let timestamp = checked(headers, TIMESTAMP_HEADER, |text| {
            (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        })?
        .parse::<u64>()
        .map_err(|_| HeadError::Malformed(TIMESTAMP_HEADER))?;
        let nonce = checked(headers, NONCE_HEADER, |text| is_token(text, 16..=64))?;
        let body_sha256 = checked(headers, BODY_HASH_HEADER, |text| {
            text.len() == 64
                && text
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        })?;
        let signature = Signature::parse(one(headers, SIGNATURE_HEADER)?)
            .ok_or(HeadError::Malformed(SIGNATURE_HEADER))?;
        if now.seconds().abs_diff(timestamp) > MAX_CLOCK_SKEW_SECONDS {
            return Err(HeadError::ClockSkew {
                server_seconds: now.seconds(),
            });
        }
        Ok(Self {
            key: key.to_owned(),
            timestamp,
            nonce: nonce.to_owned(),
            body_sha256: body_sha256.to_owned(),
            signature,
        })
    }

    /// Whether `secret` made this signature over this method and request target.
    #[must_use]
    pub fn is_signed_by(&self, secret: &str, method: &str, target: &str) -> bool {
        let text = string_to_sign(
            self.timestamp,
            &self.nonce,
            method,
            target,
            &self.body_sha256,
        );
        Signature::new(secret, &text).matches(&self.signature)
    }
}
