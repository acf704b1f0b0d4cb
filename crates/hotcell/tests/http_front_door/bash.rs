//! The `bash` tool: EX-08, EX-19, EX-22, event streams, resuming, sandboxes that go away.

use std::time::Duration;

use hotcell_testkit::wait_until;
use serde_json::{Value, json};

use crate::{
    client::Client,
    daemon::TestDaemon,
    events::{Event, Events},
    hostile::hostile,
};

const BASH: &str = "/v1/workspaces/w1/chats/c1/bash";
const STREAM: (&str, &str) = ("accept", "text/event-stream");
const JSON: (&str, &str) = ("content-type", "application/json");

fn command(text: &str) -> Value {
    json!({"user": {"id": "u1", "role": "editor"}, "command": text})
}

fn call_target(call: &str) -> String {
    format!("{BASH}/{call}?user=u1&role=editor")
}

async fn run_streaming(client: &Client, text: &str) -> Events {
    let body = command(text).to_string();
    let (parts, body) = client.open("POST", BASH, &[STREAM, JSON], body).await;
    assert_eq!(parts.status, 200);
    assert_eq!(parts.headers["content-type"], "text/event-stream");
    assert_eq!(parts.headers["cache-control"], "no-store");
    assert!(parts.headers.contains_key("hotcell-request-id"));
    Events::new(body)
}

#[tokio::test]
async fn a_result_says_everything() {
    let daemon = TestDaemon::start().await;
    let answer = daemon
        .bash("c1", "echo out\nerr wrong\nexit 3")
        .await
        .expect(200);
    let result = answer.json();
    assert_eq!(
        answer.headers["hotcell-call"],
        result["call"].as_str().unwrap()
    );
    assert_eq!(
        (
            &result["exit_code"],
            &result["signal"],
            &result["timed_out"]
        ),
        (&json!(3), &Value::Null, &json!(false))
    );
    assert_eq!(
        (&result["stdout"], &result["stderr"]),
        (&json!("out\n"), &json!("wrong\n"))
    );
    assert_eq!(result["lease"]["fresh"], true);
    for absent in ["stdout_base64", "stderr_base64"] {
        assert!(result.get(absent).is_none());
    }
    let again = daemon.bash("c1", "true").await.expect(200).json();
    assert_eq!(
        (&again["lease"]["id"], &again["lease"]["fresh"]),
        (&result["lease"]["id"], &json!(false))
    );
}

/// EX-08 at the front door.
#[tokio::test]
async fn bytes_that_are_no_text() {
    let daemon = TestDaemon::with(hostile).await;
    for (hex, text, base64) in [
        ("61ff620a", "a\u{FFFD}b\n", Some("Yf9iCg==")),
        ("f0", "\u{FFFD}", Some("8A==")),
        ("7800790a", "x\u{FFFD}y\n", Some("eAB5Cg==")),
        (
            "fffe6800690a00",
            "\u{FFFD}\u{FFFD}h\u{FFFD}i\n\u{FFFD}",
            Some("//5oAGkKAA=="),
        ),
        ("6772 c3 bc c3 9f65", "grüße", None),
    ] {
        let result = daemon
            .bash("c1", &format!("raw {hex}"))
            .await
            .expect(200)
            .json();
        assert_eq!(result["exit_code"], 0);
        for stream in ["stdout", "stderr"] {
            assert_eq!(result[stream], text, "{hex}");
            let raw = result.get(format!("{stream}_base64"));
            assert_eq!(raw.map(|raw| raw.as_str().unwrap()), base64, "{hex}");
        }
    }
}

#[tokio::test]
async fn what_was_dropped_is_marked_and_counted() {
    let daemon = TestDaemon::start().await;
    let result = daemon.bash("c1", "big 3000000").await.expect(200).json();
    let dropped = 3_000_000 - (1 << 20);
    assert_eq!(result["stdout_dropped_bytes"], dropped);
    let text = result["stdout"].as_str().unwrap();
    assert_eq!(
        text.find(&format!("\n[… {dropped} bytes dropped …]\n")),
        Some(256 << 10)
    );
    // A million characters are kept whole.
    let result = daemon.bash("c1", "big 1000000").await.expect(200).json();
    assert_eq!(result["stdout"].as_str().unwrap().len(), 1_000_000);
    assert_eq!(result["stdout_dropped_bytes"], 0);

    let daemon = TestDaemon::with(hostile).await;
    let result = daemon.bash("c1", "flood").await.expect(200).json();
    assert_eq!(result["stdout_dropped_bytes"], (1 << 30) - (1 << 20));
}

