//! The start of one sandbox, in a thread that gives its namespaces away.
//!
//! ```text
//!  thread: unshare(mount, net) ── mount scratch ∥ make the link ── config.json ── engine run
//!                                                                                    │
//!  thread ends; the namespaces live on in the sandbox's processes only  ◄────────────┘
//! ```
//!
//! The thread is a fresh one each time: a thread that has left the host's namespaces must never
//! go back to a pool.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use hotcell_runtime::RuntimeError;
use hotcell_types::{VolumeKind, limits};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    bundle::Bundle,
    fault,
    layout::EngineDir,
    net::{self, Gateway, Reach, Slot},
    oci::Engine,
    process,
    record::write_new,
    scratch::ScratchMount,
};

/// The longest table of mounts that is read, in bytes.
const MAX_MOUNT_TABLE_BYTES: u64 = 64 << 20;

/// All that a start needs.
pub(crate) struct Birth {
    pub(crate) engine: Arc<Engine>,
    pub(crate) gateway: Gateway,
    /// The engine's name for it.
    pub(crate) name: String,
    /// What the gateway calls its link.
    pub(crate) link: String,
    pub(crate) slot: Slot,
    /// What the link leads to.
    pub(crate) reach: Reach,
    pub(crate) dir: EngineDir,
    pub(crate) scratch: Option<ScratchMount>,
    /// Beneath which volumes are mounted.
    pub(crate) volume_root: PathBuf,
    pub(crate) bundle: Bundle,
}

impl Birth {
    /// Runs it. When it fails, what it has made is for the caller to clear away.
    pub(crate) async fn run(mut self) -> Result<(), RuntimeError> {
        let (done, result) = oneshot::channel();
        thread::Builder::new()
            .name("birth".into())
            .spawn(move || {
                // Nobody listens when the caller gave up; it will find the sandbox on disk.
                let _ = done.send(self.in_thread());
            })
            .map_err(fault::of("start a thread"))?;
        result
            .await
            .map_err(|_| fault::failed("start the sandbox", "its thread ended early"))?
    }

    fn in_thread(&mut self) -> Result<(), RuntimeError> {
        let begin = Instant::now();
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
            .map_err(fault::of("unshare namespaces"))?;
        private_mounts().map_err(fault::of("make the mounts private"))?;
        self.leave_others_volumes()?;
        let mounting = self.scratch.as_ref().map(ScratchMount::begin).transpose()?;
        let network = self.fix().and_then(|()| self.connect());
        if let Some(mounting) = mounting {
            mounting.finish()?;
        }
        let namespace = network?;
        let prepared = begin.elapsed();
        if self.engine.hide_net_sysctls {
            // This engine takes a namespace for the host's when it sees certain files there.
            mount(
                "none",
                "/proc/sys/net",
                "tmpfs",
                MountFlags::RDONLY,
                c"size=4k",
            )
            .map_err(fault::of("hide /proc/sys/net"))?;
        }
        self.write_bundle(&namespace)?;
        let outcome = self.run_engine();
        // It holds the agent's key, and nothing reads it again.
        let config = self.dir.config();
        let removed = fault::remove_file(&config).map_err(fault::at("remove", &config));
        tracing::debug!(
            name = self.name,
            prepare_us = prepared.as_micros() as u64,
            total_us = begin.elapsed().as_micros() as u64,
            "started"
        );
        outcome.and(removed)
    }

