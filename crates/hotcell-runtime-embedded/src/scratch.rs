//! The scratch disk of a lease: one ext4 image in a sparse file, mounted in the sandbox's own
//! mount namespace, so that `/workspace` and `/tmp` end at a size that nobody can exceed.
//!
//! A fresh image is a copy of a template, of which only the blocks that are written are copied.
//! There is no journal: the image never outlives a power loss in use.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use hotcell_runtime::{
    RuntimeError,
    disk::{self, copy_sparse},
};
use hotcell_types::{
    limits,
    volume::{SANDBOX_GID, SANDBOX_UID},
};
use nix::sched::{CloneFlags, unshare};
use tokio::time::{Instant, sleep};

use crate::{
    birth::{private_mounts, run_bounded, wait_bounded},
    fault,
    layout::{Layout, LeaseDir},
};

/// Part of the templates' names; to be raised when they are made otherwise.
const TEMPLATE_VERSION: u32 = 1;
/// How scratch disks are mounted. Without barriers: nothing in there has to outlive a power loss,
/// and with them each mount and each `fsync` inside would wait for the host's disk.
const OPTIONS: &str = "loop,nosuid,nodev,noatime,noinit_itable,nobarrier";
/// One inode per this many bytes.
const BYTES_PER_INODE: &str = "8192";

/// How scratch disks are made on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scratch {
    /// An image with a size.
    Bounded,
    /// A plain directory, since images cannot be mounted here.
    Unbounded,
}

impl Scratch {
    /// Finds out by mounting an image, and says why when that fails.
    pub(crate) async fn probe(layout: &Layout) -> (Self, Option<RuntimeError>) {
        let image = probe_image(layout);
        let layout = layout.clone();
        let tried = tokio::task::spawn_blocking(move || try_mount(&layout))
            .await
            .unwrap_or_else(|error| Err(fault::failed("try a scratch disk", error.to_string())));
        match tried.and(wait_released(&image).await) {
            Ok(()) => (Self::Bounded, None),
            Err(error) => (Self::Unbounded, Some(error)),
        }
    }

    /// Makes what is missing of a lease's scratch disk.
    pub(crate) fn prepare(
        self,
        layout: &Layout,
        dir: &LeaseDir,
        bytes: u64,
    ) -> Result<(), RuntimeError> {
        fault::make_private_dir(&dir.scratch())?;
        match self {
            Self::Bounded => {
                let template = template(layout, bytes)?;
                let image = dir.scratch_image();
                copy_sparse(&template, &image).map_err(fault::at("make the scratch disk", &image))
            }
            Self::Unbounded => make_tree(&dir.scratch()),
        }
    }

    /// What is to be mounted at a start.
    pub(crate) fn mount_of(self, dir: &LeaseDir) -> Option<ScratchMount> {
        (self == Self::Bounded).then(|| ScratchMount {
            image: dir.scratch_image(),
            target: dir.scratch(),
        })
    }
}

/// An image and where it goes.
#[derive(Debug)]
pub(crate) struct ScratchMount {
    image: PathBuf,
    target: PathBuf,
}

/// A mount that is under way.
pub(crate) struct Mounting(Child);

impl ScratchMount {
    /// Begins to mount it in the calling thread's mount namespace. The loop device frees itself
    /// when the mount goes.
    pub(crate) fn begin(&self) -> Result<Mounting, RuntimeError> {
        Command::new("mount")
            .args(["-n", "-t", "ext4", "-o", OPTIONS])
            .arg(&self.image)
            .arg(&self.target)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map(Mounting)
            .map_err(fault::of("run mount"))
    }
}

impl Mounting {
    /// Waits for it.
    pub(crate) fn finish(mut self) -> Result<(), RuntimeError> {
        use std::io::Read;
        let stderr = self.0.stderr.take();
        let status = wait_bounded(self.0, limits::ENGINE_TOOL_TIMEOUT_MS)
            .map_err(fault::of("mount the scratch disk"))?;
        if status.is_some_and(|status| status.success()) {
            return Ok(());
        }
        let mut message = String::new();
        if let Some(stderr) = stderr {
            // What it says is only for the message.
            let _ = stderr.take(4_096).read_to_string(&mut message);
        }
        Err(fault::failed("mount the scratch disk", message.trim()))
    }
}

