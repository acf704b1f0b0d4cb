//! Sandboxes from birth to removal: every effect is idempotent, nothing is forgotten.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use hotcell_agent_proto::AgentErrorCode;
use hotcell_types::{LeaseId, ResourceClass, VolumeKind};
use tokio::time::{Instant, timeout};

use super::{
    Fault,
    bench::{Bench, Cell, eventually, expect_refusal, finish},
    checks, ensure, failed,
};
use crate::{ObservedState, Runtime, RuntimeError, SandboxEnd, SandboxError};

checks! {
    "life" "creating twice makes one, with our labels from birth" Anything create_is_idempotent;
    "life" "five creates and starts at once make one" Anything races_make_one;
    "life" "an unknown image is refused and leaves nothing" Anything unknown_image;
    "life" "what is not there is named so" Anything unknown_lease;
    "life" "a half-made sandbox is listed and can be removed" Anything half_made;
    "life" "stopping and starting keeps /workspace and takes a new key" Anything stop_and_start;
    "life" "removing leaves the volumes" Anything remove_keeps_volumes;
    "life" "another key is refused" Anything wrong_key;
    "life" "wait ends for every waiter when it is stopped" Anything wait_for_stop;
    "life" "wait sees an end from outside" Anything wait_for_outside_end;
    "life" "a call in a sandbox that is removed says so at once" Anything remove_under_a_call;
    "life" "four sandboxes start at once and share nothing" Anything four_at_once;
    "life" "every resource class starts" Anything every_class;
    "life" "stats of a running sandbox" Processes stats;
    "life" "preflight says nothing fails" Anything preflight;
}

/// How soon an end must be known; the seam says a second, a busy machine gets some more.
const END_PATIENCE: Duration = Duration::from_secs(3);

async fn create_is_idempotent(bench: &Bench) -> Result<(), Fault> {
    let spec = bench.spec()?;
    bench.runtime.create(&spec).await?;
    bench.runtime.create(&spec).await?;
    let all = bench.runtime.list().await?;
    let ours: Vec<_> = all
        .iter()
        .filter(|observed| observed.lease == spec.labels.lease)
        .collect();
    ensure!(ours.len() == 1, "listed {} times", ours.len());
    ensure!(
        ours[0].labels.as_ref() == Some(&spec.labels),
        "labels are {:?}, not {:?}",
        ours[0].labels,
        spec.labels
    );
    ensure!(
        ours[0].state == ObservedState::Created,
        "it is {:?} before its start",
        ours[0].state
    );
    Ok(())
}

/// A class may have more processors than the host; it then has no limit there, and runs.
async fn every_class(bench: &Bench) -> Result<(), Fault> {
    for class in [
        ResourceClass::Small,
        ResourceClass::Medium,
        ResourceClass::Large,
    ] {
        let mut spec = bench.spec()?;
        spec.resources = class.resources();
        let cell = bench.make(spec).await?;
        cell.sh("echo one").await?.ok()?;
        bench.runtime.remove(&cell.lease).await?;
    }
    Ok(())
}

async fn races_make_one(bench: &Bench) -> Result<(), Fault> {
    let spec = bench.spec()?;
    for result in join_all((0..5).map(|_| bench.runtime.create(&spec))).await {
        result?;
    }
    let lease = &spec.labels.lease;
    for result in join_all((0..5).map(|_| bench.runtime.start(lease, &spec.agent_key))).await {
        result?;
    }
    let cell = bench.start(spec.clone(), spec.agent_key.clone()).await?;
    cell.sh("echo one").await?.ok()?;
    let state = bench.observed(&cell.lease).await?;
    ensure!(state == Some(ObservedState::Running), "it is {state:?}");
    Ok(())
}

async fn unknown_image(bench: &Bench) -> Result<(), Fault> {
    let mut spec = bench.spec()?;
    spec.image = format!("sha256:{}", "f".repeat(64)).parse()?;
    match bench.runtime.create(&spec).await {
        Err(RuntimeError::NoSuchImage(_)) => {}
        other => return failed(format!("{other:?} where NoSuchImage belongs")),
    }
    let state = bench.observed(&spec.labels.lease).await?;
    ensure!(state.is_none(), "a leftover is {state:?}");
    Ok(())
}