    /// Unmounts, in this namespace, the volumes of others: a sandbox must not keep the disk of a volume
    /// in use that was deleted or is to be checked.
    fn leave_others_volumes(&self) -> Result<(), RuntimeError> {
        let own = |path: &Path| {
            let mut volumes = self.bundle.volumes.iter();
            volumes.any(|volume| volume.host_path == path)
        };
        let leave = || -> io::Result<()> {
            let mut table = String::new();
            File::open("/proc/thread-self/mountinfo")?
                .take(MAX_MOUNT_TABLE_BYTES)
                .read_to_string(&mut table)?;
            let targets = table.lines().filter_map(|line| line.split(' ').nth(4));
            let others = targets.map(Path::new).filter(|path| {
                *path != self.volume_root && path.starts_with(&self.volume_root) && !own(path)
            });
            for path in others.collect::<Vec<_>>().into_iter().rev() {
                match unmount(path, UnmountFlags::DETACH) {
                    // It went by itself: unmounts of the host come in here.
                    Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        };
        leave().map_err(fault::at(
            "leave the volumes of others in",
            &self.volume_root,
        ))
    }

    /// Mounts everything that the sandbox may only read, read-only, and has the engine take it
    /// from there. The engine is told the same, but releases of gVisor empty a file on a
    /// read-only volume that is opened with `O_TRUNC` before they refuse to open it.
    fn fix(&mut self) -> Result<(), RuntimeError> {
        if self.reach == Reach::Filtered {
            self.bundle.resolver = Some(self.write_resolver()?);
        }
        let dir = &self.dir;
        let fix = |source: &mut PathBuf, name: &str| -> Result<(), RuntimeError> {
            let target = dir.fixed(name);
            let place = if source.is_dir() {
                fault::make_private_dir(&target)
            } else {
                File::create(&target)
                    .map(drop)
                    .map_err(fault::at("make a mount point", &target))
            };
            place?;
            let flags =
                MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            mount_bind(&*source, &target)
                .and_then(|()| mount_remount(&target, flags, c""))
                .map_err(fault::at("mount read-only", source))?;
            *source = target;
            Ok(())
        };
        fix(&mut self.bundle.root, "root")?;
        fix(&mut self.bundle.agent, "agent")?;
        if let Some(resolver) = &mut self.bundle.resolver {
            fix(resolver, "resolv.conf")?;
        }
        if let Some(later) = &mut self.bundle.later {
            make_later(later)?;
            fix(later, "later")?;
        }
        for volume in &mut self.bundle.volumes {
            if volume.kind.read_only() {
                let name = volume.kind.mount_path().replace('/', "-");
                fix(&mut volume.host_path, &name)?;
            }
        }
        Ok(())
    }

    /// The sandbox's only resolver is its filter, and names are asked for as they are.
    fn write_resolver(&self) -> Result<PathBuf, RuntimeError> {
        let path = self.dir.resolver();
        let text = format!("nameserver {}\noptions ndots:1\n", self.slot.gateway());
        fault::make_private_dir(self.dir.path())?;
        write_new(&path, text.as_bytes())
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)))
            .map_err(fault::at("write", &path))?;
        Ok(path)
    }

    /// Closes, links and configures the thread's new network namespace.
    fn connect(&self) -> Result<OwnedFd, RuntimeError> {
        let filter = |error: io::Error| RuntimeError::EgressUnenforceable(error.to_string());
        match net::close_sandbox() {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                net::make_writable()
                    .and_then(|()| net::close_sandbox())
                    .map_err(filter)?;
            }
            other => other.map_err(filter)?,
        }
        let namespace = File::open("/proc/thread-self/ns/net")
            .map(OwnedFd::from)
            .map_err(fault::of("open the network namespace"))?;
        let theirs = namespace
            .try_clone()
            .map_err(fault::of("open the network namespace"))?;
        self.gateway
            .attach(self.link.clone(), self.slot, self.reach, theirs)
            .map_err(fault::of("link the sandbox"))?;
        net::configure_inside(self.slot, self.reach).map_err(fault::of("configure the link"))?;
        Ok(namespace)
    }

    fn write_bundle(&self, namespace: &OwnedFd) -> Result<(), RuntimeError> {
        let path = PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            namespace.as_raw_fd()
        ));
        let spec = self
            .bundle
            .spec(&self.engine, &path)
            .map_err(|error| fault::failed("describe the sandbox", error.to_string()))?;
        let text = serde_json::to_vec(&spec)
            .map_err(|error| fault::failed("describe the sandbox", error.to_string()))?;
        let config = self.dir.config();
        fault::make_private_dir(&self.dir.bundle())?;
        fault::make_private_dir(&self.dir.root())?;
        write_new(&config, &text).map_err(fault::at("write", &config))
    }

    fn run_engine(&self) -> Result<(), RuntimeError> {
        let mut command = self.engine.run(&self.dir, &self.name);
        let status = run_bounded(&mut command, limits::ENGINE_START_TIMEOUT_MS)
            .map_err(fault::of("run the engine"))?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(RuntimeError::StartFailed(format!(
                "{} ended with {status}: {}",
                self.engine.kind.binary(),
                last_error(&self.dir.log())
            ))),
            None => Err(RuntimeError::StartFailed(format!(
                "{} did not come back within {} ms",
                self.engine.kind.binary(),
                limits::ENGINE_START_TIMEOUT_MS
            ))),
        }
    }
}

