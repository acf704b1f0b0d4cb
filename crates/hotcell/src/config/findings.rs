//! Everything that is wrong with a configuration, each with its key and what to do about it.
//!
//! ```text
//! text ── syntax ── keys and kinds of values ── ranges ── this host
//!          one       all                         all       all
//! ```
//! The reading that the daemon does stops at the first fault. Here the part at fault is taken out
//! and the rest is read again, by the same code, so that nothing has to be known twice: the names
//! of keys come from the refusals themselves.

use std::fmt;

use serde::Deserialize;
use toml::{Table, Value};

use super::{Config, ConfigError, File, Overrides, nearest};

/// The most faults that are told of one file.
const MAX_FINDINGS: usize = 100;
/// A key that no table has.
const NO_KEY: &str = "\u{1}";
/// What stands for an id in the names of keys.
const ANY_ID: &str = "ID";
/// How deep tables are looked for in each other.
const MAX_TABLE_DEPTH: usize = 6;
/// A time limit below this, in milliseconds, was probably meant in seconds.
const SUSPICIOUS_TIMEOUT_MS: i64 = 1_000;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The daemon would not start, or sandboxes would not.
    Error,
    /// It works, and may not be what was meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The key with its table; empty when the file as a whole is meant.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub fix: String,
}

impl Finding {
    pub(super) fn error(
        key: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Error,
            key: key.into(),
            problem: problem.into(),
            fix: fix.into(),
        }
    }

    pub(super) fn warning(
        key: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(key, problem, fix)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        })?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}", self.problem)?;
        if !self.fix.is_empty() {
            write!(f, "\n  fix: {}", self.fix)?;
        }
        Ok(())
    }
}

/// All that the text alone can tell, and the configuration when nothing in it is an error.
#[must_use]
pub fn of_text(text: &str, overrides: &Overrides) -> (Vec<Finding>, Option<Config>) {
    let mut table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => return (vec![syntax(text, &error)], None),
    };
    let mut findings = suspicious(&table);
    let keys = known_keys();
    let mut is_clean = true;
    while findings.len() < MAX_FINDINGS {
        let (finding, key) = match read(&table, overrides) {
            Ok(config) => return (findings, is_clean.then_some(config)),
            Err(Fault::Shape { path, message }) => shape(&table, &path, &message, &keys),
            Err(Fault::Value(error)) => value(error),
        };
        is_clean = false;
        // What is told already is only missing now that it was taken out.
        if findings.iter().all(|told| told.key != finding.key) {
            findings.push(finding);
        }
        // What is missing cannot be taken out; what it is missing in can. When that is the file, the rest
        // would be read as it was.
        let path = parts(&key);
        let mut taken_out = remove(&mut table, &path);
        if !taken_out && path.len() > 1 {
            taken_out = remove(&mut table, &path[..path.len() - 1]);
        }
        if !taken_out {
            break;
        }
    }
    findings.dedup();
    (findings, None)
}

/// The names of all keys, with their tables, sorted. `ID` stands where each has a name of its own.
#[must_use]
pub fn known_keys() -> Vec<String> {
    let mut keys = Vec::new();
    below(&mut Vec::new(), &mut keys);
    keys.sort_unstable();
    keys
}

fn below(path: &mut Vec<String>, keys: &mut Vec<String>) {
    if path.len() > MAX_TABLE_DEPTH {
        return;
    }
    let names = match expected(path) {
        Some(names) => names,
        None => {
            // A leaf, or a table whose keys are ids.
            path.push(ANY_ID.to_owned());
            let is_map = expected(path).is_some();
            path.pop();
            if !is_map {
                keys.push(path.join("."));
                return;
            }
            vec![ANY_ID.to_owned()]
        }
    };
    for name in names {
        path.push(name);
        below(path, keys);
        path.pop();
    }
}

enum Fault {
    Shape { path: String, message: String },
    Value(ConfigError),
}

fn read(table: &Table, overrides: &Overrides) -> Result<Config, Fault> {
    let file: File = serde_path_to_error::deserialize(Value::Table(table.clone())).map_err(
        |error: serde_path_to_error::Error<toml::de::Error>| Fault::Shape {
            path: key_at(error.path()),
            message: error.inner().message().to_owned(),
        },
    )?;
    file.check(overrides).map_err(Fault::Value)
}

/// What the table at `path` would take; nothing when there is no table.
fn expected(path: &[String]) -> Option<Vec<String>> {
    let mut inner = Table::new();
    inner.insert(NO_KEY.into(), Value::Boolean(true));
    for name in path.iter().rev() {
        let mut outer = Table::new();
        outer.insert(name.clone(), Value::Table(inner));
        inner = outer;
    }
    let error = File::deserialize(Value::Table(inner)).err()?;
    let (_, names) = unknown_field(error.message())?;
    Some(names)
}

/// The field and the known ones in a refusal of an unknown field.
fn unknown_field(message: &str) -> Option<(String, Vec<String>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (field, rest) = rest.split_once('`')?;
    let names = rest.split('`').skip(1).step_by(2).map(str::to_owned);
    Some((field.to_owned(), names.collect()))
}

