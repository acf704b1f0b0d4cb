//! `GET /v1/health` and `GET /v1/disk`.

use std::path::Path;

use hotcell_agent_proto::{DiskUsage, Health, MountUsage, PROTOCOL_VERSION};
use hotcell_types::VolumeKind;

use crate::agent::Agent;

/// The agent is up, and this is how it is.
pub(crate) fn health(agent: &Agent) -> Health {
    Health {
        protocol: PROTOCOL_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        bash: agent.shell.bash().is_some(),
        writable_read_only_mounts: agent.writable_read_only_mounts.clone(),
        calls: agent.calls(),
        jobs: agent.jobs.running(),
    }
}

/// Tries to write where nobody may: a mount that silently came out writable is a leak
/// between chats.
pub(crate) fn writable_read_only_mounts() -> Vec<String> {
    VolumeKind::ALL
        .into_iter()
        .filter(|volume| volume.read_only())
        .map(VolumeKind::mount_path)
        .filter(|mount| can_write(Path::new(mount)))
        .map(ToOwned::to_owned)
        .collect()
}

fn can_write(directory: &Path) -> bool {
    let probe = directory.join(format!(".hotcell-probe-{}", std::process::id()));
    let written = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(&probe)
        .is_ok();
    if written {
        let _ = std::fs::remove_file(&probe);
    }
    written
}

/// How full each writable place is, where it exists.
pub(crate) fn disk(agent: &Agent) -> DiskUsage {
    let volumes = VolumeKind::ALL
        .into_iter()
        .filter(|volume| !volume.read_only());
    let workspace = agent.config.workspace.to_string_lossy().into_owned();
    let places = [workspace, "/tmp".to_owned(), "/dev/shm".to_owned()]
        .into_iter()
        .chain(volumes.map(|volume| volume.mount_path().to_owned()));
    DiskUsage {
        mounts: places.filter_map(usage).collect(),
    }
}

fn usage(path: String) -> Option<MountUsage> {
    let stat = rustix::fs::statvfs(path.as_str()).ok()?;
    Some(MountUsage {
        path,
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writable_directory_is_found_out_and_left_clean() {
        let directory = tempfile::tempdir().unwrap();
        assert!(can_write(directory.path()));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(!can_write(&directory.path().join("missing")));
        assert!(usage("/".to_owned()).is_some_and(|root| root.total_bytes > 0));
        assert!(usage("/no/such/place".to_owned()).is_none());
    }
}
