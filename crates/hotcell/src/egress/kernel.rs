//! The host as it is: the kernel's packet filter, sockets in namespaces, addresses over netlink.

use std::{collections::HashSet, io, net::IpAddr, os::fd::OwnedFd, sync::Arc};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use hotcell_egress::{
    denied::DeniedPacket,
    dns::Connections,
    firewall::Firewall,
    host::{Change, Changes, Denied, Host, HostError, Namespace, Space},
    ruleset::LogGroup,
};
use hotcell_nft::{
    Conntrack, DeniedPackets, NftFirewall, OpenError, Watcher, dns_sockets, forward_drops,
};
use rtnetlink::packet_route::address::AddressAttribute;
use tokio::net::{TcpListener, UdpSocket};

/// The host that the daemon runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelHost;

struct KernelSpace {
    namespace: Namespace,
    firewall: NftFirewall,
    conntrack: Conntrack,
}

struct Dropped(DeniedPackets);

#[async_trait]
impl Denied for Dropped {
    async fn next(&mut self) -> Option<DeniedPacket> {
        let packet = self.0.next().await?;
        Some(DeniedPacket {
            short: packet.lease,
            protocol: packet.protocol,
            destination: packet.destination,
            port: packet.port,
        })
    }
}

struct Watching(Watcher);

#[async_trait]
impl Changes for Watching {
    async fn changed(&mut self) -> Option<Change> {
        let change = self.0.changed().await?;
        Some(Change {
            process: change.process,
        })
    }
}

/// Runs what may wait for the kernel beside the reactor.
async fn beside<T: Send + 'static>(
    doing: &'static str,
    namespace: Namespace,
    work: impl FnOnce(Option<OwnedFd>) -> Result<T, HostError> + Send + 'static,
) -> Result<T, HostError> {
    let work = move || {
        let namespace = namespace
            .map(|namespace| namespace.try_clone())
            .transpose()
            .map_err(|error| HostError::new(doing, error))?;
        work(namespace)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(HostError::new(doing, error)),
    }
}

#[async_trait]
impl Space for KernelSpace {
    fn firewall(&self) -> Arc<dyn Firewall> {
        Arc::new(self.firewall.clone())
    }

    async fn ended(&self) {
        self.firewall.ended().await;
    }

    async fn watch(&self) -> Result<Box<dyn Changes>, HostError> {
        const DOING: &str = "watch the packet filter";
        let port = self.firewall.port();
        beside(DOING, self.namespace.clone(), move |namespace| {
            let watcher = Watcher::start(namespace, port);
            let watcher = watcher.map_err(|error| HostError::new(DOING, error))?;
            Ok(Box::new(Watching(watcher)) as Box<dyn Changes>)
        })
        .await
    }

    fn connections(&self, sandbox: &[IpAddr]) -> Arc<dyn Connections> {
        Arc::new(self.conntrack.of_sandbox(sandbox.iter().copied()))
    }

    async fn forget(&self, sandbox: &[IpAddr]) -> Result<(), HostError> {
        for address in sandbox {
            let forgotten = self.conntrack.forget(*address).await;
            forgotten.map_err(|error| HostError::new("forget old connections", error))?;
        }
        Ok(())
    }

    async fn denied(&self, group: LogGroup) -> Result<Box<dyn Denied>, HostError> {
        const DOING: &str = "read dropped packets";
        beside(DOING, self.namespace.clone(), move |namespace| {
            let denied = DeniedPackets::start(namespace, group.group);
            let denied = denied.map_err(|error| HostError::new(DOING, error))?;
            Ok(Box::new(Dropped(denied)) as Box<dyn Denied>)
        })
        .await
    }
}

#[async_trait]
impl Host for KernelHost {
    async fn space(&self, namespace: Namespace) -> Result<Arc<dyn Space>, HostError> {
        const DOING: &str = "open the packet filter";
        let kept = namespace.clone();
        beside(DOING, namespace, move |namespace| {
            let failed = |error| HostError::new(DOING, error);
            let again = namespace.as_ref().map(OwnedFd::try_clone).transpose();
            let again = again.map_err(|error| HostError::new(DOING, error))?;
            Ok(Arc::new(KernelSpace {
                namespace: kept,
                firewall: NftFirewall::open(namespace).map_err(failed)?,
                conntrack: Conntrack::open(again).map_err(failed)?,
            }) as Arc<dyn Space>)
        })
        .await
    }

    async fn resolver_sockets(
        &self,
        namespace: Namespace,
        gateway: IpAddr,
        sandbox: Vec<IpAddr>,
    ) -> io::Result<(UdpSocket, TcpListener)> {
        let work = move || {
            let namespace = namespace
                .map(|namespace| namespace.try_clone())
                .transpose()?;
            dns_sockets(namespace, gateway, sandbox).map_err(|error| match error {
                // Whether somebody has the port is told by its kind.
                OpenError::Socket(error) => error,
                other => io::Error::other(other),
            })
        };
        let made = tokio::task::spawn_blocking(work).await;
        let sockets = made.map_err(io::Error::other)??;
        Ok((
            UdpSocket::from_std(sockets.udp)?,
            TcpListener::from_std(sockets.tcp)?,
        ))
    }

    async fn forward_drops(&self, interfaces: &str) -> Result<Vec<String>, HostError> {
        const DOING: &str = "list the chains of other firewalls";
        let interfaces = interfaces.to_owned();
        beside(DOING, None, move |_| {
            let found = forward_drops(None, &interfaces);
            let found = found.map_err(|error| HostError::new(DOING, error))?;
            Ok(found.iter().map(ToString::to_string).collect())
        })
        .await
    }

    async fn addresses(&self) -> Result<Vec<IpAddr>, HostError> {
        list_addresses()
            .await
            .map_err(|error| HostError::new("list the host's addresses", error))
    }
}

async fn list_addresses() -> io::Result<Vec<IpAddr>> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let speaking = tokio::spawn(connection);
    let listed = async {
        let mut found = HashSet::new();
        let mut addresses = handle.address().get().execute();
        while let Some(message) = addresses.try_next().await.map_err(io::Error::other)? {
            for attribute in message.attributes {
                if let AddressAttribute::Address(address) | AddressAttribute::Local(address) =
                    attribute
                {
                    found.insert(address);
                }
            }
        }
        let mut found: Vec<IpAddr> = found.into_iter().collect();
        found.sort_unstable();
        Ok(found)
    };
    let listed = listed.await;
    speaking.abort();
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_host_knows_its_addresses() {
        let addresses = KernelHost.addresses().await.unwrap();
        assert!(addresses.contains(&[127, 0, 0, 1].into()), "{addresses:?}");
    }
}
