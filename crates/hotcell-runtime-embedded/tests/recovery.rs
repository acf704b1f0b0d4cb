//! What a new daemon makes of what an older one, a reboot or a crash left behind.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::{fs, path::Path, process::Command, time::Duration};

use common::{Engine, Rig};
use hotcell_runtime::{ObservedState, Runtime, SandboxEnd};
use hotcell_types::LeaseId;
use tokio::time::timeout;

async fn state(rig: &Rig, lease: &LeaseId) -> Option<ObservedState> {
    let all = rig.runtime.list().await.unwrap();
    all.into_iter()
        .find(|observed| observed.lease == *lease)
        .map(|observed| observed.state)
}

#[tokio::test(flavor = "multi_thread")]
async fn running_sandboxes_outlive_the_daemon() {
    for engine in [Engine::RunscOwn, Engine::RunscKernel, Engine::Runc] {
        let rig = Rig::open(engine).await;
        let cell = rig.start().await;
        cell.get("echo before > /tmp/x").await;
        let pid = rig.main_pid(&cell.lease);
        let (lease, key) = (cell.lease.clone(), cell.key.clone());
        drop(cell);
        let rig = rig.reopen().await;
        assert_eq!(
            state(&rig, &lease).await,
            Some(ObservedState::Running),
            "{engine:?}"
        );
        let cell = rig.cell(&lease, &key).await;
        assert_eq!(cell.get("cat /tmp/x").await, "before");
        assert_eq!(rig.main_pid(&lease), pid);
        // Its slot is not given away.
        let other = rig.start().await;
        assert_eq!(other.get("cat /tmp/x 2>/dev/null || echo no").await, "no");
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_linked_to_a_new_gateway_or_ended() {
    for engine in [Engine::RunscOwn, Engine::RunscKernel, Engine::Runc] {
        let rig = Rig::open(engine).await;
        let cell = rig.start().await;
        let (lease, key) = (cell.lease.clone(), cell.key.clone());
        drop(cell);
        let gateway = rig.config.run_dir.join("netns/gateway");
        // What the end of a unit with its own mount namespace does.
        let rig = rig
            .reopen_after(async || {
                let unmounted = Command::new("umount").arg(&gateway).status();
                assert!(unmounted.unwrap().success());
            })
            .await;
        if engine == Engine::RunscOwn {
            assert_eq!(state(&rig, &lease).await, Some(ObservedState::Stopped));
            rig.runtime.start(&lease, &key).await.unwrap();
        } else {
            assert_eq!(state(&rig, &lease).await, Some(ObservedState::Running));
        }
        let cell = rig.cell(&lease, &key).await;
        assert_eq!(cell.get("echo reached").await, "reached");
        drop(cell);
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_leaves_stopped_sandboxes_with_their_files() {
    let rig = Rig::open(Engine::Runc).await;
    let cell = rig.start().await;
    cell.get("echo kept > /workspace/x; sync").await;
    let (lease, key) = (cell.lease.clone(), cell.key.clone());
    drop(cell);
    // What a reboot does: no process, nothing in the run directory, no control group.
    let pid = rig.main_pid(&lease).to_string();
    assert!(
        Command::new("kill")
            .args(["-9", &pid])
            .status()
            .unwrap()
            .success()
    );
    rig.runtime.wait(&lease).await.unwrap();
    let run = rig.config.run_dir.clone();
    let groups = rig.control_groups();
    let unmounted = Command::new("umount")
        .arg(run.join("netns/gateway"))
        .status();
    assert!(unmounted.unwrap().success());
    for name in ["oci", "netns", "probe.json"] {
        let path = run.join(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
    for group in groups {
        wait_removed(&group).await;
    }
    let rig = rig.reopen().await;
    assert_eq!(state(&rig, &lease).await, Some(ObservedState::Stopped));
    assert_eq!(rig.runtime.wait(&lease).await.unwrap(), SandboxEnd::Lost);
    rig.runtime.start(&lease, &key).await.unwrap();
    let cell = rig.cell(&lease, &key).await;
    assert_eq!(cell.get("cat /workspace/x").await, "kept");
    drop(cell);
    rig.end().await;
}

async fn wait_removed(group: &Path) {
    timeout(Duration::from_secs(5), async {
        while fs::remove_dir(group).is_err() && group.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_is_found_and_removed() {
    let rig = Rig::open(Engine::Runc).await;
    let sandboxes = rig.config.state_dir.join("sandboxes");
    // Cut off while it was made, while it was removed, and a record that is garbage.
    let (_, cut, _) = rig.spec();
    fs::create_dir(sandboxes.join(format!(".new-{cut}"))).unwrap();
    fs::create_dir(sandboxes.join(format!(".gone-{cut}"))).unwrap();
    let (_, damaged, key) = rig.spec();
    fs::create_dir(sandboxes.join(damaged.as_str())).unwrap();
    fs::write(sandboxes.join(damaged.as_str()).join("sandbox.json"), "{").unwrap();
    // A running sandbox whose directory is gone.
    let lost = rig.start().await;
    fs::remove_dir_all(sandboxes.join(lost.lease.as_str())).unwrap();
    let lost_pid = rig.main_pid(&lost.lease);
    drop(lost);

    let rig = rig.reopen().await;
    let observed = rig.runtime.list().await.unwrap();
    assert_eq!(observed.len(), 1, "{observed:?}");
    assert_eq!(observed[0].lease, damaged);
    assert_eq!(observed[0].labels, None);
    assert!(
        !Path::new("/proc")
            .join(lost_pid.to_string())
            .join("exe")
            .exists()
    );
    assert!(rig.runtime.start(&damaged, &key).await.is_err());
    rig.runtime.remove(&damaged).await.unwrap();
    rig.assert_nothing_left();
    rig.end().await;
}
