//! What the kernel says about a sandbox that has just started.
//!
//! An engine's configuration may have changed anything on the way: a default profile, a daemon
//! option, another OCI runtime behind a known name. So the first process is looked at from
//! outside before anybody may use it; what is not as it must be is ended at once.

use std::{
    fs::{self, File},
    io::{self, Read},
    net::Ipv4Addr,
    os::unix::fs::MetadataExt,
};

use hotcell_types::limits;

use crate::net;

/// What there is to see of a sandbox's first process.
pub(crate) struct Expected {
    /// User code does not talk to this host's kernel.
    pub(crate) gvisor: bool,
    /// Whose files the sandbox's files are, and so who its first process is.
    pub(crate) uid: u32,
    /// The device of its scratch disk, when it has one.
    pub(crate) scratch_device: Option<u64>,
    /// Where its packets go, when it has a network.
    pub(crate) gateway: Option<Ipv4Addr>,
}

/// Looks at it, and says what is wrong.
pub(crate) fn check(pid: u32, expected: &Expected) -> Result<(), String> {
    net::leads_nowhere(pid, expected.gateway)?;
    let agent_runs_on_this_kernel = is_agent(pid);
    if expected.gvisor {
        return if agent_runs_on_this_kernel {
            Err("its OCI runtime is called runsc and is not gVisor".into())
        } else {
            Ok(())
        };
    }
    let status = read(&format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
    check_status(&status, expected.uid)?;
    let Some(wanted) = expected.scratch_device else {
        return Ok(());
    };
    let found = fs::metadata(format!("/proc/{pid}/root/workspace"))
        .map_err(|error| format!("its /workspace cannot be seen: {error}"))?;
    if found.dev() == wanted {
        Ok(())
    } else {
        Err("its /workspace is not its scratch disk: the engine sees other mounts".into())
    }
}

/// Under gVisor the process that this host sees is gVisor's own, never the agent.
fn is_agent(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path.ends_with("agent"))
}

fn check_status(status: &str, uid: u32) -> Result<(), String> {
    let field = |name: &str| {
        status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value.trim())
            .ok_or_else(|| format!("the kernel does not tell its {name}"))
    };
    let uid = uid.to_string();
    if !field("Uid")?
        .split_ascii_whitespace()
        .all(|found| found == uid)
    {
        return Err(format!("it does not run as user {uid} only"));
    }
    for set in ["CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"] {
        if field(set)?.bytes().any(|digit| digit != b'0') {
            return Err(format!("it has capabilities ({set})"));
        }
    }
    if field("NoNewPrivs")? != "1" {
        return Err("it may gain privileges".into());
    }
    // Two: a filter.
    if field("Seccomp")? != "2" {
        return Err("it has no seccomp filter".into());
    }
    Ok(())
}

fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(limits::MAX_ENGINE_FILE_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Name:\tagent\nUid:\t1000\t1000\t1000\t1000\nCapInh:\t0000000000000000\n\
        CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\n\
        CapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";

    #[test]
    fn a_process_must_have_nothing() {
        check_status(GOOD, 1000).unwrap();
        for (from, to) in [
            ("Uid:\t1000\t1000\t1000", "Uid:\t1000\t0\t1000"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb"),
            ("CapAmb:\t0000000000000000", "CapAmb:\t0000000000000001"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
            ("Seccomp:\t2", "Seccomp:\t0"),
            ("Seccomp:\t2\n", ""),
        ] {
            assert!(GOOD.contains(from));
            assert!(check_status(&GOOD.replace(from, to), 1000).is_err(), "{to}");
        }
        assert!(check_status(GOOD, 1001).is_err());
    }
}
