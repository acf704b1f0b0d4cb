//! What happens when an engine fails under its sandboxes. Each ends in a typed state within
//! thirty seconds, volumes stay, and the next call works.
#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

mod common;

use std::{fs, path::Path, sync::Arc, time::Duration};

use bollard::{
    models::ContainerCreateBody,
    query_parameters::{
        CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
    },
};
use common::{Case, Rig, engine::OwnEngine, eventually};
use hotcell_runtime::{ObservedState, Runtime, RuntimeError, SandboxEnd};
use hotcell_types::{LeaseId, VolumeKind};
use rustix::process::Signal;
use tokio::{task::JoinHandle, time::timeout};

/// What an operator is promised.
const TYPED_WITHIN: Duration = Duration::from_secs(30);

/// The image of these tests has no shell, so a sandbox is asked for its health only.
async fn run_one(rig: &Rig) -> common::Cell {
    let cell = rig.start().await;
    let volume = rig.volume(VolumeKind::UserData).host_path;
    fs::write(volume.join("kept"), "kept").unwrap();
    cell
}

fn watch(rig: &Rig, lease: &LeaseId) -> JoinHandle<Result<SandboxEnd, RuntimeError>> {
    let (runtime, lease) = (Arc::clone(&rig.runtime), lease.clone());
    tokio::spawn(async move { runtime.wait(&lease).await })
}

async fn ended(watch: JoinHandle<Result<SandboxEnd, RuntimeError>>) -> SandboxEnd {
    timeout(TYPED_WITHIN, watch)
        .await
        .expect("typed in time")
        .unwrap()
        .unwrap()
}

