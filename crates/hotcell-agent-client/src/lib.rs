//! The daemon's side of the agent protocol: [`AgentSandbox`] is a [`Sandbox`] that speaks to the
//! agent inside it.
//!
//! ```text
//!   Sandbox methods ──► sandbox ──► client ──► pool ──► Dial ──► agent, TCP 8888
//!                          │          │  sign, send, wait for the head
//!                          │          └─ once more on a fresh connection, if nothing was sent
//!                          ├─ answer   whole answers: JSON, bounded
//!                          ├─ frames   exec and stdio: events until Exit, with a watchdog
//!                          └─ content  files: never more than was announced
//! ```
//!
//! How bytes get to the agent is the runtime's business: it gives a [`Dial`]. Everything that
//! comes back was written by somebody who may be hostile, so every length has a limit and every
//! wait an end; neither makes this side panic, hang or grow.
//!
//! [`Sandbox`]: hotcell_runtime::Sandbox

mod answer;
mod client;
mod content;
mod error;
mod frames;
mod patience;
mod pool;
mod sandbox;
mod stdio;
mod target;

use async_trait::async_trait;

pub use patience::Patience;
pub use sandbox::AgentSandbox;

/// Opens byte streams to one sandbox's agent.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// A new connection to the agent.
    ///
    /// # Errors
    /// When nothing listens there; the sandbox then counts as lost.
    async fn dial(&self) -> std::io::Result<tokio::net::TcpStream>;
}
