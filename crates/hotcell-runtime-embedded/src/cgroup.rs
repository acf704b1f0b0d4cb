//! The control groups of sandboxes: what they hold, use and may use, under cgroup v2 and under
//! the hierarchies of v1. The engine makes them and puts limits on them; this reads and removes.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use hotcell_runtime::{RuntimeError, Stats};
use hotcell_types::limits;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{fault, process};

/// Where control groups are on this host.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    unified: bool,
    base: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    controllers: Vec<String>,
}

/// The controllers without which a sandbox would have no limits.
const NEEDED: [&str; 3] = ["memory", "pids", "cpu"];

impl Cgroups {
    /// Finds the hierarchies. `base` is the installation's group.
    pub(crate) fn detect(base: String) -> Result<Self, RuntimeError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")
            .map_err(fault::of("read /proc/self/mountinfo"))?;
        let (hierarchies, unified) = parse(&mounts, |root| {
            fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
        });
        let found = Self {
            hierarchies,
            unified,
            base,
        };
        let missing: Vec<_> = NEEDED
            .into_iter()
            .filter(|name| found.with(name).is_none())
            .collect();
        if missing.is_empty() {
            Ok(found)
        } else {
            Err(RuntimeError::Unavailable(format!(
                "the control group controllers {} are not mounted",
                missing.join(", ")
            )))
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> &'static str {
        if self.unified { "v2" } else { "v1" }
    }

    /// What the engine is told.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        Path::new("/").join(&self.base).join(name)
    }

    fn with(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies
            .iter()
            .find(|hierarchy| hierarchy.controllers.iter().any(|name| name == controller))
    }

    fn file(&self, name: &str, controller: &str, file: &str) -> Option<PathBuf> {
        let root = &self.with(controller)?.root;
        Some(root.join(&self.base).join(name).join(file))
    }

    fn number(&self, name: &str, controller: &str, file: &str) -> u64 {
        self.file(name, controller, file)
            .and_then(|path| fs::read_to_string(path).ok())
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }

    fn entry(&self, name: &str, controller: &str, file: &str, key: &str) -> u64 {
        self.file(name, controller, file)
            .and_then(|path| fs::read_to_string(path).ok())
            .and_then(|text| keyed(&text, key))
            .unwrap_or(0)
    }

    /// The processes of a group; none when there is no group.
    pub(crate) fn processes(&self, name: &str) -> io::Result<Vec<u32>> {
        let Some(path) = self.file(name, "pids", "cgroup.procs") else {
            return Ok(Vec::new());
        };
        match fs::read_to_string(path) {
            Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// How often the kernel killed for want of memory; zero when there is no group.
    pub(crate) fn oom_kills(&self, name: &str) -> u64 {
        let file = if self.unified {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        self.entry(name, "memory", file, "oom_kill")
    }

    /// Whether the group is there.
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.file(name, "pids", "")
            .is_some_and(|path| path.is_dir())
    }

    /// What the group uses. Memory that the kernel would give back at once does not count.
    pub(crate) fn stats(&self, name: &str) -> Stats {
        let (memory, inactive, cpu_ms) = if self.unified {
            (
                self.number(name, "memory", "memory.current"),
                self.entry(name, "memory", "memory.stat", "inactive_file"),
                self.entry(name, "cpu", "cpu.stat", "usage_usec") / 1_000,
            )
        } else {
            (
                self.number(name, "memory", "memory.usage_in_bytes"),
                self.entry(name, "memory", "memory.stat", "total_inactive_file"),
                self.number(name, "cpuacct", "cpuacct.usage") / 1_000_000,
            )
        };
        Stats {
            memory_bytes: memory.saturating_sub(inactive),
            cpu_ms,
            pids: u32::try_from(self.number(name, "pids", "pids.current")).unwrap_or(u32::MAX),
        }
    }

    /// Kills all processes of a group and waits until they are gone.
    pub(crate) async fn kill(&self, name: &str) -> Result<(), RuntimeError> {
        const ACTION: &str = "end the processes of a sandbox";
        let deadline = Instant::now() + Duration::from_millis(limits::ENGINE_KILL_TIMEOUT_MS);
        loop {
            let pids = self.processes(name).map_err(fault::of(ACTION))?;
            if pids.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(fault::failed(ACTION, format!("{} remain", pids.len())));
            }
            let opened: Vec<_> = pids
                .into_iter()
                .filter_map(|pid| Some((pid, process::open(pid).ok()?)))
                .collect();
            // A number may have been used again before its handle was opened; one that is still
            // in the group after that is what it was.
            let still = self.processes(name).map_err(fault::of(ACTION))?;
            let mut waits = Vec::new();
            for (pid, handle) in opened {
                if still.contains(&pid) {
                    process::kill(&handle).map_err(fault::of(ACTION))?;
                    waits.push(process::wait(handle));
                }
            }
            // Those that do not end in time are seen by the next round.
            let _ = timeout_at(deadline, futures_util::future::join_all(waits)).await;
            // An ended process leaves the group a moment after its handle says so.
            sleep(Duration::from_micros(200)).await;
        }
    }

    /// Removes an empty group from every hierarchy; one that is not there is fine.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), RuntimeError> {
        let deadline = Instant::now() + Duration::from_millis(limits::ENGINE_KILL_TIMEOUT_MS);
        for hierarchy in &self.hierarchies {
            let path = hierarchy.root.join(&self.base).join(name);
            loop {
                match remove_dirs(&path) {
                    Ok(()) => break,
                    // The kernel is still putting the last process away.
                    Err(error)
                        if error.kind() == io::ErrorKind::ResourceBusy
                            && Instant::now() < deadline =>
                    {
                        sleep(Duration::from_millis(1)).await;
                    }
                    Err(error) => return Err(fault::at("remove a control group", &path)(error)),
                }
            }
        }
        Ok(())
    }

    /// The names of all groups of the installation.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self
            .hierarchies
            .iter()
            .filter_map(|hierarchy| fs::read_dir(hierarchy.root.join(&self.base)).ok())
            .flatten()
            .filter_map(Result::ok)
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Removes the installation's group when nothing is in it.
    pub(crate) fn remove_base(&self) {
        for hierarchy in &self.hierarchies {
            let base = hierarchy.root.join(&self.base);
            // Both refuse when something is in there, and that is what is wanted.
            let _ = fs::remove_dir(&base);
            if let Some(parent) = base.parent() {
                let _ = fs::remove_dir(parent);
            }
        }
    }
}

