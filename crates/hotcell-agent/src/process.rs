//! Processes as `/proc` shows them: who descends from whom, and what still lives.
//!
//! Names and commands in there belong to user code; only numbers and the state are read.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::Read as _,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use hotcell_types::limits::agent::MAX_PROCESSES;

/// One process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    pub(crate) group: i32,
    /// Whether it still runs; a zombie only waits to be reaped.
    pub(crate) alive: bool,
}

/// Signals processes; those that have gone meanwhile are no error.
///
/// Whole process groups get it in one go, which nothing can fork away from, and which is
/// cheap while a fork bomb takes the processor. `keep` is a group that holds more than these
/// processes: those of it are signalled one by one.
pub(crate) fn signal(processes: &[Process], keep: Pid, signal: Signal) {
    let keep = keep.as_raw_nonzero().get();
    let groups: HashSet<i32> = processes.iter().map(|process| process.group).collect();
    for group in groups
        .into_iter()
        .filter(|&group| group > 1 && group != keep)
    {
        if let Some(group) = Pid::from_raw(group) {
            let _ = kill_process_group(group, signal);
        }
    }
    for process in processes.iter().filter(|process| process.group == keep) {
        if let Some(pid) = Pid::from_raw(process.pid) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Everything below `root`, without `root` itself and without what `is_boundary` names and
/// all below that.
pub(crate) fn descendants(root: Pid, is_boundary: impl Fn(i32) -> bool) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    // A parent is read before or after its child was moved to another parent: a snapshot of
    // /proc may hold a loop.
    let mut seen = HashSet::from([root.as_raw_nonzero().get()]);
    let mut open = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        for &process in children.get(&parent).into_iter().flatten() {
            if !is_boundary(process.pid) && seen.insert(process.pid) {
                open.push(process.pid);
                found.push(process);
            }
        }
    }
    found
}

fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .take(MAX_PROCESSES)
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(read)
        .collect()
}

fn read(pid: i32) -> Option<Process> {
    let mut text = [0; 512];
    let length = File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .read(&mut text)
        .ok()?;
    parse(pid, &text[..length])
}

/// Parses `PID (COMMAND) STATE PARENT GROUP …`; the command may hold anything, also `)`.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let after_command = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_command..])
        .ok()?
        .split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process {
        pid,
        parent,
        group,
        alive: !matches!(state, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_hold_anything() {
        let process = parse(7, b"7 (a) Z 1 (b\xff) S 42 7 7 0 -1").unwrap();
        assert_eq!(
            (process.parent, process.group, process.alive),
            (42, 7, true)
        );
        assert!(!parse(7, b"7 (sh) Z 1 7").unwrap().alive);
        assert!(parse(7, b"7 (sh").is_none());
        assert!(parse(7, b"").is_none());
    }

    #[test]
    fn finds_its_own_child_below_itself() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let id = i32::try_from(child.id()).unwrap();
        let me = rustix::process::getpid();
        assert!(
            descendants(me, |_| false)
                .iter()
                .any(|p| p.pid == id && p.alive)
        );
        assert!(!descendants(me, |pid| pid == id).iter().any(|p| p.pid == id));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
