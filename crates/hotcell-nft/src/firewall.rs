//! The thread that speaks for one network namespace, and its handle.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    thread,
};

use async_trait::async_trait;
use hotcell_egress::{
    firewall::{Firewall, FirewallError, OpenAddress},
    layout::{LeaseRules, Reach},
    report::{Difference, TableReport},
    ruleset::{ObjectName, Ruleset},
};
use hotcell_types::limits::{MAX_FIREWALL_REQUESTS, MAX_MERGED_OPENINGS};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::table::Tables;

type Reply<T> = oneshot::Sender<Result<T, FirewallError>>;

enum Request {
    Replace(Box<Ruleset>, Vec<OpenAddress>, Reply<()>),
    Remove(ObjectName, Reply<()>),
    AddLease(ObjectName, Box<LeaseRules>, Reply<()>),
    RemoveLease(ObjectName, Box<LeaseRules>, Reply<()>),
    Connect(ObjectName, Box<LeaseRules>, Reach, Reply<()>),
    Open(Opening),
    Close(ObjectName, Vec<(ObjectName, IpAddr)>, Reply<()>),
    List(String, Reply<Vec<ObjectName>>),
    Report(ObjectName, Reply<Option<TableReport>>),
    Differences(Box<Ruleset>, Reply<Vec<Difference>>),
    #[cfg(test)]
    Panic(Reply<()>),
}

struct Opening {
    table: ObjectName,
    addresses: Vec<OpenAddress>,
    reply: Reply<()>,
}

/// The packet filter of one network namespace. Cheap to clone; the thread ends with the last clone.
#[derive(Debug, Clone)]
pub struct NftFirewall {
    requests: mpsc::Sender<Request>,
    port: u32,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

/// Why the packet filter cannot be spoken with.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The network namespace could not be entered.
    #[error("cannot enter the network namespace")]
    Namespace(#[source] io::Error),
    /// No socket to the packet filter.
    #[error("cannot open a socket to the packet filter")]
    Socket(#[source] io::Error),
    /// No thread.
    #[error("cannot start the packet filter's thread")]
    Thread(#[source] io::Error),
}

/// Runs `work` on a thread of its own that is in `namespace`, or where this one is.
pub(crate) fn in_namespace<T: 'static>(
    name: &str,
    namespace: Option<OwnedFd>,
    prepare: impl FnOnce() -> io::Result<T> + Send + 'static,
    work: impl FnOnce(T) + Send + 'static,
    ready: impl FnOnce(Result<&T, OpenError>) + Send + 'static,
) -> Result<thread::JoinHandle<()>, OpenError> {
    let enter = move || {
        if let Some(namespace) = namespace {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| OpenError::Namespace(error.into()))?;
        }
        prepare().map_err(OpenError::Socket)
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || match enter() {
            Ok(prepared) => {
                ready(Ok(&prepared));
                work(prepared);
            }
            Err(error) => ready(Err(error)),
        })
        .map_err(OpenError::Thread)
}

impl NftFirewall {
    /// Starts the thread. `namespace` is an open network namespace; without one it is the caller's.
    /// Blocks for the time that opening a socket takes.
    ///
    /// # Errors
    /// When the namespace cannot be entered or no socket can be opened there.
    pub fn open(namespace: Option<OwnedFd>) -> Result<Self, OpenError> {
        let (requests, received) = mpsc::channel(MAX_FIREWALL_REQUESTS);
        let (ready, opened) = std::sync::mpsc::sync_channel(1);
        // Sockets stay on the thread: `Tables` is opened where it is used.
        let port = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let told = port.clone();
        in_namespace(
            "packet-filter",
            namespace,
            move || {
                // A first socket proves that there can be one.
                let tables = Tables::open()?;
                told.store(tables.port(), std::sync::atomic::Ordering::Release);
                Ok(tables)
            },
            move |tables| serve(tables, received),
            move |outcome| {
                let _ = ready.send(outcome.map(|_| ()));
            },
        )?;
        let gone = || OpenError::Thread(io::ErrorKind::BrokenPipe.into());
        opened.recv().map_err(|_| gone())??;
        let port = port.load(std::sync::atomic::Ordering::Acquire);
        Ok(Self { requests, port })
    }

