//! The gateway namespace and the thread that works in it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
};

use hotcell_types::limits::MAX_GATEWAY_REQUESTS;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tokio::{
    net::TcpSocket,
    sync::{mpsc, oneshot},
};

use super::{link, slot::Slot, sysctl};
use crate::birth::private_mounts;

type Reply<T> = oneshot::Sender<io::Result<T>>;

enum Request {
    Socket(Reply<TcpSocket>),
    Attach {
        name: String,
        slot: Slot,
        sandbox: OwnedFd,
        reply: Reply<()>,
    },
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
}

impl Gateway {
    /// Enters the namespace that `path` keeps alive, making it when there is none.
    pub(crate) async fn open(path: PathBuf) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel(MAX_GATEWAY_REQUESTS);
        let (ready, opened) = oneshot::channel();
        thread::Builder::new()
            .name("gateway".into())
            .spawn(move || match enter(&path).and_then(|()| reactor()) {
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
                Ok(reactor) => reactor.block_on(serve(inbox, ready)),
            })?;
        opened.await.map_err(|_| gone())??;
        Ok(Self { requests })
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

    /// Links the namespace `sandbox` to the gateway. For threads that may wait.
    pub(crate) fn attach(&self, name: String, slot: Slot, sandbox: OwnedFd) -> io::Result<()> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Attach {
            name,
            slot,
            sandbox,
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
    match sysctl::close_gateway() {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            // A hardened unit has /proc/sys read-only; in a mount namespace of our own it need
            // not be.
            unshare(CloneFlags::CLONE_NEWNS)?;
            private_mounts()?;
            sysctl::make_writable()?;
            sysctl::close_gateway()
        }
        other => other,
    }
}

/// Lets go of the namespace that `path` keeps alive; it ends with its last sandbox.
pub(crate) fn close(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    crate::fault::remove_file(path)
}

async fn serve(mut inbox: mpsc::Receiver<Request>, ready: Reply<()>) {
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
    let _ = ready.send(Ok(()));
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
                reply,
            } => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = reply.send(link::attach(&handle, &name, slot, sandbox).await);
                });
            }
            Request::Detach { name, reply } => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = reply.send(link::detach(&handle, &name).await);
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