/// Removes a group and those below it, deepest first.
fn remove_dirs(path: &Path) -> io::Result<()> {
    match fs::read_dir(path) {
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(error),
        Ok(entries) => {
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    remove_dirs(&entry.path())?;
                }
            }
        }
    }
    match fs::remove_dir(path) {
        Err(error) if is_missing(&error) => Ok(()),
        other => other,
    }
}

fn is_missing(error: &io::Error) -> bool {
    const NO_SUCH_DEVICE: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_DEVICE)
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// The hierarchies in a `mountinfo`, and whether they are v2 alone.
fn parse(mountinfo: &str, controllers_of: impl Fn(&Path) -> String) -> (Vec<Hierarchy>, bool) {
    let mut v1 = Vec::new();
    let mut v2 = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let mut left = left.split(' ').skip(3);
        let (Some(within), Some(root)) = (left.next(), left.next()) else {
            continue;
        };
        let mut right = right.split(' ');
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        if within != "/" {
            continue;
        }
        let root = PathBuf::from(root);
        match kind {
            Some("cgroup") => v1.push(Hierarchy {
                controllers: options.split(',').map(str::to_owned).collect(),
                root,
            }),
            Some("cgroup2") => v2.push(Hierarchy {
                controllers: controllers_of(&root)
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
                root,
            }),
            _ => {}
        }
    }
    let unified = v1.is_empty();
    v1.extend(v2);
    (v1, unified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_are_understood() {
        let hybrid = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:32 /sub /elsewhere rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let (found, unified) = parse(hybrid, |_| String::new());
        assert!(!unified);
        assert_eq!(found.len(), 3);
        assert!(found[0].controllers.contains(&"cpuacct".to_owned()));
        let (found, unified) = parse(
            "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
            |_| "cpuset cpu io memory pids\n".into(),
        );
        assert!(unified);
        assert_eq!(found[0].root, Path::new("/sys/fs/cgroup"));
        assert!(found[0].controllers.contains(&"pids".to_owned()));
    }

    #[test]
    fn counters_are_read_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(keyed(text, "oom_kill"), Some(3));
        assert_eq!(keyed(text, "oom"), None);
    }
}
