//! What tests share: a daemon on an engine in memory (or a given one), a client that signs, a stub
//! [`internet`], and waiting for conditions.
//!
//! ```no_run
//! # async fn doc() {
//! use hotcell_testkit::{TestDaemon, wait_until};
//!
//! let daemon = TestDaemon::start().await;
//! let client = daemon.client().await;
//! let answer = client
//!     .post("/v1/workspaces/w/chats/c/bash", &serde_json::json!({
//!         "user": {"id": "u", "role": "editor"},
//!         "command": "echo hello",
//!     }))
//!     .await;
//! assert_eq!(answer.json()["exit_code"], 0);
//! # }
//! ```

#[cfg(feature = "daemon")]
mod client;
#[cfg(feature = "filters")]
pub mod clients;
#[cfg(feature = "daemon")]
mod daemon;
#[cfg(feature = "filters")]
pub mod filters;
pub mod internet;
#[cfg(feature = "daemon")]
mod process;
#[cfg(any(feature = "daemon", feature = "filters"))]
mod real;
mod wait;

#[cfg(feature = "daemon")]
pub use client::{Answer, Client};
#[cfg(feature = "daemon")]
pub use daemon::{ORGANIZATION, Options, TestDaemon, WORKSPACE};
#[cfg(feature = "daemon")]
pub use process::{Footprint, Process, Site};
#[cfg(any(feature = "daemon", feature = "filters"))]
pub use real::{RealClock, RealIds, given};
pub use wait::{wait_for, wait_until};