async fn unknown_lease(bench: &Bench) -> Result<(), Fault> {
    let lease = LeaseId::from_bits(bench.env.ids.bits());
    let runtime = &bench.runtime;
    let none = |what: &str, result: Result<(), RuntimeError>| match result {
        Err(RuntimeError::NoSuchSandbox) => Ok(()),
        other => failed(format!("{what}: {other:?} where NoSuchSandbox belongs")),
    };
    none("start", runtime.start(&lease, &bench.key()).await)?;
    none("stats", runtime.stats(&lease).await.map(drop))?;
    none("wait", runtime.wait(&lease).await.map(drop))?;
    runtime.remove(&lease).await?;
    match runtime.stop(&lease).await {
        Ok(()) | Err(RuntimeError::NoSuchSandbox) => Ok(()),
        Err(error) => failed(format!("stop: {error:?}")),
    }
}

async fn half_made(bench: &Bench) -> Result<(), Fault> {
    let spec = bench.spec()?;
    let lease = &spec.labels.lease;
    bench.runtime.create(&spec).await?;
    bench.runtime.stop(lease).await?;
    let state = bench.observed(lease).await?;
    ensure!(state.is_some(), "it is not listed");
    bench.runtime.remove(lease).await?;
    bench.runtime.remove(lease).await?;
    let state = bench.observed(lease).await?;
    ensure!(state.is_none(), "it is still {state:?}");
    match bench.runtime.start(lease, &spec.agent_key).await {
        Err(RuntimeError::NoSuchSandbox) => Ok(()),
        other => failed(format!("starting what was removed: {other:?}")),
    }
}

async fn stop_and_start(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.fresh().await?;
    cell.put("/workspace/kept.txt", "kept").await?;
    bench.runtime.stop(&cell.lease).await?;
    bench.runtime.stop(&cell.lease).await?;
    let state = bench.observed(&cell.lease).await?;
    ensure!(state == Some(ObservedState::Stopped), "it is {state:?}");
    match timeout(Duration::from_secs(6), cell.sh("echo alive")).await? {
        Err(SandboxError::Lost(_) | SandboxError::Timeout(_)) => {}
        other => return failed(format!("a call into a stopped sandbox: {other:?}")),
    }
    let key = bench.key();
    let again = bench.start(cell.spec.clone(), key).await?;
    bench.runtime.start(&again.lease, &again.key).await?;
    let kept = again.get("/workspace/kept.txt").await?;
    ensure!(kept == b"kept", "the file holds {kept:?}");
    let old = bench.runtime.sandbox(&cell.lease, &cell.key)?;
    expect_refusal(
        "the key of the start before",
        old.disk().await,
        &[AgentErrorCode::Unauthorized],
    )
}

async fn remove_keeps_volumes(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.fresh().await?;
    for kind in [VolumeKind::UserData, VolumeKind::WorkspaceData] {
        cell.put(&format!("{}/d/kept.txt", kind.mount_path()), "kept")
            .await?;
    }
    bench.runtime.remove(&cell.lease).await?;
    let state = bench.observed(&cell.lease).await?;
    ensure!(state.is_none(), "it is still {state:?}");
    for kind in [VolumeKind::UserData, VolumeKind::WorkspaceData] {
        let kept = std::fs::read(cell.volume(kind)?.join("d/kept.txt"))?;
        ensure!(kept == b"kept", "{kind:?} holds {kept:?}");
    }
    Ok(())
}

async fn wrong_key(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let other = bench.runtime.sandbox(&cell.lease, &bench.key())?;
    expect_refusal(
        "exec with another key",
        other.exec(cell.shell("echo in")).await.map(drop),
        &[AgentErrorCode::Unauthorized],
    )?;
    expect_refusal(
        "ready with another key",
        other.ready(5_000).await,
        &[AgentErrorCode::Unauthorized],
    )?;
    cell.sh("echo still here").await?.ok()?;
    Ok(())
}

/// Waits in the background, on a task of its own.
fn waiter(
    runtime: &Arc<dyn Runtime>,
    cell: &Cell,
) -> tokio::task::JoinHandle<Result<SandboxEnd, RuntimeError>> {
    let (runtime, lease) = (Arc::clone(runtime), cell.lease.clone());
    tokio::spawn(async move { runtime.wait(&lease).await })
}

