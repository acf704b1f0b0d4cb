//! Connections to agents, and word of their end.

use std::{io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use hotcell_agent_client::Dial;
use hotcell_agent_proto::AGENT_PORT;
use hotcell_types::{LeaseId, limits::AGENT_CONNECT_TIMEOUT_MS};
use tokio::{net::TcpStream, time::timeout};

use crate::{
    cgroup::Cgroups,
    ending::wait_for_end,
    layout::Layout,
    net::{Gateway, Slot},
};

/// Dials the agent of one sandbox from the gateway namespace.
#[derive(Debug)]
pub(crate) struct GatewayDial {
    gateway: Gateway,
    agent: SocketAddr,
    watched: Option<(Layout, Cgroups, LeaseId)>,
}

impl GatewayDial {
    pub(crate) fn new(gateway: Gateway, slot: Slot) -> Self {
        Self {
            gateway,
            agent: SocketAddr::from((slot.sandbox(), AGENT_PORT)),
            watched: None,
        }
    }

    /// The same, telling when the sandbox has ended. gVisor's own network stack dies with its
    /// sandbox and closes nothing.
    pub(crate) fn watching(mut self, layout: Layout, cgroups: Cgroups, lease: LeaseId) -> Self {
        self.watched = Some((layout, cgroups, lease));
        self
    }
}

#[async_trait]
impl Dial for GatewayDial {
    async fn dial(&self) -> io::Result<TcpStream> {
        let socket = self.gateway.socket().await?;
        let limit = Duration::from_millis(AGENT_CONNECT_TIMEOUT_MS);
        let stream = timeout(limit, socket.connect(self.agent)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn gone(&self) {
        let Some((layout, cgroups, lease)) = &self.watched else {
            return std::future::pending().await;
        };
        if let Err(error) = wait_for_end(layout, cgroups, lease).await {
            tracing::warn!(%lease, %error, "its end will only be known by its silence");
            std::future::pending().await
        }
    }
}
