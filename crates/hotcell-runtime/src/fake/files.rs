//! The files of one fake sandbox: in memory, except for volumes, which are the host's.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Bound,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
};

use bytes::Bytes;
use hotcell_agent_proto::{
    AgentError, AgentErrorCode, DiskUsage, FileInfo, FileKind, Listing, MountUsage,
};
use hotcell_types::{
    SandboxPath,
    volume::{TMP_PATH, WORKSPACE_PATH},
};

use crate::VolumeMount;

/// How many links one path may lead through.
const MAX_LINKS: usize = 40;
/// Where the sandbox may write, beside its volumes.
const WRITABLE: [&str; 2] = [WORKSPACE_PATH, TMP_PATH];

/// What a file holds.
#[derive(Clone)]
pub(super) enum Content {
    Bytes(Bytes),
    /// A hole of this size in bytes.
    Zeros(u64),
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeros(bytes) => *bytes,
        }
    }
}

/// What stands at a path.
#[derive(Clone)]
pub(super) enum Node {
    File(Content, u32),
    Directory,
    Link(String),
    Fifo,
}

/// All files of one sandbox.
pub(super) struct Files {
    nodes: BTreeMap<String, (Node, i64)>,
    mounts: Vec<VolumeMount>,
    limit_bytes: u64,
    /// Counts changes: the fake's time of modification.
    changes: i64,
}

fn refuse(code: AgentErrorCode, path: &str, why: &str) -> AgentError {
    AgentError::new(code, format!("{path}: {why}"))
}

