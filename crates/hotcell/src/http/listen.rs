//! Taking connections: HTTP/1.1 and HTTP/2 without TLS on TCP, HTTP/1.1 on the local socket.
//!
//! ```text
//!   accept ── one of MAX_CONNECTIONS ── FirstBytes ── HTTP/1.1 or HTTP/2, whichever it speaks
//!                                          └ gone when it has not said which in time
//! ```
//!
//! At shutdown no more are taken, those in the midst of a request may finish it for
//! SHUTDOWN_DRAIN_MS, idle ones close at once.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::Router;
use hotcell_types::limits::{
    ACCEPT_PAUSE_MS, HEADER_TIMEOUT_MS, HTTP2_PING_MS, MAX_CONNECTIONS, MAX_HTTP2_STREAMS,
    SHUTDOWN_DRAIN_MS,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
    time::{Instant, Sleep},
};
use tokio_util::sync::CancellationToken;

/// A listener cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The local socket cannot be made.
    #[error("the local socket {path} cannot be made")]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process answers on the local socket.
    #[error("another process listens on the local socket {0}")]
    SocketInUse(PathBuf),
}

/// How many connections may be open, shared by the listeners. Cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<Semaphore>);

impl Connections {
    /// At most so many at once.
    #[must_use]
    pub fn at_most(limit: usize) -> Self {
        Self(Arc::new(Semaphore::new(limit)))
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self::at_most(MAX_CONNECTIONS)
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(HEADER_TIMEOUT_MS));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_HTTP2_STREAMS)
        .keep_alive_interval(Duration::from_millis(HTTP2_PING_MS))
        .keep_alive_timeout(Duration::from_millis(HTTP2_PING_MS));
    builder
}

/// Serves a router on a TCP listener until `shutdown`, then drains.
pub async fn serve_tcp(
    listener: TcpListener,
    router: Router,
    connections: Connections,
    shutdown: CancellationToken,
) {
    serve(listener, router, connections, shutdown).await;
}

/// Serves a router on a socket file that only this user may open, until `shutdown`; then drains
/// and removes the file.
///
/// # Errors
/// When the socket cannot be made, or another process listens on it.
pub async fn serve_unix(
    path: &Path,
    router: Router,
    connections: Connections,
    shutdown: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, ListenError> {
    let failed = |source| ListenError::Socket {
        path: path.to_owned(),
        source,
    };
    if UnixStream::connect(path).await.is_ok() {
        return Err(ListenError::SocketInUse(path.to_owned()));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // Made under another name and renamed, so that it never stands there with a wider mode.
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(".new");
    let hidden = PathBuf::from(hidden);
    let _ = std::fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden).map_err(failed)?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&hidden, path).map_err(failed)?;
    let path = path.to_owned();
    Ok(async move {
        serve(listener, router, connections, shutdown).await;
        let _ = std::fs::remove_file(&path);
    })
}

trait Listener: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Small answers must not wait for more to send.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

async fn serve(
    listener: impl Listener,
    router: Router,
    connections: Connections,
    shutdown: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    loop {
        let permit = tokio::select! {
            permit = connections.0.clone().acquire_owned() => permit,
            () = shutdown.cancelled() => break,
        };
        let Ok(permit) = permit else { break };
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            () = shutdown.cancelled() => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                // Out of descriptors, or a connection that went away at once.
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                continue;
            }
        };
        let io = TokioIo::new(FirstBytes::new(stream));
        let service = TowerToHyperService::new(router.clone());
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            let _permit = permit;
            let builder = builder();
            let connection = builder.serve_connection(io, service).into_owned();
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(error, "a connection ended badly");
            }
        });
    }
    let drain = Duration::from_millis(SHUTDOWN_DRAIN_MS);
    if tokio::time::timeout(drain, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some requests did not end in time and were cut");
    }
}

/// What every HTTP/2 connection begins with, and no HTTP/1.1 connection.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that must say in time which HTTP it speaks. After that the protocols' own
/// timeouts hold.
struct FirstBytes<S> {
    inner: S,
    /// How much of the preface came; `None` once it is clear.
    undecided: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S> FirstBytes<S> {
    fn new(inner: S) -> Self {
        let deadline = Instant::now() + Duration::from_millis(HEADER_TIMEOUT_MS);
        Self {
            inner,
            undecided: Some((0, Box::pin(tokio::time::sleep_until(deadline)))),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.inner).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                if let Some((seen, _)) = &mut self.undecided {
                    let new = &buf.filled()[before..];
                    let expected = &HTTP2_PREFACE[*seen..];
                    let same = new.iter().zip(expected).all(|(a, b)| a == b);
                    if !same || new.is_empty() || new.len() >= expected.len() {
                        self.undecided = None;
                    } else {
                        *seen += new.len();
                    }
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => match &mut self.undecided {
                Some((_, deadline)) => {
                    ready!(deadline.as_mut().poll(cx));
                    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
                }
                None => Poll::Pending,
            },
            failed => failed,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
