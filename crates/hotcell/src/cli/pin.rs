//! `hotcell pin-namespace`: keeps the gateway's network namespace alive outside the service.
//!
//! The service has a mount namespace of its own, and what is mounted in there ends with it. The
//! gateway's network namespace lives by a mount, and sandboxes with gVisor's network stack cannot be
//! linked to another one, so a restart of the service would end them. The unit therefore calls this
//! before the daemon, with full rights; it mounts in the mount namespace of the first process, from
//! where the daemon's gets it. (What systemd starts with `+` has no restrictions, and yet a mount
//! namespace of its own.)

use std::{fs, os::unix::fs::DirBuilderExt, path::Path, process::Command};

use super::{Exit, Settings};
use crate::config::EngineChoice;

pub(super) fn run(settings: &Settings) -> Result<(), Exit> {
    let config = settings.load(None, None)?;
    if !matches!(config.runtime.engine, EngineChoice::Embedded(_)) {
        return Ok(());
    }
    let directory = config.run_dir.join("netns");
    let path = directory.join("gateway");
    if is_mounted(&path)? {
        return Ok(());
    }
    let make = || {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        fs::File::create(&path).map(drop)
    };
    make().map_err(|error| Exit::words(format!("{} cannot be made: {error}", path.display())))?;
    let mut argument = std::ffi::OsString::from("--net=");
    argument.push(&path);
    let output = Command::new("nsenter")
        .args(["--target", "1", "--mount", "--", "unshare"])
        .arg(argument)
        .arg("true")
        .output()
        .map_err(|error| Exit::words(format!("nsenter (of util-linux) cannot be run: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Exit::words(format!(
        "the network namespace {} cannot be made: {}",
        path.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

/// Whether something is mounted on this file, for the first process.
fn is_mounted(path: &Path) -> Result<bool, Exit> {
    let mounts = fs::read_to_string("/proc/1/mountinfo").map_err(|error| Exit::failed(&error))?;
    Ok(mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|mounted| Path::new(mounted) == path))
}
