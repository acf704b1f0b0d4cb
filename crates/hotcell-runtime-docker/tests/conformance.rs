//! The suite that every runtime must pass, on every engine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it stands, and shows what it found"
)]

mod common;

use std::sync::Arc;

use common::{Case, RealIds, Rig, client};
use hotcell_runtime::conformance::{self, ConformanceEnv, Row};

on_every_engine!(the_suite_passes);

async fn the_suite_passes(rig: &Rig) {
    let mut env = ConformanceEnv::new(
        rig.image.clone(),
        rig.config.volume_root.clone(),
        rig.config.installation.clone(),
        Arc::new(RealIds),
    );
    // EX-15 asks for 5,000. Under gVisor they take longer than all else together: a tenth unless
    // the variable says otherwise.
    env.exit_runs = std::env::var("HOTCELL_TEST_EXIT_RUNS")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(if rig.case.is_gvisor() { 500 } else { 5_000 });
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
    report.leave(rig.case.name()).unwrap();
    report.assert_all_passed();
    // A rootless engine has no warm pool, and refuses nothing else.
    let is_hole = |row: &Row| row.id == "warm" && rig.case == Case::PodmanRootless;
    assert!(report.refused().all(is_hole), "{report}");
}
