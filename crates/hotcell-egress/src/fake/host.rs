//! A host in memory: one packet filter, sockets on loopback.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::{broadcast, mpsc},
};

use super::{FakeFirewall, lock};
use crate::{
    denied::DeniedPacket,
    dns::Connections,
    firewall::Firewall,
    host::{Change, Changes, Denied, Host, HostError, Namespace, Space},
    ruleset::LogGroup,
};

/// Notices that may wait in the fake.
const WAITING: usize = 64;

struct Shared {
    firewall: FakeFirewall,
    resolvers: Mutex<BTreeMap<IpAddr, SocketAddr>>,
    addresses: Mutex<Vec<IpAddr>>,
    broken: Mutex<Option<&'static str>>,
    changes: broadcast::Sender<Change>,
    denied: Mutex<Vec<mpsc::Sender<DeniedPacket>>>,
    forgotten: Mutex<Vec<IpAddr>>,
}

/// The host. Clones share it.
#[derive(Clone)]
pub struct FakeHost(Arc<Shared>);

impl Default for FakeHost {
    fn default() -> Self {
        Self(Arc::new(Shared {
            firewall: FakeFirewall::default(),
            resolvers: Mutex::default(),
            addresses: Mutex::new(vec![[192, 0, 2, 200].into()]),
            broken: Mutex::default(),
            changes: broadcast::Sender::new(WAITING),
            denied: Mutex::default(),
            forgotten: Mutex::default(),
        }))
    }
}

impl FakeHost {
    /// Its packet filter.
    #[must_use]
    pub fn firewall(&self) -> FakeFirewall {
        self.0.firewall.clone()
    }

    /// Where the questions for this gateway are really answered.
    #[must_use]
    pub fn resolver(&self, gateway: IpAddr) -> Option<SocketAddr> {
        lock(&self.0.resolvers).get(&gateway).copied()
    }

    /// Every gateway that questions were ever answered for.
    #[must_use]
    pub fn gateways(&self) -> Vec<IpAddr> {
        lock(&self.0.resolvers).keys().copied().collect()
    }

    /// The sandboxes whose connections were forgotten, in order.
    #[must_use]
    pub fn forgotten(&self) -> Vec<IpAddr> {
        lock(&self.0.forgotten).clone()
    }

    /// From now on the host gives nothing, for this reason; `None` mends it.
    pub fn set_broken(&self, why: Option<&'static str>) {
        *lock(&self.0.broken) = why;
    }

    /// Tells that somebody else changed the packet filter.
    pub fn tell_change(&self, process: &str) {
        let process = Some(process.to_owned());
        // Nobody listens yet: who starts to, compares first.
        let _ = self.0.changes.send(Change { process });
    }

    /// Tells of a dropped packet.
    pub fn tell_denied(&self, packet: DeniedPacket) {
        lock(&self.0.denied).retain(|listener| listener.try_send(packet.clone()).is_ok());
    }

    fn check(&self, doing: &'static str) -> Result<(), HostError> {
        match *lock(&self.0.broken) {
            Some(why) => Err(HostError::new(doing, why)),
            None => Ok(()),
        }
    }
}

struct FakeChanges(broadcast::Receiver<Change>);

#[async_trait]
impl Changes for FakeChanges {
    async fn changed(&mut self) -> Option<Change> {
        match self.0.recv().await {
            Ok(change) => Some(change),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Change::default()),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

struct FakeDenied(mpsc::Receiver<DeniedPacket>);

#[async_trait]
impl Denied for FakeDenied {
    async fn next(&mut self) -> Option<DeniedPacket> {
        self.0.recv().await
    }
}

struct Nothing;

impl Connections for Nothing {
    fn addresses(&self) -> HashSet<IpAddr> {
        HashSet::new()
    }
}

#[async_trait]
impl Space for FakeHost {
    fn firewall(&self) -> Arc<dyn Firewall> {
        Arc::new(self.0.firewall.clone())
    }

    async fn watch(&self) -> Result<Box<dyn Changes>, HostError> {
        self.check("watch the packet filter")?;
        Ok(Box::new(FakeChanges(self.0.changes.subscribe())))
    }

    fn connections(&self, _sandbox: &[IpAddr]) -> Arc<dyn Connections> {
        Arc::new(Nothing)
    }

    async fn forget(&self, sandbox: &[IpAddr]) -> Result<(), HostError> {
        lock(&self.0.forgotten).extend(sandbox);
        Ok(())
    }

    async fn denied(&self, _group: LogGroup) -> Result<Box<dyn Denied>, HostError> {
        let (tell, told) = mpsc::channel(WAITING);
        lock(&self.0.denied).push(tell);
        Ok(Box::new(FakeDenied(told)))
    }
}

#[async_trait]
impl Host for FakeHost {
    async fn space(&self, _namespace: Namespace) -> Result<Arc<dyn Space>, HostError> {
        self.check("open the packet filter")?;
        Ok(Arc::new(self.clone()))
    }

    async fn resolver_sockets(
        &self,
        _namespace: Namespace,
        gateway: IpAddr,
    ) -> io::Result<(UdpSocket, TcpListener)> {
        self.check("open sockets").map_err(io::Error::other)?;
        // The same port for both, which may take more than one try.
        loop {
            let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let here = udp.local_addr()?;
            match TcpListener::bind(here).await {
                Ok(tcp) => {
                    lock(&self.0.resolvers).insert(gateway, here);
                    return Ok((udp, tcp));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn addresses(&self) -> Result<Vec<IpAddr>, HostError> {
        self.check("list the host's addresses")?;
        Ok(lock(&self.0.addresses).clone())
    }
}
