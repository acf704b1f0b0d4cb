//! What a `bash` call costs over the command itself.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::{
    client::Backend,
    row::{Row, median, quantile},
};

/// The same command by fork and exec, inside the same sandbox: what the command itself takes.
const INSIDE: &str = r#"python3 - <<'PY'
import os, time
taken = []
for _ in range(RUNS):
    begin = time.perf_counter()
    pid = os.posix_spawn("/bin/bash", ["bash", "--noprofile", "--norc", "-c", "true"], os.environ)
    os.waitpid(pid, 0)
    taken.append((time.perf_counter() - begin) * 1000)
print(" ".join(f"{t:.4f}" for t in taken))
PY"#;

const ROUNDS: usize = 8;
const CALLS_PER_ROUND: usize = 40;

/// `exec.overhead_p50_ms`.
pub(crate) async fn overhead(
    backend: &mut Backend,
    oci_runtime: &str,
    suffix: &str,
) -> Result<Row> {
    let chat = "bench-exec";
    backend.bash(chat, "true").await?;
    let (mut ours, mut inside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for _ in 0..CALLS_PER_ROUND {
            ours.push(timed(backend, chat).await?);
        }
        inside.extend(fork_and_exec(backend, chat, CALLS_PER_ROUND).await?);
    }
    backend.end(chat).await?;
    let (call, command) = (median(&mut ours), median(&mut inside));
    let (limit, target) = if oci_runtime == "runsc" {
        (3.0, "≤ 3")
    } else {
        (1.0, "≤ 1")
    };
    Ok(Row::at_most(
        format!("exec.overhead{suffix}_p50_ms"),
        call - command,
        "ms",
        limit,
        target,
        format!(
            "call p50 {call:.2} ms, p99 {:.2} ms; the command by fork+exec inside {command:.2} ms; {} calls",
            quantile(&mut ours, 0.99),
            ours.len()
        ),
    ))
}

/// The same command by fork and exec in a chat's sandbox, so often; each in milliseconds.
pub(crate) async fn fork_and_exec(
    backend: &mut Backend,
    chat: &str,
    runs: usize,
) -> Result<Vec<f64>> {
    let script = INSIDE.replace("RUNS", &runs.to_string());
    let result = backend.bash(chat, &script).await?;
    let text = result["stdout"].as_str().context("no output")?;
    let words = text.split_whitespace();
    words.map(|word| Ok(word.parse::<f64>()?)).collect()
}

/// One `bash` call of `true`, in milliseconds.
pub(crate) async fn timed(backend: &mut Backend, chat: &str) -> Result<f64> {
    let begin = Instant::now();
    backend.bash(chat, "true").await?;
    Ok(begin.elapsed().as_secs_f64() * 1000.0)
}