    /// The netlink address under which this one's changes are made; a [`Watcher`](crate::Watcher) knows
    /// them by it. It changes only when the socket had to be opened again after an error.
    #[must_use]
    pub const fn port(&self) -> u32 {
        self.port
    }

    /// Returns when the thread has ended. Every request fails from then on.
    pub async fn ended(&self) {
        self.requests.closed().await;
    }

    async fn request<T>(&self, make: impl FnOnce(Reply<T>) -> Request) -> Result<T, FirewallError> {
        let (reply, answer) = oneshot::channel();
        let gone = |_| FirewallError::Gone;
        self.requests
            .send(make(reply))
            .await
            .map_err(|_| FirewallError::Gone)?;
        answer.await.map_err(gone)?
    }
}

#[async_trait]
impl Firewall for NftFirewall {
    async fn replace(&self, ruleset: &Ruleset, open: &[OpenAddress]) -> Result<(), FirewallError> {
        let (ruleset, open) = (Box::new(ruleset.clone()), open.to_vec());
        self.request(|reply| Request::Replace(ruleset, open, reply))
            .await
    }

    async fn remove(&self, table: &ObjectName) -> Result<(), FirewallError> {
        let table = table.clone();
        self.request(|reply| Request::Remove(table, reply)).await
    }

    async fn add_lease(&self, table: &ObjectName, lease: &LeaseRules) -> Result<(), FirewallError> {
        let (table, lease) = (table.clone(), Box::new(lease.clone()));
        self.request(|reply| Request::AddLease(table, lease, reply))
            .await
    }

    async fn remove_lease(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
    ) -> Result<(), FirewallError> {
        let (table, lease) = (table.clone(), Box::new(lease.clone()));
        self.request(|reply| Request::RemoveLease(table, lease, reply))
            .await
    }

    async fn connect(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        let (table, lease) = (table.clone(), Box::new(lease.clone()));
        self.request(|reply| Request::Connect(table, lease, reach, reply))
            .await
    }

    async fn open(
        &self,
        table: &ObjectName,
        addresses: &[OpenAddress],
    ) -> Result<(), FirewallError> {
        let (table, addresses) = (table.clone(), addresses.to_vec());
        self.request(|reply| {
            Request::Open(Opening {
                table,
                addresses,
                reply,
            })
        })
        .await
    }

