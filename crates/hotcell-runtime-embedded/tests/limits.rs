//! Disk, memory and processes end where they should, and the sandbox goes on.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::time::Duration;

use common::{Rig, memory};
use hotcell_runtime::{Runtime, SandboxEnd};
use tokio::time::timeout;

on_every_engine!(
    every_writable_place_has_an_end,
    memory_that_runs_out_is_named,
    a_fork_bomb_stays_inside,
    processor_time_is_limited,
);

/// EX-21.
async fn every_writable_place_has_an_end(rig: &Rig) {
    let cell = rig.start_with(|spec| spec.scratch_bytes = 256 << 20).await;
    for (place, limit_mib) in [
        ("/tmp", 256),
        ("/workspace", 256),
        ("/dev/shm", 64),
        ("/run/hotcell", 64),
    ] {
        let said = cell
            .sh(&format!(
                "dd if=/dev/zero of={place}/f bs=1M count=4096; stat -c %s {place}/f; rm {place}/f"
            ))
            .await;
        assert!(
            said.stderr.contains("No space left on device"),
            "{place}: {said:?}"
        );
        let mib = said.stdout.trim().parse::<u64>().unwrap() >> 20;
        assert!(
            mib <= limit_mib && mib > limit_mib / 2,
            "{place}: {mib} MiB"
        );
        assert_eq!(cell.get("echo ok").await, "ok");
    }
    let root = cell.sh("dd if=/dev/zero of=/f bs=1M count=4096").await;
    assert!(
        root.stderr.contains("Read-only file system") || root.stderr.contains("Permission denied"),
        "{root:?}"
    );
    assert_eq!(cell.get("echo ok").await, "ok");
}

/// EX-20.
async fn memory_that_runs_out_is_named(rig: &Rig) {
    let cell = rig.start_with(|spec| spec.resources = memory(256)).await;
    let runtime = rig.runtime.clone();
    let lease = cell.lease.clone();
    let waiting = tokio::spawn(async move { runtime.wait(&lease).await });
    let outcome = cell
        .try_sh("python3 -c \"a='x'*(8<<30)\"; echo after", 30_000)
        .await;
    if rig.engine.is_gvisor() {
        // Without overcommit limits gVisor's kernel itself is what the host ends.
        match outcome {
            Err(error) => assert!(error.to_string().contains("gone"), "{error}"),
            Ok(said) => panic!("{said:?}"),
        }
        let end = timeout(Duration::from_secs(5), waiting)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(end, SandboxEnd::OutOfMemory);
        rig.runtime.start(&cell.lease, &cell.key).await.unwrap();
        let again = rig.cell(&cell.lease, &cell.key).await;
        assert_eq!(again.get("echo ok").await, "ok");
    } else {
        // Either the kernel ends Python or Python is refused the memory; the rest goes on.
        let said = outcome.unwrap();
        assert!(said.stdout.contains("after"), "{said:?}");
        assert!(
            said.stderr.contains("MemoryError") || said.stderr.contains("Killed"),
            "{said:?}"
        );
        assert_eq!(cell.get("echo ok").await, "ok");
        waiting.abort();
        // An abort is only seen at the next await; the task holds the runtime until then.
        let _ = waiting.await;
    }
}

/// EX-04.
async fn a_fork_bomb_stays_inside(rig: &Rig) {
    let (cell, other) = tokio::join!(rig.start(), rig.start());
    let bomb = cell.try_sh("bomb() { bomb | bomb & }; bomb; sleep 4; echo end", 6_000);
    let watch = async {
        for _ in 0..10 {
            let answer = timeout(Duration::from_secs(5), other.sh("echo ok")).await;
            assert_eq!(answer.unwrap().stdout, "ok\n");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let (outcome, ()) = tokio::join!(bomb, watch);
    println!("bomb: {:?}", outcome.map(|said| said.exit));
    // What the bomb left behind is ended with a restart of the shell.
    let restarted = timeout(Duration::from_secs(10), cell.sandbox.restart()).await;
    println!("restart: {restarted:?}");
    let ok = timeout(Duration::from_secs(10), cell.try_sh("echo ok", 9_000)).await;
    assert_eq!(ok.unwrap().unwrap().stdout, "ok\n");
}

async fn processor_time_is_limited(rig: &Rig) {
    let cell = rig.start_with(|spec| spec.resources.cpu_millis = 250).await;
    let before = rig.runtime.stats(&cell.lease).await.unwrap().cpu_ms;
    cell.sh("timeout 2 sh -c 'while :; do :; done' & timeout 2 sh -c 'while :; do :; done'; wait")
        .await;
    let used = rig.runtime.stats(&cell.lease).await.unwrap().cpu_ms - before;
    // Two loops of two seconds on two cores would be 4,000 ms.
    assert!((200..1_200).contains(&used), "{used} ms");
}
