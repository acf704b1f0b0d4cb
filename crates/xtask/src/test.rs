//! `cargo xtask test`: everything that must hold, cheapest first.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result};
use clap::Args;

use crate::{
    agent, deny,
    engines::Engines,
    generated, image, matrix, provision, service,
    shell::{self, step},
    vm_test,
};

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Only tests whose name holds this; checks are left out.
    filter: Option<String>,
    /// Only what needs no root, no image and no sandbox.
    #[arg(long)]
    quick: bool,
}

/// Runs every check and test; stops at the first failure.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut timings = Timings::default();
    if !options.quick {
        timings.measure("provision", provision::ensure)?;
    }
    if options.filter.is_none() {
        timings.measure("formatting", || {
            shell::run(shell::cargo(120).args(["fmt", "--all", "--check"]))
        })?;
        timings.measure("clippy", clippy)?;
        timings.measure("generated files", || generated::run(false))?;
        timings.measure("service", service::check)?;
        timings.measure("dependencies", || {
            deny::run(
                std::env::var_os("HOTCELL_ADVISORY_DB")
                    .map(std::path::PathBuf::from)
                    .as_deref(),
            )
        })?;
    }
    let mut command = shell::cargo(3_000);
    command.args(["test", "--locked", "--workspace", "--no-fail-fast"]);
    if let Some(filter) = &options.filter {
        command.args(["--", filter]);
    }
    if options.quick {
        command.args(["--lib", "--bins"]);
        timings.measure("tests", || shell::run(&mut command))?;
        timings.print();
        return Ok(());
    }
    let results = matrix::empty_directory()?;
    let engines = timings.measure("engines", Engines::ensure)?;
    real_environment(&mut command, &engines, &mut timings)?;
    command.env(matrix::DIRECTORY_VARIABLE, &results);
    step("tests");
    let tested = timings.measure("tests", || shell::run(&mut command));
    if options.filter.is_some() {
        timings.print();
        return tested;
    }
    // A test that failed says more than the hole that it leaves in the matrix.
    let matrix = timings.measure("matrix of runtimes", || matrix::check(&results));
    tested?;
    matrix?;
    timings.measure("client", python_client)?;
    timings.measure("guests", vm_test::in_suite)?;
    timings.print();
    Ok(())
}

/// Runs the conformance suite on every runtime, and writes what passed where.
pub(crate) fn runtimes() -> Result<()> {
    let mut timings = Timings::default();
    timings.measure("provision", provision::ensure)?;
    let results = matrix::empty_directory()?;
    let engines = timings.measure("engines", Engines::ensure)?;
    let mut command = shell::cargo(3_400);
    command
        .args(["test", "--locked", "--no-fail-fast"])
        .args(["-p", "hotcell-runtime", "--test", "fake"])
        .args(["-p", "hotcell-runtime-embedded", "--test", "conformance"])
        .args(["-p", "hotcell-runtime-docker"])
        .env(matrix::DIRECTORY_VARIABLE, &results);
    real_environment(&mut command, &engines, &mut timings)?;
    let tested = timings.measure("tests", || shell::run(&mut command));
    matrix::write(&results)?;
    timings.print();
    tested
}

fn clippy() -> Result<()> {
    step("clippy");
    let mut command = shell::cargo(1_800);
    command.args([
        "clippy",
        "--quiet",
        "--locked",
        "--workspace",
        "--all-targets",
        "--all-features",
    ]);
    shell::run(command.args(["--", "-D", "warnings"]))
}

/// What tests of real sandboxes need to know.
fn real_environment(command: &mut Command, engines: &Engines, timings: &mut Timings) -> Result<()> {
    command.envs(engines.environment());
    let tar = timings.measure("image", || image::build(image::Name::Base, false))?;
    step("building the static agent");
    let agent = timings.measure("agent", agent::build)?;
    command
        .env(
            "HOTCELL_TEST_IMAGE_TAR",
            tar.canonicalize().context("the image")?,
        )
        .env(
            "HOTCELL_TEST_AGENT",
            agent.canonicalize().context("the agent")?,
        );
    Ok(())
}

/// The published client against the published test vectors.
fn python_client() -> Result<()> {
    step("the Python client");
    let mut command = shell::limited(120, provision::SYSTEM_PYTHON);
    command.args([
        "-m",
        "unittest",
        "discover",
        "-s",
        "docs/clients/python",
        "-p",
        "test_*.py",
    ]);
    shell::run(&mut command)
}

/// How long each part took.
#[derive(Default)]
pub(crate) struct Timings(Vec<(String, Duration)>);

impl Timings {
    /// Runs and remembers.
    #[expect(
        clippy::disallowed_methods,
        reason = "a command line tool has no test clock"
    )]
    pub(crate) fn measure<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = std::time::Instant::now();
        let result = work().with_context(|| format!("{name} failed"));
        self.0.push((name.to_owned(), begin.elapsed()));
        result
    }

    /// One line a part.
    pub(crate) fn print(&self) {
        println!();
        for (name, time) in &self.0 {
            println!("{name:<24}{:>9.1} s", time.as_secs_f64());
        }
    }
}
