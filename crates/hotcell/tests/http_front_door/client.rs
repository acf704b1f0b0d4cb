//! A client that signs, and one that says exactly what a test wants it to.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use hotcell_types::Clock;
use hotcell_wire::{body_sha256, sign_headers};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The problem's code; checks what holds for every problem.
    pub(crate) fn code(&self) -> String {
        let problem = self.json();
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["status"], self.status.as_u16(), "{problem}");
        assert_eq!(
            problem["request_id"].as_str(),
            self.headers["hotcell-request-id"].to_str().ok()
        );
        problem["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status.as_u16(),
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self
    }

    pub(crate) fn expect_code(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.code().as_str()), (status, code));
    }
}

impl Answer {
    /// A refusal of the gate with this name.
    pub(crate) fn expect_denied(&self, denial: &str) {
        self.expect_code(403, "denied");
        assert_eq!(self.json()["denial"], denial);
    }
}

/// Headers as they are sent.
pub(crate) type Headers = Vec<(String, String)>;

static NONCE: AtomicU64 = AtomicU64::new(0);

pub(crate) fn nonce() -> String {
    format!("nonce-{:016}", NONCE.fetch_add(1, Ordering::Relaxed))
}

/// A backend with its credential.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) addr: SocketAddr,
    pub(crate) key: String,
    pub(crate) secret: String,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Client {
    /// The headers of a signed request.
    pub(crate) fn signed(&self, method: &str, target: &str, body: &[u8]) -> Headers {
        let seconds = self.clock.now().seconds();
        self.signed_at(method, target, body, seconds, &nonce())
    }

    pub(crate) fn signed_at(
        &self,
        method: &str,
        target: &str,
        body: &[u8],
        seconds: u64,
        nonce: &str,
    ) -> Headers {
        let hash = body_sha256(body);
        sign_headers(
            &self.key,
            &self.secret,
            seconds,
            nonce,
            method,
            target,
            &hash,
        )
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let body = body.into();
        let mut all = self.signed(method, target, &body);
        all.extend(
            headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned())),
        );
        send(self.addr, false, method, target, &all, body).await
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], "").await
    }

    pub(crate) async fn post(&self, target: &str, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.send("POST", target, &json, body.to_string()).await
    }

    /// A signed request whose answer is read as it comes.
    pub(crate) async fn open(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> (http::response::Parts, Incoming) {
        let body = body.into();
        let mut all = self.signed(method, target, &body);
        all.extend(
            headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned())),
        );
        open(self.addr, false, method, target, &all, body)
            .await
            .into_parts()
    }
}

async fn open(
    addr: SocketAddr,
    http2: bool,
    method: &str,
    target: &str,
    headers: &[(String, String)],
    body: Bytes,
) -> http::Response<Incoming> {
    let io = TokioIo::new(TcpStream::connect(addr).await.unwrap());
    let uri = if http2 {
        format!("http://{addr}{target}")
    } else {
        target.to_owned()
    };
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(uri);
    if !http2 {
        request = request.header("host", addr.to_string());
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body)).unwrap();
    if http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                .await
                .unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }
}

/// Sends one request on a connection of its own.
pub(crate) async fn send(
    addr: SocketAddr,
    http2: bool,
    method: &str,
    target: &str,
    headers: &[(String, String)],
    body: impl Into<Bytes>,
) -> Answer {
    let (parts, body) = open(addr, http2, method, target, headers, body.into())
        .await
        .into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body,
    }
}

/// A request's head as text, for a socket.
pub(crate) fn head(method: &str, target: &str, headers: &[(String, String)]) -> String {
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: x\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

/// Reads one answer's head from a socket: its status line and headers, as text.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Writes bytes to a new connection and reads the answer's head.
pub(crate) async fn raw(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    read_head(&mut stream).await
}
