//! One newtype per kind of id.
//!
//! *External* ids are chosen by a chat backend (organization, workspace, chat, user).
//! They start with a letter or digit and hold only `A-Za-z0-9_.:@-`, so they can be
//! a path component as they are: never empty, never `.` or `..`, never hidden.
//! *Internal* ids are made by hotcell: a two-letter prefix, `_`, and 26 characters of
//! lower-case base32 that carry 128 bits.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The longest external id, in bytes.
pub const MAX_EXTERNAL_ID_BYTES: usize = 128;

/// Why a string is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {kind} id: {reason}")]
pub struct IdError {
    /// What was being parsed, such as `workspace`.
    pub kind: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}

fn check_external(kind: &'static str, text: &str) -> Result<(), IdError> {
    let reason = if text.is_empty() {
        "it is empty"
    } else if text.len() > MAX_EXTERNAL_ID_BYTES {
        "it is longer than 128 bytes"
    } else if !text.as_bytes()[0].is_ascii_alphanumeric() {
        "it must start with a letter or a digit"
    } else if !text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_.:@-".contains(&byte))
    {
        "only letters, digits and _ . : @ - are allowed"
    } else {
        return Ok(());
    };
    Err(IdError { kind, reason })
}

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const BASE32_CHARS: usize = 26;

fn encode_base32(bits: u128) -> String {
    (0..BASE32_CHARS)
        .rev()
        .map(|index| char::from(BASE32[((bits >> (index * 5)) & 31) as usize]))
        .collect()
}

fn check_internal(kind: &'static str, prefix: &str, text: &str) -> Result<(), IdError> {
    let rest = text
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('_'));
    match rest {
        None => Err(IdError {
            kind,
            reason: "it has the wrong prefix",
        }),
        Some(rest) if rest.len() != BASE32_CHARS || !rest.bytes().all(|b| BASE32.contains(&b)) => {
            Err(IdError {
                kind,
                reason: "it must be the prefix, _ and 26 characters a-z2-7",
            })
        }
        Some(_) => Ok(()),
    }
}

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> Result<(), IdError> = $check;
                check(text)?;
                Ok(Self(text.to_owned()))
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

macro_rules! external_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        string_id!($(#[$doc])* $name, $kind, |text| check_external($kind, text));
    };
}

macro_rules! internal_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $prefix:literal) => {
        string_id!($(#[$doc])* $name, $kind, |text| check_internal($kind, $prefix, text));
        impl $name {
            /// What every id of this kind starts with, before the `_`.
            pub const PREFIX: &'static str = $prefix;

            /// The id that carries these 128 bits (from an [`IdSource`](crate::IdSource)).
            #[must_use]
            pub fn from_bits(bits: u128) -> Self {
                Self(format!("{}_{}", $prefix, encode_base32(bits)))
            }
        }
    };
}

external_id!(
    /// An organization: owns workspaces and backend credentials.
    OrganizationId, "organization"
);
external_id!(
    /// A workspace of one organization.
    WorkspaceId, "workspace"
);
external_id!(
    /// A chat of one workspace.
    ChatId, "chat"
);
external_id!(
    /// A member of a workspace, as the backend names them.
    UserId, "user"
);
external_id!(
    /// A runtime profile, named by the operator.
    ProfileId, "profile"
);

internal_id!(
    /// One sandbox granted to one chat of one user.
    LeaseId, "lease", "ls"
);
internal_id!(
    /// One `bash` call; a dropped stream resumes by it.
    CallId, "call", "ca"
);
internal_id!(
    /// A command that outlives the call that started it.
    JobId, "job", "jb"
);
internal_id!(
    /// A file collected from a sandbox into a chat.
    OutputId, "output", "ou"
);
internal_id!(
    /// This installation of hotcell: labels every engine object from birth.
    InstallationId, "installation", "in"
);
internal_id!(
    /// The public half of a backend credential (`Hotcell-Key`).
    CredentialId, "credential", "ck"
);
internal_id!(
    /// One HTTP request, named in its problem response and in the journal.
    RequestId, "request", "rq"
);

impl LeaseId {
    /// Ten characters that tell leases of one host apart where names are short
    /// (a network interface has 15 bytes). Fifty bits: the embedded runtime checks
    /// for a clash before it uses one.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[self.0.len() - 10..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_ids_are_safe_path_components() {
        for good in ["a", "0", "chat-1", "user@example.org", "A.b:c_d"] {
            assert_eq!(
                good.parse::<ChatId>().map(|id| id.to_string()),
                Ok(good.to_owned())
            );
        }
        let long = "x".repeat(129);
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "-rf",
            "a/b",
            "a\0",
            "ü",
            "a b",
            long.as_str(),
        ] {
            assert!(bad.parse::<ChatId>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn internal_ids_round_trip_and_check_their_prefix() {
        let id = LeaseId::from_bits(u128::MAX);
        assert_eq!(id.as_str(), "ls_h7777777777777777777777777");
        assert_eq!(id.as_str().parse::<LeaseId>(), Ok(id.clone()));
        assert!(id.as_str().parse::<OutputId>().is_err());
        assert_eq!(id.short().len(), 10);
        assert_ne!(LeaseId::from_bits(1), LeaseId::from_bits(2));
    }

    #[test]
    fn deserializing_goes_through_the_check() {
        assert!(serde_json::from_str::<WorkspaceId>("\"../x\"").is_err());
        assert!(serde_json::from_str::<WorkspaceId>("\"w1\"").is_ok());
    }
}
