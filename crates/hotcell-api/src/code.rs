//! Error codes: stable names that a client may switch on.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $status:literal, $title:literal;)+) => {
        /// What kind of failure it is. Stable: a name never changes its meaning or its status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ #[serde(rename = $text)] $name,)+
        }

        impl ErrorCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The code as it stands in a problem.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The HTTP status that carries it.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// The same few words for every problem with this code.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// When it is given, as documented.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii_start(),)+ }
            }
        }
    };
}

error_codes! {
    /// The body, the query or a header is malformed; `detail` names the field.
    BadRequest = "bad_request", 400, "The request is malformed";
    /// A signing header is missing, repeated or malformed; `detail` names it.
    Unauthenticated = "unauthenticated", 401, "The request is not signed";
    /// The timestamp is more than 60 s off; `server_seconds` is the server's time.
    ClockSkew = "clock_skew", 401, "The clock is off";
    /// Unknown key, wrong secret, or something other was signed than was sent; which of them is not said.
    SignatureMismatch = "signature_mismatch", 401, "The signature does not match";
    /// The same signed request came before, or it was signed before the server started.
    Replayed = "replayed", 401, "The request was used before";
    /// The operator token is missing or wrong.
    OperatorTokenRequired = "operator_token_required", 401, "The operator token is missing or wrong";
    /// The gate refused; `denial` names the level.
    Denied = "denied", 403, "Code execution is denied";
    /// The profile allows no jobs: run the command with `bash`, or ask an operator to allow them.
    JobsOff = "jobs_off", 403, "Jobs are off";
    /// The server's environment locks profiles and settings (`HOTCELL_CONFIG_LOCKED`).
    ConfigLocked = "config_locked", 403, "The configuration is locked";
    /// There is no such route.
    NotFound = "not_found", 404, "There is nothing here";
    /// There is no such workspace, or it belongs to another organization.
    UnknownWorkspace = "unknown_workspace", 404, "There is no such workspace";
    /// There is no such organization.
    UnknownOrganization = "unknown_organization", 404, "There is no such organization";
    /// There is no such credential in this organization.
    UnknownCredential = "unknown_credential", 404, "There is no such credential";
    /// There is no such runtime profile.
    UnknownProfile = "unknown_profile", 404, "There is no such runtime profile";
    /// There is no such call in this chat, or it ended too long ago.
    UnknownCall = "unknown_call", 404, "There is no such call";
    /// There is no upload of this name in this chat.
    UnknownUpload = "unknown_upload", 404, "There is no such upload";
    /// There is no such output in this chat.
    UnknownOutput = "unknown_output", 404, "There is no such output";
    /// There is no such job in this chat.
    UnknownJob = "unknown_job", 404, "There is no such job";
    /// The route is there but not with this method; `Allow` lists those that are.
    MethodNotAllowed = "method_not_allowed", 405, "The method is not allowed here";
    /// The request's body came too slowly.
    BodyTimeout = "body_timeout", 408, "The body came too slowly";
    /// The change contradicts what is stored; `detail` says how.
    Conflict = "conflict", 409, "The change contradicts what is stored";
    /// The configuration declares it; `declared_in` names the key. Change it there.
    Declared = "declared", 409, "It is declared in the configuration";
    /// The chat's sandbox mounts the files of another member; end it or wait until it ends.
    LeaseOfAnotherUser = "lease_of_another_user", 409, "The sandbox belongs to another member";
    /// The sandbox was ended while the call ran: asked for, or by its hard time limit.
    LeaseEnded = "lease_ended", 409, "The sandbox was ended";
    /// The workspace, or what the member has in it, is being deleted.
    BeingDeleted = "being_deleted", 409, "It is being deleted";
    /// The credential has two secrets already; finish the rotation first.
    RotationInProgress = "rotation_in_progress", 409, "A rotation is in progress";
    /// The idempotency key came with another request before; take a new key for a new request.
    IdempotencyKeyReused = "idempotency_key_reused", 409, "The idempotency key was used before";
    /// The request with this idempotency key was cut off by a restart of the server; whether it did anything is not known.
    IdempotencyCutOff = "idempotency_cut_off", 409, "The request was cut off";
    /// The request with this idempotency key was done; its answer was too long to be kept.
    IdempotencyAnswerGone = "idempotency_answer_gone", 409, "The request was done, its answer is gone";
    /// The chat has as many uploads as it may; `limit` is their number.
    TooManyUploads = "too_many_uploads", 409, "The chat has too many uploads";
    /// The body is larger than the route takes; `limit_bytes` is what it takes.
    BodyTooLarge = "body_too_large", 413, "The body is too large";
    /// The command is too long; `limit_bytes` is the longest.
    CommandTooLong = "command_too_long", 413, "The command is too long";
    /// The uploaded file is too large; `limit_bytes` is the largest.
    UploadTooLarge = "upload_too_large", 413, "The file is too large";
    /// All uploads of the chat together would be too large; `limit_bytes` is the most.
    UploadsFull = "uploads_full", 413, "The chat's uploads are full";
    /// The body has a Content-Encoding, or a Content-Type that the route does not take.
    UnsupportedMediaType = "unsupported_media_type", 415, "The body is of the wrong type";
    /// The asked range lies outside the file; `Content-Range` says how long it is.
    RangeNotSatisfiable = "range_not_satisfiable", 416, "The range lies outside the file";
    /// The network policy has mistakes; `problems` names each with its path. Nothing was saved.
    PolicyRefused = "policy_refused", 422, "The policy has mistakes";
    /// So much is going on that this cannot be taken on now; try again after `Retry-After` seconds.
    Busy = "busy", 429, "Too much is going on";
    /// A fault of hotcell; the journal has more under the request id.
    Internal = "internal", 500, "Internal error";
    /// The store failed; the journal has more under the request id.
    StoreFailed = "store_failed", 500, "The store failed";
    /// The sandbox ran out of memory and was ended; the next call starts a fresh one.
    OutOfMemory = "out_of_memory", 502, "The sandbox ran out of memory";
    /// The sandbox went away during the call; the next call starts a fresh one.
    SandboxLost = "sandbox_lost", 502, "The sandbox is gone";
    /// The sandbox is there but could not run the command.
    ExecFailed = "exec_failed", 502, "The command could not be run";
    /// The sandbox could not be made or started.
    StartFailed = "start_failed", 502, "The sandbox did not start";
    /// The network policy cannot be enforced, so no sandbox is made.
    EgressUnenforceable = "egress_unenforceable", 503, "The network policy cannot be enforced";
    /// The runtime of the profile cannot be used now.
    RuntimeUnavailable = "runtime_unavailable", 503, "The runtime is not available";
    /// The server is shutting down.
    ShuttingDown = "shutting_down", 503, "The server is shutting down";
    /// The sandbox was not ready in time.
    StartTimedOut = "start_timed_out", 504, "The sandbox was not ready in time";
    /// The server's disk is full.
    DiskFull = "disk_full", 507, "The disk is full";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_distinct_snake_case_and_say_what_they_mean() {
        let mut seen = HashSet::new();
        for code in ErrorCode::ALL {
            let text = code.as_str();
            assert!(seen.insert(text), "{text} twice");
            assert!(
                text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{text}"
            );
            assert!((400..600).contains(&code.status()), "{text}");
            assert!(code.meaning().ends_with('.'), "{text}: {}", code.meaning());
            assert_eq!(
                serde_json::to_value(code).unwrap(),
                serde_json::Value::String(text.to_owned())
            );
        }
    }
}
