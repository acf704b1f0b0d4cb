//! Files that are generated and checked in: they must be what the code would write now.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{
    cases, graph,
    shell::{self, step},
};

const GRAPH_BEGIN: &str =
    "<!-- crate-graph: begin, written by `cargo xtask generated --write` -->\n";
const GRAPH_END: &str = "<!-- crate-graph: end -->";

/// Compares, or writes.
pub(crate) fn run(write: bool) -> Result<()> {
    step(if write {
        "writing generated files"
    } else {
        "comparing generated files"
    });
    cases::check()?;
    let architecture = shell::root().join("docs/architecture.md");
    let text = std::fs::read_to_string(&architecture).context("docs/architecture.md")?;
    let (before, rest) = text
        .split_once(GRAPH_BEGIN)
        .context("docs/architecture.md has no place for the graph")?;
    let (_, after) = rest
        .split_once(GRAPH_END)
        .context("the place for the graph has no end")?;
    let wanted = format!(
        "{before}{GRAPH_BEGIN}{}{GRAPH_END}{after}",
        graph::render()?
    );
    settle(&architecture, &wanted, write)?;

    let mut openapi = shell::cargo(1_800);
    openapi.args([
        "run", "--quiet", "--locked", "-p", "hotcell", "--", "openapi",
    ]);
    let wanted = shell::output(&mut openapi)?;
    settle(&shell::root().join("docs/api/openapi.json"), &wanted, write)?;

    let mut unit = shell::cargo(1_800);
    unit.args([
        "run",
        "--quiet",
        "--locked",
        "-p",
        "hotcell",
        "--",
        "install-unit",
        "--print",
    ]);
    let wanted = shell::output(&mut unit)?;
    settle(&shell::root().join("nixos/hotcell.service"), &wanted, write)
}

fn settle(path: &Path, wanted: &str, write: bool) -> Result<()> {
    let shown = path.strip_prefix(shell::root()).unwrap_or(path).display();
    let found = std::fs::read_to_string(path).unwrap_or_default();
    if found == wanted {
        return Ok(());
    }
    if write {
        std::fs::write(path, wanted)?;
        println!("wrote {shown}");
        return Ok(());
    }
    let line = found
        .lines()
        .zip(wanted.lines())
        .position(|(a, b)| a != b)
        .unwrap_or(0)
        + 1;
    bail!("{shown} is out of date from line {line} on: run `cargo xtask generated --write`")
}
