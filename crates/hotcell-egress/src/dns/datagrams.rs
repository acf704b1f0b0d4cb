//! Questions over UDP. One that can be answered at once, as most can from the cache, is answered by the
//! task that reads the socket: no other thread has to wake up for it. One that must wait does so on a task
//! of its own; [`DnsFilter`](super::DnsFilter) bounds how many do.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    sync::Arc,
    task::Poll,
};

use hickory_net::{NetError, xfer::Protocol};
use hickory_proto::{ProtoError, serialize::binary::BinEncoder};
use hickory_server::{server::Request, zone_handler::MessageResponseBuilder};
use hotcell_types::limits::MAX_DNS_UDP_BYTES;
use tokio::{net::UdpSocket, task::JoinSet};
use tracing::{debug, warn};

use super::{reply::Reply, server::Handler};

const HEADER_BYTES: usize = 12;
/// What a client takes that does not say how much it takes.
const USUAL_BYTES: u16 = 512;
/// The bit of a response in the third byte of a header.
const IS_RESPONSE: u8 = 0x80;
/// The kind of operation and "recursion desired", there.
const REPEATED: u8 = 0x79;
const FORMAT_ERROR: u8 = 1;

/// Answers until the socket fails for good.
pub(super) async fn serve(socket: UdpSocket, handler: Arc<Handler>) -> NetError {
    let socket = Arc::new(socket);
    let mut waiting = JoinSet::new();
    let mut buffer = vec![0; MAX_DNS_UDP_BYTES.into()];
    loop {
        while waiting.try_join_next().is_some() {}
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) if is_final(&error) => return NetError::from(error),
            Err(error) => {
                warn!(%error, "a question could not be read");
                // Errors that stay must not keep everybody else from running.
                tokio::task::yield_now().await;
                continue;
            }
        };
        let asked = &buffer[..length];
        if from.port() == 0 || from.ip().is_unspecified() || !is_question(asked) {
            continue;
        }
        let (socket, handler) = (Arc::clone(&socket), Arc::clone(&handler));
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
            send(&socket, answer, from).await;
        });
        let at_once = poll_fn(|context| Poll::Ready(answering.as_mut().poll(context))).await;
        if at_once.is_pending() {
            waiting.spawn(answering);
        }
    }
}

async fn send(socket: &UdpSocket, answer: Result<Vec<u8>, ProtoError>, to: SocketAddr) {
    let sent = match answer {
        Ok(answer) => socket.send_to(&answer, to).await.map(drop),
        Err(error) => Err(io::Error::other(error)),
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
    let mut bytes = Vec::with_capacity(USUAL_BYTES.into());
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(edns.as_ref().map_or(USUAL_BYTES, |edns| edns.max_payload()));
    message.destructive_emit(&mut encoder)?;
    Ok(bytes)
}

fn is_final(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted
    )
}
