//! The suite that every runtime must pass, on every engine.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::sync::Arc;

use common::{RealIds, Rig};
use hotcell_runtime::conformance::{self, ConformanceEnv};

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
        .unwrap_or(if rig.engine.is_gvisor() { 500 } else { 5_000 });
    // To look at one check by hand.
    env.only = std::env::var("HOTCELL_TEST_ONLY").ok();
    let oci = rig.config.run_dir.join("oci");
    env.kill = Some(Arc::new(move |lease| {
        let file = oci.join(lease.short()).join("pid");
        Box::pin(async move {
            let pid = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
            let pid = pid
                .trim()
                .parse()
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            rustix::process::kill_process(pid.ok_or("no pid")?, rustix::process::Signal::KILL)
                .map_err(|error| error.to_string())
        })
    }));
    let report = conformance::run(rig.runtime.clone(), env).await;
    println!("{report}");
    report.leave(rig.engine.column()).unwrap();
    report.assert_all_passed();
    assert_eq!(
        report.refused().count(),
        0,
        "this runtime refuses nothing:\n{report}"
    );
}
