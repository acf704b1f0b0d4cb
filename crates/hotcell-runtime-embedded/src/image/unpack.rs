//! A tar becomes a tree, and a digest on the way. The tar is not trusted: nothing of it lands
//! outside the tree, and its size has limits.

use std::{
    io::{self, Read},
    path::{Component, Path},
};

use hotcell_types::limits;
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType};

use super::{ImageError, Progress};

/// What came out of a tar.
pub(super) struct Unpacked {
    pub(super) sha256_hex: String,
    pub(super) bytes: u64,
}

/// Bytes between two calls of the progress function.
const PROGRESS_BYTES: u64 = 16 << 20;

/// Unpacks `tar` into the empty directory `root`. Devices, FIFOs and extended attributes are
/// left out: nothing in a sandbox may have them.
pub(super) fn unpack(
    tar: std::fs::File,
    root: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Unpacked, ImageError> {
    let total = tar
        .metadata()
        .map_err(ImageError::io("reading the tar"))?
        .len();
    let mut source = Hashing {
        inner: io::BufReader::with_capacity(1 << 20, tar),
        hash: Sha256::new(),
        read: 0,
        reported: 0,
        total,
        progress,
    };
    let mut start = [0; 6];
    source
        .read_exact(&mut start)
        .map_err(|_| ImageError::Bad("it is no tar".into()))?;
    if start.starts_with(&[0x1f, 0x8b]) || start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err(ImageError::Bad(
            "it is compressed; decompress it first".into(),
        ));
    }
    let bytes = unpack_entries(start.chain(&mut source), root)?;
    // The digest is that of the whole file, padding included.
    io::copy(&mut source, &mut io::sink()).map_err(ImageError::io("reading the tar"))?;
    Ok(Unpacked {
        sha256_hex: hex::encode(source.hash.finalize()),
        bytes,
    })
}

fn unpack_entries(source: impl Read, root: &Path) -> Result<u64, ImageError> {
    let mut archive = Archive::new(source);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(rustix::process::geteuid().is_root());
    archive.set_preserve_mtime(true);
    archive.set_unpack_xattrs(false);
    let damaged = |error: io::Error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ImageError::io("unpacking")(error)
        }
        _ => ImageError::Bad(format!("its tar cannot be unpacked: {error}")),
    };
    let (mut bytes, mut count) = (0_u64, 0_u64);
    // Directories last, deepest first: one without write permission must not stop its content,
    // and content must not change its time.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        count += 1;
        bytes = bytes.saturating_add(entry.size());
        if count > limits::MAX_IMAGE_ENTRIES {
            return Err(ImageError::TooLarge {
                limit: limits::MAX_IMAGE_ENTRIES,
                unit: "files",
            });
        }
        if bytes > limits::MAX_IMAGE_BYTES {
            return Err(ImageError::TooLarge {
                limit: limits::MAX_IMAGE_BYTES,
                unit: "bytes",
            });
        }
        let path = entry.path().map_err(damaged)?.into_owned();
        stay_inside(&path)?;
        match entry.header().entry_type() {
            EntryType::Block | EntryType::Char | EntryType::Fifo => continue,
            EntryType::Link => {
                let target = entry.link_name().map_err(damaged)?;
                stay_inside(target.as_deref().unwrap_or(Path::new("")))?;
            }
            EntryType::Directory => {
                directories.push(entry);
                continue;
            }
            _ => {}
        }
        if !entry.unpack_in(root).map_err(damaged)? {
            return Err(outside(&path));
        }
    }
    directories.sort_by(|a, b| b.path_bytes().cmp(&a.path_bytes()));
    for mut directory in directories {
        directory.unpack_in(root).map_err(damaged)?;
    }
    Ok(bytes)
}

/// Refuses a path that is absolute or has `..`: whoever wrote such a tar means something else
/// than an image.
fn stay_inside(path: &Path) -> Result<(), ImageError> {
    let good = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if good { Ok(()) } else { Err(outside(path)) }
}

fn outside(path: &Path) -> ImageError {
    ImageError::Bad(format!(
        "its tar leads outside itself by {:?}",
        path.to_string_lossy().chars().take(200).collect::<String>()
    ))
}

/// Hashes and counts what is read through it.
struct Hashing<'a, R> {
    inner: R,
    hash: Sha256,
    read: u64,
    reported: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl<R: Read> Read for Hashing<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.read += count as u64;
        if count == 0 || self.read - self.reported >= PROGRESS_BYTES {
            self.reported = self.read;
            (self.progress)(Progress {
                read_bytes: self.read,
                total_bytes: self.total,
            });
        }
        Ok(count)
    }
}
