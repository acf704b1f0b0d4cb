//! The unpacked images.
//!
//! ```text
//! image_dir/<64 hex digits of the tar's SHA-256>/
//!     image.json    its name and size
//!     rootfs/       the tree; sandboxes see it read-only
//! image_dir/.unpack-…   an import that is under way, or was cut off
//! ```
//!
//! An import unpacks, checks and prepares the tree in a directory beside, and then renames it, so
//! a digest that is there is whole.

mod tree;
mod unpack;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use hotcell_runtime::{ImageInfo, ImageRef, RuntimeError};
use hotcell_types::limits;
use serde::{Deserialize, Serialize};

use crate::{fault, record::write_new};

pub(crate) use tree::make_mount_points;

/// Bumped when trees are prepared in another way.
const LAYOUT: u32 = 1;

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It is not in the store.
    #[error("no image {0}")]
    NotFound(String),
    /// It cannot be run, or its tar is hostile or damaged.
    #[error("the image cannot be used: {0}")]
    Bad(String),
    /// A sandbox uses it.
    #[error("the image {0} is in use")]
    InUse(ImageRef),
    /// It is larger than any image may be, or there are too many.
    #[error("over the limit of {limit} {unit}")]
    TooLarge {
        /// The limit.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// The disk did not play along.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            what: what.into(),
            source,
        }
    }
}

impl From<ImageError> for RuntimeError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::NotFound(image) => Self::NoSuchImage(image),
            ImageError::Bad(reason) => Self::BadImage {
                image: "given".into(),
                reason,
            },
            ImageError::Io { what, source } => match fault::of("keep images")(source) {
                Self::DiskFull(reason) => Self::DiskFull(format!("{what}: {reason}")),
                Self::Failed { action, reason } => Self::Failed {
                    action,
                    reason: format!("{what}: {reason}"),
                },
                other => other,
            },
            other => fault::failed("keep images", other.to_string()),
        }
    }
}

/// Called now and then during an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the tar that were read.
    pub read_bytes: u64,
    /// Bytes of the tar in all.
    pub total_bytes: u64,
}

/// What is known of one image; its place says the digest.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    layout: u32,
    name: String,
    bytes: u64,
}

/// The images of this host, unpacked.
#[derive(Debug)]
pub struct ImageStore {
    dir: PathBuf,
    /// Held while names and places change.
    change: Mutex<()>,
    imports: AtomicU64,
}

