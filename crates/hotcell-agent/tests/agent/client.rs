//! A small signed HTTP client, one connection per request.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use hotcell_agent_proto::{AgentError, Frame, FrameDecoder};
use hotcell_wire::{body_sha256, sign_headers};
use serde::de::DeserializeOwned;

pub(crate) const LEASE: &str = "ls_abcdefghijklmnopqrstuvwxyz";
pub(crate) const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

pub(crate) fn now_seconds() -> u64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Realtime)
        .tv_sec
        .try_into()
        .unwrap()
}

pub(crate) fn nonce() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(
        "nonce-{:06}-{:012}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A request that can still be spoiled before it is sent.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, target: &str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let headers = sign_headers(
            LEASE,
            KEY,
            now_seconds(),
            &nonce(),
            method,
            target,
            &body_sha256(&body),
        );
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value))
                .to_vec(),
            body,
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends the head and body and returns the open connection.
    pub(crate) fn open(&self, address: SocketAddr) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        self.over(&mut stream);
        BufReader::new(stream)
    }

    /// Sends head and body over a connection that is there.
    pub(crate) fn over(&self, stream: &mut TcpStream) {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: agent\r\n",
            self.method, self.target
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", self.body.len()));
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&self.body);
    }

    pub(crate) fn send(&self, address: SocketAddr) -> Response {
        let mut stream = self.open(address);
        let (status, headers) = read_head(&mut stream);
        let mut body = Vec::new();
        let whole = if headers
            .get("transfer-encoding")
            .is_some_and(|value| value == "chunked")
        {
            loop {
                match read_chunk(&mut stream) {
                    Some(chunk) if chunk.is_empty() => break true,
                    Some(chunk) => body.extend(chunk),
                    None => break false,
                }
            }
        } else {
            let length = headers
                .get("content-length")
                .map_or(0, |value| value.parse().unwrap());
            body = vec![0; length];
            stream.read_exact(&mut body).is_ok()
        };
        Response {
            status,
            headers,
            body,
            whole,
        }
    }
}

pub(crate) fn read_head(stream: &mut impl BufRead) -> (u16, HashMap<String, String>) {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or("0").parse().unwrap_or(0);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
            None => return (status, headers),
        };
    }
}

pub(crate) fn read_chunk(stream: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim_end(), 16).ok()?;
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    Some(chunk)
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// Whether the body came as it was announced.
    pub(crate) whole: bool,
}

impl Response {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        assert!(self.whole);
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn ok<T: DeserializeOwned>(&self) -> T {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    pub(crate) fn error(&self) -> AgentError {
        let error: AgentError = self.json();
        assert_eq!(self.status, error.code.status());
        error
    }

    pub(crate) fn frames(&self) -> Vec<Frame> {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let mut decoder = FrameDecoder::default();
        decoder.push(&self.body);
        let mut frames = Vec::new();
        while let Some(frame) = decoder.next_frame().unwrap() {
            frames.push(frame);
        }
        decoder.finish().unwrap();
        frames
    }
}
