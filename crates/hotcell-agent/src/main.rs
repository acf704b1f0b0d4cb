//! The agent: PID 1 of every sandbox, and the only thing in it that hotcell brings along.
//!
//! ```text
//!  daemon ── HTTP/1.1, signed ──> agent (PID 1, reaps orphans)
//!                                  ├── shim (idle)
//!                                  ├── shim ── bash FILE ── … everything this call started
//!                                  ├── shim ── bash FILE           waits for the next call
//!                                  └── shim ── python3 server.py        (a job)
//! ```
//!
//! One binary, three lives:
//! - without arguments it takes its key out of the environment and executes itself anew;
//! - `serve` is the agent: one thread, one event loop;
//! - `shim` owns the process tree of one call. It is a subreaper, so whatever a call starts,
//!   however often it forks or changes its session, stays below its shim until it ends. That
//!   is how a tree is found and ended without cgroups.
//!
//! User code runs under the same user id. It may kill shims, remove the agent's files and
//! send anything to its port; the agent bounds and survives all of that.

mod agent;
mod ahead;
mod auth;
mod call;
mod clock;
mod config;
mod environment;
mod exit;
mod files;
mod health;
mod http;
mod job;
mod output;
mod pool;
mod prelude;
mod process;
mod pump;
mod reply;
mod run_dir;
mod shell;
mod shim;
mod start;
mod stdio;
mod tree;

use std::{io::Write as _, process::ExitCode};

const HELP: &str = "\
hotcell-agent: runs commands inside a hotcell sandbox

usage: hotcell-agent            read the key from the environment, then serve
       hotcell-agent --version
       hotcell-agent --help

environment:
  HOTCELL_AGENT_KEY        the agent key in hex; removed before anything else starts
  HOTCELL_LEASE            the lease id, which signs every request
  HOTCELL_AGENT_LISTEN     IP:PORT to listen on (0.0.0.0:8888)
  HOTCELL_AGENT_WORKSPACE  the home directory of commands (/workspace)
  HOTCELL_AGENT_RUN        a directory for the agent's own files (/run/hotcell)
";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(std::ffi::OsStr::to_str) {
        Some("shim") => shim::process::run(),
        Some("serve") => start::serve(),
        Some("--version") => say(&format!("hotcell-agent {}\n", env!("CARGO_PKG_VERSION"))),
        Some("--help" | "-h") => say(HELP),
        None if first.is_none() => start::hand_over_key(),
        _ => {
            complain("unknown arguments; see hotcell-agent --help");
            ExitCode::from(2)
        }
    }
}

fn say(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Writes one line to stderr; there is nobody to tell when that fails.
pub(crate) fn complain(message: &str) {
    let _ = writeln!(std::io::stderr(), "hotcell-agent: {message}");
}
