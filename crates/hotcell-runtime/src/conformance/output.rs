//! Output of any size and shape, streamed and bounded.

use std::time::Duration;

use hotcell_types::limits;

use super::{
    Fault,
    bench::{Bench, Done, own_memory_bytes},
    checks, ensure,
};

checks! {
    "EX-12" "a million characters without a newline arrive whole" Processes long_line;
    "EX-12" "slow output is passed on as it comes" Processes slow_output;
    "EX-13" "huge output keeps head, tail and an exact count" Processes huge_output;
    "EX-13" "both streams at once leave our memory flat" Processes two_floods;
    "EX-22" "a silent command keeps the stream alive" Processes silence;
}

/// What of one stream is kept.
const KEPT_BYTES: usize = limits::OUTPUT_HEAD_BYTES + limits::OUTPUT_TAIL_BYTES;

async fn long_line(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let done = cell.sh("printf '=%.0s' {1..1000000}").await?;
    ensure!(
        done.stdout.len() == 1_000_000 && done.stdout.iter().all(|byte| *byte == b'='),
        "{} characters came, {} were dropped",
        done.stdout.len(),
        done.exit.stdout_dropped_bytes
    );
    let text = "head -c 75000 /dev/zero | base64 -w0; echo; echo end";
    let done = cell.sh(text).await?;
    let out = done.ok()?;
    ensure!(
        out.len() == 100_005 && out.ends_with("\nend\n"),
        "{} characters of base64 came",
        out.len()
    );
    Ok(())
}

async fn slow_output(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let text = "for i in $(seq 20); do head -c 100000 /dev/zero | tr '\\0' =; sleep 0.2; done";
    let done = cell.sh(text).await?;
    // The interval is 250 ms; twenty starts of processes on a busy machine get some more.
    ensure!(
        done.longest_wait < Duration::from_millis(1_500),
        "nothing came for {:?}",
        done.longest_wait
    );
    ensure!(
        done.exit.stdout_bytes == 2_000_000,
        "{} bytes were counted",
        done.exit.stdout_bytes
    );
    consistent(&done)
}

/// Kept, dropped and written bytes must add up.
fn consistent(done: &Done) -> Result<(), Fault> {
    let exit = &done.exit;
    ensure!(
        done.stdout.len() as u64 + exit.stdout_dropped_bytes == exit.stdout_bytes
            && done.stderr.len() as u64 + exit.stderr_dropped_bytes == exit.stderr_bytes,
        "{} + {} is not {}, or {} + {} is not {}",
        done.stdout.len(),
        exit.stdout_dropped_bytes,
        exit.stdout_bytes,
        done.stderr.len(),
        exit.stderr_dropped_bytes,
        exit.stderr_bytes
    );
    Ok(())
}

async fn huge_output(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let done = cell
        .sh("seq 1 3000000; echo FATAL: boom >&2; exit 9")
        .await?;
    let written: u64 = (1..=3_000_000_u64)
        .map(|n| n.to_string().len() as u64 + 1)
        .sum();
    ensure!(done.exit.exit_code == Some(9), "{:?}", done.exit);
    ensure!(done.err() == "FATAL: boom\n", "stderr {:?}", done.err());
    ensure!(
        done.exit.stdout_bytes == written && done.stdout.len() == KEPT_BYTES,
        "{} of {written} bytes counted, {} kept",
        done.exit.stdout_bytes,
        done.stdout.len()
    );
    let (head, tail) = done.stdout.split_at(limits::OUTPUT_HEAD_BYTES);
    ensure!(
        head.starts_with(b"1\n2\n3\n") && tail.ends_with(b"\n2999999\n3000000\n"),
        "head or tail is wrong"
    );
    consistent(&done)
}

async fn two_floods(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let before = own_memory_bytes();
    let done = cell
        .sh("yes out | head -c 200000000 & yes err | head -c 200000000 >&2; wait")
        .await?;
    let grown = own_memory_bytes().saturating_sub(before);
    ensure!(
        done.exit.exit_code == Some(0)
            && done.exit.stdout_bytes == 200_000_000
            && done.exit.stderr_bytes == 200_000_000,
        "{:?}",
        done.exit
    );
    ensure!(grown < 64 << 20, "our memory grew by {} MiB", grown >> 20);
    consistent(&done)
}

async fn silence(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let done = cell.sh("sleep 11; echo x").await?;
    ensure!(done.ok()? == "x\n", "{:?}", done.out());
    ensure!(
        done.longest_wait < Duration::from_millis(limits::KEEP_ALIVE_INTERVAL_MS + 1_500)
            && done.progress >= 2,
        "{} keep-alives, the longest silence {:?}",
        done.progress,
        done.longest_wait
    );
    Ok(())
}
