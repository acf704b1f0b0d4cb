//! The conformance suite: what every [`Runtime`] must do, the fake included.
//!
//! ```text
//!   run(runtime, env) ──► Bench ──► check, check, … ──► Report
//!                           │                            passed · failed(why) · refused(why)
//!                           └─ makes sandboxes, removes what a check left behind
//! ```
//!
//! A check is *refused* when the runtime's own facts say that it cannot give what is checked;
//! that is a result to show to an operator, not a success. Checks of real processes need an image
//! with bash, coreutils, procps and Python 3. Their ids name the acceptance case that they settle.

mod bench;
mod exec;
mod files;
mod isolation;
mod jobs;
mod lifecycle;
mod network;
mod output;
mod pressure;
mod processes;
mod report;
mod shell;
mod volumes;
mod warm;

use std::{panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use hotcell_types::{IdSource, InstallationId, LeaseId};
use tokio::time::{Instant, timeout};

use crate::{ImageRef, Runtime};

use bench::Bench;
pub use report::{MATRIX_DIRECTORY, Outcome, Report, Row};

/// How long one check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(120);
/// How long one of the runs of EX-15 may take on top.
const EXIT_RUN_TIMEOUT: Duration = Duration::from_millis(50);
/// Runs of the check that counts exit codes, unless the environment says otherwise.
const DEFAULT_EXIT_RUNS: usize = 500;

/// Ends a sandbox from outside, past the runtime, such as by killing its first process.
pub type Kill = Arc<dyn Fn(LeaseId) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Where and how the suite runs.
#[derive(Clone)]
pub struct ConformanceEnv {
    /// What the sandboxes run.
    pub image: ImageRef,
    /// A directory of the host in which volumes can be made.
    pub volume_root: PathBuf,
    /// The installation that the runtime was opened for.
    pub installation: InstallationId,
    /// Where ids and keys come from.
    pub ids: Arc<dyn IdSource>,
    /// Whether sandboxes have real processes; the fake has none.
    pub real: bool,
    /// How a sandbox is ended from outside; `None` refuses the checks that need it.
    pub kill: Option<Kill>,
    /// How often EX-15 runs its command.
    pub exit_runs: usize,
    /// Only checks whose id or name contains this.
    pub only: Option<String>,
}

impl ConformanceEnv {
    /// A whole run against real sandboxes.
    #[must_use]
    pub fn new(
        image: ImageRef,
        volume_root: PathBuf,
        installation: InstallationId,
        ids: Arc<dyn IdSource>,
    ) -> Self {
        Self {
            image,
            volume_root,
            installation,
            ids,
            real: true,
            kill: None,
            exit_runs: DEFAULT_EXIT_RUNS,
            only: None,
        }
    }
}

/// Why a check did not pass.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The runtime does not do what it must.
    Failed(String),
    /// It cannot, and says so itself.
    Refused(String),
}

impl Fault {
    /// The same, with what was done before.
    pub(crate) fn after(self, what: &str) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(format!("after {what}: {why}")),
            refused => refused,
        }
    }
}

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A check that failed, with these words.
pub(crate) fn failed<T>(why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Failed(why.into()))
}

/// Fails a check unless something holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Fault::Failed(format!($($why)+)));
        }
    };
}
pub(crate) use ensure;

/// What a check needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Any runtime.
    Anything,
    /// Processes, not a fake.
    Processes,
}

type Run = for<'b> fn(&'b Bench) -> BoxFuture<'b, Result<(), Fault>>;

/// One check.
pub(crate) struct Check {
    id: &'static str,
    name: &'static str,
    needs: Needs,
    run: Run,
}

impl Check {
    pub(crate) const fn new(id: &'static str, name: &'static str, needs: Needs, run: Run) -> Self {
        Self {
            id,
            name,
            needs,
            run,
        }
    }
}

/// A list of checks: `id name needs function`, one a line.
macro_rules! checks {
    ($($id:literal $name:literal $needs:ident $run:ident;)+) => {
        /// The checks of this area.
        pub(crate) const CHECKS: &[$crate::conformance::Check] = &[$(
            $crate::conformance::Check::new(
                $id,
                $name,
                $crate::conformance::Needs::$needs,
                |bench| Box::pin($run(bench)),
            ),
        )+];
    };
}
pub(crate) use checks;

const AREAS: [&[Check]; 12] = [
    lifecycle::CHECKS,
    isolation::CHECKS,
    network::CHECKS,
    exec::CHECKS,
    shell::CHECKS,
    output::CHECKS,
    processes::CHECKS,
    jobs::CHECKS,
    files::CHECKS,
    volumes::CHECKS,
    pressure::CHECKS,
    warm::CHECKS,
];

/// Runs every check that `env` asks for, one after the other, and removes what they made.
pub async fn run(runtime: Arc<dyn Runtime>, env: ConformanceEnv) -> Report {
    let facts = runtime.facts();
    let mut report = Report::new(facts.kind, facts.engine);
    let bench = Bench::new(runtime, env);
    for check in AREAS.into_iter().flatten() {
        let wanted = bench
            .env
            .only
            .as_ref()
            .is_none_or(|only| check.id.contains(only) || check.name.contains(only));
        if !wanted {
            continue;
        }
        let start = Instant::now();
        let outcome = if check.needs == Needs::Processes && !bench.env.real {
            Outcome::Refused("needs real processes".into())
        } else {
            run_one(check, &bench).await
        };
        report.rows.push(Row {
            id: check.id,
            name: check.name,
            outcome,
            duration: start.elapsed(),
        });
        bench.clean_up(false).await;
    }
    bench.clean_up(true).await;
    report
}

async fn run_one(check: &Check, bench: &Bench) -> Outcome {
    let run = AssertUnwindSafe((check.run)(bench)).catch_unwind();
    let runs = u32::try_from(bench.env.exit_runs).unwrap_or(u32::MAX);
    let patience = CHECK_TIMEOUT + EXIT_RUN_TIMEOUT.saturating_mul(runs);
    match timeout(patience, run).await {
        Ok(Ok(Ok(()))) => Outcome::Passed,
        Ok(Ok(Err(Fault::Failed(why)))) => Outcome::Failed(why),
        Ok(Ok(Err(Fault::Refused(why)))) => Outcome::Refused(why),
        Ok(Err(_)) => Outcome::Failed("the check panicked".into()),
        Err(_) => Outcome::Failed(format!("did not end within {} s", patience.as_secs())),
    }
}