/// EX-19: the API's limit.
#[tokio::test]
async fn a_command_has_a_longest_length() {
    let daemon = TestDaemon::start().await;
    let length = |bytes: usize| format!("echo {}", "x".repeat(bytes - 5));
    for bytes in [131_071, 131_072, 1 << 20, 10 << 20, 16 << 20] {
        let result = daemon.bash("c1", &length(bytes)).await.expect(200).json();
        assert_eq!(result["exit_code"], 0, "{bytes}");
    }
    let answer = daemon.bash("c1", &length((16 << 20) + 1)).await;
    answer.expect_code(413, "command_too_long");
    assert_eq!(answer.json()["limit_bytes"], 16 << 20);
    let answer = daemon.bash("c1", &"x".repeat(34 << 20)).await;
    answer.expect_code(413, "body_too_large");
    assert_eq!(answer.json()["limit_bytes"], 33 << 20);
}

#[tokio::test]
async fn what_is_wrong_in_a_request_is_named() {
    let daemon = TestDaemon::start().await;
    let user = json!({"id": "u1", "role": "editor"});
    for (body, part) in [
        (json!({"user": user, "command": "x", "comand": 1}), "comand"),
        (
            json!({"user": {"id": "u1", "role": "king"}, "command": "x"}),
            "user.role",
        ),
        (
            json!({"user": {"id": "../u1", "role": "editor"}, "command": "x"}),
            "user.id",
        ),
        (json!({"user": user, "command": 5}), "command"),
        (
            json!({"user": user, "command": "x", "timeout_ms": 0}),
            "timeout_ms",
        ),
        (
            json!({"user": user, "command": "x", "timeout_ms": 3_600_001}),
            "timeout_ms",
        ),
        (
            json!({"user": user, "command": "x", "timeout_ms": -1}),
            "timeout_ms",
        ),
        (json!({"user": user, "command": "a\0b"}), "NUL"),
    ] {
        let answer = daemon.client.post(BASH, &body).await;
        answer.expect_code(400, "bad_request");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(part), "{body}: {detail}");
    }
    let answer = daemon
        .client
        .send("POST", BASH, &[("content-type", "text/plain")], "{}")
        .await;
    answer.expect_code(415, "unsupported_media_type");
    let answer = daemon
        .client
        .get("/v1/workspaces/w1/chats/c1/lease?user=u1&role=editor&x=1")
        .await;
    answer.expect_code(400, "bad_request");
    let answer = daemon
        .client
        .get("/v1/workspaces/w1/chats/.hidden/lease?user=u1&role=editor")
        .await;
    answer.expect_code(400, "bad_request");
}

#[tokio::test]
async fn denials_are_named() {
    let daemon = TestDaemon::start().await;
    let denial = async |role: &str| {
        let body = json!({"user": {"id": "u1", "role": role}, "command": "true"});
        let bash = daemon.client.post(BASH, &body).await;
        let present = json!({"user": {"id": "u1", "role": role}, "paths": ["x.txt"]});
        let present = daemon
            .client
            .post("/v1/workspaces/w1/chats/c1/present_files", &present)
            .await;
        let upload = format!("/v1/workspaces/w1/chats/c1/uploads/x?user=u1&role={role}");
        let upload = daemon.client.send("PUT", &upload, &[], "x").await;
        for answer in [&bash, &present, &upload] {
            answer.expect_code(403, "denied");
            assert_eq!(answer.json()["denial"], bash.json()["denial"]);
        }
        bash.json()["denial"].as_str().unwrap().to_owned()
    };
    assert_eq!(denial("viewer").await, "role");
    daemon
        .admin("PUT", "workspaces/w1", &json!({"enabled": false}))
        .await
        .expect(200);
    assert_eq!(denial("viewer").await, "workspace");
    daemon
        .admin("PUT", "organizations/acme", &json!({"enabled": false}))
        .await
        .expect(200);
    assert_eq!(denial("owner").await, "organization");
    daemon
        .admin("PUT", "deployment", &json!({"enabled": false}))
        .await
        .expect(200);
    assert_eq!(denial("owner").await, "deployment");
    // Refused before a stream begins, too.
    let (parts, _) = daemon
        .client
        .open("POST", BASH, &[STREAM, JSON], command("true").to_string())
        .await;
    assert_eq!(parts.status, 403);
    assert_eq!(daemon.fake.running(), 0);
}

