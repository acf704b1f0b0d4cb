//! What bodies cost in memory: AP-12 and FA-14. In a process of its own, since memory is measured
//! by the process.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::net::SocketAddr;

use hotcell::clock::SystemClock;
use hotcell_testkit::TestDaemon;
use hotcell_types::Clock;
use http::Method;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const MIB: usize = 1 << 20;

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_bodies() {
    let daemon = TestDaemon::start().await;
    let client = daemon.client().await;
    // Warm: what is allocated once for good is there.
    let _ = client.get("/v1/tools").await.expect(200);
    flood(daemon.addr(), 8 * MIB).await;

    let before = resident_kib();
    // Ten gigabytes from nobody, if it were let.
    let (sent, answer) = flood(daemon.addr(), 10 << 30).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // What fits into the sockets' buffers and into the moment of lingering.
    assert!(sent < 64 * MIB, "{sent} bytes were taken");
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB more for a body from nobody");

    // Ten of the largest uploads at once, from somebody: 250 MiB.
    let piece = vec![0_u8; 64 << 10];
    let mut hash = Sha256::new();
    for _ in 0..400 {
        hash.update(&piece);
    }
    let hash = hex::encode(hash.finalize());
    let (key, secret) = client.credential().unwrap();
    let mut uploads = tokio::task::JoinSet::new();
    for number in 0..10 {
        let target = format!("/v1/workspaces/w/chats/c/uploads/f{number}?user=u&role=editor");
        let seconds = SystemClock.now().seconds();
        let nonce = format!("upload-{number:016}");
        let method = Method::PUT;
        let headers = hotcell_wire::sign_headers(
            key,
            secret,
            seconds,
            &nonce,
            method.as_str(),
            &target,
            &hash,
        );
        let mut head = format!(
            "PUT {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n",
            25 * MIB
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let (piece, addr) = (piece.clone(), daemon.addr());
        uploads.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            for _ in 0..400 {
                stream.write_all(&piece).await.unwrap();
            }
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        });
    }
    let before = resident_kib();
    for answer in uploads.join_all().await {
        assert_eq!(answer, "HTTP/1.1 201");
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB more for uploads");
    daemon.shutdown().await;
}

/// Sends an endless chunked body without a signature. How much was taken, and the answer.
async fn flood(addr: SocketAddr, bytes: usize) -> (usize, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = "PUT /v1/workspaces/w/chats/c/uploads/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = stream.split();
    let send = async {
        let chunk = [b"100000\r\n".as_slice(), &vec![b'x'; MIB], b"\r\n"].concat();
        let mut sent = 0;
        while sent < bytes && write.write_all(&chunk).await.is_ok() {
            sent += MIB;
        }
        sent
    };
    let answer = async {
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        // Broken off at the end, as it must be.
        while let Ok(read @ 1..) = read.read(&mut piece).await {
            answer.extend_from_slice(&piece[..read]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::join!(send, answer)
}
