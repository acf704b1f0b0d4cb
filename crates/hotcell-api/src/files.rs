//! Uploads, and files collected from a sandbox.

use hotcell_types::{FileName, OutputId, UnixMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Member;

/// Collects files from the chat's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PresentFilesRequest {
    /// The member that they are collected for.
    pub user: Member,
    /// Paths in the sandbox, in order of importance; a relative one is taken from `/workspace`.
    #[schema(min_items = 1, max_items = 200, example = json!(["report.docx"]))]
    pub paths: Vec<String>,
}

/// A file collected from a sandbox into a chat. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Output {
    /// Its id.
    #[schema(value_type = String, example = "ou_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: OutputId,
    /// Its name, exactly as it was in the sandbox.
    #[schema(value_type = String, example = "report.docx")]
    pub name: FileName,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its media type, from its last extension.
    pub media_type: String,
    /// Lower-case hex SHA-256 of its content.
    pub sha256: String,
    /// When it was collected, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub created_at_ms: UnixMillis,
    /// Where its content is, relative to this server; the request is signed like any other and
    /// takes `user` and `role` in the query.
    pub content_url: String,
    /// Where its preview is; `null` when there is none.
    pub preview_url: Option<String>,
}

/// A path that was not collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Skipped {
    /// The path as it was asked for; shortened, with `…`, when the answer would grow too long.
    pub path: String,
    /// Why, in a sentence for people and for the assistant.
    pub reason: String,
}

/// What was collected. At most 50,000 characters of text in all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PresentFilesResult {
    /// The collected files, in the order of their paths.
    pub outputs: Vec<Output>,
    /// What was not collected.
    pub skipped: Vec<Skipped>,
}

/// The files that were collected into a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputList {
    /// Oldest first.
    pub outputs: Vec<Output>,
}

/// A file that the user attached to the chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upload {
    /// Its name.
    #[schema(value_type = String, example = "data.csv")]
    pub name: FileName,
    /// Where the sandbox sees it, read-only.
    #[schema(example = "/mnt/uploaded-files/data.csv")]
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its media type, from its last extension.
    pub media_type: String,
    /// When it was uploaded, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub changed_at_ms: UnixMillis,
}

/// An upload that was stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadStored {
    /// What was stored.
    #[serde(flatten)]
    pub upload: Upload,
    /// Whether an upload of the same name was replaced.
    pub replaced: bool,
}

/// The files that the user attached to the chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadList {
    /// In byte order of their names.
    pub uploads: Vec<Upload>,
    /// What they take together, in bytes.
    pub total_bytes: u64,
    /// What they may take together, in bytes.
    pub limit_bytes: u64,
}
