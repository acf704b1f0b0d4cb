//! The hotcell daemon: supervised actors, HTTP, wiring, command line.
//!
//! ```text
//!   main ──► cli ──► serve ──► actors   root → store, profiles, workspaces, leases
//!                      │          ▲
//!                      │       handles  what HTTP sees of the actors: plain async functions
//!                      │          ▲
//!                      └───────► http   listens last, stops first
//! ```

mod actors;
pub mod beneath;
pub mod cli;
pub mod clock;
pub mod config;
pub mod handles;
pub mod http;
pub mod serve;
pub mod unit;
pub mod volumes;

pub use actors::{Appliance, BootError, OpenRuntime, Parts, default_profile};
