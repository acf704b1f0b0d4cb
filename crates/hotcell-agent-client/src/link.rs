//! A connection that breaks when its sandbox ends, whatever the network says, and that gives a
//! refusal to be read when the other side stopped listening.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A socket, and the end of the sandbox behind it.
pub(crate) struct Link {
    stream: TcpStream,
    ended: CancellationToken,
    wait: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The other side does not listen any more.
    deaf: bool,
}

/// What every operation on a broken link says.
pub(crate) fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the sandbox has ended")
}

impl Link {
    pub(crate) fn new(stream: TcpStream, ended: CancellationToken) -> Self {
        Self {
            stream,
            wait: Box::pin(ended.clone().cancelled_owned()),
            ended,
            deaf: false,
        }
    }

    pub(crate) fn into_parts(self) -> (TcpStream, CancellationToken) {
        (self.stream, self.ended)
    }

    /// Whoever refuses an upload answers and hangs up while it is still under way. Its answer is
    /// there to be read, so a write that comes too late must not be what this connection ends
    /// with: it waits for ever, and the reading side, which is woken by the same event, tells how
    /// the connection ended.
    fn or_deaf(
        &mut self,
        cx: &Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Err(error))
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                if !self.deaf {
                    self.deaf = true;
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
            other => other,
        }
    }

    /// Fails once the sandbox has ended; else has this task woken then.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.wait.as_mut().poll(cx) {
            Poll::Ready(()) => Err(ended()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.or_deaf(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.or_deaf(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
