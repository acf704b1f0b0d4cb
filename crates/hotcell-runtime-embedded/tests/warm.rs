//! Sandboxes that are made ahead: nobody's until they are claimed, and then like any other.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::{fs, os::unix::fs::MetadataExt};

use common::{Cell, Engine, Rig};
use hotcell_runtime::{Observed, ObservedState, Runtime, RuntimeError, SandboxSpec};
use hotcell_types::{LeaseId, VolumeKind};

on_every_engine!(
    a_claimed_sandbox_has_its_volumes,
    nothing_is_seen_before_the_claim,
    only_a_claimed_one_can_be_used,
    a_claim_that_does_not_fit_is_refused_and_made_anew,
);

/// A warm sandbox, and what it will be claimed as: with all volumes, a file in each.
async fn warm(rig: &Rig) -> (SandboxSpec, Cell) {
    let (mut spec, lease, key) = rig.spec();
    spec.mounts = VolumeKind::ALL.map(|kind| rig.volume(kind)).to_vec();
    for mount in &spec.mounts {
        let file = mount.host_path.join("hello");
        fs::write(&file, format!("{:?}\n", mount.kind)).unwrap();
        std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
    }
    rig.runtime.warm(&spec.ahead()).await.unwrap();
    let cell = rig.cell(&lease, &key).await;
    (spec, cell)
}

async fn seen(rig: &Rig, lease: &LeaseId) -> Observed {
    let all = rig.runtime.list().await.unwrap();
    all.into_iter().find(|it| it.lease == *lease).unwrap()
}

async fn assert_volumes(rig: &Rig, spec: &SandboxSpec, cell: &Cell) {
    for mount in &spec.mounts {
        let (path, text) = (mount.kind.mount_path(), format!("{:?}", mount.kind));
        assert_eq!(cell.get(&format!("cat {path}/hello")).await, text);
        assert_eq!(
            cell.get(&format!("stat -c %u:%g {path}")).await,
            "1000:1000"
        );
        let tried = cell
            .sh(&format!("echo new > {path}/new && : > {path}/hello"))
            .await;
        if mount.kind.read_only() {
            assert_ne!(tried.code(), 0, "{path}: {tried:?}");
            assert!(!mount.host_path.join("new").exists());
            // gVisor would empty it before it refuses, if the host let it.
            let hello = fs::read_to_string(mount.host_path.join("hello")).unwrap();
            assert_eq!(hello.trim_end(), text);
        } else {
            assert_eq!(tried.code(), 0, "{path}: {tried:?}");
            let made = mount.host_path.join("new");
            assert_eq!(fs::read_to_string(&made).unwrap(), "new\n");
            assert_eq!(fs::metadata(&made).unwrap().uid(), 1000);
            fs::remove_file(&made).unwrap();
            fs::write(mount.host_path.join("hello"), format!("{text}\n")).unwrap();
            // What changes on the host is seen.
            let changed = format!("test ! -e {path}/new && cat {path}/hello");
            assert_eq!(cell.get(&changed).await, text);
        }
    }
    // What is between the volumes is nobody's to change.
    for text in [
        "touch /mnt/x",
        "mv /mnt/user-data /mnt/y",
        "rmdir /mnt/skills",
    ] {
        assert_ne!(cell.sh(text).await.code(), 0, "{text}");
    }
    // Device files and set-user-id bits count for nothing in a volume.
    if !rig.engine.is_gvisor() {
        let mounts = cell.get("grep ' /mnt/' /proc/self/mounts").await;
        assert_eq!(mounts.lines().count(), 4, "{mounts}");
        for line in mounts.lines() {
            assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
        }
    }
    let state = rig.config.state_dir.canonicalize().unwrap();
    assert_eq!(common::mounts_with(&state), Vec::<String>::new());
    let volumes = rig.config.volume_root.canonicalize().unwrap();
    assert_eq!(common::mounts_with(&volumes), Vec::<String>::new());
}

async fn a_claimed_sandbox_has_its_volumes(rig: &Rig) {
    let (spec, cell) = warm(rig).await;
    let pid = rig.main_pid(&cell.lease);
    rig.runtime.claim(&spec).await.unwrap();
    let observed = seen(rig, &cell.lease).await;
    assert_eq!(observed.labels.as_ref(), Some(&spec.labels));
    assert!(!observed.unclaimed);
    // Create and start are done already.
    rig.runtime.create(&spec).await.unwrap();
    rig.runtime.start(&cell.lease, &cell.key).await.unwrap();
    assert_eq!(rig.main_pid(&cell.lease), pid);
    assert_volumes(rig, &spec, &cell).await;
    cell.get("echo kept > /workspace/kept").await;

    // Started again it has ordinary mounts.
    rig.runtime.stop(&cell.lease).await.unwrap();
    rig.runtime.start(&cell.lease, &cell.key).await.unwrap();
    let cell = rig.cell(&cell.lease, &cell.key).await;
    assert_eq!(cell.get("cat /workspace/kept").await, "kept");
    assert_volumes(rig, &spec, &cell).await;
    rig.runtime.remove(&cell.lease).await.unwrap();
    rig.assert_nothing_left();
}