async fn wait_for_stop(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.fresh().await?;
    let waiters = [waiter(&bench.runtime, &cell), waiter(&bench.runtime, &cell)];
    cell.sh("echo busy").await?.ok()?;
    ensure!(
        waiters.iter().all(|waiter| !waiter.is_finished()),
        "wait ended while the sandbox ran"
    );
    bench.runtime.stop(&cell.lease).await?;
    for waiter in waiters {
        let end = timeout(END_PATIENCE, waiter).await???;
        ensure!(end == SandboxEnd::Stopped, "the end is {end:?}");
    }
    // Whoever comes late learns it too.
    let end = timeout(END_PATIENCE, bench.runtime.wait(&cell.lease)).await??;
    ensure!(end == SandboxEnd::Stopped, "later the end is {end:?}");
    Ok(())
}

async fn wait_for_outside_end(bench: &Bench) -> Result<(), Fault> {
    let Some(kill) = bench.env.kill.clone() else {
        return Err(Fault::Refused("nothing here ends one from outside".into()));
    };
    let cell = bench.fresh().await?;
    let waiter = waiter(&bench.runtime, &cell);
    cell.sh("echo alive").await?.ok()?;
    kill(cell.lease.clone()).await.map_err(Fault::Failed)?;
    let end = timeout(END_PATIENCE, waiter).await???;
    ensure!(
        matches!(end, SandboxEnd::Exited | SandboxEnd::Lost),
        "the end is {end:?}"
    );
    let state = bench.observed(&cell.lease).await?;
    ensure!(state == Some(ObservedState::Stopped), "it is {state:?}");
    let key = bench.key();
    let again = bench.start(cell.spec.clone(), key).await?;
    again.sh("echo again").await?.ok()?;
    Ok(())
}

async fn remove_under_a_call(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.fresh().await?;
    let start = Instant::now();
    let stream = cell.sandbox.exec(cell.shell("sleep 50000")).await?;
    let call = tokio::spawn(finish(stream, start));
    bench.runtime.remove(&cell.lease).await?;
    // The agent may still have told that its call was ended.
    let ended = timeout(Duration::from_secs(5), call).await??;
    match ended {
        Err(SandboxError::Lost(_)) => {}
        Ok(done) if done.exit.exit_code != Some(0) => {}
        other => return failed(format!("the call ended with {other:?}")),
    }
    eventually("the lease is gone", END_PATIENCE, async || {
        Ok(bench.observed(&cell.lease).await?.is_none())
    })
    .await
}

async fn four_at_once(bench: &Bench) -> Result<(), Fault> {
    let cells = join_all((0..4).map(|_| bench.fresh())).await;
    let cells = cells.into_iter().collect::<Result<Vec<_>, _>>()?;
    for cell in &cells {
        cell.put("/workspace/own.txt", cell.lease.to_string())
            .await?;
    }
    for cell in &cells {
        let own = cell.get("/workspace/own.txt").await?;
        ensure!(own == cell.lease.as_str().as_bytes(), "another's file");
    }
    Ok(())
}

async fn stats(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let work = "python3 -c 'sum(range(3000000))'";
    let before = bench.runtime.stats(&cell.lease).await?;
    cell.sh(work).await?.ok()?;
    let after = bench.runtime.stats(&cell.lease).await?;
    ensure!(after.memory_bytes > 0, "no memory in use");
    ensure!(after.pids > 0, "no processes");
    ensure!(
        after.cpu_ms > before.cpu_ms,
        "processor time went from {} to {} ms",
        before.cpu_ms,
        after.cpu_ms
    );
    Ok(())
}

async fn preflight(bench: &Bench) -> Result<(), Fault> {
    let checks = bench.runtime.preflight().await;
    ensure!(!checks.is_empty(), "nothing was checked");
    let bad: Vec<_> = checks
        .iter()
        .filter(|check| check.status == crate::CheckStatus::Fail)
        .map(|check| format!("{}: {}", check.id, check.message))
        .collect();
    ensure!(bad.is_empty(), "{}", bad.join("\n"));
    Ok(())
}
