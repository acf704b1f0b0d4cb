//! `GET /v1/list`: one page of a directory, in byte order, in bounded memory.

use std::{
    collections::BinaryHeap,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
};

use hotcell_agent_proto::{AgentError, AgentErrorCode, Listing};
use hotcell_types::limits::MAX_PAGE_ROWS;

use super::{blocking, failed, info};

/// Entries after `after`, at most `limit` and at most [`MAX_PAGE_ROWS`].
///
/// # Errors
/// From the file system.
pub(crate) async fn list(
    path: PathBuf,
    after: Vec<u8>,
    limit: Option<usize>,
) -> Result<Listing, AgentError> {
    let limit = limit.unwrap_or(MAX_PAGE_ROWS).clamp(1, MAX_PAGE_ROWS);
    blocking(move || page(&path, &after, limit)).await
}

fn page(path: &std::path::Path, after: &[u8], limit: usize) -> Result<Listing, AgentError> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotADirectory => AgentError::new(
            AgentErrorCode::NotFound,
            format!("{} is no directory", path.to_string_lossy()),
        ),
        _ => failed(path, &error),
    };
    // The smallest names so far; one more than the page tells whether there are more.
    let mut smallest: BinaryHeap<Vec<u8>> = BinaryHeap::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().into_vec();
        if name.as_slice() > after {
            smallest.push(name);
            if smallest.len() > limit + 1 {
                smallest.pop();
            }
        }
    }
    let mut names = smallest.into_sorted_vec();
    let more = names.len() > limit;
    names.truncate(limit);
    let entries = names
        .iter()
        // One that has gone meanwhile is not there.
        .filter_map(|name| {
            let path = path.join(std::ffi::OsStr::from_bytes(name));
            Some(info(name, &std::fs::symlink_metadata(path).ok()?))
        })
        .collect();
    Ok(Listing { entries, more })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn pages_follow_byte_order_and_show_what_is_no_text() {
        let directory = tempfile::tempdir().unwrap();
        for name in [b"b".as_slice(), b"a", b"\xff\xfe", "ä".as_bytes(), b"a b"] {
            std::fs::write(directory.path().join(OsStr::from_bytes(name)), name).unwrap();
        }
        let names = |listing: &Listing| {
            listing
                .entries
                .iter()
                .map(|entry| entry.name.clone())
                .collect::<Vec<_>>()
        };
        let first = page(directory.path(), b"", 2).unwrap();
        assert_eq!(
            (names(&first), first.more),
            (vec!["a".into(), "a b".into()], true)
        );
        let rest = page(directory.path(), b"a b", 1_000).unwrap();
        assert_eq!(
            (names(&rest), rest.more),
            (vec!["b".into(), "ä".into(), "��".into()], false)
        );
        assert_eq!(rest.entries[2].name_hex.as_deref(), Some("fffe"));
        assert_eq!(rest.entries[1].name_hex, None);
        let missing = page(&directory.path().join("a"), b"", 1).unwrap_err();
        assert_eq!(missing.code, AgentErrorCode::NotFound);
    }
}
