//! What cannot be had is refused with its reason, and leaves nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::{fs, process::Command};

use common::{Engine, Rig};
use hotcell_runtime::{ObservedState, Runtime, RuntimeError};
use hotcell_types::LeaseId;

async fn state(rig: &Rig, lease: &LeaseId) -> Option<ObservedState> {
    let all = rig.runtime.list().await.unwrap();
    all.into_iter()
        .find(|observed| observed.lease == *lease)
        .map(|observed| observed.state)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_diagnosed() {
    let rig = Rig::open(Engine::Runc).await;
    let other = tempfile::tempdir().unwrap();
    let mut config = rig.config.clone();
    config.state_dir = other.path().join("state");
    config.run_dir = other.path().join("run");
    config.image_dir = other.path().join("images");
    config.oci_runtime = hotcell_runtime_embedded::RuntimeChoice::Fixed {
        kind: hotcell_runtime_embedded::OciKind::Runsc,
        path: Some("/bin/false".into()),
        network: hotcell_runtime_embedded::NetworkStack::Auto,
    };
    let checks = hotcell_runtime_embedded::diagnose(config.clone()).await;
    let failed: Vec<_> = checks
        .iter()
        .filter(|check| check.status == hotcell_runtime::CheckStatus::Fail)
        .map(|check| check.id.as_str())
        .collect();
    assert_eq!(failed, ["runtime.oci", "image.present"], "{checks:?}");
    assert!(
        checks
            .iter()
            .all(|check| check.fix.is_empty()
                == (check.status == hotcell_runtime::CheckStatus::Pass))
    );
    // A runtime that was not opened leaves nothing mounted.
    assert_eq!(common::mounts_with(other.path()), Vec::<String>::new());
    config.agent_binary = other.path().join("no-agent");
    let checks = hotcell_runtime_embedded::diagnose(config).await;
    let agent = checks
        .iter()
        .find(|check| check.id == "agent.binary")
        .unwrap();
    assert_eq!(agent.status, hotcell_runtime::CheckStatus::Fail);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_runtime_per_directory() {
    let rig = Rig::open(Engine::Runc).await;
    let second = hotcell_runtime_embedded::Embedded::open(rig.config.clone()).await;
    assert!(matches!(second, Err(RuntimeError::Unavailable(_))));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_is_refused_before_anything_is_made() {
    let rig = Rig::open_with(Engine::Runc, |config| config.max_sandboxes = 1).await;
    let outside = tempfile::tempdir().unwrap();
    let link = rig.config.volume_root.join("link");
    std::os::unix::fs::symlink(outside.path(), &link).unwrap();
    for host_path in [
        outside.path().to_owned(),
        link,
        rig.config.volume_root.join("none"),
    ] {
        let (mut spec, _, _) = rig.spec();
        let mut volume = rig.volume(hotcell_types::VolumeKind::UserData);
        volume.host_path = host_path;
        spec.mounts.push(volume);
        let refused = rig.runtime.create(&spec).await;
        assert!(
            matches!(refused, Err(RuntimeError::Unsupported { .. })),
            "{refused:?}"
        );
    }
    let (mut spec, _, _) = rig.spec();
    spec.image = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    assert!(matches!(
        rig.runtime.create(&spec).await,
        Err(RuntimeError::NoSuchImage(_))
    ));
    rig.assert_nothing_left();
    let (first, _, _) = rig.spec();
    let (second, _, _) = rig.spec();
    rig.runtime.create(&first).await.unwrap();
    assert!(rig.runtime.create(&second).await.is_err());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_leaves_nothing_running() {
    let rig = Rig::open(Engine::Runc).await;
    let (spec, lease, key) = rig.spec();
    rig.runtime.create(&spec).await.unwrap();
    // The scratch disk is destroyed, so the mount fails in the middle of the start.
    fs::write(
        rig.config
            .state_dir
            .join("sandboxes")
            .join(lease.as_str())
            .join("scratch.img"),
        "x",
    )
    .unwrap();
    let failed = rig.runtime.start(&lease, &key).await;
    assert!(
        matches!(failed, Err(RuntimeError::Failed { .. })),
        "{failed:?}"
    );
    assert_eq!(state(&rig, &lease).await, Some(ObservedState::Stopped));
    rig.runtime.remove(&lease).await.unwrap();
    rig.assert_nothing_left();
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named() {
    let disk = SmallDisk::mount();
    let rig = Rig::open_with(Engine::Runc, |config| {
        config.state_dir = disk.path().join("state")
    })
    .await;
    let (spec, lease, key) = rig.spec();
    rig.runtime.create(&spec).await.unwrap();
    rig.runtime.start(&lease, &key).await.unwrap();
    let filled = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "status=none"])
        .arg(format!("of={}", disk.path().join("fill").display()))
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(!filled.success());
    let (other, _, _) = rig.spec();
    let refused = rig.runtime.create(&other).await;
    assert!(
        matches!(refused, Err(RuntimeError::DiskFull(_))),
        "{refused:?}"
    );
    // What is there goes on, and goes away.
    rig.cell(&lease, &key).await.get("true").await;
    rig.runtime.remove(&lease).await.unwrap();
    fs::remove_file(disk.path().join("fill")).unwrap();
    rig.runtime.create(&other).await.unwrap();
    rig.end().await;
}

/// A disk of 160 MiB.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = |command: &mut Command| assert!(command.status().unwrap().success());
        let image = dir.path().join("img");
        let at = dir.path().join("mnt");
        fs::create_dir(&at).unwrap();
        fs::File::create(&image)
            .unwrap()
            .set_len(160 << 20)
            .unwrap();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&at));
        Self(dir)
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("mnt")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}
