//! Who may come in: AP-01, AP-02, AP-03, AP-04, AP-06, AP-12.

use hotcell_testkit::wait_for;
use hotcell_wire::body_sha256;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    client::{Headers, head, nonce, raw, read_head, send},
    daemon::{START_SECONDS, TestDaemon},
};

const BASH: &str = "/v1/workspaces/w1/chats/c1/bash";

/// AP-01: the target is signed as it is sent.
#[tokio::test]
async fn every_spelling_of_a_target_has_its_own_signature() {
    let daemon = TestDaemon::start().await;
    let targets = [
        "/v1/x?zkey=1&akey=2",
        "/v1/x?akey=2&zkey=1",
        "/v1/x?a=1&a=2",
        "/v1/x?a=2&a=1",
        "/v1/x?a",
        "/v1/x?a=",
        "/v1/x?",
        "/v1/x",
        "/v1/x/",
        "/v1//x",
        "/v1/%78",
        "/v1/a%2Fb",
        "/v1/caf%C3%A9",
        "/v1/caf%c3%a9",
    ];
    let client = &daemon.client;
    for signed in targets {
        for http2 in [false, true] {
            let headers = client.signed("GET", signed, b"");
            let answer = send(client.addr, http2, "GET", signed, &headers, "").await;
            // Let in; that there is no such route is found out after.
            answer.expect_code(404, "not_found");
        }
        for sent in targets.iter().filter(|sent| **sent != signed) {
            let headers = client.signed("GET", signed, b"");
            let answer = send(client.addr, false, "GET", sent, &headers, "").await;
            answer.expect_code(401, "signature_mismatch");
        }
    }
}

/// AP-02: names with all the characters that one side might encode otherwise.
#[tokio::test]
async fn a_space_is_a_space_and_a_plus_is_a_plus() {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let names = [
        "a b", "a+b", "a%20b", "a&b=c", "ü", "100%", "#1", "?x", ";", "'", "~", "*", "(1)",
    ];
    let target = |name: &str| {
        let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
        format!("/v1/workspaces/w1/chats/c1/uploads/{name}?user=u1&role=editor")
    };
    for name in names {
        client
            .send("PUT", &target(name), &[], name.as_bytes().to_vec())
            .await
            .expect(201);
    }
    for name in names {
        let answer = client.get(&target(name)).await.expect(200);
        assert_eq!(answer.body, name.as_bytes(), "{name}");
    }
    let list = client
        .get("/v1/workspaces/w1/chats/c1/uploads?user=u1&role=viewer")
        .await
        .json();
    let mut listed: Vec<&str> = list["uploads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["name"].as_str().unwrap())
        .collect();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, sorted);

    // A proxy that rewrites %20 to +: refused, not another file.
    let headers = client.signed("GET", &target("a b"), b"");
    let rewritten = target("a b").replace("%20", "+");
    let answer = send(client.addr, false, "GET", &rewritten, &headers, "").await;
    answer.expect_code(401, "signature_mismatch");
}

