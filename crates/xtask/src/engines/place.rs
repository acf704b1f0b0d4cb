//! Where an engine of the tests lives, and how it is started and ended.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
        net::UnixStream,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use super::SANDBOX_UID;
use crate::shell::step;

const DATA: &str = "/var/tmp/hotcell-engines";
const RUN: &str = "/run/hotcell-engines";
/// Tries of a tenth of a second.
const START_TRIES: u32 = 300;
const END_TRIES: u32 = 200;

/// An engine that runs. Dropping it ends it.
pub(crate) struct Started {
    /// Where it listens.
    pub(crate) socket: PathBuf,
    child: Child,
    /// Where a process that outlives the engine writes its number.
    survivor: Option<PathBuf>,
    /// Held so that nobody else uses the same data.
    _lock: File,
}

/// The directories of one engine, which are one run's at a time.
pub(super) struct Place {
    name: String,
    pub(super) data: PathBuf,
    pub(super) run: PathBuf,
    lock: File,
}

impl Place {
    pub(super) fn make(name: &str, owner: u32) -> Result<Self> {
        for root in [DATA, RUN] {
            make_directory(Path::new(root), 0)?;
        }
        let data = Path::new(DATA).join(name);
        let run = Path::new(RUN).join(name);
        make_directory(&data, owner)?;
        make_directory(&run, owner)?;
        let lock = File::create(data.join("lock"))?;
        lock.try_lock()
            .with_context(|| format!("another run uses the {name} of tests"))?;
        let place = Self {
            name: name.to_owned(),
            data,
            run,
            lock,
        };
        place.end_leftover()?;
        Ok(place)
    }

    /// Removes what is about processes, as a restart of the machine does. Containers whose processes
    /// were all killed, as when a run was, keep a rootless Podman from finding its user namespace, and
    /// then it does not start; nor can it stop them.
    pub(super) fn forget_run(&self) -> Result<()> {
        fs::remove_dir_all(&self.run)?;
        make_directory(&self.run, SANDBOX_UID)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.run.join("engine.sock")
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.data.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// gVisor as an engine calls it. On some kernels it takes every network namespace for the
    /// host's when it sees certain files; it gets a view without them.
    pub(super) fn write_runsc(&self) -> Result<PathBuf> {
        let path = self.write(
            "runsc",
            "#!/bin/sh\n\
             exec unshare --mount --propagation slave sh -c '\n\
             mount -t tmpfs -o ro,size=4k none /proc/sys/net &&\n\
             exec runsc --platform=systrap \"$@\"' runsc \"$@\"\n",
        )?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    fn pid_file(&self) -> PathBuf {
        self.data.join("pid")
    }

    /// Ends the engine of a run that was killed and could not do it. The lock is ours, so nobody
    /// uses it any more.
    fn end_leftover(&self) -> Result<()> {
        let Some(pid) = fs::read_to_string(self.pid_file())
            .ok()
            .and_then(|text| text.trim().parse::<u32>().ok())
        else {
            return Ok(());
        };
        // Its number may be another's by now; its address is in its arguments and in no other's.
        let address = self.socket().display().to_string();
        let runs = || {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&address))
        };
        for name in ["TERM", "KILL"] {
            if runs() {
                signal(&pid.to_string(), name);
            }
            for _ in 0..END_TRIES {
                if !runs() {
                    return Ok(());
                }
                pause();
            }
        }
        bail!("{} of a former run (process {pid}) does not end", self.name)
    }

    pub(super) fn start(&self, mut command: Command, survivor: Option<PathBuf>) -> Result<Started> {
        step(&format!("starting {}", self.name));
        let socket = self.socket();
        if socket.exists() {
            fs::remove_file(&socket)?;
        }
        let log = self.data.join("log");
        let output = File::create(&log)?;
        let child = command
            .current_dir(&self.data)
            // Not ours to interrupt: it is ended in order when we are.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        fs::write(self.pid_file(), child.id().to_string())?;
        let mut started = Started {
            socket,
            child,
            survivor,
            _lock: self.lock.try_clone()?,
        };
        for _ in 0..START_TRIES {
            if answers(&started.socket) {
                return Ok(started);
            }
            if let Some(status) = started.child.try_wait()? {
                let words = fs::read_to_string(&log).unwrap_or_default();
                bail!("{} ended with {status}:\n{words}", self.name);
            }
            pause();
        }
        bail!("{} does not answer; see {}", self.name, log.display())
    }
}

/// Makes a directory that others may pass through, or finds it to be the right user's.
fn make_directory(path: &Path, owner: u32) -> Result<()> {
    let made = fs::DirBuilder::new().mode(0o711).create(path);
    match made {
        Ok(()) => chown(path, Some(owner), Some(owner))?,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(path)?;
            ensure!(
                found.is_dir() && found.uid() == owner,
                "{} is somebody else's",
                path.display()
            );
        }
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    }
    Ok(())
}

fn answers(socket: &Path) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(head.ends_with(b"200"))
    };
    ask().unwrap_or(false)
}

/// Between two looks at a condition.
fn pause() {
    std::thread::park_timeout(Duration::from_millis(100));
}

/// `to` is a process, or a group with a minus before it.
fn signal(to: &str, name: &str) {
    // What is gone already is what is wanted.
    let _ = Command::new("kill")
        .args(["-s", name, "--", to])
        .stderr(Stdio::null())
        .status();
}

impl Drop for Started {
    fn drop(&mut self) {
        signal(&self.child.id().to_string(), "TERM");
        let mut ended = false;
        for _ in 0..END_TRIES {
            ended = matches!(self.child.try_wait(), Ok(Some(_)));
            if ended {
                break;
            }
            pause();
        }
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        // A rootless Podman serves in a child of its own, which now and then outlives it.
        if self.survivor.is_some() {
            signal(&format!("-{}", self.child.id()), "KILL");
        }
        let survivor = self
            .survivor
            .as_ref()
            .and_then(|path| fs::read_to_string(path).ok());
        if let Some(pid) = survivor.and_then(|text| text.trim().parse::<u32>().ok()) {
            signal(&pid.to_string(), "KILL");
        }
    }
}
