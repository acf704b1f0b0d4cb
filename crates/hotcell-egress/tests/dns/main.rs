//! The DNS side over real sockets on loopback: a scripted upstream that counts what it is asked, a
//! packet filter that writes down what it is told, and a client that speaks plain DNS.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod answers;
mod denials;
mod opening;
mod ready;
mod rig;
mod trouble;