/// AP-03: what the signature binds.
#[tokio::test]
async fn a_captured_signature_is_good_for_nothing_else() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let other = daemon.backend("acme").await;
    let body = json!({"user": {"id": "u1", "role": "editor"}, "command": "echo hi"}).to_string();
    let changed = body.replace("hi", "ho");
    let with = |extra: &[(&str, &str)]| {
        let mut headers = client.signed("POST", BASH, body.as_bytes());
        for (name, value) in extra {
            headers.retain(|(n, _)| n != name);
            headers.push(((*name).to_owned(), (*value).to_owned()));
        }
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
        headers
    };
    let later = (client.clock.now().seconds() + 1).to_string();
    let hash = body_sha256(changed.as_bytes());
    let bad: Vec<(&str, &str, Headers, &str)> = vec![
        ("PUT", BASH, with(&[]), &body),
        ("DELETE", BASH, with(&[]), ""),
        ("POST", "/v1/workspaces/w1/chats/c2/bash", with(&[]), &body),
        ("POST", "/v1/workspaces/w1/chats/c1/bash?", with(&[]), &body),
        ("POST", BASH, with(&[]), &changed),
        ("POST", BASH, with(&[]), ""),
        (
            "POST",
            BASH,
            with(&[("hotcell-content-sha256", hash.as_str())]),
            &changed,
        ),
        (
            "POST",
            BASH,
            with(&[("hotcell-key", other.key.as_str())]),
            &body,
        ),
        ("POST", BASH, with(&[("hotcell-key", "ck_nobody")]), &body),
        (
            "POST",
            BASH,
            with(&[("hotcell-timestamp", later.as_str())]),
            &body,
        ),
        (
            "POST",
            BASH,
            with(&[("hotcell-nonce", "0123456789abcdef")]),
            &body,
        ),
    ];
    let mut told = std::collections::HashSet::new();
    for (method, target, headers, body) in bad {
        let answer = send(
            client.addr,
            false,
            method,
            target,
            &headers,
            body.to_owned(),
        )
        .await;
        answer.expect_code(401, "signature_mismatch");
        let mut problem = answer.json();
        problem["request_id"].take();
        told.insert(problem.to_string());
    }
    // Which part differed is not told.
    assert_eq!(told.len(), 1);
    assert_eq!(daemon.fake.running(), 0);

    // Chunked instead of a length: framing is not signed, the bytes are.
    let mut head = head(
        "POST",
        BASH,
        &[
            with(&[]),
            vec![("transfer-encoding".into(), "chunked".into())],
        ]
        .concat(),
    );
    head.push_str(&format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    assert!(
        raw(client.addr, head.as_bytes())
            .await
            .starts_with("HTTP/1.1 200")
    );
    // Neither Host nor Content-Type is signed, and a method in a header is no method.
    for extra in [
        ("host", "elsewhere.example"),
        ("x-http-method-override", "DELETE"),
        ("x-organization", "other"),
    ] {
        let answer = send(
            client.addr,
            false,
            "POST",
            BASH,
            &with(&[extra]),
            body.clone(),
        )
        .await;
        assert_eq!(answer.expect(200).json()["stdout"], "hi\n");
    }
}

/// AP-03: one organization's key opens no other organization's workspace, nor tells that it is there.
#[tokio::test]
async fn a_foreign_workspace_looks_like_none() {
    let daemon = TestDaemon::start().await;
    daemon
        .admin("PUT", "organizations/other", &json!({"enabled": true}))
        .await
        .expect(201);
    let foreign = daemon.backend("other").await;
    let problem = async |workspace: &str| {
        let target = format!("/v1/workspaces/{workspace}/chats/c1/outputs?user=u1&role=owner");
        let answer = foreign.get(&target).await;
        answer.expect_code(404, "unknown_workspace");
        let mut problem = answer.json();
        problem["request_id"].take();
        problem
    };
    assert_eq!(problem("w1").await, problem("nowhere").await);
    assert_eq!(problem("w1").await, problem("..%2Fx").await);
}

/// AP-04: the same request twice.
#[tokio::test]
async fn a_request_is_good_once() {
    let daemon = TestDaemon::start().await;
    let client = daemon.client.clone();
    let body =
        json!({"user": {"id": "u1", "role": "editor"}, "command": "append /workspace/log x"});
    let mut headers = client.signed("POST", BASH, body.to_string().as_bytes());
    headers.push(("content-type".to_owned(), "application/json".to_owned()));
    let mut copies = tokio::task::JoinSet::new();
    for copy in 0..50 {
        let (headers, body, addr) = (headers.clone(), body.to_string(), client.addr);
        copies.spawn(async move { send(addr, copy % 2 == 1, "POST", BASH, &headers, body).await });
    }
    let mut done = 0;
    for answer in copies.join_all().await {
        if answer.status == 200 {
            done += 1;
        } else {
            answer.expect_code(401, "replayed");
        }
    }
    assert_eq!(done, 1);
    daemon.clock.advance(1);
    let log = daemon
        .bash("c1", "cat /workspace/log")
        .await
        .expect(200)
        .json();
    assert_eq!(log["stdout"].as_str().unwrap().trim(), "x");

    // Reads too.
    let target = "/v1/tools";
    let read = client.signed("GET", target, b"");
    send(client.addr, false, "GET", target, &read, "")
        .await
        .expect(200);
    send(client.addr, true, "GET", target, &read, "")
        .await
        .expect_code(401, "replayed");

    // A restart forgets nothing.
    let daemon = daemon.stop().await.start_again().await;
    let addr = daemon.client.addr;
    send(addr, false, "POST", BASH, &headers, body.to_string())
        .await
        .expect_code(401, "replayed");
    send(addr, false, "GET", target, &read, "")
        .await
        .expect_code(401, "replayed");
    daemon.client.get(target).await.expect(200);
}

