//! The connections that the kernel knows of, seen from one sandbox.
//!
//! Two uses. A full table of learned addresses lets those go first that nothing is connected to. And
//! what a sandbox had open must be forgotten with it: its address is given to another one, whose
//! packets must not pass as answers in a connection that was never theirs.

use std::{
    collections::HashSet, io, net::IpAddr, os::fd::OwnedFd, sync::mpsc as blocking, time::Duration,
};

use hotcell_egress::{dns::Connections, firewall::FirewallError, ruleset::Family};
use hotcell_types::limits::{
    MAX_CONNTRACK_REQUESTS, NETLINK_ANSWER_TIMEOUT_MS, NETLINK_DUMP_TRIES,
};
use nftnl::nftnl_sys::libc;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::{
    encode::octets,
    firewall::{OpenError, in_namespace},
    message::{Question, attribute, find, nest},
    netlink::{Message, Netlink},
};

// The kernel's nfnetlink_conntrack.h.
const GET: i32 = 1;
const DELETE: i32 = 2;
const TUPLE_ORIGINAL: u16 = 1;
const PROTOCOL_INFO: u16 = 4;
const ID: u16 = 12;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_SOURCE: u32 = 1;
const FILTER_DESTINATION: u32 = 2;
const TUPLE_ADDRESSES: u16 = 1;
const PROTOCOL_INFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;
/// `TCP_CONNTRACK_TIME_WAIT`; from it on a connection is over.
const TCP_TIME_WAIT: u8 = 7;

enum Request {
    Remotes(
        IpAddr,
        blocking::SyncSender<Result<HashSet<IpAddr>, FirewallError>>,
    ),
    Forget(IpAddr, oneshot::Sender<Result<usize, FirewallError>>),
}

/// The connections of one network namespace. Cheap to clone; the thread ends with the last clone.
#[derive(Debug, Clone)]
pub struct Conntrack {
    requests: mpsc::Sender<Request>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Conntrack {
    /// Starts the thread. `namespace` is an open network namespace; without one it is the caller's.
    ///
    /// # Errors
    /// When the namespace cannot be entered or no socket can be opened there.
    pub fn open(namespace: Option<OwnedFd>) -> Result<Self, OpenError> {
        let (requests, received) = mpsc::channel(MAX_CONNTRACK_REQUESTS);
        let (ready, opened) = blocking::sync_channel(1);
        in_namespace(
            "connections",
            namespace,
            Netlink::open,
            move |netlink| serve(netlink, received),
            move |outcome| {
                let _ = ready.send(outcome.map(|_| ()));
            },
        )?;
        let gone = || OpenError::Thread(io::ErrorKind::BrokenPipe.into());
        opened.recv().map_err(|_| gone())??;
        Ok(Self { requests })
    }

    /// Forgets every connection from or to this sandbox; says how many there were. The next packet of
    /// any of them is a new connection for the filter.
    ///
    /// # Errors
    /// When the kernel does not answer; some may be forgotten then.
    pub async fn forget(&self, sandbox: IpAddr) -> Result<usize, FirewallError> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Forget(sandbox, reply);
        let gone = |_| FirewallError::Gone;
        self.requests
            .send(request)
            .await
            .map_err(|_| FirewallError::Gone)?;
        answer.await.map_err(gone)?
    }

    /// The addresses that this sandbox has an open connection to. Blocks for the time that the kernel
    /// takes to list them.
    ///
    /// # Errors
    /// When the kernel does not answer in time.
    pub fn remotes(&self, sandbox: IpAddr) -> Result<HashSet<IpAddr>, FirewallError> {
        let (reply, answer) = blocking::sync_channel(1);
        self.requests
            .try_send(Request::Remotes(sandbox, reply))
            .map_err(|_| FirewallError::Limit("too many questions about connections"))?;
        let patience = Duration::from_millis(NETLINK_ANSWER_TIMEOUT_MS);
        answer
            .recv_timeout(patience)
            .map_err(|_| FirewallError::Gone)?
    }

    /// What the DNS side of a sandbox asks.
    #[must_use]
    pub fn of_sandbox(&self, sandbox: impl IntoIterator<Item = IpAddr>) -> SandboxConnections {
        SandboxConnections {
            conntrack: self.clone(),
            sandbox: sandbox.into_iter().collect(),
        }
    }
}

/// The connections of one sandbox, by all its addresses.
#[derive(Debug, Clone)]
pub struct SandboxConnections {
    conntrack: Conntrack,
    sandbox: Vec<IpAddr>,
}

impl Connections for SandboxConnections {
    fn addresses(&self) -> HashSet<IpAddr> {
        let mut all = HashSet::new();
        for sandbox in &self.sandbox {
            match self.conntrack.remotes(*sandbox) {
                Ok(remotes) => all.extend(remotes),
                // Then the oldest goes first, connected or not.
                Err(error) => warn!(%error, "open connections are not known"),
            }
        }
        all
    }
}

