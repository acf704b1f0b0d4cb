//! The authority that all resolvers ask: one address for each name, from the name's number.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    thread,
};

/// Where it listens.
pub(crate) const ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 5300);
/// Names that exist.
pub(crate) const NAMES: usize = 100;
/// Longer than any measurement.
const TTL_SECONDS: u32 = 3_600;
const HEADER_BYTES: usize = 12;
const TYPE_A: u16 = 1;

/// The name with this number.
pub(crate) fn name(number: usize) -> String {
    format!("n{}.example.org", number % NAMES)
}

/// A question for its address, with identifier 0.
pub(crate) fn question(number: usize) -> Vec<u8> {
    // Recursion desired; one question.
    let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name(number).split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Starts it.
pub(crate) fn start() {
    let socket = UdpSocket::bind(ADDRESS).unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 1_500];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            if let Some(answer) = answer(&bytes[..length]) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
}

fn answer(asked: &[u8]) -> Option<Vec<u8>> {
    let mut at = HEADER_BYTES;
    while *asked.get(at)? != 0 {
        at += 1 + usize::from(asked[at]);
    }
    let kind = u16::from_be_bytes([*asked.get(at + 1)?, *asked.get(at + 2)?]);
    let mut message = asked.get(..at + 5)?.to_vec();
    let label = asked.get(HEADER_BYTES + 1..=HEADER_BYTES + usize::from(asked[HEADER_BYTES]))?;
    let number: Option<u8> = std::str::from_utf8(label)
        .ok()
        .and_then(|label| label.strip_prefix('n')?.parse().ok());
    let address = (kind == TYPE_A).then_some(number).flatten();
    // A response of an authority, without error; one question, and nothing but answers.
    message[2] |= 0x84;
    message[3] = 0;
    message[4..HEADER_BYTES].copy_from_slice(&[0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    if let Some(number) = address {
        message.extend([0xc0, HEADER_BYTES as u8]);
        message.extend([0, 1, 0, 1]);
        message.extend(TTL_SECONDS.to_be_bytes());
        message.extend([0, 4, 203, 0, 113, number + 1]);
    }
    Some(message)
}
