//! `docs/runtimes.md`: what the conformance suite found on which runtime.
//!
//! Each run of the suite leaves a file of JSON lines in a directory, one line a check; this turns
//! them into one table. Nothing that was not run is said to pass.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::shell;

/// The environment variable with the directory that test runs write into.
pub(crate) const DIRECTORY_VARIABLE: &str = "HOTCELL_MATRIX_DIR";
const PAGE: &str = "docs/runtimes.md";

/// One line.
#[derive(Debug, Clone, Deserialize)]
struct Row {
    runtime: String,
    engine: String,
    id: String,
    name: String,
    outcome: String,
    why: String,
}

/// Where test runs write; what an earlier run left is gone.
pub(crate) fn empty_directory() -> Result<PathBuf> {
    let directory = shell::target().join("matrix");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// Reads what test runs left and writes the page.
pub(crate) fn write(directory: &Path) -> Result<()> {
    let page = render(&read(directory)?);
    print!("{page}");
    fs::write(shell::root().join(PAGE), page).context(PAGE)
}

/// Reads what test runs left, shows it, and compares it with the page. Engines may be of other
/// versions than those that the page names.
pub(crate) fn check(directory: &Path) -> Result<()> {
    let page = render(&read(directory)?);
    print!("{page}");
    let kept = fs::read_to_string(shell::root().join(PAGE)).context(PAGE)?;
    ensure!(
        checks_of(&kept) == checks_of(&page),
        "{PAGE} says something else: run `cargo xtask runtimes`"
    );
    Ok(())
}

/// The part of the page that is about checks.
fn checks_of(page: &str) -> Option<&str> {
    page.find("| case |").map(|at| &page[at..])
}

fn read(directory: &Path) -> Result<Vec<Row>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| directory.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .collect();
    files.sort();
    let mut rows = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for line in text.lines() {
            rows.push(serde_json::from_str(line).with_context(|| file.display().to_string())?);
        }
    }
    ensure!(!rows.is_empty(), "no results in {}", directory.display());
    Ok(rows)
}

fn render(rows: &[Row]) -> String {
    let mut engines: BTreeMap<&str, &str> = BTreeMap::new();
    let mut checks: Vec<(&str, &str)> = Vec::new();
    let mut cells: BTreeMap<(&str, &str, &str), &Row> = BTreeMap::new();
    for row in rows {
        engines.insert(&row.runtime, &row.engine);
        if !checks.contains(&(&row.id, &row.name)) {
            checks.push((&row.id, &row.name));
        }
        cells.insert((&row.id, &row.name, &row.runtime), row);
    }
    let mut page = String::from(
        "# Runtimes\n\nWritten by `cargo xtask runtimes` from the results of the conformance suite; not by hand.\n\n\
         | runtime | engine | passed | failed | refused |\n|---|---|---|---|---|\n",
    );
    for (runtime, engine) in &engines {
        let count = |outcome: &str| {
            let of_it = rows.iter().filter(|row| row.runtime == *runtime);
            of_it.filter(|row| row.outcome == outcome).count()
        };
        let counts = [count("passed"), count("failed"), count("refused")];
        let [passed, failed, refused] = counts;
        let _ = writeln!(
            page,
            "| {runtime} | {engine} | {passed} | {failed} | {refused} |"
        );
    }
    let names: Vec<&str> = engines.keys().copied().collect();
    let _ = writeln!(page, "\n| case | what | {} |", names.join(" | "));
    let _ = writeln!(page, "|---|---|{}", "---|".repeat(names.len()));
    let mut notes: Vec<String> = Vec::new();
    for (id, name) in checks {
        let _ = write!(page, "| {id} | {name} |");
        for runtime in &names {
            let word = match cells.get(&(id, name, *runtime)) {
                None => "not run".to_owned(),
                Some(row) if row.outcome == "passed" => "yes".to_owned(),
                Some(row) => {
                    let note = format!("{runtime}: {}", first_line(&row.why));
                    let known = notes.iter().position(|known| *known == note);
                    let number = known.unwrap_or_else(|| {
                        notes.push(note);
                        notes.len() - 1
                    });
                    format!("{} [{}]", row.outcome, number + 1)
                }
            };
            let _ = write!(page, " {word} |");
        }
        page.push('\n');
    }
    if !notes.is_empty() {
        page.push('\n');
    }
    for (number, note) in notes.iter().enumerate() {
        let _ = writeln!(page, "{}. {note}", number + 1);
    }
    page
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(runtime: &str, name: &str, outcome: &str, why: &str) -> Row {
        Row {
            runtime: runtime.into(),
            engine: format!("{runtime} 1"),
            id: "EX-1".into(),
            name: name.into(),
            outcome: outcome.into(),
            why: why.into(),
        }
    }

    #[test]
    fn holes_are_shown_and_explained() {
        let page = render(&[
            row("a", "one", "passed", ""),
            row("a", "two", "refused", "no disk limit\nmore"),
            row("b", "one", "failed", "broke"),
        ]);
        for line in [
            "| a | a 1 | 1 | 0 | 1 |",
            "| b | b 1 | 0 | 1 | 0 |",
            "| case | what | a | b |",
            "| EX-1 | one | yes | failed [1] |",
            "| EX-1 | two | refused [2] | not run |",
            "1. b: broke",
            "2. a: no disk limit",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
