//! The seam to the host that filters run on: packet filters of namespaces, sockets in them, and what
//! surrounds the sandboxes.
//!
//! ```text
//!  Host ── space(namespace) ──► Space ─┬─ firewall     one for the namespace
//!    │                                 ├─ watch        changes that others made
//!    │                                 ├─ connections  what a sandbox is connected to
//!    │                                 └─ denied       packets that were dropped
//!    ├──── resolver_sockets(namespace, gateway address, whose)
//!    └──── addresses()   every address of the host
//! ```

use std::{io, net::IpAddr, os::fd::OwnedFd, sync::Arc};

use async_trait::async_trait;
use tokio::net::{TcpListener, UdpSocket};

use crate::{denied::DeniedPacket, dns::Connections, firewall::Firewall, ruleset::LogGroup};

/// A network namespace; the daemon's own when absent.
pub type Namespace = Option<Arc<OwnedFd>>;

/// Why the host did not give what a filter needs.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing}")]
pub struct HostError {
    /// What was being done.
    pub doing: &'static str,
    /// What went wrong.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl HostError {
    /// A failure to do this.
    pub fn new(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            doing,
            source: source.into(),
        }
    }
}

/// Somebody else changed the packet filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// The name of the process that did, when the kernel told.
    pub process: Option<String>,
}

/// Changes of a packet filter by others, as they come.
#[async_trait]
pub trait Changes: Send {
    /// The next one; several that nobody waited for may be told as fewer. `None` when there will be
    /// no more, since the watcher has ended.
    async fn changed(&mut self) -> Option<Change>;
}

/// Packets that were dropped, as they come.
#[async_trait]
pub trait Denied: Send {
    /// The next one; `None` when there will be no more, since the reader has ended.
    async fn next(&mut self) -> Option<DeniedPacket>;
}

/// The packet filter of one namespace, with what belongs to it.
#[async_trait]
pub trait Space: Send + Sync {
    /// The packet filter.
    fn firewall(&self) -> Arc<dyn Firewall>;

    /// Returns when nobody speaks with the kernel for this any more, as after a fault. Rules stay as
    /// they are, and every change fails; another space of the same namespace has to take over.
    async fn ended(&self);

    /// Starts to listen for changes that others make.
    async fn watch(&self) -> Result<Box<dyn Changes>, HostError>;

    /// Who knows what the sandbox with these addresses is connected to.
    fn connections(&self, sandbox: &[IpAddr]) -> Arc<dyn Connections>;

    /// Forgets every connection from or to the sandbox with these addresses, so that one that gets
    /// the same addresses later does not go on with them.
    async fn forget(&self, sandbox: &[IpAddr]) -> Result<(), HostError>;

    /// Starts to read the packets that are told to this group.
    async fn denied(&self, group: LogGroup) -> Result<Box<dyn Denied>, HostError>;
}

/// The host.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Opens the packet filter of a namespace.
    async fn space(&self, namespace: Namespace) -> Result<Arc<dyn Space>, HostError>;

    /// Sockets for the questions of one sandbox, on its gateway's address and the port of DNS. The
    /// address need not be there yet: the link of a sandbox comes and goes with it. Nothing gets to them
    /// but what comes from the sandbox's own addresses, or from loopback.
    async fn resolver_sockets(
        &self,
        namespace: Namespace,
        gateway: IpAddr,
        sandbox: Vec<IpAddr>,
    ) -> io::Result<(UdpSocket, TcpListener)>;

    /// Every address of the host: what no sandbox may reach.
    async fn addresses(&self) -> Result<Vec<IpAddr>, HostError>;

    /// The host's chains, in words, that drop what is forwarded unless a rule lets it pass, and have
    /// no rule about interfaces whose names begin like this.
    async fn forward_drops(&self, interfaces: &str) -> Result<Vec<String>, HostError>;
}
