//! What a chat's first call costs.

use std::time::Instant;

use anyhow::Result;

use crate::{
    bare::Bundle,
    client::{Backend, Operator},
    engine::Engine,
    exec::{fork_and_exec, timed},
    row::{Row, median, quantile},
};

const ROUNDS: usize = 15;
/// Commands by fork and exec in each warm sandbox.
const COMMANDS: usize = 20;

/// `start.cold_ratio`: no lease yet to the first result, over the bare runtime's `run`.
pub(crate) async fn cold_over_bare(
    backend: &mut Backend,
    bundle: &Bundle,
    suffix: &str,
) -> Result<Row> {
    let (ratio, ours, bare) = pairs(backend, |round| bundle.run(round)).await?;
    Ok(Row::at_most(
        format!("start.cold{suffix}_ratio"),
        ratio,
        "ratio",
        1.25,
        "≤ 1.25",
        format!(
            "cold lease to first result {ours:.1} ms, bare run {bare:.1} ms; medians of {ROUNDS} pairs"
        ),
    ))
}

/// The same over the engine's `run` of one command.
pub(crate) async fn cold_over_engine(
    backend: &mut Backend,
    engine: &Engine,
    suffix: &str,
) -> Result<Row> {
    let (ratio, ours, theirs) = pairs(backend, |_| engine.run()).await?;
    Ok(Row::plain(
        format!("start.cold{suffix}_ratio"),
        ratio,
        "ratio",
        format!(
            "cold lease to first result {ours:.1} ms, {} run {theirs:.1} ms; medians of {ROUNDS} pairs",
            engine.name()
        ),
    ))
}

/// `start.warm_over_fork_ms`: no lease yet to the first result, of a chat that finds a warm sandbox, over
/// fork and exec of the same command inside.
pub(crate) async fn warm_over_fork(
    operator: &mut Operator,
    backend: &mut Backend,
    suffix: &str,
) -> Result<Row> {
    let (mut ours, mut inside) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        operator.await_warm().await?;
        let chat = format!("bench-warm-{round}");
        let first = timed(backend, &chat).await?;
        let commands = fork_and_exec(backend, &chat, COMMANDS).await?;
        backend.end(&chat).await?;
        // The first round fills caches.
        if round > 0 {
            ours.push(first);
            inside.extend(commands);
        }
    }
    let (first, command) = (median(&mut ours), median(&mut inside));
    Ok(Row::at_most(
        format!("start.warm_over_fork{suffix}_ms"),
        first - command,
        "ms",
        10.0,
        "≤ 10",
        format!(
            "warm claim to first result p50 {first:.2} ms, p90 {:.2} ms; the command by fork+exec inside \
             {command:.2} ms; {ROUNDS} chats",
            quantile(&mut ours, 0.9),
        ),
    ))
}

/// Medians: of the ratios, of ours and of theirs, in milliseconds.
async fn pairs(
    backend: &mut Backend,
    peer: impl Fn(usize) -> Result<f64>,
) -> Result<(f64, f64, f64)> {
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let chat = format!("bench-start-{round}");
        let begin = Instant::now();
        backend.bash(&chat, "true").await?;
        let cold = begin.elapsed().as_secs_f64() * 1000.0;
        backend.end(&chat).await?;
        let run = peer(round)?;
        // The first round fills caches on both sides.
        if round > 0 {
            ours.push(cold);
            theirs.push(run);
            ratios.push(cold / run);
        }
    }
    Ok((median(&mut ratios), median(&mut ours), median(&mut theirs)))
}
