//! The table of the egress filter's cases: every test that it names must exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::shell;

const TABLE: &str = "docs/egress-cases.md";
/// Fewer than this, and the table was not understood.
const LEAST_TESTS: usize = 40;

/// Looks for each test that is named.
pub(crate) fn check() -> Result<()> {
    let text = fs::read_to_string(shell::root().join(TABLE)).context(TABLE)?;
    let named = named(&text);
    ensure!(
        named.len() >= LEAST_TESTS,
        "{TABLE} names {} tests, which cannot be all",
        named.len()
    );
    for (place, test) in named {
        let sources = sources(&shell::root().join("crates").join(place))
            .with_context(|| format!("{TABLE}: crates/{place}"))?;
        let mut found = false;
        for source in sources {
            found |= fs::read_to_string(source)?.contains(&format!("fn {test}("));
        }
        ensure!(found, "{TABLE}: there is no {test} in crates/{place}");
    }
    Ok(())
}

/// What stands as `path::name` in the table; the path is a file's, or a directory's for any file in it.
fn named(text: &str) -> Vec<(&str, &str)> {
    let in_quotes = text.split('`').skip(1).step_by(2);
    in_quotes
        .filter_map(|word| word.split_once("::"))
        .filter(|(place, _)| place.contains('/'))
        .collect()
}

fn sources(place: &Path) -> Result<Vec<PathBuf>> {
    if !place.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(sources(&path)?);
        }
    }
    Ok(found)
}
