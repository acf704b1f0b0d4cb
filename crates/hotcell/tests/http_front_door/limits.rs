//! Bodies that come too slowly, routes and methods that are not there, the local socket.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use crate::{
    client::{Client, head, raw, read_head, send},
    daemon::TestDaemon,
};

/// AP-12: a byte now and then is no body. Time is real here: the limit is half a minute.
#[tokio::test]
async fn a_slow_body_is_given_up() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let target = "/v1/workspaces/w1/chats/c1/uploads/slow?user=u1&role=editor";
    let headers = [
        client.signed("PUT", target, &[b'x'; 1000]),
        vec![("content-length".to_owned(), "1000".to_owned())],
    ]
    .concat();
    let mut stream = TcpStream::connect(client.addr).await.unwrap();
    stream
        .write_all(head("PUT", target, &headers).as_bytes())
        .await
        .unwrap();
    let started = tokio::time::Instant::now();
    let (mut read, mut write) = stream.split();
    let drip = async {
        while write.write_all(b"x").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    };
    let mut answer = vec![0; 12];
    tokio::select! {
        () = drip => panic!("closed without an answer"),
        read = read.read_exact(&mut answer) => { read.unwrap(); }
    }
    assert_eq!(answer, b"HTTP/1.1 408");
    assert!((28..40).contains(&started.elapsed().as_secs()));
    assert_eq!(daemon.temporary_files(), 0);
}

/// A connection that says nothing, or only begins to, is closed.
#[tokio::test]
async fn a_connection_must_say_something() {
    let daemon = TestDaemon::start().await;
    let mut closed = tokio::task::JoinSet::new();
    for begin in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "GET /healthz HTTP/1.1\r\nhost",
    ] {
        let addr = daemon.client.addr;
        closed.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(begin.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            let read = stream.read_to_end(&mut rest);
            let read = tokio::time::timeout(std::time::Duration::from_secs(25), read).await;
            assert!(read.is_ok(), "{begin:?} is still open");
        });
    }
    closed.join_all().await;
}

#[tokio::test]
async fn what_is_not_there_is_a_problem() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    client
        .get("/v1/nothing")
        .await
        .expect_code(404, "not_found");
    send(client.addr, false, "GET", "/nothing", &[], "")
        .await
        .expect_code(404, "not_found");
    daemon
        .admin("GET", "nothing", &json!(null))
        .await
        .expect_code(404, "not_found");
    // A path that only looks like the operators' is not theirs.
    client
        .get("/v1/%61dmin/deployment")
        .await
        .expect_code(404, "not_found");
    let answer = client
        .send("PATCH", "/v1/workspaces/w1/chats/c1/lease", &[], "")
        .await;
    answer.expect_code(405, "method_not_allowed");
    let allow = answer.headers["allow"].to_str().unwrap();
    assert!(allow.contains("GET") && allow.contains("DELETE"), "{allow}");
    // Without a signature nobody learns which routes there are.
    for target in ["/v1/nothing", "/v1/tools"] {
        send(client.addr, false, "GET", target, &[], "")
            .await
            .expect_code(401, "unauthenticated");
    }
    // A read takes no body, signed or not.
    let answer = client.send("GET", "/v1/tools", &[], "body").await;
    answer.expect_code(400, "bad_request");
}

#[tokio::test]
async fn the_health_routes_are_open() {
    let daemon = TestDaemon::start().await;
    let addr = daemon.client.addr;
    assert_eq!(
        send(addr, false, "GET", "/healthz", &[], "")
            .await
            .expect(200)
            .body,
        "ok\n"
    );
    let ready = send(addr, true, "GET", "/readyz", &[], "")
        .await
        .expect(200)
        .json();
    assert_eq!(ready["ready"], true, "{ready}");
    let tools = daemon.client.get("/v1/tools").await.expect(200).json();
    assert_eq!(tools["openai"][0]["function"]["name"], "bash");
    assert_eq!(tools["anthropic"][1]["name"], "present_files");
}

/// The local socket: the operators' routes without a token, and only those.
#[tokio::test]
async fn the_local_socket_is_the_operators() {
    let daemon = TestDaemon::start().await;
    let path = daemon.dir.path().join("run/admin.sock");
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let ask = async |target: &str| {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(
        ask("/v1/admin/deployment")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert!(ask("/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(ask("/v1/tools").await.starts_with("HTTP/1.1 404"));
    daemon.stop().await;
    assert!(!path.exists());
}

/// A panic in the midst of a request would be a bug; a strange request must not be one.
#[tokio::test]
async fn strange_requests_get_an_answer() {
    let daemon = TestDaemon::start().await;
    let Client { addr, .. } = daemon.client;
    for request in [
        "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET http://elsewhere/v1/tools HTTP/1.1\r\nhost: x\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET /v1/\u{fc} HTTP/1.1\r\nhost: x\r\n\r\n",
        "G\u{fc}T / HTTP/1.1\r\n\r\n",
        "GET /v1/tools HTTP/1.1\r\nhost: x\r\nhotcell-key: \u{1}\r\n\r\n",
        "POST /v1/tools HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/tools HTTP/1.1\r\nhost: x\r\ncontent-length: -3\r\n\r\n",
    ] {
        let answer = raw(addr, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{request:?}: {answer}");
    }
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(1 << 20));
    let _ = stream.write_all(long.as_bytes()).await;
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 4"));
}