/// Waits until no loop device uses an image any more: a second mount of one image would destroy it.
pub(crate) async fn wait_released(image: &Path) -> Result<(), RuntimeError> {
    let deadline = Instant::now() + Duration::from_millis(limits::ENGINE_KILL_TIMEOUT_MS);
    // The kernel unmounts some time after the last process, and tells nobody.
    let mut pause = Duration::from_micros(500);
    loop {
        let held = is_attached(image).map_err(fault::of("look at the loop devices"))?;
        if !held {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(fault::failed(
                "release the scratch disk",
                format!("{} is still in use", image.display()),
            ));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Whether a loop device uses this file.
pub(crate) fn is_attached(image: &Path) -> io::Result<bool> {
    for device in fs::read_dir("/sys/block")? {
        let device = device?;
        if !device.file_name().as_encoded_bytes().starts_with(b"loop") {
            continue;
        }
        // No such file: the device is free.
        if let Ok(file) = fs::read(device.path().join("loop/backing_file")) {
            let file = file.trim_ascii_end();
            let file = file.strip_suffix(b" (deleted)").unwrap_or(file);
            if file == image.as_os_str().as_encoded_bytes() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn probe_image(layout: &Layout) -> PathBuf {
    layout.templates().join("probe.img")
}

fn try_mount(layout: &Layout) -> Result<(), RuntimeError> {
    let template = template(layout, limits::DEFAULT_SCRATCH_BYTES)?;
    let attempt = ScratchMount {
        image: probe_image(layout),
        target: layout.templates().join("probe"),
    };
    fault::make_private_dir(&attempt.target)?;
    copy_sparse(&template, &attempt.image).map_err(fault::at("copy", &template))?;
    let outcome = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).map_err(fault::of("unshare namespaces"))?;
                private_mounts().map_err(fault::of("make the mounts private"))?;
                attempt.begin()?.finish()
            })
            .join()
            .unwrap_or_else(|_| Err(fault::failed("mount a scratch disk", "its thread ended")))
    });
    fault::remove_file(&attempt.image).map_err(fault::at("remove", &attempt.image))?;
    outcome
}

/// The template of this size, made when it is not there.
fn template(layout: &Layout, bytes: u64) -> Result<PathBuf, RuntimeError> {
    let dir = layout.templates();
    let path = dir.join(format!("v{TEMPLATE_VERSION}-{bytes}.img"));
    if path.exists() {
        return Ok(path);
    }
    fault::make_private_dir(&dir)?;
    // Two that make the same one at once each make a whole one; the last stays.
    let stem = format!(
        ".{bytes}-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    let tree = dir.join(format!("{stem}.tree"));
    let image = dir.join(format!("{stem}.img"));
    let made = (|| {
        fault::make_private_dir(&tree)?;
        make_tree(&tree)?;
        File::create(&image)
            .and_then(|file| file.set_len(bytes))
            .map_err(fault::at("make", &image))?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-i", BYTES_PER_INODE])
            .args(["-O", "^has_journal,^resize_inode"])
            .args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"])
            .arg("-d")
            .arg(&tree)
            .arg(&image);
        let status = run_bounded(&mut mkfs, limits::ENGINE_TOOL_TIMEOUT_MS)
            .map_err(fault::of("run mkfs.ext4"))?;
        if !status.is_some_and(|status| status.success()) {
            return Err(fault::failed(
                "make a scratch disk",
                format!("mkfs.ext4 failed for {bytes} bytes"),
            ));
        }
        fs::rename(&image, &path).map_err(fault::at("make", &path))
    })();
    fault::remove_tree(&tree).map_err(fault::at("remove", &tree))?;
    if made.is_err() {
        fault::remove_file(&image).map_err(fault::at("remove", &image))?;
    }
    made.map(|()| path)
}

/// The directories of a scratch disk, for the sandbox's user.
pub(crate) fn make_tree(root: &Path) -> Result<(), RuntimeError> {
    disk::make_tree(root, (SANDBOX_UID, SANDBOX_GID)).map_err(fault::at("make a directory", root))
}
