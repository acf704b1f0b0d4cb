//! What a run found.

use std::{env, fmt, fs, io, path::PathBuf, time::Duration};

/// The environment variable that names the directory for results of runs.
pub const MATRIX_DIRECTORY: &str = "HOTCELL_MATRIX_DIR";

/// How a check came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As it must be.
    Passed,
    /// Not as it must be, and how not.
    Failed(String),
    /// The runtime says itself that it cannot, and why.
    Refused(String),
}

/// One check of a run.
#[derive(Debug, Clone)]
pub struct Row {
    /// The acceptance case, or the area.
    pub id: &'static str,
    /// What was checked.
    pub name: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// How long it took.
    pub duration: Duration,
}

/// A whole run. Shows itself as a table.
#[derive(Debug, Clone)]
pub struct Report {
    /// What kind of runtime it is.
    pub kind: String,
    /// Its engine and version.
    pub engine: String,
    /// Every check, in the order of the run.
    pub rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(kind: String, engine: String) -> Self {
        Self {
            kind,
            engine,
            rows: Vec::new(),
        }
    }

    /// The checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(|row| matches!(row.outcome, Outcome::Failed(_)))
    }

    /// The checks that the runtime refused.
    pub fn refused(&self) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(|row| matches!(row.outcome, Outcome::Refused(_)))
    }

    /// Leaves the run for the matrix of runtimes when [`MATRIX_DIRECTORY`] names a directory: one
    /// JSON object a line, one line a check, in a file named after the column (`docker/runsc`).
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn leave(&self, column: &str) -> io::Result<()> {
        let Some(dir) = env::var_os(MATRIX_DIRECTORY).map(PathBuf::from) else {
            return Ok(());
        };
        let mut lines = String::new();
        for row in &self.rows {
            let (outcome, why) = match &row.outcome {
                Outcome::Passed => ("passed", ""),
                Outcome::Failed(why) => ("failed", why.as_str()),
                Outcome::Refused(why) => ("refused", why.as_str()),
            };
            let line = serde_json::json!({
                "runtime": column,
                "engine": self.engine,
                "id": row.id,
                "name": row.name,
                "outcome": outcome,
                "why": why,
            });
            lines.push_str(&line.to_string());
            lines.push('\n');
        }
        fs::create_dir_all(&dir)?;
        fs::write(
            dir.join(format!("{}.jsonl", column.replace('/', "-"))),
            lines,
        )
    }

    /// Demands that nothing failed and that something was checked. What was refused is left for
    /// the caller to judge by [`refused`](Self::refused).
    ///
    /// # Panics
    /// With the table, otherwise.
    pub fn assert_all_passed(&self) {
        assert!(
            self.failed().next().is_none(),
            "the runtime does not conform:\n{self}"
        );
        assert!(
            self.rows.iter().any(|row| row.outcome == Outcome::Passed),
            "nothing was checked:\n{self}"
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {} ({})", self.kind, self.engine)?;
        let mut counts = [0_usize; 3];
        for row in &self.rows {
            let (at, word, why) = match &row.outcome {
                Outcome::Passed => (0, "passed", ""),
                Outcome::Failed(why) => (1, "FAILED", why.as_str()),
                Outcome::Refused(why) => (2, "refused", why.as_str()),
            };
            counts[at] += 1;
            writeln!(
                f,
                "{:<8} {:<7} {:>6.2} s  {}",
                row.id,
                word,
                row.duration.as_secs_f64(),
                row.name,
            )?;
            for line in why.lines() {
                writeln!(f, "{:>28}{line}", "")?;
            }
        }
        let [passed, failed, refused] = counts;
        write!(f, "{passed} passed, {failed} failed, {refused} refused")
    }
}
