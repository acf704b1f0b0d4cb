//! Volumes that end at a size: one ext4 image in a sparse file for each, mounted where the volume is.
//!
//! ```text
//!   volumes/.disks/v1-<bytes>.img                 an empty disk, copied for each volume
//!   volumes/<workspace>/
//!     users/<user>/                               where the disk is mounted; closed while it is not
//!     disks/users/<user>/disk.img                 the disk of /mnt/user-data
//!     disks/workspace-data/disk.img               the disk of /mnt/workspace-data
//!
//!   attach:  a loop device has it? ──yes──────────────────────────────► mount that device
//!                 └──no──► (make it) ─► e2fsck -p ─► grow to its size ─► mount, new loop device
//! ```
//!
//! A sandbox that outlived a daemon keeps its own mount, and with it the device and the file system: the
//! next daemon mounts the same device again, which is the same file system. A second device on one image
//! would be two file systems that destroy each other, so that is looked for first, by the inode and not by
//! the name. There is a journal and there are barriers, unlike on scratch disks: what is on a volume
//! outlives a power cut. What is removed inside is given back to the host (`discard`).
//!
//! Turns are taken by volume: whoever opens a volume has it open before another can unmount it, and the
//! kernel refuses to unmount what is open.

use std::{
    collections::hash_map::DefaultHasher,
    fs::{self, File, OpenOptions},
    hash::{Hash, Hasher},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use hotcell_runtime::disk::copy_sparse;
use hotcell_types::{
    limits,
    volume::{SANDBOX_GID, SANDBOX_UID},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    mount::{UnmountFlags, unmount},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Part of the templates' names; to be raised when they are made otherwise.
const TEMPLATE_VERSION: u32 = 1;
/// How volumes are mounted.
const OPTIONS: &str = "nosuid,nodev,noatime,discard,errors=remount-ro";
/// One inode per this many bytes.
const BYTES_PER_INODE: &str = "16384";
/// The journal, in MiB.
const JOURNAL_MIB: u32 = 8;
/// Beneath the root of all volumes: templates. No workspace has such a name.
const TEMPLATES: &str = ".disks";
/// The longest complaint of a tool that is passed on, in bytes.
const MAX_COMPLAINT_BYTES: u64 = 1_000;
/// The longest table of mounts that is read, in bytes.
const MAX_MOUNT_TABLE_BYTES: u64 = 64 << 20;
/// How often a mount is repeated whose device was given back between two steps.
const MAX_MOUNT_TRIES: usize = 5;
/// Turns that can be had at once.
const TURNS: usize = 64;
/// `e2fsck` found nothing, or has mended what it found.
const FSCK_GOOD: [i32; 2] = [0, 1];

/// How volumes are made and mounted.
pub(super) struct Disks {
    /// How large new ones are; `None` when they get no disk.
    bytes: Option<u64>,
    /// Why they cannot have a size here.
    trouble: Option<String>,
    templates: PathBuf,
    turns: Vec<Mutex<()>>,
}

impl Disks {
    /// Finds out, by doing it, whether volumes beneath `root` can have a size.
    pub(super) fn open(root: &Path, bytes: Option<u64>) -> Self {
        let mut disks = Self {
            bytes,
            trouble: None,
            templates: root.join(TEMPLATES),
            turns: (0..TURNS).map(|_| Mutex::default()).collect(),
        };
        if bytes.is_some()
            && let Err(error) = disks.probe()
        {
            tracing::warn!(%error, "persistent volumes have no size on this host");
            disks.trouble = Some(error.to_string());
        }
        disks
    }

    fn probe(&self) -> io::Result<()> {
        let image = self.templates.join("probe.img");
        let point = self.templates.join("probe");
        private_dir(&point)?;
        // What a kill left of an earlier attempt.
        detach(&point)?;
        gone(fs::remove_file(&image))?;
        let tried = self.attach(&image, &point).and_then(|()| detach(&point));
        gone(fs::remove_file(&image))?;
        tried
    }

    /// How large new volumes are, in bytes.
    pub(super) const fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Why new volumes cannot have a size here.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether new volumes get a disk.
    pub(super) const fn is_bounded(&self) -> bool {
        self.bytes.is_some() && self.trouble.is_none()
    }

    /// Nobody else mounts or unmounts what is there meanwhile.
    pub(super) fn turn(&self, target: &Path) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        target.hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % TURNS as u64).unwrap_or(0);
        self.turns[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Mounts the disk in `image` at `target`, and makes it first when there is none. Its turn is
    /// the caller's.
    ///
    /// # Errors
    /// `StorageFull` when the host has no room for a new one; otherwise what a tool said.
    pub(super) fn attach(&self, image: &Path, target: &Path) -> io::Result<()> {
        let mut last = None;
        for _ in 0..MAX_MOUNT_TRIES {
            let device = device_of(image)?;
            if device.is_none() {
                self.prepare(image)?;
            }
            let mut mount = Command::new("mount");
            mount.args(["-n", "-t", "ext4", "-o"]);
            match &device {
                Some(device) => mount.arg(OPTIONS).arg(device),
                None => mount.arg(format!("loop,{OPTIONS}")).arg(image),
            };
            match run(mount.arg(target), &[0]) {
                Ok(_) => {
                    // Made by mkfs, and nothing of the user's.
                    let found = target.join("lost+found");
                    if fs::symlink_metadata(&found).is_ok_and(|it| it.uid() == 0) {
                        gone(fs::remove_dir(&found))?;
                    }
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
            // Only a device that went away between the two steps is worth another try.
            if device.is_none() {
                break;
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("the volume cannot be mounted")))
    }

    /// An image that no device has: made, or mended and grown.
    fn prepare(&self, image: &Path) -> io::Result<()> {
        match fs::metadata(image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.make(image),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        run(Command::new("e2fsck").arg("-p").arg(image), &FSCK_GOOD)?;
        let bytes = self.bytes.unwrap_or(0);
        if fs::metadata(image)?.len() < bytes {
            // Never smaller: what is on it would have to fit.
            run(
                Command::new("e2fsck").args(["-p", "-f"]).arg(image),
                &FSCK_GOOD,
            )?;
            OpenOptions::new().write(true).open(image)?.set_len(bytes)?;
            run(Command::new("resize2fs").arg(image), &[0])?;
        }
        Ok(())
    }

    /// A new disk: there whole, also after a power cut, or not at all.
    fn make(&self, image: &Path) -> io::Result<()> {
        need_room(&self.templates)?;
        let template = self.template()?;
        let next = image.with_extension("next");
        gone(fs::remove_file(&next))?;
        copy_sparse(&template, &next)?;
        File::open(&next)?.sync_all()?;
        fs::rename(&next, image)?;
        match image.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    /// The empty disk of this size, made when it is not there.
    fn template(&self) -> io::Result<PathBuf> {
        let bytes = self
            .bytes
            .ok_or_else(|| io::Error::other("volumes have no size"))?;
        let path = self
            .templates
            .join(format!("v{TEMPLATE_VERSION}-{bytes}.img"));
        if path.exists() {
            return Ok(path);
        }
        // Two that make the same one at once each make a whole one; the last stays.
        let part = self
            .templates
            .join(format!("{:?}.part", std::thread::current().id()));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&part)?;
        file.set_len(bytes)?;
        let owner = format!(
            "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner={SANDBOX_UID}:{SANDBOX_GID}"
        );
        let made = run(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-b", "4096", "-m", "0", "-i", BYTES_PER_INODE])
                .args(["-J", &format!("size={JOURNAL_MIB}"), "-E", &owner])
                .arg(&part),
            &[0],
        );
        match made {
            Ok(_) => fs::rename(&part, &path).map(|()| path),
            Err(error) => {
                gone(fs::remove_file(&part))?;
                Err(error)
            }
        }
    }
}

/// Refuses to begin what a nearly full disk would break in the middle.
fn need_room(at: &Path) -> io::Result<()> {
    let found = rustix::fs::statvfs(at)?;
    if found.f_bavail.saturating_mul(found.f_frsize) < limits::MIN_HOST_FREE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "{} has less than {} bytes left",
                at.display(),
                limits::MIN_HOST_FREE_BYTES
            ),
        ));
    }
    Ok(())
}

/// The loop device that has this image, by its inode: names may have changed since.
fn device_of(image: &Path) -> io::Result<Option<String>> {
    if !image.exists() {
        return Ok(None);
    }
    let mut ask = Command::new("losetup");
    let found = run(ask.args(["-n", "-O", "NAME", "-j"]).arg(image), &[0])?;
    Ok(found
        .lines()
        .next()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty()))
}

