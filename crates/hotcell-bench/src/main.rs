//! Measures an appliance from outside, as a chat backend sees it, beside the bare OCI runtime and
//! other peers. Prints one JSON row a line; `cargo xtask bench` starts it and writes the table.
//!
//! Every figure is a median of runs that alternate with the runs of what it is compared to, so that
//! a machine that slows down slows both.
#![allow(clippy::print_stdout, reason = "rows go to stdout")]
#![allow(
    clippy::disallowed_methods,
    reason = "measures real time from outside; there is no test clock here"
)]

mod bare;
mod client;
mod engine;
mod exec;
mod fleet;
mod memory;
mod row;
mod start;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use crate::client::{Backend, Operator};

/// Measures one appliance.
#[derive(Parser)]
struct Arguments {
    /// Its address, `http://HOST:PORT`.
    #[arg(long, env = "HOTCELL_URL")]
    url: String,
    /// The operator's token.
    #[arg(long, env = "HOTCELL_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: String,
    /// The OCI runtime that it drives: `runsc` or `runc`.
    #[arg(long)]
    runtime: String,
    /// Its process id, for its memory.
    #[arg(long)]
    pid: u32,
    /// What rows of this appliance are called: nothing, or `_` and a word.
    #[arg(long, default_value = "")]
    suffix: String,
    /// An unpacked image of the same content: cold starts are compared with the bare OCI runtime.
    /// Without it they are compared with the engine's `run`.
    #[arg(long)]
    root_tree: Option<PathBuf>,
    /// An engine with the image `hotcell-bench`, as `docker=SOCKET` or `podman=SOCKET`; its rows
    /// are `not measured` without.
    #[arg(long)]
    engine: Option<String>,
    /// It has a warm pool: only what that is for is measured.
    #[arg(long)]
    warm: bool,
    /// Groups to measure; all when none is named.
    #[arg(long, value_delimiter = ',')]
    groups: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let wants =
        |group: &str| arguments.groups.is_empty() || arguments.groups.iter().any(|g| g == group);
    let suffix = arguments.suffix.as_str();
    let engine = arguments
        .engine
        .as_deref()
        .map(|given| engine::Engine::parse(given, &arguments.runtime))
        .transpose()?;
    if arguments.warm {
        let mut operator = Operator::connect(&arguments.url, &arguments.admin_token).await?;
        let credential = operator.switch_on().await?;
        let mut backend = Backend::connect(&arguments.url, credential).await?;
        start::warm_over_fork(&mut operator, &mut backend, suffix)
            .await?
            .print();
        return Ok(());
    }
    if wants("daemon") && suffix.is_empty() {
        memory::idle(arguments.pid)?.print();
    }
    let mut operator = Operator::connect(&arguments.url, &arguments.admin_token).await?;
    let credential = operator.switch_on().await?;
    if wants("fleet") {
        for row in fleet::fleet(&arguments.url, &credential, arguments.pid, suffix).await? {
            row.print();
        }
    }
    let mut backend = Backend::connect(&arguments.url, credential).await?;
    if wants("exec") {
        exec::overhead(&mut backend, &arguments.runtime, suffix)
            .await?
            .print();
        engine::exec_ratio(&mut backend, engine.as_ref(), suffix)
            .await?
            .print();
    }
    if wants("start") {
        match (&arguments.root_tree, &engine) {
            (Some(tree), _) => {
                let bundle = bare::Bundle::new(&arguments.runtime, tree)?;
                start::cold_over_bare(&mut backend, &bundle, suffix).await?
            }
            (None, Some(engine)) => start::cold_over_engine(&mut backend, engine, suffix).await?,
            (None, None) => anyhow::bail!("a cold start is compared with --root-tree or --engine"),
        }
        .print();
    }
    Ok(())
}
