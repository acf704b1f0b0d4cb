//! The public API through its front door: a whole daemon over the in-memory engine, spoken to
//! over TCP.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod admin;
mod auth;
mod bash;
mod client;
mod clients;
mod collect;
mod daemon;
mod declared;
mod deletion;
mod documents;
mod downloads;
mod events;
mod hostile;
mod idempotency;
mod jobs;
mod lifecycle;
mod limits;
mod quotas;
mod restored;
mod uploads;
