//! What a chat's first call costs.

use std::time::Instant;

use anyhow::Result;

use crate::{
    bare::Bundle,
    client::Backend,
    engine::Engine,
    row::{Row, median},
};

const ROUNDS: usize = 15;

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