    async fn close(
        &self,
        table: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError> {
        let (table, addresses) = (table.clone(), addresses.to_vec());
        self.request(|reply| Request::Close(table, addresses, reply))
            .await
    }

    async fn tables(&self, prefix: &str) -> Result<Vec<ObjectName>, FirewallError> {
        let prefix = prefix.to_owned();
        self.request(|reply| Request::List(prefix, reply)).await
    }

    async fn report(&self, table: &ObjectName) -> Result<Option<TableReport>, FirewallError> {
        let table = table.clone();
        self.request(|reply| Request::Report(table, reply)).await
    }

    async fn differences(&self, ruleset: &Ruleset) -> Result<Vec<Difference>, FirewallError> {
        let ruleset = Box::new(ruleset.clone());
        self.request(|reply| Request::Differences(ruleset, reply))
            .await
    }
}

fn serve(mut tables: Tables, mut requests: mpsc::Receiver<Request>) {
    let mut waiting = None;
    while let Some(request) = waiting.take().or_else(|| requests.blocking_recv()) {
        match request {
            Request::Open(first) => waiting = open_together(&mut tables, first, &mut requests),
            Request::Replace(ruleset, open, reply) => {
                answer(&mut tables, reply, |tables| tables.replace(&ruleset, &open));
            }
            Request::Remove(table, reply) => {
                answer(&mut tables, reply, |tables| tables.remove(&table));
            }
            Request::AddLease(table, lease, reply) => {
                answer(&mut tables, reply, |tables| {
                    tables.add_lease(&table, &lease)
                });
            }
            Request::RemoveLease(table, lease, reply) => {
                answer(&mut tables, reply, |tables| {
                    tables.remove_lease(&table, &lease)
                });
            }
            Request::Connect(table, lease, reach, reply) => {
                answer(&mut tables, reply, |tables| {
                    tables.connect(&table, &lease, reach)
                });
            }
            Request::Close(table, addresses, reply) => {
                answer(&mut tables, reply, |tables| {
                    tables.close_addresses(&table, &addresses)
                });
            }
            #[cfg(test)]
            Request::Panic(_reply) => panic!("told to"),
            Request::List(prefix, reply) => {
                answer(&mut tables, reply, |tables| tables.list(&prefix));
            }
            Request::Report(table, reply) => {
                answer(&mut tables, reply, |tables| tables.report(&table));
            }
            Request::Differences(ruleset, reply) => {
                answer(&mut tables, reply, |tables| tables.differences(&ruleset));
            }
        }
    }
}

/// Openings that wait together are one transaction. When it fails each is tried alone, so that one
/// lease that is gone costs no other its address. Gives back a request of another kind that it met.
fn open_together(
    tables: &mut Tables,
    first: Opening,
    requests: &mut mpsc::Receiver<Request>,
) -> Option<Request> {
    let mut together = vec![first];
    let mut other = None;
    while together.len() < MAX_MERGED_OPENINGS {
        match requests.try_recv() {
            Ok(Request::Open(next)) if next.table == together[0].table => together.push(next),
            Ok(request) => {
                other = Some(request);
                break;
            }
            Err(_) => break,
        }
    }
    if together.len() > 1 {
        let table = together[0].table.clone();
        let all: Vec<OpenAddress> = together
            .iter()
            .flat_map(|o| o.addresses.iter().cloned())
            .collect();
        if tables.open_addresses(&table, &all).is_ok() {
            for opening in together {
                let _ = opening.reply.send(Ok(()));
            }
            return other;
        }
        reopen(tables);
    }
    for opening in together {
        let Opening {
            table,
            addresses,
            reply,
        } = opening;
        answer(tables, reply, |tables| {
            tables.open_addresses(&table, &addresses)
        });
    }
    other
}

/// Somebody who no longer waits for the answer is no error.
fn answer<T>(
    tables: &mut Tables,
    reply: Reply<T>,
    work: impl FnOnce(&mut Tables) -> Result<T, FirewallError>,
) {
    let outcome = work(tables);
    if matches!(outcome, Err(FirewallError::Io { .. })) {
        reopen(tables);
    }
    let _ = reply.send(outcome);
}

/// After a failed read an answer may still be under way: a new socket has none.
fn reopen(tables: &mut Tables) {
    match Tables::open() {
        Ok(fresh) => *tables = fresh,
        Err(error) => warn!(%error, "cannot open the packet filter's socket again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_panics_is_told_and_another_takes_over() {
        let firewall = NftFirewall::open(None).unwrap();
        let found = firewall.tables("no_such_table_").await.unwrap();
        assert_eq!(found, []);
        assert!(
            futures_now(firewall.ended()).await.is_none(),
            "it has not ended"
        );
        let answer = firewall.request(Request::Panic).await;
        assert!(matches!(answer, Err(FirewallError::Gone)), "{answer:?}");
        firewall.ended().await;
        let after = firewall.tables("no_such_table_").await;
        assert!(matches!(after, Err(FirewallError::Gone)), "{after:?}");

        let again = NftFirewall::open(None).unwrap();
        assert_ne!(again.port(), 0);
        assert_eq!(again.tables("no_such_table_").await.unwrap(), []);
    }

    /// What is there at once, if anything is.
    async fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = future => Some(done),
            () = std::future::ready(()) => None,
        }
    }
}
