//! Fifty real sandboxes at once: all made, all used, all ended.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    client::{Backend, Credential},
    row::{Row, median, quantile},
};

/// Sandboxes in the fleet.
const FLEET: usize = 50;
/// Requests under way at once: what a busy backend has.
const WIDTH: usize = 8;
/// How long what ended may take to be gone from the host.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// What a fleet costs and leaves.
pub(crate) async fn fleet(
    url: &str,
    credential: &Credential,
    pid: u32,
    suffix: &str,
) -> Result<Vec<Row>> {
    let before = rss_mib(pid)?;
    let begin = Instant::now();
    let (mut made, leases) = all(url, credential, Step::Run).await?;
    let made_in = begin.elapsed().as_secs_f64();
    let held = rss_mib(pid)?;
    let leases = control_groups(&leases)?;
    let memory = memory_mib(&leases);
    let (mut ran, _) = all(url, credential, Step::Run).await?;
    let (mut ended, _) = all(url, credential, Step::End).await?;
    let left = gone(&leases).await;
    let name = |what: &str| format!("fleet{suffix}.{what}");
    let times = |what: &str, values: &mut Vec<f64>| {
        let p50 = median(values);
        let p99 = quantile(values, 0.99);
        let note = format!("p50 {p50:.1} ms of {FLEET}, {WIDTH} at once");
        Row::plain(name(what), p99, "ms", note)
    };
    let mut rows = vec![
        times("create_p99_ms", &mut made),
        times("run_p99_ms", &mut ran),
        times("destroy_p99_ms", &mut ended),
    ];
    #[expect(clippy::cast_precision_loss, reason = "fifty")]
    let each = |total: f64| total / FLEET as f64;
    rows.push(Row::plain(
        name("create_all_s"),
        made_in,
        "s",
        format!("{FLEET} cold sandboxes to their first result"),
    ));
    rows.push(Row::plain(
        name("sandbox_mib"),
        each(memory),
        "MiB",
        format!(
            "memory of each of {} control groups, its kernel included",
            leases.len()
        ),
    ));
    rows.push(Row::plain(
        name("daemon_kib"),
        each((held - before) * 1024.0),
        "KiB",
        format!("of the daemon's memory for each; it held {held:.1} MiB"),
    ));
    #[expect(clippy::cast_precision_loss, reason = "few")]
    rows.push(Row::at_most(
        name("leftovers"),
        left as f64,
        "",
        0.0,
        "= 0",
        "control groups that were there with the fleet and are not gone afterwards".into(),
    ));
    Ok(rows)
}

#[derive(Clone, Copy)]
enum Step {
    Run,
    End,
}

/// Does one step in every sandbox; how long each took, in milliseconds, and the leases that were seen.
async fn all(
    url: &str,
    credential: &Credential,
    step: Step,
) -> Result<(Vec<f64>, BTreeSet<String>)> {
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..WIDTH {
        let (url, credential) = (url.to_owned(), credential.clone());
        workers.spawn(async move {
            let mut backend = Backend::connect(&url, credential).await?;
            let (mut took, mut leases) = (Vec::new(), Vec::new());
            for number in (worker..FLEET).step_by(WIDTH) {
                let chat = format!("bench-fleet-{number}");
                let begin = Instant::now();
                match step {
                    Step::Run => {
                        let result = backend.bash(&chat, "true").await?;
                        leases.extend(result["lease"]["id"].as_str().map(str::to_owned));
                    }
                    Step::End => backend.end(&chat).await?,
                }
                took.push(begin.elapsed().as_secs_f64() * 1000.0);
            }
            Ok::<_, anyhow::Error>((took, leases))
        });
    }
    let (mut took, mut leases) = (Vec::new(), BTreeSet::new());
    while let Some(worker) = workers.join_next().await {
        let (of_worker, seen) = worker??;
        took.extend(of_worker);
        leases.extend(seen);
    }
    ensure!(took.len() == FLEET, "only {} answered", took.len());
    Ok((took, leases))
}

fn rss_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.context("the daemon is gone")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().nth(1))
        .context("no VmRSS")?
        .parse()?;
    Ok(kib / 1024.0)
}

/// The control groups of these leases: one for each, in one hierarchy.
fn control_groups(leases: &BTreeSet<String>) -> Result<BTreeSet<PathBuf>> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = [root.join("memory/hotcell"), root.join("hotcell")];
    let base = hierarchies.iter().find(|base| base.is_dir());
    let base = base.context("no control groups")?;
    let mut found = BTreeSet::new();
    for installation in std::fs::read_dir(base)? {
        let installation = installation?.path();
        found.extend(
            leases
                .iter()
                .map(|lease| installation.join(lease))
                .filter(|group| group.is_dir()),
        );
    }
    ensure!(
        found.len() == leases.len(),
        "{} leases have {} control groups",
        leases.len(),
        found.len()
    );
    Ok(found)
}

fn memory_mib(groups: &BTreeSet<PathBuf>) -> f64 {
    groups
        .iter()
        .filter_map(|group| {
            ["memory.current", "memory.usage_in_bytes"]
                .iter()
                .find_map(|file| std::fs::read_to_string(group.join(file)).ok())
        })
        .filter_map(|text| text.trim().parse::<f64>().ok())
        .map(|bytes| bytes / (1024.0 * 1024.0))
        .sum()
}

/// How many of these are still there when they should not be.
async fn gone(groups: &BTreeSet<PathBuf>) -> usize {
    let until = Instant::now() + GONE_WITHIN;
    loop {
        let left = groups.iter().filter(|group| group.exists()).count();
        if left == 0 || Instant::now() > until {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
