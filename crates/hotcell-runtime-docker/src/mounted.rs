//! What is mounted, as the calling thread's namespace has it.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use hotcell_types::limits;

/// Whether something is mounted there, in the calling thread's namespace.
pub(crate) fn is_mounted(target: &Path) -> io::Result<bool> {
    Ok(last_mounted_beneath(target)?.is_some_and(|found| found == target))
}

/// The latest mount that is there or beneath, in the calling thread's namespace.
pub(crate) fn last_mounted_beneath(target: &Path) -> io::Result<Option<PathBuf>> {
    Ok(mounts()?
        .into_iter()
        .rfind(|mounted| mounted.starts_with(target)))
}

/// Every mount in the calling thread's namespace, in their order.
pub(crate) fn mounts() -> io::Result<Vec<PathBuf>> {
    let mut table = String::new();
    File::open("/proc/thread-self/mountinfo")?
        .take(limits::MAX_ENGINE_FILE_BYTES)
        .read_to_string(&mut table)?;
    let mounted = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(mounted.map(unescape).collect())
}

/// A path as the kernel lists it: blanks and the like are a backslash and three octal digits.
fn unescape(listed: &str) -> PathBuf {
    let bytes = listed.as_bytes();
    let (mut path, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(meant) => {
                path.push(meant);
                at += 4;
            }
            None => {
                path.push(*byte);
                at += 1;
            }
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_seen() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/proc/self")).unwrap());
        for (listed, path) in [
            ("/a/b", "/a/b"),
            ("/a\\040b/\\134\\011", "/a b/\\\t"),
            ("/a\\04", "/a\\04"),
            ("/\\999\\", "/\\999\\"),
        ] {
            assert_eq!(unescape(listed), Path::new(path));
        }
    }
}