async fn nothing_is_seen_before_the_claim(rig: &Rig) {
    let (spec, cell) = warm(rig).await;
    let observed = seen(rig, &cell.lease).await;
    assert!(observed.unclaimed);
    assert_eq!(observed.labels, None);
    assert_eq!(observed.state, ObservedState::Running);
    for kind in VolumeKind::ALL {
        let path = kind.mount_path();
        assert_eq!(cell.get(&format!("ls -A {path}")).await, "");
        assert_ne!(cell.sh(&format!("touch {path}/x")).await.code(), 0);
    }
    // One that has looked there before sees the volumes all the same.
    rig.runtime.claim(&spec).await.unwrap();
    assert_volumes(rig, &spec, &cell).await;
    rig.runtime.remove(&cell.lease).await.unwrap();
    rig.assert_nothing_left();
}

async fn only_a_claimed_one_can_be_used(rig: &Rig) {
    let (spec, cell) = warm(rig).await;
    let started = rig.runtime.start(&cell.lease, &cell.key).await;
    assert!(matches!(started, Err(RuntimeError::Failed { .. })));
    // One that has ended cannot be claimed; created it is another one.
    rig.runtime.stop(&cell.lease).await.unwrap();
    assert!(rig.runtime.claim(&spec).await.is_err());
    assert!(seen(rig, &cell.lease).await.unclaimed);
    rig.runtime.create(&spec).await.unwrap();
    let observed = seen(rig, &cell.lease).await;
    assert_eq!(observed.state, ObservedState::Created);
    assert!(!observed.unclaimed);
    rig.runtime.start(&cell.lease, &cell.key).await.unwrap();
    let cell = rig.cell(&cell.lease, &cell.key).await;
    assert_volumes(rig, &spec, &cell).await;
    // What is claimed is not claimed again.
    assert!(rig.runtime.claim(&spec).await.is_err());
    rig.runtime.remove(&cell.lease).await.unwrap();
}

async fn a_claim_that_does_not_fit_is_refused_and_made_anew(rig: &Rig) {
    let (mut spec, cell) = warm(rig).await;
    spec.resources.memory_bytes *= 2;
    assert!(rig.runtime.claim(&spec).await.is_err());
    assert!(seen(rig, &cell.lease).await.unclaimed);
    rig.runtime.create(&spec).await.unwrap();
    rig.runtime.start(&cell.lease, &cell.key).await.unwrap();
    let cell = rig.cell(&cell.lease, &cell.key).await;
    assert_volumes(rig, &spec, &cell).await;
    rig.runtime.remove(&cell.lease).await.unwrap();
    // A volume that is not beneath the root is none, warm or not.
    let (mut spec, cell) = warm(rig).await;
    spec.mounts[0].host_path = "/etc".into();
    assert!(rig.runtime.claim(&spec).await.is_err());
    assert_eq!(cell.get("ls -A /mnt/skills").await, "");
    rig.runtime.remove(&cell.lease).await.unwrap();
    rig.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclaimed_one_outlives_the_daemon_and_can_be_claimed_by_the_next() {
    for engine in [Engine::RunscOwn, Engine::RunscKernel, Engine::Runc] {
        let rig = Rig::open(engine).await;
        let (spec, cell) = warm(&rig).await;
        let again = rig.runtime.warm(&spec.ahead()).await;
        assert!(matches!(again, Err(RuntimeError::Failed { .. })));
        assert!(rig.runtime.images_in_use().unwrap().contains(&rig.image));
        let (lease, key) = (cell.lease.clone(), cell.key.clone());
        drop(cell);
        let rig = rig.reopen().await;
        assert!(seen(&rig, &lease).await.unclaimed, "{engine:?}");
        rig.runtime.claim(&spec).await.unwrap();
        let cell = rig.cell(&lease, &key).await;
        assert_volumes(&rig, &spec, &cell).await;
        drop(cell);
        // What is claimed is not removed as nobody's.
        rig.runtime.remove_unclaimed(&lease).await.unwrap();
        assert!(!seen(&rig, &lease).await.unclaimed);
        rig.runtime.remove(&lease).await.unwrap();
        rig.end().await;
    }
}
