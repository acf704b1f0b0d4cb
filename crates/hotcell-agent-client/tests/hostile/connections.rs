//! Connections: made, kept, found stale, broken; and what is signed on them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all};
use hotcell_runtime::{Sandbox, SandboxError};
use hotcell_types::limits;
use hotcell_wire::{NonceCache, SignedHead};
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};

use super::common::{Peer, Server, Watched, exec_request, key, sandbox_at, sandbox_by};
use super::{SOON, exit, health, path, run};

#[tokio::test]
async fn ready_waits_for_the_agent_and_not_longer_than_it_may() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let sandbox = sandbox_at(address);
    let start = Instant::now();
    let error = sandbox.ready(300).await.unwrap_err();
    assert!(matches!(error, SandboxError::Timeout(300)), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(matches!(sandbox.disk().await, Err(SandboxError::Lost(_))));

    let (up, sandbox) = (Arc::new(tokio::sync::Notify::new()), Arc::new(sandbox));
    let waiting = {
        let (up, sandbox) = (Arc::clone(&up), Arc::clone(&sandbox));
        tokio::spawn(async move {
            up.notify_one();
            sandbox.ready(30_000).await
        })
    };
    up.notified().await;
    let listener = TcpListener::bind(address).await.unwrap();
    // The first connection is cut, as by an agent that is just starting.
    drop(listener.accept().await.unwrap());
    let (stream, _) = listener.accept().await.unwrap();
    let mut peer = Peer { stream, number: 0 };
    peer.request().await.unwrap();
    peer.answer("200 OK", "", health(1)).await;
    timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    // That connection is kept for the first call.
    let disk = tokio::spawn(async move { sandbox.disk().await });
    assert!(peer.request().await.unwrap().starts_with("GET /v1/disk "));
    peer.answer("200 OK", "", "{\"mounts\":[]}").await;
    disk.await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_are_used_again_and_stale_ones_cost_nothing() {
    let server = Server::new(|mut peer| async move {
        // Two answers, then it closes although it did not say so.
        for _ in 0..2 {
            if peer.request().await.is_none() {
                return;
            }
            peer.begin_chunks().await;
            peer.chunk(exit().to_bytes()).await;
            peer.say("0\r\n\r\n").await;
        }
    })
    .await;
    let sandbox = server.sandbox();
    for round in 0..10 {
        run(&sandbox)
            .await
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    assert!(
        (5..10).contains(&server.count()),
        "{} connections for ten calls",
        server.count()
    );
}

#[tokio::test]
async fn a_command_that_may_have_arrived_is_not_sent_twice() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let server = Server::new(move |mut peer| {
        let counter = Arc::clone(&counter);
        async move {
            // The first request of a connection is answered; the second is read and then dropped.
            peer.request().await;
            counter.fetch_add(1, Ordering::SeqCst);
            peer.answer("200 OK", "", "{\"mounts\":[]}").await;
            if peer.request().await.is_some() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let sandbox = server.sandbox();
    sandbox.disk().await.unwrap();
    let error = run(&sandbox).await.unwrap_err();
    assert!(matches!(error, SandboxError::Lost(_)), "{error:?}");
    assert_eq!((seen.load(Ordering::SeqCst), server.count()), (2, 1));
}

#[tokio::test]
async fn no_more_idle_connections_are_kept_than_allowed() {
    let (all_in, _) = tokio::sync::watch::channel(0);
    let all_in = Arc::new(all_in);
    let server = {
        let all_in = Arc::clone(&all_in);
        Server::new(move |mut peer| {
            let all_in = Arc::clone(&all_in);
            async move {
                while peer.request().await.is_some() {
                    all_in.send_modify(|count| *count += 1);
                    let mut all = all_in.subscribe();
                    all.wait_for(|count| *count >= 20).await.unwrap();
                    peer.answer("200 OK", "", "{\"mounts\":[]}").await;
                }
                all_in.send_modify(|count| *count += 1_000);
            }
        })
        .await
    };
    let sandbox = server.sandbox();
    for result in join_all((0..20).map(|_| sandbox.disk())).await {
        result.unwrap();
    }
    assert_eq!(server.count(), 20);
    let mut closed = all_in.subscribe();
    let idle = limits::MAX_AGENT_IDLE_CONNECTIONS;
    let most = 20 + 1_000 * (20 - idle);
    timeout(SOON, closed.wait_for(|count| *count >= most))
        .await
        .unwrap()
        .unwrap();
    sandbox.disk().await.unwrap();
    assert_eq!((server.count(), *all_in.borrow()), (20, most + 1));
}

#[tokio::test]
async fn every_request_is_signed_with_a_fresh_nonce() {
    let nonces = Arc::new(Mutex::new(NonceCache::default()));
    let server = Server::new(move |mut peer| {
        let nonces = Arc::clone(&nonces);
        async move {
            while let Some(head) = peer.request().await {
                let mut lines = head.lines();
                let mut words = lines.next().unwrap().split(' ');
                let (method, target) = (words.next().unwrap(), words.next().unwrap());
                let mut headers = http::HeaderMap::new();
                for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
                    headers.append(
                        name.parse::<http::HeaderName>().unwrap(),
                        value.parse().unwrap(),
                    );
                }
                let now = hotcell_types::Clock::now(&super::common::MachineClock);
                let signed = SignedHead::parse(&headers, now).unwrap();
                assert!(signed.is_signed_by(&key().to_hex(), method, target));
                assert_eq!(signed.key, super::common::lease().as_str());
                let fresh = nonces
                    .lock()
                    .unwrap()
                    .take(&signed.key, &signed.nonce, now.seconds());
                let status = if fresh.is_ok() {
                    "200 OK"
                } else {
                    "401 Replayed"
                };
                peer.answer(status, "", "{\"entries\":[],\"more\":false}")
                    .await;
            }
        }
    })
    .await;
    let sandbox = server.sandbox();
    for name in ["/workspace", "/workspace/a b?c=d&e#f%2F+\n测", "/"] {
        sandbox.list(&path(name), Some("x y"), 5).await.unwrap();
    }
}

/// A peer that answers whatever it is asked with the start of an answer, and then nothing; and
/// that closes no connection.
async fn mute() -> Server {
    Server::new(|mut peer| async move {
        let head = peer.request().await.unwrap_or_default();
        if head.starts_with("POST /v1/exec") {
            peer.begin_chunks().await;
        } else if head.starts_with("POST /v1/stdio") {
            peer.say("HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: hotcell-stdio\r\n\r\n")
                .await;
        }
        std::future::pending::<()>().await;
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_ends_without_a_word_breaks_everything_at_once() {
    let server = mute().await;
    let ended = Arc::new(tokio::sync::Notify::new());
    let sandbox = sandbox_by(Watched(server.address, Arc::clone(&ended)));
    let sandbox = Arc::new(sandbox);
    let mut call = sandbox.exec(exec_request("sleep 100")).await.unwrap();
    let mut stdio = sandbox.stdio(super::stdio::cat()).await.unwrap();
    let asking = {
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move { sandbox.disk().await })
    };
    while server.count() < 3 {
        tokio::task::yield_now().await;
    }
    ended.notify_waiters();
    let start = Instant::now();
    let lost = |error: Option<SandboxError>| {
        assert!(matches!(error, Some(SandboxError::Lost(_))), "{error:?}");
    };
    lost(timeout(SOON, call.next()).await.unwrap().unwrap().err());
    lost(
        timeout(SOON, stdio.output.next())
            .await
            .unwrap()
            .unwrap()
            .err(),
    );
    lost(timeout(SOON, asking).await.unwrap().unwrap().err());
    assert!(start.elapsed() < Duration::from_secs(1));
    // What runs there later is another run.
    let mut call = sandbox.exec(exec_request("sleep 100")).await.unwrap();
    assert_eq!(server.count(), 4);
    ended.notify_one();
    lost(timeout(SOON, call.next()).await.unwrap().unwrap().err());
}