impl ImageStore {
    /// Opens the store in `dir`, making it when it is not there, and removes imports that were
    /// cut off.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(dir: &Path) -> Result<Self, ImageError> {
        fault::make_private_dir(dir)
            .map_err(|error| ImageError::io(dir.display().to_string())(io::Error::other(error)))?;
        let store = Self {
            dir: dir.to_owned(),
            change: Mutex::new(()),
            imports: AtomicU64::new(0),
        };
        for entry in store.entries()? {
            if entry.starts_with(".unpack-") && !store.import_is_alive(&entry) {
                let path = store.dir.join(&entry);
                fault::remove_tree(&path).map_err(ImageError::io(path.display().to_string()))?;
            }
        }
        Ok(store)
    }

    /// Unpacks a tar (plain, not compressed) and keeps it as `name`. An image that is there
    /// already is only renamed. An older image of that name keeps its digest and is called
    /// `name@<12 digits>` from then on. Blocks; takes seconds to minutes.
    ///
    /// # Errors
    /// [`ImageError::Bad`] for a tar that leads outside itself or has no `bash`.
    pub fn import(
        &self,
        tar: &Path,
        name: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<ImageInfo, ImageError> {
        if name.is_empty() || name.len() > limits::MAX_FILE_NAME_BYTES {
            return Err(ImageError::Bad("its name is empty or too long".into()));
        }
        if self.list()?.len() >= limits::MAX_IMAGES {
            return Err(ImageError::TooLarge {
                limit: limits::MAX_IMAGES as u64,
                unit: "images",
            });
        }
        let number = self.imports.fetch_add(1, Ordering::Relaxed);
        let work = self
            .dir
            .join(format!(".unpack-{}-{number}", std::process::id()));
        let outcome = self.import_in(&work, tar, name, progress);
        fault::remove_tree(&work).map_err(ImageError::io(work.display().to_string()))?;
        outcome
    }

    fn import_in(
        &self,
        work: &Path,
        tar: &Path,
        name: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<ImageInfo, ImageError> {
        let file = File::open(tar).map_err(ImageError::io(tar.display().to_string()))?;
        let root = work.join("rootfs");
        fault::make_private_dir(&root)
            .map_err(|error| ImageError::io(root.display().to_string())(io::Error::other(error)))?;
        let unpacked = unpack::unpack(file, &root, progress)?;
        tree::prepare(&root)?;
        let record = Record {
            layout: LAYOUT,
            name: name.to_owned(),
            bytes: unpacked.bytes,
        };
        save(work, &record)?;
        let image: ImageRef = format!("sha256:{}", unpacked.sha256_hex)
            .parse()
            .map_err(|_| ImageError::Bad("its digest is malformed".into()))?;
        let _guard = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.place(&image);
        if place.exists() {
            save(&place, &record)?;
        } else {
            fs::rename(work, &place).map_err(ImageError::io(place.display().to_string()))?;
        }
        self.take_name(name, &image)?;
        Ok(ImageInfo {
            image,
            name: record.name,
            bytes: record.bytes,
        })
    }

    /// Takes a name away from every image but `owner`.
    fn take_name(&self, name: &str, owner: &ImageRef) -> Result<(), ImageError> {
        for other in self.list()? {
            if other.name == name && other.image != *owner {
                let renamed = Record {
                    layout: LAYOUT,
                    name: format!("{name}@{}", &other.image.hex()[..12]),
                    bytes: other.bytes,
                };
                save(&self.place(&other.image), &renamed)?;
            }
        }
        Ok(())
    }

    /// Every image, by name.
    ///
    /// # Errors
    /// When the directory cannot be read; an entry that is no image is passed over.
    pub fn list(&self) -> Result<Vec<ImageInfo>, ImageError> {
        let mut images: Vec<_> = self
            .entries()?
            .into_iter()
            .filter_map(|hex| format!("sha256:{hex}").parse().ok())
            .filter_map(|image| self.get(&image).ok())
            .collect();
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    /// One image.
    ///
    /// # Errors
    /// [`ImageError::NotFound`].
    pub fn get(&self, image: &ImageRef) -> Result<ImageInfo, ImageError> {
        let missing = || ImageError::NotFound(image.to_string());
        let bytes =
            fault::read_small(&self.place(image).join("image.json")).map_err(|_| missing())?;
        let record: Record = serde_json::from_slice(&bytes).map_err(|_| missing())?;
        if record.layout != LAYOUT {
            return Err(ImageError::Bad(
                "it was unpacked by another release; import it again".into(),
            ));
        }
        Ok(ImageInfo {
            image: image.clone(),
            name: record.name,
            bytes: record.bytes,
        })
    }

    /// The image of this name or digest.
    ///
    /// # Errors
    /// [`ImageError::NotFound`].
    pub fn resolve(&self, name_or_digest: &str) -> Result<ImageInfo, ImageError> {
        if let Ok(image) = name_or_digest.parse() {
            return self.get(&image);
        }
        self.list()?
            .into_iter()
            .find(|image| image.name == name_or_digest)
            .ok_or_else(|| ImageError::NotFound(name_or_digest.to_owned()))
    }

    /// Removes an image that is not among those `in_use`; one that is not there is fine.
    ///
    /// # Errors
    /// [`ImageError::InUse`].
    pub fn remove(&self, image: &ImageRef, in_use: &BTreeSet<ImageRef>) -> Result<(), ImageError> {
        if in_use.contains(image) {
            return Err(ImageError::InUse(image.clone()));
        }
        let _guard = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.imports.fetch_add(1, Ordering::Relaxed);
        let gone = self
            .dir
            .join(format!(".unpack-{}-{number}", std::process::id()));
        match fs::rename(self.place(image), &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(ImageError::io(image.to_string())(error)),
            Ok(()) => fault::remove_tree(&gone).map_err(ImageError::io(gone.display().to_string())),
        }
    }

    /// The tree of an image, after a look whether it still has what a sandbox needs.
    pub(crate) fn root(&self, image: &ImageRef) -> Result<PathBuf, RuntimeError> {
        self.get(image)?;
        let root = self.place(image).join("rootfs");
        tree::check(&root).map_err(|error| RuntimeError::BadImage {
            image: image.to_string(),
            reason: error.to_string(),
        })?;
        Ok(root)
    }

    fn place(&self, image: &ImageRef) -> PathBuf {
        self.dir.join(image.hex())
    }

    fn entries(&self) -> Result<Vec<String>, ImageError> {
        let fault = |error| ImageError::io(self.dir.display().to_string())(error);
        fs::read_dir(&self.dir)
            .map_err(fault)?
            .map(|entry| Ok(entry.map_err(fault)?.file_name().into_string().ok()))
            .filter_map(Result::transpose)
            .collect()
    }

    /// Whether the process that began an import still runs: the command line may import while
    /// the daemon opens the store.
    fn import_is_alive(&self, entry: &str) -> bool {
        entry
            .strip_prefix(".unpack-")
            .and_then(|rest| rest.split('-').next())
            .is_some_and(|pid| Path::new("/proc").join(pid).exists())
    }
}

fn save(place: &Path, record: &Record) -> Result<(), ImageError> {
    let path = place.join("image.json");
    let text = serde_json::to_vec(record)
        .map_err(|error| ImageError::io("image.json")(io::Error::other(error)))?;
    write_new(&path, &text).map_err(ImageError::io(path.display().to_string()))
}

#[cfg(test)]
mod tests;
