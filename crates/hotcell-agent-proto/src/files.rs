//! Files as the agent reports them.

use serde::{Deserialize, Serialize};

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A FIFO, socket or device.
    Other,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its name; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// The name's bytes in hex, when `name` is not the whole truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// What it is.
    pub kind: FileKind,
    /// Apparent size in bytes.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Last change of the content, milliseconds since the Unix epoch.
    pub mtime_ms: i64,
}

/// One page of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Entries, in byte order of their names.
    pub entries: Vec<FileInfo>,
    /// Whether there are more after the last.
    pub more: bool,
}

/// How full one mount is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountUsage {
    /// Where it is mounted.
    pub path: String,
    /// Its size in bytes.
    pub total_bytes: u64,
    /// What is left for the sandbox user, in bytes.
    pub free_bytes: u64,
}

/// `GET /v1/disk`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Every writable place of the sandbox.
    pub mounts: Vec<MountUsage>,
}
