//! What a chat's first call costs.

use std::time::Instant;

use anyhow::Result;

use crate::{
    bare::Bundle,
    client::Backend,
    row::{Row, median},
};

const ROUNDS: usize = 15;

/// `start.cold_ratio`: no lease yet to the first result, over the bare runtime's `run`.
pub(crate) async fn cold(backend: &mut Backend, bundle: &Bundle, suffix: &str) -> Result<Row> {
    let (mut ours, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let chat = format!("bench-start-{round}");
        let begin = Instant::now();
        backend.bash(&chat, "true").await?;
        let cold = begin.elapsed().as_secs_f64() * 1000.0;
        backend.end(&chat).await?;
        let run = bundle.run(round)?;
        // The first round fills caches on both sides.
        if round > 0 {
            ours.push(cold);
            bare.push(run);
            ratios.push(cold / run);
        }
    }
    Ok(Row::at_most(
        format!("start.cold{suffix}_ratio"),
        median(&mut ratios),
        "ratio",
        1.25,
        "≤ 1.25",
        format!(
            "cold lease to first result {:.1} ms, bare run {:.1} ms; medians of {ROUNDS} pairs",
            median(&mut ours),
            median(&mut bare)
        ),
    ))
}