/// AP-04: a crash forgets nothing of what was answered.
#[tokio::test]
async fn a_crash_opens_no_hole() {
    let daemon = TestDaemon::start().await;
    let body = json!({"user": {"id": "u1", "role": "editor"}, "command": "true"}).to_string();
    let mut post = daemon.client.signed("POST", BASH, body.as_bytes());
    post.push(("content-type".to_owned(), "application/json".to_owned()));
    let lease = "/v1/workspaces/w1/chats/c1/lease?user=u1&role=editor";
    let delete = daemon.client.signed("DELETE", lease, b"");
    let addr = daemon.client.addr;
    send(addr, false, "POST", BASH, &post, body.clone())
        .await
        .expect(200);
    send(addr, false, "DELETE", lease, &delete, "")
        .await
        .expect(200);
    let crashed = daemon.crashed().await.start_again().await;
    let addr = crashed.client.addr;
    for http2 in [false, true] {
        send(addr, http2, "POST", BASH, &post, body.clone())
            .await
            .expect_code(401, "replayed");
        send(addr, http2, "DELETE", lease, &delete, "")
            .await
            .expect_code(401, "replayed");
    }
    assert_eq!(crashed.fake.running(), 0);
}

/// AP-04: when it is not known what was used before this start, what is older is refused.
#[tokio::test]
async fn a_lost_log_opens_no_hole() {
    let daemon = TestDaemon::start().await;
    let old = daemon.client.signed("GET", "/v1/tools", b"");
    send(daemon.client.addr, false, "GET", "/v1/tools", &old, "")
        .await
        .expect(200);
    daemon.clock.advance(1);
    let stopped = daemon.stop().await;
    std::fs::remove_file(stopped.dir().join("state/nonces.log")).unwrap();
    let daemon = stopped.start_again().await;
    let addr = daemon.client.addr;
    send(addr, false, "GET", "/v1/tools", &old, "")
        .await
        .expect_code(401, "replayed");
    daemon.client.get("/v1/tools").await.expect(200);
}

