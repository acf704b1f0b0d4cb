//! The suite that every runtime must pass, on every engine. What it finds goes into the matrix of
//! `docs/runtimes.md` when `HOTCELL_MATRIX_DIR` names a directory.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it stands, and shows what it found"
)]

mod common;

use std::{fs, io::Write, path::PathBuf, sync::Arc};

use common::{RealIds, Rig, client};
use hotcell_runtime::{
    Runtime,
    conformance::{self, ConformanceEnv, Outcome, Report},
};

on_every_engine!(the_suite_passes);

async fn the_suite_passes(rig: &Rig) {
    let mut env = ConformanceEnv::new(
        rig.image.clone(),
        rig.config.volume_root.clone(),
        rig.config.installation.clone(),
        Arc::new(RealIds),
    );
    env.exit_runs = number("HOTCELL_TEST_EXIT_RUNS").unwrap_or(50);
    env.only = std::env::var("HOTCELL_TEST_ONLY").ok();
    let socket = rig.config.socket.as_str().to_owned();
    env.kill = Some(Arc::new(move |lease| {
        let docker = client(&socket);
        Box::pin(async move {
            let found = docker
                .inspect_container(&format!("hotcell-{lease}"), None)
                .await
                .map_err(|error| error.to_string())?;
            let pid = found.state.and_then(|state| state.pid).ok_or("no pid")?;
            let pid = i32::try_from(pid)
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            rustix::process::kill_process(pid.ok_or("no pid")?, rustix::process::Signal::KILL)
                .map_err(|error| error.to_string())
        })
    }));
    let report = conformance::run(rig.runtime.clone(), env).await;
    println!("{report}");
    record(rig.case.name(), &rig.runtime.facts().engine, &report);
    report.assert_all_passed();
    assert_eq!(
        report.refused().count(),
        0,
        "this runtime refuses nothing:\n{report}"
    );
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// One line of JSON for each check.
fn record(case: &str, engine: &str, report: &Report) {
    let Some(dir) = std::env::var_os("HOTCELL_MATRIX_DIR").map(PathBuf::from) else {
        return;
    };
    fs::create_dir_all(&dir).unwrap();
    let mut file = fs::File::create(dir.join(format!("{}.jsonl", case.replace('/', "-")))).unwrap();
    for row in &report.rows {
        let (outcome, why) = match &row.outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Failed(why) => ("failed", why.as_str()),
            Outcome::Refused(why) => ("refused", why.as_str()),
        };
        let line = serde_json::json!({
            "runtime": case,
            "engine": engine,
            "id": row.id,
            "name": row.name,
            "outcome": outcome,
            "why": why,
            "ms": u64::try_from(row.duration.as_millis()).unwrap(),
        });
        writeln!(file, "{line}").unwrap();
    }
}