/// Removal works, nothing of the user's is lost, and there is place for the next one.
async fn is_over(rig: &Rig, lease: &LeaseId) {
    rig.runtime.remove(lease).await.unwrap();
    assert!(rig.observed(lease).await.is_none());
    let volume = rig.volume(VolumeKind::UserData).host_path;
    assert_eq!(fs::read_to_string(volume.join("kept")).unwrap(), "kept");
    let next = rig.start().await;
    rig.runtime.remove(&next.lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_restarts_under_its_sandboxes() {
    for signal in [Signal::TERM, Signal::KILL] {
        let (mut engine, image) = OwnEngine::start(Case::DockerRunc).await;
        let rig = Rig::open_at(Case::DockerRunc, &engine.socket(), image).await;
        let cell = run_one(&rig).await;
        let watching = watch(&rig, &cell.lease);
        engine.end(signal).await;
        let away = rig.runtime.list().await;
        assert!(
            matches!(away, Err(RuntimeError::Unavailable(_))),
            "{away:?}"
        );
        engine.resume().await;
        // Docker ends its containers in a restart unless it is told to keep them.
        assert_eq!(ended(watching).await, SandboxEnd::Lost, "{signal:?}");
        assert_eq!(rig.state(&cell.lease).await, Some(ObservedState::Stopped));
        is_over(&rig, &cell.lease).await;
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn podmans_sandboxes_do_not_need_its_service() {
    let (mut engine, image) = OwnEngine::start(Case::Podman).await;
    let mut rig = Rig::open_at(Case::Podman, &engine.socket(), image).await;
    let cell = run_one(&rig).await;
    let watching = watch(&rig, &cell.lease);
    engine.end(Signal::KILL).await;
    cell.sandbox.ready(5_000).await.unwrap();
    engine.resume().await;
    assert_eq!(rig.state(&cell.lease).await, Some(ObservedState::Running));
    assert!(!watching.is_finished());
    // A daemon that was replaced meanwhile takes it over.
    watching.abort();
    rig.reopen().await;
    let sandbox = rig.runtime.sandbox(&cell.lease, &cell.key).unwrap();
    sandbox.ready(5_000).await.unwrap();
    let watching = watch(&rig, &cell.lease);
    rustix::process::kill_process(rig.pid(&cell.lease).await, Signal::KILL).unwrap();
    assert_eq!(ended(watching).await, SandboxEnd::Exited);
    is_over(&rig, &cell.lease).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stays_away_has_lost_its_sandboxes() {
    let (mut engine, image) = OwnEngine::start(Case::DockerRunc).await;
    let rig = Rig::open_at(Case::DockerRunc, &engine.socket(), image).await;
    let cell = run_one(&rig).await;
    let watching = watch(&rig, &cell.lease);
    engine.end(Signal::TERM).await;
    assert_eq!(ended(watching).await, SandboxEnd::Lost);
    let (spec, _, _) = rig.spec();
    let refused = timeout(TYPED_WITHIN, rig.runtime.create(&spec))
        .await
        .unwrap();
    assert!(
        matches!(refused, Err(RuntimeError::Unavailable(_))),
        "{refused:?}"
    );
    let refused = rig.runtime.remove(&cell.lease).await;
    assert!(
        matches!(refused, Err(RuntimeError::Unavailable(_))),
        "{refused:?}"
    );
    let checks = rig.runtime.preflight().await;
    assert_eq!(checks.len(), 1);
    assert_eq!(checks[0].id, "engine.reachable");
    assert!(!checks[0].fix.is_empty());
    engine.resume().await;
    is_over(&rig, &cell.lease).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_removed_is_named() {
    for case in [Case::DockerRunc, Case::Podman] {
        let (_engine, image) = OwnEngine::start(case).await;
        let rig = Rig::open_at(case, &_engine.socket(), image.clone()).await;
        let options = RemoveImageOptionsBuilder::default().force(true).build();
        rig.docker()
            .remove_image(image.as_str(), Some(options), None)
            .await
            .unwrap();
        assert!(rig.runtime.images().await.unwrap().is_empty());
        let (spec, lease, _) = rig.spec();
        let refused = rig.runtime.create(&spec).await;
        assert!(
            matches!(refused, Err(RuntimeError::NoSuchImage(_))),
            "{refused:?}"
        );
        assert!(rig.observed(&lease).await.is_none());
        let checks = rig.runtime.preflight().await;
        let present = checks
            .iter()
            .find(|check| check.id == "image.present")
            .unwrap();
        assert!(present.message.contains(image.as_str()), "{present:?}");
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_engine_is_named_and_passes() {
    let (mut engine, _) = OwnEngine::start(Case::DockerRunc).await;
    engine.end(Signal::TERM).await;
    // The engine's data on a disk of its own, which is small.
    let small = engine.data().with_file_name("small");
    fs::create_dir(&small).unwrap();
    let size = c"size=32m";
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &small, "tmpfs", flags, size).unwrap();
    fs::remove_dir_all(engine.data()).unwrap();
    std::os::unix::fs::symlink(&small, engine.data()).unwrap();
    engine.resume().await;
    let image = engine.import_again().await;
    let rig = Rig::open_at(Case::DockerRunc, &engine.socket(), image).await;
    let filler = small.join("filler");
    fill(&filler);
    let (spec, lease, key) = rig.spec();
    let refused = match rig.runtime.create(&spec).await {
        Ok(()) => rig.runtime.start(&lease, &key).await,
        refused => refused,
    };
    assert!(
        matches!(refused, Err(RuntimeError::DiskFull(_))),
        "{refused:?}"
    );
    fs::remove_file(&filler).unwrap();
    rig.runtime.create(&spec).await.unwrap();
    rig.start_again(spec, lease.clone(), key).await;
    rig.runtime.remove(&lease).await.unwrap();
    rig.end().await;
}

/// Writes until nothing fits any more.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    for bytes in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![0; bytes]).is_ok() {}
    }
}

on_every_engine!(
    a_name_that_is_taken_is_nobodys_loss,
    what_was_removed_behind_our_back_is_lost,
    a_container_that_was_lost_is_made_again,
    a_half_made_sandbox_is_found_and_finished,
);

async fn a_name_that_is_taken_is_nobodys_loss(rig: &Rig) {
    let (spec, lease, _) = rig.spec();
    let name = format!("hotcell-{lease}");
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    let body = ContainerCreateBody {
        image: Some(rig.image.to_string()),
        cmd: Some(vec!["true".into()]),
        ..ContainerCreateBody::default()
    };
    rig.docker()
        .create_container(Some(options), body)
        .await
        .unwrap();
    let refused = rig.runtime.create(&spec).await;
    assert!(
        matches!(refused, Err(RuntimeError::Failed { .. })),
        "{refused:?}"
    );
    rig.runtime.remove(&lease).await.unwrap();
    // It is not ours, so it is still there.
    rig.docker().inspect_container(&name, None).await.unwrap();
    rig.docker().remove_container(&name, None).await.unwrap();
    rig.runtime.create(&spec).await.unwrap();
}

async fn remove_outside(rig: &Rig, name: &str) {
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    rig.docker()
        .remove_container(name, Some(options))
        .await
        .unwrap();
}

async fn what_was_removed_behind_our_back_is_lost(rig: &Rig) {
    let cell = run_one(rig).await;
    let watching = watch(rig, &cell.lease);
    // The watch must stand before the sandbox goes.
    eventually("the watch is set up", TYPED_WITHIN, async || {
        rig.runtime
            .stats(&cell.lease)
            .await
            .is_ok_and(|stats| stats.pids > 0)
    })
    .await;
    remove_outside(rig, &format!("hotcell-{}", cell.lease)).await;
    let end = timeout(TYPED_WITHIN, watching).await.unwrap().unwrap();
    assert!(
        matches!(
            end,
            Ok(SandboxEnd::Lost | SandboxEnd::Exited) | Err(RuntimeError::NoSuchSandbox)
        ),
        "{end:?}"
    );
    is_over(rig, &cell.lease).await;
}

async fn a_container_that_was_lost_is_made_again(rig: &Rig) {
    let cell = run_one(rig).await;
    cell.run("echo mine > /workspace/mine").await;
    rig.runtime.stop(&cell.lease).await.unwrap();
    remove_outside(rig, &format!("hotcell-{}", cell.lease)).await;
    assert_eq!(rig.state(&cell.lease).await, Some(ObservedState::Created));
    let again = rig.start_again(cell.spec, cell.lease, cell.key).await;
    assert_eq!(again.run("cat /workspace/mine").await, "mine\n");
}

async fn a_half_made_sandbox_is_found_and_finished(rig: &Rig) {
    let (spec, lease, key) = rig.spec();
    rig.runtime.create(&spec).await.unwrap();
    // As a crash leaves it before the engine was asked: the directory alone.
    let mut names = rig.containers().await;
    // The sandbox before its holder, which Podman does not let go of otherwise.
    names.sort();
    for name in names {
        remove_outside(rig, &name).await;
    }
    let found = rig.observed(&lease).await.unwrap();
    assert_eq!(found.labels.as_ref(), Some(&spec.labels));
    assert_eq!(found.state, ObservedState::Created);
    let checks = rig.runtime.preflight().await;
    let left = checks.iter().find(|check| check.id == "leftovers").unwrap();
    assert!(left.message.contains(lease.as_str()), "{left:?}");
    rig.runtime.create(&spec).await.unwrap();
    rig.start_again(spec, lease.clone(), key).await;
    rig.runtime.remove(&lease).await.unwrap();
    // And with a record that a crash has cut short.
    let dir = rig.config.volume_root.join(".scratch").join(lease.as_str());
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("record.json"), "{").unwrap();
    let found = rig.observed(&lease).await.unwrap();
    assert_eq!(found.labels, None);
    rig.runtime.remove(&lease).await.unwrap();
    assert!(rig.observed(&lease).await.is_none());
}
