//! What the tests share: a peer made of raw bytes, and the way to it.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "helpers of tests may panic, and not every test needs all of them"
)]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use hotcell_agent_client::{AgentSandbox, Dial, Patience};
use hotcell_agent_proto::{Command, ExecRequest};
use hotcell_types::{AgentKey, CallId, Clock, IdSource, LeaseId, UnixMillis};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The time of this machine.
pub struct MachineClock;

impl Clock for MachineClock {
    #[allow(clippy::disallowed_methods, reason = "this is the tests' one clock")]
    fn now(&self) -> UnixMillis {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        UnixMillis(u64::try_from(since.unwrap().as_millis()).unwrap())
    }
}

/// Ids one after the other.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl IdSource for Counter {
    fn bits(&self) -> u128 {
        u128::from(self.0.fetch_add(1, Ordering::Relaxed)) + 1
    }
}

/// Dials one address.
pub struct To(pub SocketAddr);

#[async_trait]
impl Dial for To {
    async fn dial(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.0).await
    }
}

/// Dials one address, and says when what is there has ended.
pub struct Watched(pub SocketAddr, pub Arc<tokio::sync::Notify>);

#[async_trait]
impl Dial for Watched {
    async fn dial(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.0).await
    }

    async fn gone(&self) {
        self.1.notified().await;
    }
}

pub fn lease() -> LeaseId {
    LeaseId::from_bits(1)
}

pub fn key() -> AgentKey {
    AgentKey::new([9; 32])
}

pub fn sandbox_at(address: SocketAddr) -> AgentSandbox {
    sandbox_by(To(address))
}

pub fn sandbox_by(dial: impl Dial) -> AgentSandbox {
    AgentSandbox::new(
        lease(),
        &key(),
        Arc::new(dial),
        Arc::new(MachineClock),
        Arc::new(Counter::default()),
    )
}

/// Short enough for a test against a peer that never answers, long enough for a busy machine.
pub fn impatient() -> Patience {
    let short = Duration::from_millis(400);
    Patience {
        connect: short,
        answer: short,
        slow_answer: short,
        silence: short,
        content: short,
        exec_backstop: short,
        ..Patience::default()
    }
}

pub fn exec_request(text: &str) -> ExecRequest {
    ExecRequest {
        call: CallId::from_bits(1),
        command: Command::Shell(text.into()),
        cwd: None,
        user: None,
        env: Default::default(),
        timeout_ms: 500,
        restart: false,
    }
}

/// One connection at the peer's end.
pub struct Peer {
    pub stream: TcpStream,
    /// Which connection it is, from 0.
    pub number: usize,
}

impl Peer {
    /// Reads the head of one request; `None` when the connection ends before one.
    pub async fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.ok()?);
        }
        Some(String::from_utf8(head).unwrap())
    }

    /// Reads one request with its body; its head.
    pub async fn request(&mut self) -> Option<String> {
        let head = self.head().await?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(head)
    }

    /// Writes, as far as the other side listens.
    pub async fn say(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// A whole answer with a length, in one piece.
    pub async fn answer(&mut self, status: &str, headers: &str, body: impl AsRef<[u8]>) -> bool {
        let body = body.as_ref();
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        self.say([head.as_bytes(), body].concat()).await
    }

    /// The head of an answer in chunks.
    pub async fn begin_chunks(&mut self) -> bool {
        self.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await
    }

    /// One chunk.
    pub async fn chunk(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let bytes = bytes.as_ref();
        let mut whole = format!("{:x}\r\n", bytes.len()).into_bytes();
        whole.extend_from_slice(bytes);
        whole.extend_from_slice(b"\r\n");
        self.say(whole).await
    }

    /// Waits until the other side has closed the connection.
    pub async fn closed(&mut self) {
        let mut rest = [0; 1024];
        while !matches!(self.stream.read(&mut rest).await, Ok(0) | Err(_)) {}
    }
}

/// A peer that does with each connection what the test says.
pub struct Server {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub async fn new<F>(serve: impl Fn(Peer) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(Peer { stream, number }));
            }
        });
        Self {
            address,
            connections,
            task,
        }
    }

    pub fn sandbox(&self) -> AgentSandbox {
        sandbox_at(self.address)
    }

    pub fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
