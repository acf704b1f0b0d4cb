//! Nonces that outlive the process.
//!
//! Each taken nonce is appended to `nonces.log` before its request goes on, so a daemon that was
//! killed finds it again. The log is not synced: what a power loss may take with it is covered
//! by the first line, the id of the boot that wrote it. When that is not this boot's, or there
//! is no log, requests stamped before this start are refused.
//!
//! ```text
//!   boot 6f1c…                     nonces.log     this generation
//!   1700000000 ck_…:Zm9v…          nonces.log.1   the one before: nothing in it is younger
//!   …                                             than a nonce is remembered
//! ```
//!
//! When the log cannot be written (a full disk) it is removed and memory alone remembers: a
//! start without a log is safe, one with a log that lacks lines is not.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use hotcell_types::{UnixMillis, limits::MAX_NONCE_LOG_BYTES};
use hotcell_wire::{NonceCache, NonceError};

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the nonce log {path} cannot be opened")]
pub struct NonceLogError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

struct Inner {
    cache: NonceCache,
    path: PathBuf,
    boot: String,
    /// Absent after it could not be written.
    log: Option<File>,
    written_bytes: u64,
    /// When this generation of the log was begun, Unix seconds.
    begun: u64,
}

/// The nonces that were used.
pub struct Nonces {
    inner: Mutex<Inner>,
    /// Requests stamped before this second are refused.
    not_before: u64,
}

/// This boot of the machine.
///
/// # Errors
/// When the kernel does not tell.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

fn previous(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

/// Reads one generation into the cache; says whether it is of this boot.
fn load(path: &Path, boot: &str, now: u64, cache: &mut NonceCache) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // Lines are short; the limit is there for a file that is something else.
    let lines = BufReader::new(file.take(2 * MAX_NONCE_LOG_BYTES)).split(b'\n');
    let mut same_boot = false;
    for (number, line) in lines.enumerate() {
        let line = String::from_utf8(line?).unwrap_or_default();
        if number == 0 {
            same_boot = line.strip_prefix("boot ") == Some(boot);
            continue;
        }
        // A line that was cut is followed by an empty one: the process died while it wrote it,
        // and its request never went on.
        let Some((seconds, entry)) = line.split_once(' ') else {
            continue;
        };
        let (Ok(seconds), Some((key, nonce))) = (seconds.parse::<u64>(), entry.split_once(':'))
        else {
            continue;
        };
        if seconds + NonceCache::RETENTION_SECONDS >= now {
            // Replayed: it stands in both generations. Full: then the cache refuses from now on.
            let _ = cache.take(key, nonce, seconds);
        }
    }
    Ok(same_boot)
}

impl Nonces {
    /// Opens the log at `path`, or begins one.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn open(path: &Path, boot: &str, now: UnixMillis) -> Result<Self, NonceLogError> {
        let failed = |source| NonceLogError {
            path: path.to_owned(),
            source,
        };
        let mut cache = NonceCache::default();
        load(&previous(path), boot, now.seconds(), &mut cache).map_err(failed)?;
        let same_boot = load(path, boot, now.seconds(), &mut cache).map_err(failed)?;
        let mut inner = Inner {
            cache,
            path: path.to_owned(),
            boot: boot.to_owned(),
            log: None,
            written_bytes: 0,
            begun: now.seconds(),
        };
        if same_boot {
            let mut log = OpenOptions::new().append(true).open(path).map_err(failed)?;
            log.write_all(b"\n").map_err(failed)?;
            inner.written_bytes = log.metadata().map_err(failed)?.len();
            inner.log = Some(log);
        } else {
            inner.begin().map_err(failed)?;
        }
        Ok(Self {
            inner: Mutex::new(inner),
            not_before: if same_boot { 0 } else { now.seconds() },
        })
    }

    /// Takes a nonce of a request that is rightly signed and stamped `timestamp`, once.
    ///
    /// # Errors
    /// [`NonceError::Replayed`] also for a request from before this start when it is not known
    /// which nonces were used then.
    pub fn take(
        &self,
        key: &str,
        nonce: &str,
        timestamp: u64,
        now: UnixMillis,
    ) -> Result<(), NonceError> {
        if timestamp < self.not_before {
            return Err(NonceError::Replayed);
        }
        let now = now.seconds();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.cache.take(key, nonce, now)?;
        inner.rotate(now);
        inner.write(now, key, nonce);
        Ok(())
    }
}

