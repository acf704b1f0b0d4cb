//! From create to remove: states, repetition, ends of every kind, and what is left.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::{process::Command, time::Duration};

use common::Rig;
use hotcell_runtime::{ObservedState, Runtime, RuntimeError, SandboxEnd};
use hotcell_types::LeaseId;
use tokio::time::{Instant, timeout};

on_every_engine!(
    a_sandbox_goes_through_its_states,
    every_effect_may_be_repeated,
    an_end_from_outside_is_seen_within_a_second,
    many_are_made_at_once,
    waiting_ends_when_we_stop_it,
    calls_end_with_their_sandbox,
);

async fn state(rig: &Rig, lease: &LeaseId) -> Option<ObservedState> {
    let all = rig.runtime.list().await.unwrap();
    all.into_iter()
        .find(|observed| observed.lease == *lease)
        .map(|observed| observed.state)
}

async fn a_sandbox_goes_through_its_states(rig: &Rig) {
    let (spec, lease, key) = rig.spec();
    assert_eq!(state(rig, &lease).await, None);
    rig.runtime.create(&spec).await.unwrap();
    assert_eq!(state(rig, &lease).await, Some(ObservedState::Created));
    rig.runtime.start(&lease, &key).await.unwrap();
    assert_eq!(state(rig, &lease).await, Some(ObservedState::Running));
    let observed = rig.runtime.list().await.unwrap();
    assert_eq!(observed[0].labels.as_ref(), Some(&spec.labels));

    let cell = rig.cell(&lease, &key).await;
    assert_eq!(
        cell.get("id -un; id -u; pwd").await,
        "sandbox\n1000\n/workspace"
    );
    cell.get("echo kept > /workspace/a; echo kept > /tmp/b")
        .await;
    // The key is nowhere where user code can read it.
    let hex = key.to_hex();
    let seen = cell
        .sh(&format!(
            "env; cat /proc/[0-9]*/environ 2>/dev/null | grep -c {hex}"
        ))
        .await;
    assert!(seen.stdout.trim_end().ends_with('0'), "{seen:?}");
    assert!(!seen.stdout.contains(&hex));
    assert!(
        !rig.config
            .run_dir
            .join("oci")
            .join(lease.short())
            .join("bundle/config.json")
            .exists()
    );

    let stats = rig.runtime.stats(&lease).await.unwrap();
    assert!(stats.memory_bytes > 1 << 20, "{stats:?}");
    assert!(stats.pids > 0, "{stats:?}");

    rig.runtime.stop(&lease).await.unwrap();
    assert_eq!(state(rig, &lease).await, Some(ObservedState::Stopped));
    assert_eq!(rig.runtime.wait(&lease).await.unwrap(), SandboxEnd::Stopped);

    rig.runtime.start(&lease, &key).await.unwrap();
    let cell = rig.cell(&lease, &key).await;
    assert_eq!(cell.get("cat /workspace/a").await, "kept");
    // Mounts of the sandbox are not the host's.
    let state_dir = rig.config.state_dir.canonicalize().unwrap();
    assert_eq!(common::mounts_with(&state_dir), Vec::<String>::new());
    assert_eq!(common::loops_with(&state_dir).len(), 1);

    rig.runtime.remove(&lease).await.unwrap();
    assert_eq!(state(rig, &lease).await, None);
    rig.assert_nothing_left();
}

async fn every_effect_may_be_repeated(rig: &Rig) {
    let (spec, lease, key) = rig.spec();
    let runtime = &rig.runtime;
    let missing = |outcome| matches!(outcome, Err(RuntimeError::NoSuchSandbox));
    assert!(missing(runtime.start(&lease, &key).await));
    assert!(missing(runtime.stop(&lease).await));
    assert!(missing(runtime.wait(&lease).await.map(drop)));
    assert!(missing(runtime.sandbox(&lease, &key).map(drop)));
    runtime.remove(&lease).await.unwrap();
    runtime.create(&spec).await.unwrap();
    runtime.create(&spec).await.unwrap();
    runtime.stop(&lease).await.unwrap();
    let (a, b) = tokio::join!(runtime.start(&lease, &key), runtime.start(&lease, &key));
    a.unwrap();
    b.unwrap();
    let pid = rig.main_pid(&lease);
    runtime.start(&lease, &key).await.unwrap();
    assert_eq!(rig.main_pid(&lease), pid, "the running one was kept");
    rig.cell(&lease, &key).await.get("true").await;
    runtime.stop(&lease).await.unwrap();
    runtime.stop(&lease).await.unwrap();
    let (a, b) = tokio::join!(runtime.remove(&lease), runtime.remove(&lease));
    a.unwrap();
    b.unwrap();
    runtime.remove(&lease).await.unwrap();
}

