//! The crate graph: what may depend on what, kept true in `docs/architecture.md`.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;

/// `cargo metadata` of the workspace, without dependencies.
pub(crate) fn metadata(with_dependencies: bool) -> Result<Value> {
    let mut command = shell::cargo(300);
    command.args(["metadata", "--format-version", "1", "--locked"]);
    if !with_dependencies {
        command.arg("--no-deps");
    }
    Ok(serde_json::from_str(&shell::output(&mut command)?)?)
}

/// The graph as the document shows it: one line a crate, with what it is for.
pub(crate) fn render() -> Result<String> {
    let metadata = metadata(false)?;
    let packages = metadata["packages"]
        .as_array()
        .context("no packages in the metadata")?;
    let mut lines = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let about = package["description"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut normal: Vec<&str> = dependencies
            .iter()
            .filter(|d| d["path"].is_string() && d["kind"].is_null())
            .filter_map(|d| d["name"].as_str())
            .map(|d| d.trim_start_matches("hotcell-"))
            .collect();
        normal.sort_unstable();
        normal.dedup();
        lines.insert(name.to_owned(), (about.to_owned(), normal.join(", ")));
    }
    let mut text = String::from("```text\n");
    for (name, (about, on)) in lines {
        let on = if on.is_empty() {
            "nothing of ours".into()
        } else {
            on
        };
        writeln!(text, "{name}\n    {about}\n    → {on}")?;
    }
    text.push_str("```\n");
    Ok(text)
}