fn missing(path: &str) -> AgentError {
    refuse(AgentErrorCode::NotFound, path, "no such file or directory")
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

fn beneath(path: &str, root: &str) -> bool {
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Files {
    pub(super) fn attach(&mut self, mounts: Vec<VolumeMount>) {
        self.mounts = mounts;
    }

    pub(super) fn new(mounts: Vec<VolumeMount>, limit_bytes: u64) -> Self {
        let roots = ["/", "/mnt", "/etc"].into_iter().chain(WRITABLE);
        Self {
            nodes: roots
                .map(|path| (path.to_owned(), (Node::Directory, 0)))
                .collect(),
            mounts,
            limit_bytes,
            changes: 0,
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let held = |node: &Node| match node {
            Node::File(Content::Bytes(bytes), _) => bytes.len() as u64,
            _ => 0,
        };
        self.nodes.values().map(|(node, _)| held(node)).sum()
    }

    /// The directory of the host behind a path on a volume, and whether it is read-only.
    fn on_volume(&self, path: &str) -> Option<(PathBuf, bool)> {
        self.mounts.iter().find_map(|mount| {
            let root = mount.kind.mount_path();
            beneath(path, root).then(|| {
                let rest = path[root.len()..].trim_start_matches('/');
                (mount.host_path.join(rest), mount.kind.read_only())
            })
        })
    }

    fn writable(&self, path: &str) -> Result<Option<PathBuf>, AgentError> {
        match self.on_volume(path) {
            Some((host, false)) => Ok(Some(host)),
            None if WRITABLE.iter().any(|root| beneath(path, root)) => Ok(None),
            _ => Err(refuse(
                AgentErrorCode::PermissionDenied,
                path,
                "read-only file system",
            )),
        }
    }

    /// Follows links in memory; those on volumes are the host's business.
    fn follow(&self, path: &str) -> Result<String, AgentError> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match self.nodes.get(&path) {
                Some((Node::Link(target), _)) => path.clone_from(target),
                _ => return Ok(path),
            }
        }
        Err(refuse(AgentErrorCode::Io, &path, "too many links"))
    }

    fn info(path: &str, node: &Node, changed: i64) -> FileInfo {
        let (kind, bytes, mode) = match node {
            Node::File(content, mode) => (FileKind::File, content.len(), *mode),
            Node::Directory => (FileKind::Directory, 0, 0o755),
            Node::Link(target) => (FileKind::Link, target.len() as u64, 0o777),
            Node::Fifo => (FileKind::Other, 0, 0o644),
        };
        FileInfo {
            name: path.rsplit('/').next().unwrap_or_default().to_owned(),
            name_hex: None,
            kind,
            bytes,
            mode,
            mtime_ms: changed,
        }
    }

    fn host_info(name: &std::ffi::OsStr, meta: &fs::Metadata) -> FileInfo {
        let kind = match meta.file_type() {
            kind if kind.is_file() => FileKind::File,
            kind if kind.is_dir() => FileKind::Directory,
            kind if kind.is_symlink() => FileKind::Link,
            _ => FileKind::Other,
        };
        let text = name.to_string_lossy();
        FileInfo {
            name_hex: matches!(text, std::borrow::Cow::Owned(_))
                .then(|| hex::encode(name.as_encoded_bytes())),
            name: text.into_owned(),
            kind,
            bytes: meta.len(),
            mode: meta.mode() & 0o7777,
            mtime_ms: meta.mtime() * 1000 + meta.mtime_nsec() / 1_000_000,
        }
    }

    fn put(&mut self, path: &str, node: Node) {
        self.changes += 1;
        let mut up = parent(path);
        while !self.nodes.contains_key(up) {
            self.nodes
                .insert(up.to_owned(), (Node::Directory, self.changes));
            up = parent(up);
        }
        self.nodes.insert(path.to_owned(), (node, self.changes));
    }

    /// Puts something there that only commands can make.
    pub(super) fn make(&mut self, path: &str, node: Node) -> Result<(), AgentError> {
        match (self.writable(path)?, &node) {
            (None, _) => {
                self.put(path, node);
                Ok(())
            }
            (Some(host), Node::Directory) => {
                fs::create_dir_all(host).map_err(|error| AgentError::from_io(path, &error))
            }
            _ => Err(refuse(
                AgentErrorCode::Io,
                path,
                "the fake makes only files and directories on volumes",
            )),
        }
    }

    pub(super) fn write(
        &mut self,
        path: &str,
        content: Bytes,
        mode: u32,
    ) -> Result<FileInfo, AgentError> {
        if let Some(host) = self.writable(path)? {
            let write = || -> io::Result<()> {
                if let Some(parent) = host.parent() {
                    fs::create_dir_all(parent)?;
                }
                fs::write(&host, &content)?;
                fs::set_permissions(&host, fs::Permissions::from_mode(mode))
            };
            write().map_err(|error| AgentError::from_io(path, &error))?;
            return self.stat(path);
        }
        if let Some((Node::Directory, _)) = self.nodes.get(path) {
            return Err(refuse(
                AgentErrorCode::NotARegularFile,
                path,
                "is a directory",
            ));
        }
        let replaced = match self.nodes.get(path) {
            Some((Node::File(content, _), _)) => content.len(),
            _ => 0,
        };
        if self.used_bytes().saturating_sub(replaced) + content.len() as u64 > self.limit_bytes {
            return Err(refuse(
                AgentErrorCode::DiskFull,
                path,
                "no space left on device",
            ));
        }
        self.put(path, Node::File(Content::Bytes(content), mode));
        self.stat(path)
    }

    /// What the host may read; commands of the sandbox may [read](Self::read) more.
    pub(super) fn read_beneath(
        &self,
        path: &SandboxPath,
    ) -> Result<(FileInfo, Content), AgentError> {
        let place = self.follow(path.as_str())?;
        match path.directory() {
            Some(directory) if !beneath(&place, directory) => Err(missing(path.as_str())),
            _ => self.read(&place),
        }
    }

    pub(super) fn read(&self, path: &str) -> Result<(FileInfo, Content), AgentError> {
        let path = &self.follow(path)?;
        let special = || refuse(AgentErrorCode::NotARegularFile, path, "not a regular file");
        if let Some((host, _)) = self.on_volume(path) {
            let fail = |error: io::Error| AgentError::from_io(path, &error);
            let meta = fs::symlink_metadata(&host).map_err(fail)?;
            if !meta.is_file() {
                return Err(special());
            }
            let info = Self::host_info(host.file_name().unwrap_or_default(), &meta);
            let content = fs::read(&host).map_err(fail)?;
            return Ok((info, Content::Bytes(content.into())));
        }
        match self.nodes.get(path) {
            None => Err(missing(path)),
            Some((node @ Node::File(content, _), changed)) => {
                Ok((Self::info(path, node, *changed), content.clone()))
            }
            Some(_) => Err(special()),
        }
    }

    pub(super) fn stat(&self, path: &str) -> Result<FileInfo, AgentError> {
        if let Some((host, _)) = self.on_volume(path) {
            let meta =
                fs::symlink_metadata(&host).map_err(|error| AgentError::from_io(path, &error))?;
            return Ok(Self::host_info(host.file_name().unwrap_or_default(), &meta));
        }
        let (node, changed) = self.nodes.get(path).ok_or_else(|| missing(path))?;
        Ok(Self::info(path, node, *changed))
    }

    pub(super) fn is_directory(&self, path: &str) -> bool {
        self.stat(path)
            .is_ok_and(|info| info.kind == FileKind::Directory)
    }

    pub(super) fn remove(&mut self, path: &str) -> Result<(), AgentError> {
        let host = self.writable(path)?;
        if WRITABLE.contains(&path) || self.mounts.iter().any(|m| m.kind.mount_path() == path) {
            return Err(refuse(
                AgentErrorCode::PermissionDenied,
                path,
                "it is a mount",
            ));
        }
        if let Some(host) = host {
            let remove = || -> io::Result<()> {
                if fs::symlink_metadata(&host)?.is_dir() {
                    fs::remove_dir_all(&host)
                } else {
                    fs::remove_file(&host)
                }
            };
            return remove().map_err(|error| AgentError::from_io(path, &error));
        }
        if self.nodes.remove(path).is_none() {
            return Err(missing(path));
        }
        self.changes += 1;
        let below = format!("{path}/");
        self.nodes.retain(|name, _| !name.starts_with(&below));
        Ok(())
    }

    pub(super) fn list(
        &self,
        path: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, AgentError> {
        let mut entries = if let Some((host, _)) = self.on_volume(path) {
            let read = || -> io::Result<Vec<FileInfo>> {
                fs::read_dir(&host)?
                    .map(|entry| {
                        let entry = entry?;
                        Ok(Self::host_info(&entry.file_name(), &entry.metadata()?))
                    })
                    .collect()
            };
            let mut entries = read().map_err(|error| AgentError::from_io(path, &error))?;
            entries.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
            entries.retain(|entry| after.is_none_or(|after| entry.name.as_str() > after));
            entries
        } else {
            match self.nodes.get(path) {
                None => return Err(missing(path)),
                Some((Node::Directory, _)) => {}
                Some(_) => {
                    return Err(refuse(AgentErrorCode::NotFound, path, "not a directory"));
                }
            }
            let below = if path == "/" {
                path.to_owned()
            } else {
                format!("{path}/")
            };
            let start = format!("{below}{}", after.unwrap_or_default());
            self.nodes
                .range::<str, _>((Bound::Excluded(start.as_str()), Bound::Unbounded))
                .take_while(|(name, _)| name.starts_with(&below))
                .filter(|(name, _)| !name[below.len()..].contains('/'))
                .take(limit + 1)
                .map(|(name, (node, changed))| Self::info(name, node, *changed))
                .collect()
        };
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(Listing { entries, more })
    }

    pub(super) fn disk(&self) -> DiskUsage {
        DiskUsage {
            mounts: vec![MountUsage {
                path: WORKSPACE_PATH.to_owned(),
                total_bytes: self.limit_bytes,
                free_bytes: self.limit_bytes.saturating_sub(self.used_bytes()),
            }],
        }
    }
}