async fn an_end_from_outside_is_seen_within_a_second(rig: &Rig) {
    let cell = rig.start().await;
    let runtime = rig.runtime.clone();
    let lease = cell.lease.clone();
    let waiting = tokio::spawn(async move { runtime.wait(&lease).await });
    cell.get("echo data > /workspace/a; sync").await;
    let pid = rig.main_pid(&cell.lease).to_string();
    let begin = Instant::now();
    assert!(
        Command::new("kill")
            .args(["-9", &pid])
            .status()
            .unwrap()
            .success()
    );
    let end = timeout(Duration::from_secs(5), waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(end, SandboxEnd::Exited);
    assert_eq!(state(rig, &cell.lease).await, Some(ObservedState::Stopped));
    // It may be started again right away, and the engine that is left is no obstacle.
    rig.runtime.start(&cell.lease, &cell.key).await.unwrap();
    let again = rig.cell(&cell.lease, &cell.key).await;
    assert_eq!(again.get("cat /workspace/a").await, "data");
}

async fn many_are_made_at_once(rig: &Rig) {
    let starts = (0..8).map(|_| rig.start());
    let cells = futures_util::future::join_all(starts).await;
    let calls = cells
        .iter()
        .map(|cell| cell.get("hostname; cat /workspace/x 2>&1; echo 1 > /workspace/x"));
    for said in futures_util::future::join_all(calls).await {
        assert!(said.starts_with("sandbox\n"), "{said}");
        assert!(said.contains("No such file"), "{said}");
    }
    let removals = cells.iter().map(|cell| rig.runtime.remove(&cell.lease));
    for outcome in futures_util::future::join_all(removals).await {
        outcome.unwrap();
    }
    rig.assert_nothing_left();
}

async fn waiting_ends_when_we_stop_it(rig: &Rig) {
    let cell = rig.start().await;
    let runtime = rig.runtime.clone();
    let lease = cell.lease.clone();
    let waiting = tokio::spawn(async move { runtime.wait(&lease).await });
    rig.runtime.remove(&cell.lease).await.unwrap();
    let end = timeout(Duration::from_secs(2), waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(end.unwrap(), SandboxEnd::Stopped);
}

async fn calls_end_with_their_sandbox(rig: &Rig) {
    let removed = rig.start().await;
    let killed = rig.start().await;
    let call = |cell: &common::Cell| {
        let sandbox = cell.sandbox.clone();
        let cell = common::Cell {
            sandbox,
            lease: cell.lease.clone(),
            key: cell.key.clone(),
        };
        tokio::spawn(async move { cell.try_sh("echo on; sleep 60", 90_000).await })
    };
    let calls = [call(&removed), call(&killed)];
    // Both run: nothing that they do can be heard before.
    for cell in [&removed, &killed] {
        while cell.get("pgrep -c sleep || true").await == "0" {}
    }
    let runtime = rig.runtime.clone();
    let lease = killed.lease.clone();
    let waiting = tokio::spawn(async move { runtime.wait(&lease).await });
    let pid = rig.main_pid(&killed.lease).to_string();
    assert!(
        Command::new("kill")
            .args(["-9", &pid])
            .status()
            .unwrap()
            .success()
    );
    rig.runtime.remove(&removed.lease).await.unwrap();
    for call in calls {
        let outcome = timeout(Duration::from_secs(2), call)
            .await
            .unwrap()
            .unwrap();
        assert!(
            matches!(outcome, Err(hotcell_runtime::SandboxError::Lost(_))),
            "{outcome:?}"
        );
    }
    assert_eq!(waiting.await.unwrap().unwrap(), SandboxEnd::Exited);
}
