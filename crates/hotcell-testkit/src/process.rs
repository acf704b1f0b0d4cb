//! The daemon as a process of its own, on a real engine, so that it can be killed.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use hotcell::clock::{SystemClock, SystemIds};
use tempfile::TempDir;

use crate::Client;

/// How long a daemon may take to listen. One was seen to need more than a minute, on a machine full of sandboxes
/// that start.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often, and after what pause, a footprint of loop devices alone is looked at again.
const FOOTPRINT_LOOKS: usize = 400;
const FOOTPRINT_PAUSE: Duration = Duration::from_millis(50);

/// An installation: its directories and configuration. A daemon process can come and go on it.
pub struct Site {
    hotcell: PathBuf,
    /// What is called to call it, with its arguments.
    launcher: Vec<String>,
    dir: TempDir,
}

impl Drop for Site {
    /// A test that failed half-way leaves no mount behind.
    fn drop(&mut self) {
        let of = |table: String, dir: &Path| -> Vec<PathBuf> {
            let targets = table.lines().filter_map(|line| line.split(' ').nth(4));
            let ours = targets.map(PathBuf::from).filter(|it| it.starts_with(dir));
            ours.collect()
        };
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for target in of(mounts, self.dir.path()).iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(target).status();
        }
    }
}

impl Site {
    /// Lays an installation that uses the images beneath `images` (a link to that directory).
    /// `runtime` is the text of the `[runtime]` table.
    ///
    /// # Panics
    /// When the directories cannot be made.
    #[must_use]
    pub fn new(hotcell: &Path, agent: &Path, images: &Path, runtime: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("hotcell-site-")
            .tempdir_in("/var/tmp")
            .unwrap_or_else(|error| panic!("no directory: {error}"));
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap_or_else(|error| panic!("no state directory: {error}"));
        std::os::unix::fs::symlink(images, state.join("images"))
            .unwrap_or_else(|error| panic!("no link to the images: {error}"));
        let config = format!(
            "listen = \"127.0.0.1:0\"\nstate_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\n\
             agent_binary = \"{1}\"\n[runtime]\n{runtime}\n",
            dir.path().display(),
            agent.display(),
        );
        fs::write(dir.path().join("hotcell.toml"), config)
            .unwrap_or_else(|error| panic!("no configuration: {error}"));
        Self {
            hotcell: hotcell.to_owned(),
            launcher: Vec::new(),
            dir,
        }
    }

    /// The same on the host of a stub internet: daemons run there, and are reached by its control
    /// link.
    ///
    /// # Panics
    /// When the configuration cannot be rewritten.
    #[must_use]
    pub fn on_host_of(mut self, internet: &crate::internet::Internet) -> Self {
        let path = self.dir.path().join("hotcell.toml");
        let here = format!("listen = \"{}:0\"", internet.control());
        fs::read_to_string(&path)
            .and_then(|config| fs::write(&path, config.replace("listen = \"127.0.0.1:0\"", &here)))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.launcher = internet.launcher();
        self
    }

    /// Where it lies; its path marks everything that belongs to it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a daemon on it.
    ///
    /// # Panics
    /// When it does not come up; its log says why.
    #[must_use]
    pub fn start(&self) -> Process {
        let log_path = self.dir.path().join("daemon.log");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_path)
            .unwrap_or_else(|error| panic!("no log: {error}"));
        let mut words = self.launcher.iter();
        let mut command = match words.next() {
            Some(launcher) => Command::new(launcher),
            None => Command::new(&self.hotcell),
        };
        if !self.launcher.is_empty() {
            command.args(words).arg(&self.hotcell);
        }
        let mut child = command
            .arg("serve")
            .arg("--config")
            .arg(self.dir.path().join("hotcell.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("the daemon cannot be run: {error}"));
        let (send, receive) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some(addr) = line.strip_prefix("listening on http://") {
                        let _ = send.send(addr.to_owned());
                    }
                }
            });
        }
        let addr = receive
            .recv_timeout(PATIENCE)
            .ok()
            .and_then(|addr| addr.parse().ok());
        let Some(addr) = addr else {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "the daemon does not listen:\n{}",
                fs::read_to_string(log_path).unwrap_or_default()
            );
        };
        let token = fs::read_to_string(self.dir.path().join("state/operator.token"))
            .unwrap_or_else(|error| panic!("no operator token: {error}"));
        let anonymous = Client::new(addr, Arc::new(SystemClock), Arc::new(SystemIds));
        Process {
            child,
            operator: anonymous.with_token(token.trim()),
        }
    }

    /// What of this installation is on the host. Loop devices get a while to go: a sandbox of another
    /// installation that is just being made has a copy of the host's mounts until it has its own root.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        for _ in 0..FOOTPRINT_LOOKS {
            let found = Footprint::of(self.dir.path());
            let only_loops = Footprint {
                loops: found.loops.clone(),
                ..Footprint::default()
            };
            if found.loops.is_empty() || found != only_loops {
                return found;
            }
            thread::park_timeout(FOOTPRINT_PAUSE);
        }
        Footprint::of(self.dir.path())
    }
}

/// A running daemon. Dropping it kills it.
pub struct Process {
    child: Child,
    /// A client with the operator's token.
    pub operator: Client,
}

impl Process {
    /// Ends it as a power cut would, and waits until it is gone.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        self.child
            .wait()
            .unwrap_or_else(|error| panic!("the daemon is not ours: {error}"));
    }

    /// Asks it to stop, and waits until it has.
    ///
    /// # Panics
    /// When it does not stop well within a minute.
    pub fn stop(mut self) {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(
            told.is_ok_and(|status| status.success()),
            "the daemon cannot be told to stop"
        );
        let status = self
            .child
            .wait()
            .unwrap_or_else(|error| panic!("the daemon is not ours: {error}"));
        assert!(status.success(), "the daemon stopped with {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything that an installation has on the host: nothing of it may stay when it is over.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Processes whose command line or root names its directory.
    pub processes: BTreeSet<String>,
    /// Mounts beneath its directory, in the host's mount namespace.
    pub mounts: BTreeSet<String>,
    /// Loop devices over its files.
    pub loops: BTreeSet<String>,
    /// Lease directories.
    pub leases: BTreeSet<String>,
}

impl Footprint {
    fn of(dir: &Path) -> Self {
        let marker = dir.to_string_lossy().into_owned();
        let names = |path: PathBuf| -> BTreeSet<String> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        let processes = names("/proc".into())
            .into_iter()
            .filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()))
            .filter_map(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                line.contains(&marker).then(|| format!("{pid} {line}"))
            })
            .collect();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let loops = names("/sys/block".into())
            .into_iter()
            .filter_map(|name| {
                fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()
            })
            .filter(|file| file.contains(&marker))
            .collect();
        Self {
            processes,
            mounts: mounts
                .lines()
                .filter(|line| line.contains(&marker))
                .map(str::to_owned)
                .collect(),
            loops,
            leases: names(dir.join("state/sandboxes"))
                .into_iter()
                .filter(|name| name.starts_with("ls_"))
                .collect(),
        }
    }
}
