//! What a sandbox may do to itself, and only to itself.

use std::time::Duration;

use hotcell_agent_proto::AgentErrorCode;
use hotcell_types::{ResourceClass, VolumeKind, limits};
use tokio::time::{Instant, timeout};

use super::{
    Fault,
    bench::{Bench, eventually, expect_refusal, path, start_of},
    checks, ensure, failed,
};
use crate::{ObservedState, SandboxEnd, SandboxError};

checks! {
    "EX-21" "no place that can be written grows without bound" Processes bounded_disk;
    "FA-21" "what does not fit is refused as disk full and leaves nothing" Anything disk_full;
    "EX-04" "a fork bomb hurts nobody else and ends with its call" Processes fork_bomb;
    "EX-20" "too much memory ends the call or the sandbox, and says so" Processes out_of_memory;
}

async fn bounded_disk(bench: &Bench) -> Result<(), Fault> {
    if !bench.facts.scratch_is_bounded {
        return Err(Fault::Refused("no disk limit".into()));
    }
    let mut spec = bench.spec()?;
    spec.scratch_bytes = 64 << 20;
    spec.resources = ResourceClass::Small.resources();
    let bound = spec.scratch_bytes.max(limits::SHM_BYTES);
    let cell = bench.make(spec).await?;
    let places = [
        "/tmp/f",
        "/dev/shm/f",
        "/workspace/f",
        "$HOME/g",
        "/run/hotcell/f",
        "/f",
        "/var/tmp/f", // of the sandbox
        "/etc/f",
        "/dev/f",
        "/run/f",
    ];
    for place in places {
        let text = format!(
            "dd if=/dev/zero of={place} bs=1M count=4096 2>&1 | tail -n 5; \
             code=${{PIPESTATUS[0]}}; stat -c %s {place} 2>/dev/null || echo 0; \
             rm -f {place}; exit $code"
        );
        let done = cell.sh(text).await?;
        let out = done.out();
        let written: u64 = out.lines().last().unwrap_or_default().parse()?;
        ensure!(
            done.exit.exit_code != Some(0) && written <= bound + (bound >> 3),
            "{place}: code {:?}, {written} bytes, {:?}",
            done.exit.exit_code,
            start_of(&out)
        );
        let refused = [
            "No space left",
            "Read-only file system",
            "Permission denied",
        ];
        ensure!(
            refused.iter().any(|why| out.contains(why)) || out.contains("No such file"),
            "{place}: {:?}",
            start_of(&out)
        );
        cell.sh("echo ok").await?.ok()?;
    }
    let done = cell
        .sh("dd if=/dev/zero of=/workspace/f bs=1M count=40 2>/dev/null && echo fits; rm -f f")
        .await?;
    ensure!(done.out() == "fits\n", "40 of 64 MiB do not fit");
    Ok(())
}

async fn disk_full(bench: &Bench) -> Result<(), Fault> {
    if !bench.facts.scratch_is_bounded {
        return Err(Fault::Refused("no disk limit".into()));
    }
    let mut spec = bench.spec()?;
    spec.scratch_bytes = 16 << 20;
    let cell = bench.make(spec).await?;
    cell.put("/workspace/before.txt", "before").await?;
    expect_refusal(
        "more than the disk",
        cell.put("/workspace/d/large.bin", vec![1; 20 << 20]).await,
        &[AgentErrorCode::DiskFull],
    )?;
    let listing = cell.sandbox.list(&path("/workspace"), None, 100).await?;
    let names: Vec<_> = listing.entries.iter().map(|entry| &entry.name).collect();
    for at in ["/workspace", "/workspace/d"] {
        if let Ok(listing) = cell.sandbox.list(&path(at), None, 100).await {
            let files = listing.entries.iter().filter(|e| e.bytes > 1 << 20).count();
            ensure!(files == 0, "parts of it are left: {names:?}");
        }
    }
    ensure!(
        cell.get("/workspace/before.txt").await? == b"before",
        "another file changed"
    );
    cell.put("/workspace/after.bin", vec![1; 4 << 20]).await?;
    cell.sh("echo ok").await?.ok()?;
    Ok(())
}

async fn fork_bomb(bench: &Bench) -> Result<(), Fault> {
    let victim = bench.fresh().await?;
    let other = bench.shared().await?;
    let mut request = victim.shell(":(){ :|:& };: ; sleep 30");
    request.timeout_ms = 3_000;
    let bomb = victim.run(request);
    let neighbour = async {
        let (start, mut taken) = (Instant::now(), Vec::new());
        while start.elapsed() < Duration::from_secs(4) {
            let done = other.sh("echo ok").await?;
            done.ok()?;
            taken.push(done.took);
        }
        taken.sort_unstable();
        let p99 = taken.get(taken.len() * 99 / 100).copied();
        Ok::<_, Fault>(p99.unwrap_or(Duration::MAX))
    };
    let (bomb, p99) = tokio::join!(timeout(Duration::from_secs(30), bomb), neighbour);
    let p99 = p99?;
    ensure!(
        p99 < Duration::from_secs(1),
        "the p99 of calls in another sandbox is {p99:?}"
    );
    match bomb? {
        Ok(done) => ensure!(done.exit.exit_code != Some(0), "{:?}", done.exit),
        Err(SandboxError::Lost(_) | SandboxError::Agent(_)) => {}
        Err(error) => return failed(format!("the bomb's call: {error:?}")),
    }
    let answers = async || {
        Ok(
            match timeout(Duration::from_secs(5), victim.sh("echo ok")).await {
                Ok(Ok(done)) => done.out() == "ok\n",
                _ => bench.observed(&victim.lease).await? == Some(ObservedState::Stopped),
            },
        )
    };
    eventually(
        "the sandbox answers again, or has ended and says so",
        Duration::from_secs(10),
        answers,
    )
    .await
}

async fn out_of_memory(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.fresh().await?;
    cell.put("/mnt/user-data/kept.txt", "kept").await?;
    let eat = "python3 -c \"a='x'*(8<<30)\"";
    match timeout(Duration::from_secs(60), cell.sh(eat)).await? {
        Ok(done) => {
            ensure!(
                done.exit.exit_code.is_some_and(|code| code != 0),
                "8 GiB fit into 1: {:?}",
                done.exit
            );
            // Only the process died: the sandbox goes on.
            let done = timeout(Duration::from_secs(5), cell.sh("echo ok")).await;
            if let Ok(Ok(done)) = &done {
                ensure!(done.ok()? == "ok\n", "afterwards {done:?}");
                return Ok(());
            }
        }
        Err(SandboxError::Lost(_)) => {}
        Err(error) => return failed(format!("{error:?}")),
    }
    let end = timeout(Duration::from_secs(5), bench.runtime.wait(&cell.lease)).await??;
    ensure!(
        matches!(end, SandboxEnd::OutOfMemory | SandboxEnd::Exited),
        "the end is {end:?}"
    );
    let state = bench.observed(&cell.lease).await?;
    ensure!(state == Some(ObservedState::Stopped), "it is {state:?}");
    let again = bench.start(cell.spec.clone(), bench.key()).await?;
    ensure!(
        again.get("/mnt/user-data/kept.txt").await? == b"kept",
        "the volume lost its file"
    );
    let kept = cell.volume(VolumeKind::UserData)?.join("kept.txt");
    ensure!(std::fs::read(kept)? == b"kept", "the host's file changed");
    Ok(())
}
