//! The hotcell daemon: supervised actors, HTTP, wiring, command line.
//!
//! ```text
//!   main ──► cli ──► serve ──► actors   root → store, egress, profiles, workspaces, leases
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
mod declared;
mod denials;
pub mod egress;
pub mod erase;
pub mod handles;
pub mod http;
mod jobs;
pub mod metrics;
mod oversight;
pub mod serve;
pub mod service;
mod skew;
mod store_check;
pub mod switches;
pub mod unit;
pub mod unknown;
mod upkeep;
pub mod volumes;

pub use actors::{Appliance, BootError, FinalSweep, OpenRuntime, Parts, default_profile};