fn shape(table: &Table, path: &str, message: &str, keys: &[String]) -> (Finding, String) {
    if let Some((field, _)) = unknown_field(message) {
        let key = match parts(path).last() {
            Some(last) if *last == field => path.to_owned(),
            _ if path.is_empty() => quoted(&field),
            _ => format!("{path}.{}", quoted(&field)),
        };
        // A misspelt table is compared with the tables.
        let is_table = get(table, &key).is_some_and(Value::is_table);
        let tables: Vec<String> = keys
            .iter()
            .filter_map(|key| Some(key.rsplit_once('.')?.0.to_owned()))
            .collect();
        let fix = match nearest::of(&of_any_id(&key), if is_table { &tables } else { keys }) {
            Some(near) => format!("did you mean `{near}`?{}", unit_of(near)),
            None => "remove it; docs/operating/configuration.md lists every key".into(),
        };
        return (Finding::error(&key, "is not known", fix), key);
    }
    let fix = get(table, path)
        .and_then(Value::as_str)
        .and_then(|text| as_number(path, text))
        .map_or_else(
            || "docs/operating/configuration.md says what it takes".to_owned(),
            |number| format!("write {number}, without quotes{}", unit_of(path)),
        );
    // A list's element cannot be taken out by its name; its list can.
    let key = path.split('[').next().unwrap_or(path).to_owned();
    (Finding::error(&key, message.trim(), fix), key)
}

fn value(error: ConfigError) -> (Finding, String) {
    match error {
        ConfigError::Value { key, problem } => {
            let fix = format!("change it{}", unit_of(&key));
            (Finding::error(&*key, problem, fix), key.into_owned())
        }
        other => (Finding::error("", other.to_string(), ""), String::new()),
    }
}

fn syntax(text: &str, error: &toml::de::Error) -> Finding {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at]
        .iter()
        .filter(|b| **b == b'\n')
        .count()
        + 1;
    Finding::error(
        "",
        format!("line {line}: {}", error.message().trim()),
        "make it valid TOML; text values stand in quotes",
    )
}

fn suspicious(table: &Table) -> Vec<Finding> {
    let tables = table
        .iter()
        .filter_map(|(name, value)| Some((name, value.as_table()?)));
    let in_tables = tables.flat_map(|(name, inner)| {
        inner
            .iter()
            .map(move |(key, value)| (format!("{name}.{key}"), value))
    });
    in_tables
        .filter(|(key, _)| key.ends_with("_timeout_ms"))
        .filter_map(|(key, value)| Some((key, value.as_integer()?)))
        .filter(|(_, millis)| (1..SUSPICIOUS_TIMEOUT_MS).contains(millis))
        .map(|(key, millis)| {
            let fix = format!("write {} if {millis} seconds were meant", millis * 1_000);
            Finding::warning(
                key,
                format!("is {millis} milliseconds, less than a second"),
                fix,
            )
        })
        .collect()
}

/// The unit that the name of a key says.
fn unit_of(key: &str) -> &'static str {
    if key.ends_with("_ms") {
        " (a number of milliseconds)"
    } else if key.ends_with("_bytes") {
        " (a number of bytes)"
    } else {
        ""
    }
}

/// The number that somebody meant who wrote `90s` or `1 GiB`.
fn as_number(key: &str, text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().ok()?;
    let factor = match (
        key.rsplit('_').next()?,
        unit.trim().to_ascii_lowercase().as_str(),
    ) {
        (_, "") | ("ms", "ms") | ("bytes", "b") => 1,
        ("ms", "s" | "sec" | "seconds") => 1_000,
        ("ms", "m" | "min" | "minutes") => 60_000,
        ("ms", "h" | "hours") => 3_600_000,
        ("ms", "d" | "days") => 86_400_000,
        ("bytes", "k" | "kib") => 1 << 10,
        ("bytes", "m" | "mib") => 1 << 20,
        ("bytes", "g" | "gib") => 1 << 30,
        ("bytes", "kb") => 1_000,
        ("bytes", "mb") => 1_000_000,
        ("bytes", "gb") => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

fn get<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    let parts = parts(key);
    let (first, rest) = parts.split_first()?;
    let first = table.get(first)?;
    rest.iter()
        .try_fold(first, |value, part| value.as_table()?.get(part))
}

fn remove(table: &mut Table, path: &[String]) -> bool {
    match path {
        [] => false,
        [last] => table.remove(last).is_some(),
        [first, rest @ ..] => table
            .get_mut(first)
            .and_then(Value::as_table_mut)
            .is_some_and(|inner| remove(inner, rest)),
    }
}

/// A part of a key as TOML wants it: in quotes when it is no bare key.
pub(super) fn quoted(part: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !part.is_empty() && part.bytes().all(is_bare) {
        part.to_owned()
    } else {
        format!("\"{}\"", part.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// The parts of a key that [`quoted`] and dots made.
fn parts(key: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut in_quotes = false;
    let mut letters = key.chars();
    while let Some(letter) = letters.next() {
        let part = match (letter, in_quotes) {
            ('.', false) => {
                parts.push(String::new());
                continue;
            }
            ('"', _) => {
                in_quotes = !in_quotes;
                continue;
            }
            ('\\', true) => letters.next(),
            _ => Some(letter),
        };
        if let Some(last) = parts.last_mut() {
            last.extend(part);
        }
    }
    parts
}

/// Where the reading stopped, as a key.
fn key_at(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut key = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => key.push_str(&format!("[{index}]")),
            Segment::Map { key: part } | Segment::Enum { variant: part } => {
                if !key.is_empty() {
                    key.push('.');
                }
                key.push_str(&quoted(part));
            }
            Segment::Unknown => {}
        }
    }
    key
}

/// A key as [`known_keys`] names it.
fn of_any_id(key: &str) -> String {
    let mut parts = parts(key);
    if let [table, id, _, ..] = &mut parts[..]
        && ["organizations", "workspaces"].contains(&table.as_str())
    {
        ANY_ID.clone_into(id);
    }
    parts.join(".")
}

#[cfg(test)]
mod tests;
