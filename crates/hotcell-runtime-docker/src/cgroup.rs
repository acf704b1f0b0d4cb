//! Control groups: what the kernel really holds a sandbox to, and groups of our own for an
//! engine that cannot make any.
//!
//! What an engine says it has set is a claim; these files are what counts. They are read after
//! every start, and numbers about a running sandbox come from them too.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use hotcell_runtime::Stats;
use hotcell_types::{InstallationId, LeaseId, Resources, limits};

/// Where the hierarchies of this host are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    /// Version 1: a hierarchy for each controller.
    old: BTreeMap<String, PathBuf>,
    /// Version 2.
    unified: Option<PathBuf>,
}

/// The controllers that hold a sandbox.
const NEEDED: [&str; 3] = ["memory", "pids", "cpu"];
const CPU_PERIOD_US: u64 = 100_000;

impl Hierarchies {
    pub(crate) fn find() -> io::Result<Self> {
        Ok(Self::parse(&read("/proc/self/mountinfo")?))
    }

    fn parse(mounts: &str) -> Self {
        let mut found = Self::default();
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let (Some(target), mut right) = (left.split(' ').nth(4), right.split(' ')) else {
                continue;
            };
            let target = PathBuf::from(target);
            match right.next() {
                Some("cgroup") => {
                    let options = right.nth(1).unwrap_or_default();
                    for controller in options.split(',') {
                        if NEEDED.contains(&controller) || controller == "cpuacct" {
                            let old = &mut found.old;
                            old.entry(controller.to_owned()).or_insert(target.clone());
                        }
                    }
                }
                Some("cgroup2") => {
                    found.unified.get_or_insert(target);
                }
                _ => {}
            }
        }
        found
    }

    /// The directory that holds a process for one controller.
    fn directory(&self, pid: u32, controller: &str) -> io::Result<PathBuf> {
        let table = read(format!("/proc/{pid}/cgroup"))?;
        let (root, path) = match self.old.get(controller) {
            Some(root) => (root, path_of(&table, controller)),
            None => {
                let root = self.unified.as_ref().ok_or(io::ErrorKind::NotFound)?;
                (root, path_of(&table, ""))
            }
        };
        let path = path.ok_or(io::ErrorKind::NotFound)?.trim_start_matches('/');
        if path.is_empty() {
            return Err(io::Error::other(format!(
                "process {pid} is in the host's own control group of {controller}"
            )));
        }
        Ok(root.join(path))
    }

    fn is_old(&self, controller: &str) -> bool {
        self.old.contains_key(controller)
    }

    fn number(&self, pid: u32, controller: &str, old: &str, new: &str) -> io::Result<u64> {
        let dir = self.directory(pid, controller)?;
        number(&dir.join(if self.is_old(controller) { old } else { new }))
    }

    /// Looks whether the kernel holds a process to its limits, and says which are missing.
    pub(crate) fn hold(&self, pid: u32, resources: &Resources) -> Result<(), String> {
        let at_most = |what: &str, found: io::Result<u64>, wanted: u64| match found {
            Ok(found) if found <= wanted => Ok(()),
            Ok(found) => Err(format!("its {what} is {found} instead of {wanted}")),
            Err(error) => Err(format!("its {what} cannot be read: {error}")),
        };
        let memory = self.number(pid, "memory", "memory.limit_in_bytes", "memory.max");
        at_most("memory limit", memory, resources.memory_bytes)?;
        let pids = self.number(pid, "pids", "pids.max", "pids.max");
        at_most("limit on processes", pids, u64::from(resources.pids))?;
        at_most(
            "processor share",
            self.cpu_millis(pid),
            u64::from(resources.cpu_millis),
        )
    }

    fn cpu_millis(&self, pid: u32) -> io::Result<u64> {
        let dir = self.directory(pid, "cpu")?;
        let (quota, period) = if self.is_old("cpu") {
            (
                number(&dir.join("cpu.cfs_quota_us"))?,
                number(&dir.join("cpu.cfs_period_us"))?,
            )
        } else {
            let text = read(dir.join("cpu.max"))?;
            let mut words = text.split_ascii_whitespace().map(parse);
            (
                words.next().unwrap_or(u64::MAX),
                words.next().unwrap_or(CPU_PERIOD_US),
            )
        };
        Ok(quota.saturating_mul(1_000) / period.max(1))
    }

    /// Every process in the group of one.
    pub(crate) fn members(&self, pid: u32) -> io::Result<Vec<u32>> {
        let list = read(self.directory(pid, "pids")?.join("cgroup.procs"))?;
        Ok(list.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// What the group of a process uses.
    pub(crate) fn usage(&self, pid: u32) -> io::Result<Stats> {
        let memory = self.number(pid, "memory", "memory.usage_in_bytes", "memory.current")?;
        let pids = self.number(pid, "pids", "pids.current", "pids.current")?;
        let cpu_ms = if self.is_old("cpuacct") {
            number(&self.directory(pid, "cpuacct")?.join("cpuacct.usage"))? / 1_000_000
        } else {
            field(
                &read(self.directory(pid, "cpu")?.join("cpu.stat"))?,
                "usage_usec",
            ) / 1_000
        };
        Ok(Stats {
            memory_bytes: memory,
            cpu_ms,
            pids: u32::try_from(pids).unwrap_or(u32::MAX),
        })
    }
}

/// A group of our own in the old hierarchies, for a rootless engine's sandbox.
#[derive(Debug, Clone)]
pub(crate) struct OwnGroup {
    directories: Vec<(&'static str, PathBuf)>,
}

impl OwnGroup {
    pub(crate) fn of(
        hierarchies: &Hierarchies,
        installation: &InstallationId,
        lease: &LeaseId,
    ) -> Self {
        let name = format!("hotcell-engine/{installation}/{lease}");
        let directories = ["memory", "pids", "cpu", "cpuacct"]
            .iter()
            .filter_map(|&name| Some((name, hierarchies.old.get(name)?)))
            .map(|(controller, root)| (controller, root.join(&name)))
            .collect();
        Self { directories }
    }

    /// Makes it with its limits, and moves a sandbox into it: the first process, and whatever
    /// has come of it. No user code runs yet, so that the last look finds nothing left to move.
    pub(crate) fn hold(&self, first: u32, resources: &Resources) -> io::Result<()> {
        for (controller, dir) in &self.directories {
            fs::create_dir_all(dir)?;
            match *controller {
                "memory" => {
                    let bytes = resources.memory_bytes.to_string();
                    write(&dir.join("memory.limit_in_bytes"), &bytes)?;
                    let with_swap = dir.join("memory.memsw.limit_in_bytes");
                    if with_swap.exists() {
                        write(&with_swap, &bytes)?;
                    }
                }
                "pids" => write(&dir.join("pids.max"), &resources.pids.to_string())?,
                "cpu" => {
                    let quota = u64::from(resources.cpu_millis) * CPU_PERIOD_US / 1_000;
                    write(&dir.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                    write(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
                }
                _ => {}
            }
        }
        let mut moved = Vec::new();
        loop {
            let mut new: Vec<u32> = processes_of(first)?;
            new.retain(|pid| !moved.contains(pid));
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                for (_, dir) in &self.directories {
                    match write(&dir.join("cgroup.procs"), &pid.to_string()) {
                        Err(error)
                            if pid != first && error.raw_os_error() == Some(NO_SUCH_PROCESS) => {}
                        other => other?,
                    }
                }
                moved.push(pid);
            }
        }
    }

    /// Whether the kernel has ended a process of it for want of memory.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        self.directories
            .iter()
            .filter(|(controller, _)| *controller == "memory")
            .filter_map(|(_, dir)| read(dir.join("memory.oom_control")).ok())
            .any(|text| field(&text, "oom_kill") > 0)
    }

    /// Removes it. Fine when there is none.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.directories
            .iter()
            .try_for_each(|(_, dir)| crate::fault::if_there(fs::remove_dir(dir)))
    }
}

const NO_SUCH_PROCESS: i32 = 3;

/// All processes in the process namespace of `first`.
fn processes_of(first: u32) -> io::Result<Vec<u32>> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid"));
    let wanted = namespace(first)?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if namespace(pid).is_ok_and(|found| found == wanted) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The path of a controller in `/proc/PID/cgroup`; the unified one has no name.
fn path_of<'a>(table: &'a str, controller: &str) -> Option<&'a str> {
    table.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let names = parts.nth(1)?;
        let path = parts.next()?;
        let is_it = if controller.is_empty() {
            names.is_empty()
        } else {
            names.split(',').any(|name| name == controller)
        };
        is_it.then_some(path)
    })
}

fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(limits::MAX_ENGINE_FILE_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text).map_err(|error| match error.raw_os_error() {
        Some(NO_SUCH_PROCESS) => error,
        _ => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    })
}

fn number(path: &Path) -> io::Result<u64> {
    Ok(parse(read(path)?.trim()))
}

/// `max`, and anything else that is no number (such as -1), is no limit at all.
fn parse(word: &str) -> u64 {
    word.parse().unwrap_or(u64::MAX)
}

fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(found, _)| *found == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_kinds_are_found() {
        let old = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                   35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                   41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = Hierarchies::parse(old);
        assert_eq!(found.old["cpu"], Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!(found.old["cpuacct"], Path::new("/sys/fs/cgroup/cpu"));
        assert!(found.is_old("memory") && !found.is_old("pids"));
        let new =
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            Hierarchies::parse(new).unified.unwrap(),
            Path::new("/sys/fs/cgroup")
        );
        assert_eq!(
            Hierarchies::parse("nonsense\n - \n"),
            Hierarchies::default()
        );
    }

    #[test]
    fn the_group_of_each_controller_is_found() {
        let table = "8:pids:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/init\n";
        assert_eq!(path_of(table, "cpuacct"), Some("/docker/abc"));
        assert_eq!(path_of(table, "pids"), Some("/docker/abc"));
        assert_eq!(path_of(table, "memory"), None);
        assert_eq!(path_of(table, ""), Some("/init"));
    }

    #[test]
    fn numbers_and_fields() {
        assert_eq!(parse("max"), u64::MAX);
        assert_eq!(parse("-1"), u64::MAX);
        assert_eq!(parse("42"), 42);
        assert_eq!(
            field("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "oom_kill"),
            2
        );
        assert_eq!(field("", "usage_usec"), 0);
    }
}