#[tokio::test]
async fn events_come_in_order_and_end_with_the_result() {
    let daemon = TestDaemon::start().await;
    let mut events = run_streaming(&daemon.client, "echo one\nsleep 300\nerr two\nexit 4").await;
    let all = events.rest().await;
    let numbered: Vec<&Event> = all.iter().filter(|event| event.id.is_some()).collect();
    let ids: Vec<u64> = numbered.iter().map(|event| event.id.unwrap()).collect();
    assert_eq!(ids, (1..=4).collect::<Vec<u64>>(), "{all:?}");
    let names: Vec<&str> = numbered.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["call", "output", "output", "result"]);
    assert_eq!(
        numbered[1].data,
        json!({"stream": "stdout", "text": "one\n"})
    );
    assert_eq!(
        numbered[2].data,
        json!({"stream": "stderr", "text": "two\n"})
    );
    assert_eq!(numbered[3].data["exit_code"], 4);
    assert_eq!(numbered[3].data["stdout"], "one\n");
    assert_eq!(numbered[0].data["call"], numbered[3].data["call"]);
}

/// EX-22: whoever loses the connection comes back by the call's id; the command runs once.
#[tokio::test]
async fn a_dropped_stream_is_resumed() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let mut events = run_streaming(
        client,
        "append /workspace/log x\necho one\nsleep 700\necho two",
    )
    .await;
    let first = events.next().await.unwrap();
    let call = first.data["call"].as_str().unwrap().to_owned();
    let mut seen = loop {
        let event = events.next().await.unwrap();
        if event.name == "output" {
            break event;
        }
    };
    assert_eq!(seen.data["text"], "one\n");
    drop(events);

    // By waiting a little at a time.
    let poll = client
        .get(&format!("{}&wait_ms=1", call_target(&call)))
        .await
        .expect(202);
    assert_eq!(poll.json(), json!({"call": call, "running": true}));
    // As a stream, from where it was.
    let id = seen.id.unwrap().to_string();
    let (parts, body) = client
        .open(
            "GET",
            &call_target(&call),
            &[STREAM, ("last-event-id", &id)],
            "",
        )
        .await;
    assert_eq!(parts.status, 200);
    let mut rest = Events::new(body).rest().await;
    rest.retain(|event| event.id.is_some());
    seen = rest[0].clone();
    assert_eq!((seen.id, &seen.data["text"]), (Some(3), &json!("two\n")));
    assert_eq!(
        (rest[1].name.as_str(), &rest[1].data["stdout"]),
        ("result", &json!("one\ntwo\n"))
    );
    // As JSON, as often as wanted.
    for _ in 0..2 {
        let result = client.get(&call_target(&call)).await.expect(200).json();
        assert_eq!(result, rest[1].data);
    }
    let log = daemon
        .bash("c1", "cat /workspace/log")
        .await
        .expect(200)
        .json();
    assert_eq!(log["stdout"].as_str().unwrap().trim(), "x");

    // Only within its chat.
    let elsewhere = format!("/v1/workspaces/w1/chats/c2/bash/{call}?user=u1&role=editor");
    client
        .get(&elsewhere)
        .await
        .expect_code(404, "unknown_call");
    client
        .get(&call_target("ca_x"))
        .await
        .expect_code(404, "unknown_call");
    let bad = client
        .send(
            "GET",
            &call_target(&call),
            &[STREAM, ("last-event-id", "x")],
            "",
        )
        .await;
    bad.expect_code(400, "bad_request");
}

/// EX-22: a silent command, through a proxy that cuts connections that are silent for ten seconds.
#[tokio::test]
async fn a_silent_command_outlives_a_proxys_patience() {
    let daemon = TestDaemon::start().await;
    let proxy = impatient_proxy(daemon.client.addr, Duration::from_secs(10)).await;
    let through = Client {
        addr: proxy,
        ..daemon.client.clone()
    };
    let mut events = run_streaming(&through, "sleep 14000\necho ten").await;
    let all = events.rest().await;
    assert_eq!(all.last().unwrap().data["stdout"], "ten\n");
    assert!(events.comments + all.iter().filter(|event| event.name == "progress").count() >= 2);
}