impl Inner {
    /// Begins a new generation.
    fn begin(&mut self) -> io::Result<()> {
        match std::fs::rename(&self.path, previous(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        let first = format!("boot {}\n", self.boot);
        log.write_all(first.as_bytes())?;
        self.written_bytes = first.len() as u64;
        self.log = Some(log);
        Ok(())
    }

    fn rotate(&mut self, now: u64) {
        if self.log.is_none() || now <= self.begun + NonceCache::RETENTION_SECONDS {
            return;
        }
        self.begun = now;
        if let Err(error) = self.begin() {
            self.give_up(&error);
        }
    }

    fn write(&mut self, now: u64, key: &str, nonce: &str) {
        let Some(log) = &mut self.log else { return };
        let line = format!("{now} {key}:{nonce}\n");
        let written = if self.written_bytes > MAX_NONCE_LOG_BYTES {
            Err(io::Error::from(io::ErrorKind::FileTooLarge))
        } else {
            log.write_all(line.as_bytes())
        };
        self.written_bytes += line.len() as u64;
        if let Err(error) = written {
            self.give_up(&error);
        }
    }

    /// Goes on without a log, so that the next start knows that it does not know.
    fn give_up(&mut self, error: &io::Error) {
        tracing::error!(%error, "nonces cannot be written down; the next start will refuse requests stamped before it");
        self.log = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

    fn open(path: &Path, boot: &str, now: UnixMillis) -> Nonces {
        Nonces::open(path, boot, now).unwrap()
    }

    #[test]
    fn a_killed_daemon_remembers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nonces.log");
        let nonces = open(&path, "b1", NOW);
        assert_eq!(nonces.take("k", "n", 1_700_000_000, NOW), Ok(()));
        // Dropped without a word: nothing is written at the end.
        std::mem::forget(nonces);
        let nonces = open(&path, "b1", NOW);
        assert_eq!(
            nonces.take("k", "n", 1_700_000_000, NOW),
            Err(NonceError::Replayed)
        );
        assert_eq!(nonces.take("k", "m", 1_699_999_970, NOW), Ok(()));
        assert_eq!(
            nonces.take("k", "m", 1_699_999_970, NOW),
            Err(NonceError::Replayed)
        );
    }

    #[test]
    fn after_a_reboot_or_without_a_log_older_requests_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nonces.log");
        for boot in ["b1", "b2"] {
            let nonces = open(&path, boot, NOW);
            assert_eq!(
                nonces.take("k", boot, 1_699_999_999, NOW),
                Err(NonceError::Replayed)
            );
            assert_eq!(nonces.take("k", boot, 1_700_000_000, NOW), Ok(()));
        }
        // The first boot's nonces are still known.
        let nonces = open(&path, "b2", NOW);
        assert_eq!(
            nonces.take("k", "b1", 1_700_000_000, NOW),
            Err(NonceError::Replayed)
        );
    }

    #[test]
    fn a_cut_or_foreign_line_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nonces.log");
        std::fs::write(&path, b"boot b1\n1700000000 k:one\n\xff\xfe\nx y\n170000").unwrap();
        let nonces = open(&path, "b1", NOW);
        assert_eq!(
            nonces.take("k", "one", 1_700_000_000, NOW),
            Err(NonceError::Replayed)
        );
        assert_eq!(nonces.take("k", "two", 1_700_000_000, NOW), Ok(()));
        drop(nonces);
        let nonces = open(&path, "b1", NOW);
        assert_eq!(
            nonces.take("k", "two", 1_700_000_000, NOW),
            Err(NonceError::Replayed)
        );
    }

    #[test]
    fn the_log_is_rotated_and_two_generations_suffice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nonces.log");
        let nonces = open(&path, "b1", NOW);
        let at = |seconds: u64| UnixMillis((1_700_000_000 + seconds) * 1000);
        for second in 0..1_000 {
            let now = at(second);
            assert_eq!(
                nonces.take("k", &format!("n{second}"), now.seconds(), now),
                Ok(())
            );
        }
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        assert!(lines(&path) + lines(&previous(&path)) < 300);
        drop(nonces);
        let now = at(1_000);
        let nonces = open(&path, "b1", now);
        for second in 940..1_000 {
            let taken = nonces.take("k", &format!("n{second}"), at(second).seconds(), now);
            assert_eq!(taken, Err(NonceError::Replayed), "{second}");
        }
    }
}
