//! The gateway namespace and the thread that works in it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use hotcell_types::limits::MAX_GATEWAY_REQUESTS;
use hotcell_uplink::{self as uplink, HostSide, UplinkAddresses, detach};
use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::Handle;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tokio::{
    net::TcpSocket,
    sync::{mpsc, oneshot},
};

use super::{
    link::{self, Reach},
    slot::Slot,
};
use crate::birth::private_mounts;

type Reply<T> = oneshot::Sender<io::Result<T>>;

enum Request {
    Socket(Reply<TcpSocket>),
    Attach {
        name: String,
        slot: Slot,
        sandbox: OwnedFd,
        reach: Reach,
        reply: Reply<()>,
    },
    Uplink {
        host_end: String,
        host: OwnedFd,
        side: HostSide,
        reply: Reply<UplinkAddresses>,
    },
    IsPeer(u32, Reply<bool>),
    Route(UplinkAddresses, Reply<()>),
    Detach {
        name: String,
        reply: Reply<()>,
    },
    Names(Reply<Vec<String>>),
}

/// The way into the gateway namespace. Its thread ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Gateway {
    requests: mpsc::Sender<Request>,
    namespace: Arc<OwnedFd>,
}

impl Gateway {
    /// Enters the namespace that `path` keeps alive, making it when there is none.
    pub(crate) async fn open(path: PathBuf) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel(MAX_GATEWAY_REQUESTS);
        let (ready, opened) = oneshot::channel();
        thread::Builder::new()
            .name("gateway".into())
            .spawn(move || {
                let entered = enter(&path).and_then(|()| Ok((own_namespace()?, reactor()?)));
                match entered {
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                    Ok((namespace, reactor)) => reactor.block_on(serve(inbox, namespace, ready)),
                }
            })?;
        let namespace = Arc::new(opened.await.map_err(|_| gone())??);
        Ok(Self {
            requests,
            namespace,
        })
    }

    /// An unconnected socket of the gateway namespace.
    pub(crate) async fn socket(&self) -> io::Result<TcpSocket> {
        self.ask(Request::Socket).await
    }

    /// Removes a link; one that is not there is fine.
    pub(crate) async fn detach(&self, name: String) -> io::Result<()> {
        self.ask(|reply| Request::Detach { name, reply }).await
    }

    /// The names of all links.
    pub(crate) async fn names(&self) -> io::Result<Vec<String>> {
        self.ask(Request::Names).await
    }

    /// The namespace itself.
    pub(crate) fn namespace(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.namespace)
    }

    /// Makes sure of the uplink to the namespace that the caller is in. `host_end` is its name there;
    /// `seed` says which addresses to try first. May be repeated, also after a failure in the middle.
    pub(crate) async fn uplink(&self, host_end: &str, seed: u32) -> io::Result<UplinkAddresses> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let speaking = tokio::spawn(connection);
        let made = self.make_uplink(&handle, host_end, seed).await;
        speaking.abort();
        made
    }

    async fn make_uplink(
        &self,
        handle: &Handle,
        host_end: &str,
        seed: u32,
    ) -> io::Result<UplinkAddresses> {
        let mut side = uplink::look(handle, host_end, seed).await?;
        if let HostSide::Present { index, .. } = side
            && !self.ask(|reply| Request::IsPeer(index, reply)).await?
        {
            // It leads to a gateway namespace that was lost.
            detach(handle, host_end).await?;
            side = uplink::look(handle, host_end, seed).await?;
        }
        let (host, host_name) = (own_namespace()?, host_end.to_owned());
        let made = self.ask(|reply| Request::Uplink {
            host_end: host_name,
            host,
            side,
            reply,
        });
        let addresses = made.await?;
        uplink::finish_host(handle, host_end, addresses).await?;
        self.ask(|reply| Request::Route(addresses, reply)).await?;
        Ok(addresses)
    }

    /// Links the namespace `sandbox` to the gateway. For threads that may wait.
    pub(crate) fn attach(
        &self,
        name: String,
        slot: Slot,
        reach: Reach,
        sandbox: OwnedFd,
    ) -> io::Result<()> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Attach {
            name,
            slot,
            sandbox,
            reach,
            reply,
        };
        self.requests.blocking_send(request).map_err(|_| gone())?;
        answer.blocking_recv().map_err(|_| gone())?
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> io::Result<T> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(request(reply))
            .await
            .map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread of the gateway namespace is gone")
}

fn reactor() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
}

/// Puts the calling thread into the gateway namespace.
fn enter(path: &Path) -> io::Result<()> {
    let adopted = File::open(path)
        .ok()
        .is_some_and(|file| setns(file, CloneFlags::CLONE_NEWNET).is_ok());
    if !adopted {
        // The file is missing or, after a reboot or a crash in these lines, not yet mounted on.
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(path)?;
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount_bind("/proc/thread-self/ns/net", path)?;
    }
    match uplink::close_gateway() {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            // A hardened unit has /proc/sys read-only; in a mount namespace of our own it need
            // not be.
            unshare(CloneFlags::CLONE_NEWNS)?;
            private_mounts()?;
            uplink::make_writable()?;
            uplink::close_gateway()
        }
        other => other,
    }
}

fn own_namespace() -> io::Result<OwnedFd> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
}

/// Removes the host's end of an uplink, and with it the other; one that is not there is fine.
pub(crate) fn remove_host_end(name: &str) -> io::Result<()> {
    let name = name.to_owned();
    let removing = move || {
        reactor()?.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection()?;
            tokio::spawn(connection);
            detach(&handle, &name).await
        })
    };
    // A thread of its own: the caller may be in a reactor already.
    thread::scope(|scope| scope.spawn(removing).join()).unwrap_or_else(|_| {
        Err(io::Error::other(
            "the thread that removes the uplink failed",
        ))
    })
}

/// Lets go of the namespace that `path` keeps alive; it ends with its last sandbox.
pub(crate) fn close(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    crate::fault::remove_file(path)
}

async fn serve(mut inbox: mpsc::Receiver<Request>, namespace: OwnedFd, ready: Reply<OwnedFd>) {
    let handle = match rtnetlink::new_connection() {
        Ok((connection, handle, _)) => {
            tokio::spawn(connection);
            handle
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(namespace));
    while let Some(request) = inbox.recv().await {
        // Whoever asked may have given up; the answer is then nobody's. Netlink may wait long for
        // the kernel's lock, so that sockets are not kept waiting behind it.
        match request {
            Request::Socket(reply) => {
                let _ = reply.send(TcpSocket::new_v4());
            }
            Request::Attach {
                name,
                slot,
                sandbox,
                reach,
                reply,
            } => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let attached = link::attach(&handle, &name, slot, sandbox, reach).await;
                    let _ = reply.send(attached);
                });
            }
            Request::Uplink {
                host_end,
                host,
                side,
                reply,
            } => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let made = uplink::make(&handle, &host_end, host, &side).await;
                    let _ = reply.send(made);
                });
            }
            Request::IsPeer(index, reply) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = reply.send(uplink::is_peer(&handle, index).await);
                });
            }
            Request::Route(addresses, reply) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = reply.send(uplink::route(&handle, addresses).await);
                });
            }
            Request::Detach { name, reply } => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = reply.send(detach(&handle, &name).await);
                });
            }
            Request::Names(reply) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = reply.send(link::names(&handle).await);
                });
            }
        }
    }
}