fn serve(mut netlink: Netlink, mut requests: mpsc::Receiver<Request>) {
    while let Some(request) = requests.blocking_recv() {
        // Somebody who no longer waits for the answer is no error.
        let failed = match request {
            Request::Remotes(sandbox, reply) => {
                let outcome = remotes(&mut netlink, sandbox);
                let failed = outcome.is_err();
                let _ = reply.send(outcome);
                failed
            }
            Request::Forget(sandbox, reply) => {
                let outcome = forget(&mut netlink, sandbox);
                let failed = outcome.is_err();
                let _ = reply.send(outcome);
                failed
            }
        };
        if failed {
            // An answer may still be under way: a new socket has none.
            match Netlink::open() {
                Ok(fresh) => netlink = fresh,
                Err(error) => warn!(%error, "cannot open the socket for connections again"),
            }
        }
    }
}

/// One connection, as it began.
struct Connection {
    source: IpAddr,
    destination: IpAddr,
    over: bool,
    /// What names it to the kernel: its addresses, protocol and ports, and its number.
    name: Vec<u8>,
}

fn connection(message: Message<'_>) -> Option<Connection> {
    let all = message.attributes();
    let tuple = find(all, TUPLE_ORIGINAL)?;
    let addresses = find(tuple, TUPLE_ADDRESSES)?;
    // IPv4 source and destination are 1 and 2, those of IPv6 are 3 and 4.
    let address = |v4, v6| {
        let v4 = find(addresses, v4).and_then(|data| <[u8; 4]>::try_from(data).ok());
        let v6 = find(addresses, v6).and_then(|data| <[u8; 16]>::try_from(data).ok());
        v4.map(IpAddr::from).or(v6.map(IpAddr::from))
    };
    let tcp_state = find(all, PROTOCOL_INFO)
        .and_then(|info| find(info, PROTOCOL_INFO_TCP))
        .and_then(|tcp| find(tcp, TCP_STATE))
        .and_then(|state| state.first().copied());
    let mut name = nest(TUPLE_ORIGINAL, tuple);
    name.extend(
        find(all, ID)
            .map(|id| attribute(ID, id))
            .unwrap_or_default(),
    );
    Some(Connection {
        source: address(1, 3)?,
        destination: address(2, 4)?,
        over: tcp_state.is_some_and(|state| state >= TCP_TIME_WAIT),
        name,
    })
}

fn family(address: IpAddr) -> i32 {
    match Family::of(address).0 {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    }
}

/// Every connection that began from the sandbox, or that began to it. The kernel leaves the others out
/// when it can; what it lists is looked at all the same.
fn dump(
    netlink: &mut Netlink,
    sandbox: IpAddr,
    from_it: bool,
) -> Result<Vec<Connection>, FirewallError> {
    let v6 = u16::from(sandbox.is_ipv6()) * 2;
    let (side, flag) = if from_it {
        (1 + v6, FILTER_SOURCE)
    } else {
        (2 + v6, FILTER_DESTINATION)
    };
    let addresses = nest(TUPLE_ADDRESSES, &attribute(side, &octets(sandbox)));
    let mut attributes = nest(TUPLE_ORIGINAL, &addresses);
    let filter = attribute(FILTER_ORIGINAL, &flag.to_ne_bytes());
    attributes.extend(nest(FILTER, &filter));
    let question = Question {
        subsystem: libc::NFNL_SUBSYS_CTNETLINK,
        kind: GET,
        flags: libc::NLM_F_DUMP,
        family: family(sandbox),
        resource: 0,
        attributes: &attributes,
    };
    for _ in 0..NETLINK_DUMP_TRIES {
        let mut found = Vec::new();
        let asked = netlink.ask_other("list connections", &question, |message| {
            let ours = |known: &Connection| {
                sandbox
                    == if from_it {
                        known.source
                    } else {
                        known.destination
                    }
            };
            found.extend(connection(message).filter(ours));
        });
        match asked {
            Err(FirewallError::Refused { source, .. })
                if source.raw_os_error() == Some(libc::EINTR) => {}
            other => return other.map(|()| found),
        }
    }
    Err(FirewallError::Limit(
        "connections change faster than they can be read",
    ))
}

fn remotes(netlink: &mut Netlink, sandbox: IpAddr) -> Result<HashSet<IpAddr>, FirewallError> {
    let from = dump(netlink, sandbox, true)?;
    Ok(from
        .into_iter()
        .filter(|connection| !connection.over)
        .map(|connection| connection.destination)
        .collect())
}

fn forget(netlink: &mut Netlink, sandbox: IpAddr) -> Result<usize, FirewallError> {
    let mut all = dump(netlink, sandbox, true)?;
    all.extend(dump(netlink, sandbox, false)?);
    let mut forgotten = 0;
    for connection in all {
        let question = Question {
            subsystem: libc::NFNL_SUBSYS_CTNETLINK,
            kind: DELETE,
            flags: 0,
            family: family(sandbox),
            resource: 0,
            attributes: &connection.name,
        };
        match netlink.ask_other("forget a connection", &question, |_| {}) {
            Ok(()) => forgotten += 1,
            // It ended by itself meanwhile.
            Err(FirewallError::Refused { source, .. })
                if source.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(forgotten)
}
