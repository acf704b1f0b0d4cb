//! A client that asks one question.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, RecordType},
};
use tokio::net::UdpSocket;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 4_096;

/// Asks a resolver for the IPv4 addresses of a name, over UDP.
///
/// # Errors
/// Without an answer: `NotFound` when there is no such name.
pub async fn ask(resolver: SocketAddr, name: &str) -> io::Result<Vec<IpAddr>> {
    let name = Name::from_ascii(name).map_err(io::Error::other)?;
    let mut message = Message::new(17, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, RecordType::A));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    socket.connect(resolver).await?;
    let question = message.to_vec().map_err(io::Error::other)?;
    socket.send(&question).await?;
    let mut answer = vec![0; MAX_ANSWER_BYTES];
    let length = tokio::time::timeout(PATIENCE, socket.recv(&mut answer)).await??;
    let answer = Message::from_vec(&answer[..length]).map_err(io::Error::other)?;
    match answer.metadata.response_code {
        ResponseCode::NoError => Ok(answer
            .answers
            .iter()
            .filter_map(|record| match &record.data {
                RData::A(address) => Some(IpAddr::V4(address.0)),
                _ => None,
            })
            .collect()),
        ResponseCode::NXDomain => Err(io::ErrorKind::NotFound.into()),
        other => Err(io::Error::other(other.to_string())),
    }
}
