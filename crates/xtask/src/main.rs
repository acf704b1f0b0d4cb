//! `cargo xtask`: everything that a person or a machine does to this repository.
//!
//! Depends on nothing of the workspace, so that it builds on a bare machine before anything
//! is installed.
#![allow(
    clippy::print_stdout,
    reason = "a command line tool speaks to its terminal"
)]

mod agent;
mod bench;
mod capabilities;
mod cases;
mod daemon;
mod demo;
mod deny;
mod engines;
mod generated;
mod graph;
mod image;
mod matrix;
mod provision;
mod service;
mod shell;
mod test;
mod universal;
mod vm_test;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play a chat that turns a real table into finished files, inside a real sandbox.
    ///
    /// Installs what is missing (as root, from the distribution), builds, starts the appliance,
    /// plays the chat and checks what came back. The environment variable HOTCELL_DEMO_RUNTIME
    /// picks the runtime: auto (default), runsc, runc, docker or podman.
    Demo(demo::Options),
    /// Install what is missing, then run every check and every test, real sandboxes included.
    Test(test::Options),
    /// Install and start Docker and Podman, run their runtime's tests, write docs/runtimes.md.
    Runtimes,
    /// Measure, side by side in one run, and write docs/performance.md.
    Bench(bench::Options),
    /// Build an image from the distribution's packages; prints where the tar file is.
    Image {
        /// Which one.
        #[arg(value_enum)]
        name: image::Name,
        /// Build it even when one of the same recipe is there.
        #[arg(long)]
        force: bool,
        /// Then run a small program of each of its runtimes in a sandbox; for `universal`.
        #[arg(long)]
        check: bool,
    },
    /// Boot Debian guests and run the tests of vm-tests/ on them, under real systemd.
    VmTest(vm_test::Options),
    /// Install the packages that tests and demo need, and nothing else.
    Provision,
    /// Build the static agent; prints where it is.
    Agent,
    /// Check the service's unit and the Nix files, as far as the tools for it are here.
    Service,
    /// Compare generated files (OpenAPI, crate graph) with what is checked in.
    Generated {
        /// Write them instead.
        #[arg(long)]
        write: bool,
    },
    /// Check licences, banned crates and, given a database, advisories of all dependencies.
    Deny {
        /// A checkout of the RustSec advisory database.
        #[arg(long, env = "HOTCELL_ADVISORY_DB")]
        advisory_db: Option<PathBuf>,
    },
}

fn main() -> std::process::ExitCode {
    match obey() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\x1b[31merror:\x1b[0m {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn obey() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Runtimes => test::runtimes(),
        Command::Bench(options) => bench::run(&options),
        Command::Image { name, force, check } => {
            provision::ensure()?;
            let tar = image::build(name, force)?;
            println!("{}", tar.display());
            match (check, name) {
                (false, _) => Ok(()),
                (true, image::Name::Universal) => universal::check(&tar),
                (true, image::Name::Base) => anyhow::bail!("the base image is checked by the demo"),
            }
        }
        Command::VmTest(options) => vm_test::run(&options),
        Command::Provision => provision::ensure(),
        Command::Agent => {
            println!("{}", agent::build()?.display());
            Ok(())
        }
        Command::Service => service::check(),
        Command::Generated { write } => generated::run(write),
        Command::Deny { advisory_db } => deny::run(advisory_db.as_deref()),
    }
}
