//! What a run found.

use std::{fmt, time::Duration};

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
    /// The runtime and its engine.
    pub runtime: String,
    /// Every check, in the order of the run.
    pub rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(runtime: String) -> Self {
        Self {
            runtime,
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
        writeln!(f, "conformance of {}", self.runtime)?;
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
