//! Connections to agents.

use std::{io, sync::Arc};

use async_trait::async_trait;
use hotcell_agent_client::Dial;
use hotcell_types::LeaseId;
use tokio::net::TcpStream;

use crate::runtime::Core;

/// Dials the agent of one sandbox.
pub(crate) struct EngineDial {
    pub(crate) core: Arc<Core>,
    pub(crate) lease: LeaseId,
}

#[async_trait]
impl Dial for EngineDial {
    async fn dial(&self) -> io::Result<TcpStream> {
        let way = self.core.way(&self.lease).await.map_err(io::Error::other)?;
        self.core.sockets.connect(&way).await
    }
}