/// Forwards bytes both ways until the server has been silent for so long.
async fn impatient_proxy(server: std::net::SocketAddr, patience: Duration) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::TcpStream::connect(server).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 8192];
                while let Ok(Ok(read @ 1..)) =
                    tokio::time::timeout(patience, from_server.read(&mut buffer)).await
                {
                    if to_client.write_all(&buffer[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    addr
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_end_the_call() {
    let daemon = TestDaemon::start().await;
    daemon.bash("c1", "true").await.expect(200);
    let client = daemon.client.clone();
    let request = tokio::spawn(async move {
        client
            .post(BASH, &command("sleep 300\nwrite /workspace/done yes"))
            .await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    request.abort();
    let lines = async || {
        let result = daemon
            .bash("c1", "cat /workspace/done")
            .await
            .expect(200)
            .json();
        result["stdout"].as_str().unwrap().trim().to_owned()
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while lines().await != "yes" {
        assert!(tokio::time::Instant::now() < deadline);
    }
}

#[tokio::test]
async fn a_sandbox_that_goes_away_is_reported_with_its_reason() {
    let daemon = TestDaemon::start().await;
    for (text, code) in [
        ("echo before\nsleep 200\ndie oom", "out_of_memory"),
        ("die exited", "sandbox_lost"),
    ] {
        let answer = daemon.bash("c1", text).await;
        answer.expect_code(502, code);
        let problem = answer.json();
        assert!(
            problem["detail"]
                .as_str()
                .unwrap()
                .contains("next call starts a fresh one"),
            "{problem}"
        );
        // What it said up to then is still there.
        let call = problem["call"].as_str().unwrap();
        let (_, body) = daemon
            .client
            .open("GET", &call_target(call), &[STREAM], "")
            .await;
        let events = Events::new(body).rest().await;
        if text.contains("before") {
            let told = events.iter().any(|event| event.data["text"] == "before\n");
            assert!(told, "{events:?}");
        }
        assert_eq!(events.last().unwrap().name, "problem");
        assert_eq!(events.last().unwrap().data["code"], code);
        let fresh = daemon.bash("c1", "true").await.expect(200).json();
        assert_eq!(fresh["lease"]["fresh"], true);
    }
}

#[tokio::test]
async fn another_member_does_not_get_into_the_sandbox() {
    let daemon = TestDaemon::start().await;
    daemon.bash("c1", "true").await.expect(200);
    let other = json!({"user": {"id": "u2", "role": "owner"}, "command": "true"});
    daemon
        .client
        .post(BASH, &other)
        .await
        .expect_code(409, "lease_of_another_user");
    let lease = daemon
        .client
        .get("/v1/workspaces/w1/chats/c1/lease?user=u2&role=viewer")
        .await
        .json();
    assert_eq!(lease["lease"]["user"], "u1");
    let end = "/v1/workspaces/w1/chats/c1/lease?user=u2&role=viewer";
    daemon
        .client
        .send("DELETE", end, &[], "")
        .await
        .expect_code(403, "denied");
    let end = "/v1/workspaces/w1/chats/c1/lease?user=u2&role=editor";
    let ended = daemon
        .client
        .send("DELETE", end, &[], "")
        .await
        .expect(200)
        .json();
    assert_eq!(ended["lease"]["end"], "requested");
    daemon.client.send("DELETE", end, &[], "").await.expect(200);
    daemon.client.post(BASH, &other).await.expect(200);
}

#[tokio::test]
async fn a_shutdown_ends_calls_and_says_so() {
    let daemon = TestDaemon::start().await;
    let mut events = run_streaming(&daemon.client, "echo ready\nhang").await;
    while events.next().await.unwrap().name != "output" {}
    let (rest, _) = tokio::join!(events.rest(), daemon.stop());
    let last = rest.last().unwrap();
    assert_eq!(
        (last.name.as_str(), &last.data["code"]),
        ("problem", &json!("shutting_down"))
    );
}

#[tokio::test]
async fn a_full_sandbox_is_busy() {
    let daemon = TestDaemon::start().await;
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut events = run_streaming(&daemon.client, "echo in\nhang").await;
        while events.next().await.unwrap().name != "output" {}
        streams.push(events);
    }
    let answer = daemon.bash("c1", "true").await;
    answer.expect_code(429, "busy");
    assert!(answer.headers.contains_key("retry-after"));
    wait_until("still one sandbox", || daemon.fake.running() == 1).await;
}