/// Unmounts what is there unless it is open; whether it did.
pub(super) fn release(target: &Path) -> io::Result<bool> {
    match unmount(target, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(true),
        // Open, or not mounted any more.
        Err(rustix::io::Errno::BUSY | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Takes what is mounted there out of the way, however often; what is open stays readable until it is closed.
pub(super) fn detach(target: &Path) -> io::Result<()> {
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
    loop {
        match unmount(target, flags) {
            Ok(()) => {}
            // Without root nothing of ours is mounted.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT | rustix::io::Errno::PERM) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Every mount beneath `root` that is a volume's, in this thread's mount namespace; the latest first.
pub(super) fn mounted_beneath(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut table = String::new();
    File::open("/proc/thread-self/mountinfo")?
        .take(MAX_MOUNT_TABLE_BYTES)
        .read_to_string(&mut table)?;
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescaped)
        .filter(|path| {
            // What begins with a dot is not a workspace's.
            path.strip_prefix(root)
                .ok()
                .and_then(|below| below.components().next())
                .is_some_and(|first| !first.as_os_str().as_encoded_bytes().starts_with(b"."))
        })
        .collect();
    found.reverse();
    Ok(found)
}

/// A path of the kernel's table of mounts, where blanks are `\040`.
fn unescaped(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| text.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                path.push(byte);
                at += 4;
            }
            None => {
                path.push(bytes[at]);
                at += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(path).into()
}

fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// Fine when it was not there.
pub(super) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Runs a tool to its end, within its time, and returns what it said.
fn run(command: &mut Command, good: &[i32]) -> io::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |why: String| io::Error::other(format!("{program}: {why}"));
    let mut child = command
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let (said, complaint) = (drained(child.stdout.take()), drained(child.stderr.take()));
    let in_time = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(ends_in_time);
    if !in_time {
        // Reaped below; one that is gone already is fine.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let said = said.join().unwrap_or_default();
    if in_time && status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(said);
    }
    let complaint = complaint.join().unwrap_or_default();
    Err(failed(format!("{complaint} {said} ({status})")))
}

/// Reads what a tool says, to its end, and keeps the beginning: one that waits for a reader would not end.
fn drained(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut words = Vec::new();
        if let Some(mut stream) = stream {
            // It is only for a message, or short.
            let _ = stream
                .by_ref()
                .take(MAX_COMPLAINT_BYTES)
                .read_to_end(&mut words);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
        String::from_utf8_lossy(&words).trim().to_owned()
    })
}

fn ends_in_time(pid: Pid) -> bool {
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    let limit = Duration::from_millis(limits::VOLUME_TOOL_TIMEOUT_MS);
    let Ok(limit) = Timespec::try_from(limit) else {
        return false;
    };
    loop {
        let mut wanted = [PollFd::new(&handle, PollFlags::IN)];
        match poll(&mut wanted, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_table_of_mounts_are_read_back() {
        assert_eq!(unescaped(r"/a\040b\134c/ä"), Path::new(r"/a b\c/ä"));
        assert_eq!(unescaped(r"/a\04"), Path::new(r"/a\04"));
        assert_eq!(unescaped(r"/a\999"), Path::new(r"/a\999"));
    }

    #[test]
    fn mounts_of_others_are_none_of_ours() {
        assert!(
            mounted_beneath(Path::new("/"))
                .unwrap()
                .contains(&PathBuf::from("/proc"))
        );
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(mounted_beneath(dir.path()).unwrap(), Vec::<PathBuf>::new());
    }
}
