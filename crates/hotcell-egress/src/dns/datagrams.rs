//! Questions over UDP.
//!
//! ```text
//!  socket ─► up to a batch of datagrams ─┬─ an answer is ready ─► sent
//!                                        ├─ can be answered without waiting ─► sent, by the same task
//!                                        └─ must wait ─► a task of its own; DnsFilter bounds how many
//! ```
//! So most questions are answered by the task that reads the socket, and no other thread has to wake up
//! for them: also not to hear that the socket may be written to again, which it could after each answer. A reader that cannot read, or an answer that panics, ends it all with the reason: whoever
//! owns the filter sets it up anew, rather than have it deaf.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::Poll,
};

use hickory_net::{NetError, xfer::Protocol};
use hickory_proto::{ProtoError, serialize::binary::BinEncoder};
use hickory_server::{server::Request, zone_handler::MessageResponseBuilder};
use hotcell_types::limits::{MAX_DNS_BATCH, MAX_DNS_READ_FAILURES, MAX_DNS_UDP_BYTES};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UdpSocket,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use super::{
    question::HEADER_BYTES,
    reply::{LEAST_UDP_BYTES, Reply},
    server::Handler,
};

/// The bit of a response in the third byte of a header.
const IS_RESPONSE: u8 = 0x80;
/// The kind of operation and "recursion desired", there.
const REPEATED: u8 = 0x79;
const FORMAT_ERROR: u8 = 1;

/// Answers until the socket fails for good, or an answer panics.
pub(super) async fn serve(socket: UdpSocket, handler: Arc<Handler>) -> NetError {
    let socket = match only_readable(socket) {
        Ok(socket) => Arc::new(socket),
        Err(error) => return NetError::from(error),
    };
    let mut reader = Reader {
        socket,
        handler,
        waiting: JoinSet::new(),
        buffer: vec![0; MAX_DNS_UDP_BYTES.into()],
        answer: Vec::with_capacity(LEAST_UDP_BYTES.into()),
        failures: 0,
    };
    let mut telling = pin!(sleep_until(Instant::now()));
    loop {
        let tells_at = reader.handler.filter().tells_at();
        if let Some(at) = tells_at
            && telling.deadline() != at
        {
            telling.as_mut().reset(at);
        }
        tokio::select! {
            biased;
            // Not only while there is nothing to read: a sandbox that never stops asking is told of, too.
            () = telling.as_mut(), if tells_at.is_some() => reader.handler.filter().tell(),
            readable = readable(&reader.socket) => {
                let done = match readable {
                    Ok(()) => reader.batch().await,
                    Err(error) => Err(NetError::from(error)),
                };
                if let Err(error) = done {
                    return error;
                }
            }
            Some(ended) = reader.waiting.join_next() => {
                if let Err(error) = checked(ended) {
                    return error;
                }
            }
        }
    }
}

/// Told only when there is something to read.
type Socket = AsyncFd<std::net::UdpSocket>;

fn only_readable(socket: UdpSocket) -> io::Result<Socket> {
    let socket = socket.into_std()?;
    #[allow(
        deprecated,
        reason = "what took its place is unsafe because of types that lie about their descriptor; std's do not"
    )]
    AsyncFd::with_interest(socket, Interest::READABLE)
}

async fn readable(socket: &Socket) -> io::Result<()> {
    socket.readable().await?.retain_ready();
    Ok(())
}

struct Reader {
    socket: Arc<Socket>,
    handler: Arc<Handler>,
    /// Answers that must wait.
    waiting: JoinSet<()>,
    buffer: Vec<u8>,
    answer: Vec<u8>,
    /// To read, in a row.
    failures: u32,
}

impl Reader {
    /// Answers what is there, or as much as one may before others have their turn.
    async fn batch(&mut self) -> Result<(), NetError> {
        while let Some(ended) = self.waiting.try_join_next() {
            checked(ended)?;
        }
        let now = Instant::now();
        for _ in 0..MAX_DNS_BATCH {
            let buffer = &mut self.buffer;
            let received = self
                .socket
                .try_io(Interest::READABLE, |socket| socket.recv_from(buffer));
            match received {
                Ok((length, from)) => {
                    self.failures = 0;
                    self.datagram(length, from, now).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    self.failures += 1;
                    if is_final(&error) || self.failures >= MAX_DNS_READ_FAILURES {
                        return Err(NetError::from(error));
                    }
                    warn!(%error, "a question could not be read");
                }
            }
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn datagram(&mut self, length: usize, from: SocketAddr, now: Instant) {
        let Some(asked) = self.buffer.get(..length) else {
            return;
        };
        if from.port() == 0 || from.ip().is_unspecified() || !is_question(asked) {
            return;
        }
        self.answer.clear();
        let filter = self.handler.filter();
        if filter.answer_at_once(asked, now, &mut self.answer) {
            send(&self.socket, Ok(&self.answer), from);
            return;
        }
        let (socket, handler) = (Arc::clone(&self.socket), Arc::clone(&self.handler));
        let request = Request::from_bytes(asked.to_vec(), from, Protocol::Udp);
        let malformed = request.is_err().then(|| malformed(asked));
        let mut answering = Box::pin(async move {
            let answer = match request {
                Ok(request) => {
                    let reply = handler.reply(&request).await;
                    encode(&request, &reply)
                }
                Err(error) => malformed.ok_or(error),
            };
            send(&socket, answer.as_deref(), from);
        });
        let at_once = poll_fn(|context| Poll::Ready(answering.as_mut().poll(context))).await;
        if at_once.is_pending() {
            self.waiting.spawn(answering);
        }
    }
}

/// An answer that panicked is a fault of ours that must not stay unseen.
fn checked(ended: Result<(), JoinError>) -> Result<(), NetError> {
    ended.map_err(|error| NetError::from(format!("an answer: {error}")))
}

/// One that the socket does not take at once is lost, as datagrams are; the client asks again.
fn send(socket: &Socket, answer: Result<&[u8], &ProtoError>, to: SocketAddr) {
    let sent = match answer {
        Ok(answer) => socket.get_ref().send_to(answer, to).map(drop),
        Err(error) => Err(io::Error::other(error.to_string())),
    };
    if let Err(error) = sent {
        debug!(%error, "an answer could not be sent");
    }
}

/// Whether there is a header, and it is no response's: nobody is answered for answering.
fn is_question(asked: &[u8]) -> bool {
    asked.len() >= HEADER_BYTES && asked[2] & IS_RESPONSE == 0
}

/// The header of an answer to what cannot be read.
fn malformed(asked: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; HEADER_BYTES];
    answer[..2].copy_from_slice(&asked[..2]);
    answer[2] = IS_RESPONSE | (asked[2] & REPEATED);
    answer[3] = FORMAT_ERROR;
    answer
}

/// Cut off, and marked so, where it is longer than the client takes.
fn encode(request: &Request, reply: &Reply) -> Result<Vec<u8>, ProtoError> {
    let edns = request.edns.as_ref().map(|asked| reply.edns(asked));
    let mut builder = MessageResponseBuilder::from_message_request(request);
    if let Some(edns) = &edns {
        builder.edns(edns);
    }
    let metadata = reply.metadata(&request.metadata);
    let message = builder.build(metadata, &reply.answers, [], &reply.soa, []);
    let mut bytes = Vec::with_capacity(LEAST_UDP_BYTES.into());
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(
        edns.as_ref()
            .map_or(LEAST_UDP_BYTES, |edns| edns.max_payload()),
    );
    message.destructive_emit(&mut encoder)?;
    Ok(bytes)
}

fn is_final(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted
    )
}
