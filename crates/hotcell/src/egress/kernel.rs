//! The host as it is: the kernel's packet filter, sockets in namespaces, addresses over netlink.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use hotcell_egress::{
    denied::DeniedPacket,
    dns::Connections,
    firewall::Firewall,
    host::{Change, Changes, Host, HostError, Namespace, NoConnections, Space},
    ruleset::LogGroup,
};
use hotcell_nft::{NftFirewall, Watcher};
use rtnetlink::packet_route::address::AddressAttribute;
use rustix::{
    net::{
        AddressFamily, SocketFlags, SocketType, bind, listen, socket_with,
        sockopt::{set_ip_freebind, set_ipv6_freebind, set_ipv6_v6only, set_socket_reuseaddr},
    },
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::mpsc,
};

/// The port of DNS.
const DNS_PORT: u16 = 53;
/// Connections for questions that may wait to be taken on.
const TCP_BACKLOG: i32 = 128;

/// The host that the daemon runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelHost;

struct KernelSpace {
    namespace: Namespace,
    firewall: NftFirewall,
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

    fn connections(&self, _sandbox: &[IpAddr]) -> Arc<dyn Connections> {
        Arc::new(NoConnections)
    }

    async fn denied(
        &self,
        _group: LogGroup,
    ) -> Result<Option<mpsc::Receiver<DeniedPacket>>, HostError> {
        Ok(None)
    }
}

#[async_trait]
impl Host for KernelHost {
    async fn space(&self, namespace: Namespace) -> Result<Arc<dyn Space>, HostError> {
        const DOING: &str = "open the packet filter";
        let kept = namespace.clone();
        beside(DOING, namespace, move |namespace| {
            let firewall = NftFirewall::open(namespace);
            let firewall = firewall.map_err(|error| HostError::new(DOING, error))?;
            Ok(Arc::new(KernelSpace {
                namespace: kept,
                firewall,
            }) as Arc<dyn Space>)
        })
        .await
    }

    async fn resolver_sockets(
        &self,
        namespace: Namespace,
        gateway: IpAddr,
    ) -> io::Result<(UdpSocket, TcpListener)> {
        let (udp, tcp) = in_namespace(namespace, move || {
            let address = SocketAddr::new(gateway, DNS_PORT);
            Ok((
                bound(address, SocketType::DGRAM)?,
                bound(address, SocketType::STREAM)?,
            ))
        })
        .await?;
        Ok((
            UdpSocket::from_std(udp.into())?,
            TcpListener::from_std(tcp.into())?,
        ))
    }

    async fn addresses(&self) -> Result<Vec<IpAddr>, HostError> {
        list_addresses()
            .await
            .map_err(|error| HostError::new("list the host's addresses", error))
    }
}

/// Runs `work` on a thread of its own that is in the namespace: a socket stays where it was born.
async fn in_namespace<T: Send + 'static>(
    namespace: Namespace,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("resolver-sockets".into())
        .spawn(move || {
            let entered = match &namespace {
                Some(namespace) => {
                    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                }
                None => Ok(()),
            };
            // Whoever asked may have given up.
            let _ = tell.send(entered.map_err(io::Error::from).and_then(|()| work()));
        })?;
    told.await
        .unwrap_or_else(|_| Err(io::Error::other("the thread that opens sockets failed")))
}

fn bound(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None)?;
    // The link may come after this, and its address with it.
    match address {
        SocketAddr::V4(_) => set_ip_freebind(&socket, true)?,
        SocketAddr::V6(_) => {
            set_ipv6_v6only(&socket, true)?;
            set_ipv6_freebind(&socket, true)?;
        }
    }
    if kind == SocketType::STREAM {
        // Of a predecessor's connections only: two listeners are still refused.
        set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &address)?;
    if kind == SocketType::STREAM {
        listen(&socket, TCP_BACKLOG)?;
    }
    Ok(socket)
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

    #[tokio::test]
    async fn sockets_may_be_there_before_their_address() {
        let udp = bound("192.0.2.77:0".parse().unwrap(), SocketType::DGRAM).unwrap();
        let tcp = bound("192.0.2.77:0".parse().unwrap(), SocketType::STREAM).unwrap();
        let udp = UdpSocket::from_std(udp.into()).unwrap();
        let tcp = TcpListener::from_std(tcp.into()).unwrap();
        assert_eq!(
            udp.local_addr().unwrap().ip(),
            tcp.local_addr().unwrap().ip()
        );
    }
}
