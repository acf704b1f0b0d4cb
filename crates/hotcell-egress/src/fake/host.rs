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
    sync::{broadcast, mpsc, watch},
};

use super::{FakeFirewall, lock, mortal::Mortal};
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
    /// How often who speaks with the kernel was ended.
    faults: watch::Sender<u64>,
    forward_drops: Mutex<Vec<String>>,
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
            faults: watch::Sender::new(0),
            forward_drops: Mutex::default(),
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

    /// Ends whoever speaks with the kernel, as a fault in it does: what was opened before is gone for
    /// good, and the packet filter stays as it is.
    pub fn end_speakers(&self) {
        self.0.faults.send_modify(|faults| *faults += 1);
    }

    /// The chains of others that drop what is forwarded.
    pub fn set_forward_drops(&self, chains: &[&str]) {
        *lock(&self.0.forward_drops) = chains.iter().map(|it| (*it).to_owned()).collect();
    }

    /// Tells of a dropped packet.
    pub fn tell_denied(&self, packet: DeniedPacket) {
        lock(&self.0.denied).retain(|listener| listener.try_send(packet.clone()).is_ok());
    }

    /// Whether who began after this many faults still speaks with the kernel.
    pub(super) fn is_alive(&self, faults: u64) -> bool {
        *self.0.faults.borrow() == faults
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

struct FakeSpace {
    host: FakeHost,
    /// The faults that there had been when it was opened.
    faults: u64,
}

#[async_trait]
impl Space for FakeSpace {
    fn firewall(&self) -> Arc<dyn Firewall> {
        Arc::new(Mortal {
            firewall: self.host.firewall(),
            host: self.host.clone(),
            faults: self.faults,
        })
    }

    async fn ended(&self) {
        let mut faults = self.host.0.faults.subscribe();
        // The sender lives as long as `self`.
        let _ = faults.wait_for(|faults| *faults > self.faults).await;
    }

    async fn watch(&self) -> Result<Box<dyn Changes>, HostError> {
        self.host.check("watch the packet filter")?;
        Ok(Box::new(FakeChanges(self.host.0.changes.subscribe())))
    }

    fn connections(&self, _sandbox: &[IpAddr]) -> Arc<dyn Connections> {
        Arc::new(Nothing)
    }

    async fn forget(&self, sandbox: &[IpAddr]) -> Result<(), HostError> {
        lock(&self.host.0.forgotten).extend(sandbox);
        Ok(())
    }

    async fn denied(&self, _group: LogGroup) -> Result<Box<dyn Denied>, HostError> {
        let (tell, told) = mpsc::channel(WAITING);
        lock(&self.host.0.denied).push(tell);
        Ok(Box::new(FakeDenied(told)))
    }
}

#[async_trait]
impl Host for FakeHost {
    async fn space(&self, _namespace: Namespace) -> Result<Arc<dyn Space>, HostError> {
        self.check("open the packet filter")?;
        Ok(Arc::new(FakeSpace {
            host: self.clone(),
            faults: *self.0.faults.borrow(),
        }))
    }

    async fn resolver_sockets(
        &self,
        _namespace: Namespace,
        gateway: IpAddr,
        _sandbox: Vec<IpAddr>,
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

    async fn forward_drops(&self, _interfaces: &str) -> Result<Vec<String>, HostError> {
        self.check("list the chains of others")?;
        Ok(lock(&self.0.forward_drops).clone())
    }
}
