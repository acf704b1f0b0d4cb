//! The built agent, driven over its protocol, on this host instead of in a sandbox.
//!
//! It runs as an ordinary user in a temporary directory, not as PID 1. The cases EX-… are
//! the acceptance cases of the exec area.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ahead;
mod auth;
mod calls;
mod client;
mod files;
mod host;
mod jobs;
mod limits;
mod output;
mod shell;
mod stdio;
mod trees;
