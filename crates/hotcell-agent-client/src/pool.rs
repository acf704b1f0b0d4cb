//! Connections to one agent: new ones, and a few idle ones that save a handshake.
//!
//! A connection serves one request at a time. Dropping it closes the socket at once, which is
//! what ends a call that nobody waits for any more. All of them break when the sandbox ends: one
//! task waits for that, from the first connection on.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hotcell_runtime::SandboxError;
use hotcell_types::limits;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    Dial,
    error::{from_hyper, lost},
    link::Link,
    patience::millis,
};

/// The body of a request.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, SandboxError>;

/// One connection.
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<RequestBody>,
    _driver: AbortOnDropHandle<()>,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

/// Waits for the end of one run of the sandbox.
struct Watch {
    ended: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

/// The idle connections of one sandbox, and the way to new ones.
#[derive(Clone)]
pub(crate) struct Pool {
    dial: Arc<dyn Dial>,
    idle: Arc<Mutex<Vec<Idle>>>,
    watch: Arc<Mutex<Option<Watch>>>,
    keep: Duration,
}

impl Pool {
    pub(crate) fn new(dial: Arc<dyn Dial>, keep: Duration) -> Self {
        Self {
            dial,
            idle: Arc::default(),
            watch: Arc::default(),
            keep,
        }
    }

    pub(crate) fn set_keep(&mut self, keep: Duration) {
        self.keep = keep;
    }

    /// The idle connection that was used last, if one is fresh enough to trust.
    pub(crate) fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < self.keep && !idle.connection.sender.is_closed());
        idle.pop().map(|idle| idle.connection)
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(crate) fn put(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < self.keep);
        if idle.len() < limits::MAX_AGENT_IDLE_CONNECTIONS && !connection.sender.is_closed() {
            idle.push(Idle {
                connection,
                since: Instant::now(),
            });
        }
    }

    /// The end of the run that a new connection reaches.
    fn ended(&self) -> CancellationToken {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = &*watch
            && !watch.ended.is_cancelled()
        {
            return watch.ended.clone();
        }
        let ended = CancellationToken::new();
        let (dial, end) = (Arc::clone(&self.dial), ended.clone());
        let task = tokio::spawn(async move {
            dial.gone().await;
            end.cancel();
        });
        *watch = Some(Watch {
            ended: ended.clone(),
            _task: AbortOnDropHandle::new(task),
        });
        ended
    }

    /// A new connection, within `patience`.
    pub(crate) async fn connect(&self, patience: Duration) -> Result<Connection, SandboxError> {
        let dial = async {
            let stream = self.dial.dial().await.map_err(|error| lost(&error))?;
            stream.set_nodelay(true).map_err(|error| lost(&error))?;
            Ok::<_, SandboxError>(stream)
        };
        let stream = timeout(patience, dial)
            .await
            .map_err(|_| SandboxError::Timeout(millis(patience)))??;
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(limits::AGENT_READ_BUFFER_BYTES)
            .max_headers(limits::MAX_AGENT_ANSWER_HEADERS)
            .handshake(TokioIo::new(Link::new(stream, self.ended())))
            .await
            .map_err(|error| from_hyper(&error))?;
        let driver = tokio::spawn(async move {
            // Its failure reaches whoever waits on the request.
            let _ = driver.with_upgrades().await;
        });
        Ok(Connection {
            sender,
            _driver: AbortOnDropHandle::new(driver),
        })
    }
}
