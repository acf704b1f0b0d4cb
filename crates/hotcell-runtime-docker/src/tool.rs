//! Running the few programs of the system that we need, with an end and a bounded complaint.

use std::{
    io::Read,
    process::{Command, Stdio},
    time::Duration,
};

use hotcell_runtime::RuntimeError;
use hotcell_types::limits;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::fault;

const MAX_COMPLAINT_BYTES: u64 = 4_096;

/// Runs it to its end. For threads that may wait.
pub(crate) fn run(action: &'static str, command: &mut Command) -> Result<(), RuntimeError> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            fault::failed(action, format!("{program}: {error}"))
        })?;
    let ended = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(ends_in_time);
    if !ended {
        // Reaped below; a process that is gone already is fine.
        let _ = child.kill();
    }
    let status = child.wait().map_err(fault::of(action))?;
    if status.success() {
        return Ok(());
    }
    let mut words = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // What it says is only for the message.
        let _ = stderr.take(MAX_COMPLAINT_BYTES).read_to_end(&mut words);
    }
    let words = String::from_utf8_lossy(&words).into_owned();
    Err(fault::said(action, &format!("{words} ({status})")))
}

fn ends_in_time(pid: Pid) -> bool {
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    let limit = Duration::from_millis(limits::ENGINE_TOOL_TIMEOUT_MS);
    let Ok(limit) = Timespec::try_from(limit) else {
        return false;
    };
    let mut wanted = [PollFd::new(&handle, PollFlags::IN)];
    matches!(poll(&mut wanted, Some(&limit)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_passed_on() {
        run("try", &mut Command::new("true")).unwrap();
        let error = run(
            "try",
            Command::new("sh").args(["-c", "echo no such luck >&2; exit 3"]),
        );
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("no such luck") && error.contains('3'),
            "{error}"
        );
        let full = run(
            "try",
            Command::new("sh").args(["-c", "echo 'No space left on device' >&2; false"]),
        );
        assert!(matches!(full, Err(RuntimeError::DiskFull(_))));
        assert!(run("try", &mut Command::new("/no/such/program")).is_err());
    }
}
