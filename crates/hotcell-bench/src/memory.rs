//! What the daemon holds.

use anyhow::{Context, Result};

use crate::row::Row;

/// `daemon.idle_rss_mib`, before any request.
pub(crate) fn idle(pid: u32) -> Result<Row> {
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("the daemon is gone")?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .context("no VmRSS")?;
    let kib: f64 = line
        .split_whitespace()
        .nth(1)
        .context("no figure")?
        .parse()?;
    Ok(Row::at_most(
        "daemon.idle_rss_mib".into(),
        kib / 1024.0,
        "MiB",
        40.0,
        "≤ 40",
        "VmRSS before the first request".into(),
    ))
}