/// The directories that volumes are attached on later. Everybody may look, nobody may write.
fn make_later(later: &Path) -> Result<(), RuntimeError> {
    let below = VolumeKind::ALL.map(VolumeKind::mount_path);
    let names = below.iter().filter_map(|path| Path::new(path).file_name());
    for dir in std::iter::once(later.to_owned()).chain(names.map(|name| later.join(name))) {
        fault::make_private_dir(&dir)?;
        fs::set_permissions(&dir, Permissions::from_mode(0o755))
            .map_err(fault::at("make a mount point", &dir))?;
    }
    Ok(())
}

/// Links a running sandbox again whose link has gone with an older gateway.
pub(crate) async fn relink(
    gateway: Gateway,
    link: String,
    slot: Slot,
    reach: Reach,
    main: u32,
) -> Result<(), RuntimeError> {
    let (done, result) = oneshot::channel();
    let work = move || -> io::Result<()> {
        let namespace = OwnedFd::from(File::open(format!("/proc/{main}/ns/net"))?);
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        // The kernel takes its time to remove the ends of links whose other end has gone.
        net::unlink_inside()?;
        gateway.attach(link, slot, reach, namespace)?;
        net::configure_inside(slot, reach)
    };
    thread::Builder::new()
        .name("relink".into())
        .spawn(move || {
            // Nobody listens when the runtime that was being opened is not wanted any more.
            let _ = done.send(work());
        })
        .map_err(fault::of("start a thread"))?;
    result
        .await
        .map_err(|_| fault::failed("link the sandbox", "its thread ended early"))?
        .map_err(fault::of("link the sandbox"))
}

/// Makes sure that what is mounted in this thread's new mount namespace stays in it. Unmounts on
/// the host still come in, so that it never keeps a file system of the host busy.
pub(crate) fn private_mounts() -> io::Result<()> {
    Ok(mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?)
}

/// Runs a command without a terminal; `None` when it had to be killed.
pub(crate) fn run_bounded(
    command: &mut Command,
    timeout_ms: u64,
) -> io::Result<Option<ExitStatus>> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    wait_bounded(child, timeout_ms)
}

/// Waits for a child; kills it when it takes too long.
pub(crate) fn wait_bounded(mut child: Child, timeout_ms: u64) -> io::Result<Option<ExitStatus>> {
    let ended = process::open(child.id())
        .and_then(|fd| process::wait_blocking(&fd, Duration::from_millis(timeout_ms)));
    if let Ok(true) = ended {
        return child.wait().map(Some);
    }
    child.kill()?;
    child.wait()?;
    ended.map(|_| None)
}

/// The last thing that an engine complained about.
fn last_error(log: &Path) -> String {
    let bytes = fault::read_small(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let complaint = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|entry| matches!(entry["level"].as_str(), Some("error" | "fatal")))
        .filter_map(|entry| entry["msg"].as_str().map(str::to_owned))
        .next_back();
    complaint
        .or_else(|| text.lines().last().map(str::to_owned))
        .unwrap_or_else(|| "it left no message".to_owned())
        .chars()
        .take(500)
        .collect()
}

/// Whether a directory of the host can be given to a sandbox as it is: no link on the way, so
/// that it is beneath the root that it is checked against.
pub(crate) fn check_volume(root: &Path, path: &Path) -> Result<(), RuntimeError> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
    let refuse = |reason: String| RuntimeError::Unsupported {
        what: "this volume",
        reason,
    };
    let below = path
        .strip_prefix(root)
        .map_err(|_| refuse(format!("{} is not in the volume root", path.display())))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, flags, Mode::empty()).map_err(fault::at("open", root))?;
    let below = if below.as_os_str().is_empty() {
        Path::new(".")
    } else {
        below
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, below, flags, Mode::empty(), resolve)
        .map(drop)
        .map_err(|error| refuse(format!("{}: {error}", path.display())))
}
