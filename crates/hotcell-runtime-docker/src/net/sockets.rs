//! Sockets that are born in a sandbox's namespace.

use std::{io, os::fd::OwnedFd, sync::Arc, thread, time::Duration};

use hotcell_types::limits::{AGENT_CONNECT_TIMEOUT_MS, MAX_GATEWAY_REQUESTS};
use nix::sched::{CloneFlags, setns};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::Way;

struct Request {
    namespace: Arc<OwnedFd>,
    reply: oneshot::Sender<io::Result<TcpSocket>>,
}

/// One thread that goes from namespace to namespace and does nothing there but make sockets.
/// It ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Sockets {
    requests: mpsc::Sender<Request>,
}

impl Sockets {
    pub(crate) fn open() -> io::Result<Self> {
        let (requests, mut inbox) = mpsc::channel::<Request>(MAX_GATEWAY_REQUESTS);
        thread::Builder::new()
            .name("sockets".into())
            .spawn(move || {
                while let Some(request) = inbox.blocking_recv() {
                    let socket = setns(&*request.namespace, CloneFlags::CLONE_NEWNET)
                        .map_err(io::Error::from)
                        .and_then(|()| TcpSocket::new_v4());
                    // Whoever asked may have given up.
                    let _ = request.reply.send(socket);
                }
            })?;
        Ok(Self { requests })
    }

    /// A connection to an agent.
    pub(crate) async fn connect(&self, way: &Way) -> io::Result<TcpStream> {
        let gone = || io::Error::other("the thread of the sockets is gone");
        let (reply, answer) = oneshot::channel();
        let request = Request {
            namespace: Arc::clone(&way.namespace),
            reply,
        };
        self.requests.send(request).await.map_err(|_| gone())?;
        let socket = answer.await.map_err(|_| gone())??;
        let limit = Duration::from_millis(AGENT_CONNECT_TIMEOUT_MS);
        let stream = timeout(limit, socket.connect(way.agent)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