/// AP-06: clocks.
#[tokio::test]
async fn a_minute_of_skew_is_accepted_both_ways_and_no_more() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let now = client.clock.now().seconds();
    assert_eq!(now, START_SECONDS + 100);
    for skew in [-61i64, -60, -59, -30, 0, 30, 59, 60, 61] {
        let stamp = now.checked_add_signed(skew).unwrap();
        let headers = client.signed_at("GET", "/v1/tools", b"", stamp, &nonce());
        let answer = send(client.addr, false, "GET", "/v1/tools", &headers, "").await;
        if skew.abs() <= 60 {
            answer.expect(200);
        } else {
            answer.expect_code(401, "clock_skew");
            assert_eq!(answer.json()["server_seconds"], now);
        }
    }
    // The farthest that got in is told to the operator, with its figure.
    let told = wait_for("the warning", async || {
        let shown = daemon.admin("GET", "profiles", &Value::Null).await.json();
        let checks = shown["profiles"][0]["checks"].as_array()?.clone();
        let skew = checks
            .into_iter()
            .find(|it| it["id"] == "auth.clock_skew")?;
        (skew["status"] == "warn").then_some(skew)
    })
    .await;
    let words = told["message"].as_str().unwrap();
    assert!(
        words.contains("60 s") && words.contains(&client.key),
        "{words}"
    );
    // Signed rightly with the wrong unit.
    for stamp in [now * 1000, 1_000_000_000, 1 << 63, u64::MAX, 0] {
        let headers = client.signed_at("GET", "/v1/tools", b"", stamp, &nonce());
        let answer = send(client.addr, false, "GET", "/v1/tools", &headers, "").await;
        answer.expect_code(401, "clock_skew");
    }
    let good = client.signed("GET", "/v1/tools", b"");
    let time = now.to_string();
    for stamp in [
        "1e9",
        &format!("+{time}"),
        "0x6b49d200",
        "-1",
        "",
        &format!("{}\u{a0}", &time[..1]),
        &format!("{} {}", &time[..5], &time[5..]),
        "9223372036854775808",
        "2027-01-15T08:00:00Z",
        "18446744073709551616",
        &format!("{time}.0"),
        "１",
    ] {
        let mut headers = good.clone();
        headers.retain(|(name, _)| name != "hotcell-timestamp");
        headers.push(("hotcell-timestamp".to_owned(), stamp.to_owned()));
        let head = raw(client.addr, head("GET", "/v1/tools", &headers).as_bytes()).await;
        assert!(head.starts_with("HTTP/1.1 401"), "{stamp}: {head}");
    }
    let missing: Vec<_> = good
        .iter()
        .filter(|(n, _)| n != "hotcell-timestamp")
        .cloned()
        .collect();
    let answer = send(client.addr, false, "GET", "/v1/tools", &missing, "").await;
    answer.expect_code(401, "unauthenticated");
    let twice = [good.clone(), vec![("hotcell-timestamp".to_owned(), time)]].concat();
    let answer = send(client.addr, false, "GET", "/v1/tools", &twice, "").await;
    answer.expect_code(401, "unauthenticated");
}

/// AP-12: a signature over the declared hash lets the body in, and only that body.
#[tokio::test]
async fn a_body_that_is_not_the_declared_one_changes_nothing() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let target = "/v1/workspaces/w1/chats/c1/uploads/x.bin?user=u1&role=editor";
    let declared = vec![b'x'; 100_000];
    let longer = vec![b'x'; 100_001];
    let headers = client.signed("PUT", target, &declared);
    let answer = send(client.addr, false, "PUT", target, &headers, longer).await;
    answer.expect_code(401, "signature_mismatch");
    let list = "/v1/workspaces/w1/chats/c1/uploads?user=u1&role=viewer";
    assert_eq!(client.get(list).await.json()["uploads"], json!([]));
    assert_eq!(daemon.temporary_files(), 0);

    // Compressed bodies are not taken, whatever they inflate to.
    let headers = [
        ("content-encoding", "gzip"),
        ("content-type", "application/json"),
    ];
    let answer = client.send("POST", BASH, &headers, "\u{1f}gzip").await;
    answer.expect_code(415, "unsupported_media_type");
}

/// AP-12: 100-continue is not said to somebody who will be refused.
#[tokio::test]
async fn only_who_may_send_is_asked_to_continue() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let target = "/v1/workspaces/w1/chats/c1/uploads/x?user=u1&role=editor";
    let expect = vec![
        ("expect".to_owned(), "100-continue".to_owned()),
        ("content-length".to_owned(), "3".to_owned()),
    ];
    let unsigned = raw(client.addr, head("PUT", target, &expect).as_bytes()).await;
    assert!(unsigned.starts_with("HTTP/1.1 401"), "{unsigned}");
    let headers = [client.signed("PUT", target, b"abc"), expect].concat();
    let mut stream = TcpStream::connect(client.addr).await.unwrap();
    stream
        .write_all(head("PUT", target, &headers).as_bytes())
        .await
        .unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 100"));
    stream.write_all(b"abc").await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 201"));
}

/// AP-12: connections that only hold their place do not keep others out.
#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let mut idle = Vec::new();
    for _ in 0..500 {
        let mut stream = TcpStream::connect(client.addr).await.unwrap();
        stream
            .write_all(b"POST /v1/tools HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
            .await
            .unwrap();
        idle.push(stream);
    }
    client.get("/v1/tools").await.expect(200);
}
