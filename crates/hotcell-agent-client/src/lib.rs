//! The daemon's side of the agent protocol: [`AgentSandbox`] is a [`Sandbox`] that speaks to the
//! agent inside it.
//!
//! ```text
//!   Sandbox methods ──► sandbox ──► client ──► pool ──► link ──► Dial ──► agent, TCP 8888
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
mod link;
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

    /// Returns when the sandbox that runs now has ended. Its connections are closed then, and
    /// whoever waits for something over one of them learns at once that it is lost.
    ///
    /// A peer that is killed together with its network stack closes nothing, so without this
    /// only the silence tells. A runtime that cannot watch its sandboxes leaves this as it is: it
    /// never returns.
    async fn gone(&self) {
        std::future::pending().await
    }
}
