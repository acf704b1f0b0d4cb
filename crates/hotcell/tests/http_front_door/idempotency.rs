//! LC-04: a request that is sent again does nothing again.

use serde_json::{Value, json};

use crate::{client::Answer, daemon::TestDaemon};

const JSON: (&str, &str) = ("content-type", "application/json");
const BASH: &str = "/v1/workspaces/w1/chats/c1/bash";
const PRESENT: &str = "/v1/workspaces/w1/chats/c1/present_files";

async fn post(daemon: &TestDaemon, target: &str, key: &str, body: &Value) -> Answer {
    let headers = [JSON, ("idempotency-key", key)];
    daemon
        .client
        .send("POST", target, &headers, body.to_string())
        .await
}

fn command(text: &str) -> Value {
    json!({"user": {"id": "u1", "role": "editor"}, "command": text})
}

fn paths(paths: &[&str]) -> Value {
    json!({"user": {"id": "u1", "role": "editor"}, "paths": paths})
}

async fn content(daemon: &TestDaemon) -> String {
    let answer = daemon.bash("c1", "cat /workspace/log").await;
    answer.json()["stdout"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_command_runs_once_for_one_key() {
    let daemon = TestDaemon::start().await;
    let body = command("append /workspace/log x; echo hi");
    let first = post(&daemon, BASH, "k1", &body).await.expect(200).json();
    let again = post(&daemon, BASH, "k1", &body).await.expect(200).json();
    assert_eq!(first, again);
    assert_eq!(content(&daemon).await.matches('x').count(), 1);
    // Another request, in another chat or with another body.
    post(&daemon, BASH, "k1", &command("echo ho"))
        .await
        .expect_code(409, "idempotency_key_reused");
    post(&daemon, "/v1/workspaces/w1/chats/c2/bash", "k1", &body)
        .await
        .expect_code(409, "idempotency_key_reused");
    // Without a key, and with another one, it runs again.
    post(&daemon, BASH, "k2", &body).await.expect(200);
    daemon.client.post(BASH, &body).await.expect(200);
    assert_eq!(content(&daemon).await.matches('x').count(), 3);
    for bad in ["", "a b"] {
        post(&daemon, BASH, bad, &body)
            .await
            .expect_code(400, "bad_request");
    }
}

#[tokio::test]
async fn twenty_at_once_are_one_call() {
    let daemon = TestDaemon::start().await;
    let body = command("append /workspace/log x; sleep 300; echo done");
    let calls = (0..20).map(|_| post(&daemon, BASH, "k", &body));
    let mut seen = std::collections::BTreeSet::new();
    for answer in futures_util::future::join_all(calls).await {
        let answer = answer.expect(200).json();
        seen.insert(answer["call"].as_str().unwrap().to_owned());
        assert_eq!(answer["stdout"], "done\n");
    }
    assert_eq!(seen.len(), 1);
    assert_eq!(content(&daemon).await.matches('x').count(), 1);
    assert_eq!(daemon.fake.running(), 1);
}

#[tokio::test]
async fn what_was_refused_is_done_anew() {
    let daemon = TestDaemon::start().await;
    let switch = |on: bool| {
        let daemon = &daemon;
        async move {
            let body = json!({"enabled": on});
            daemon
                .admin("PUT", "workspaces/w1", &body)
                .await
                .expect(200);
        }
    };
    switch(false).await;
    let body = command("echo hi");
    post(&daemon, BASH, "k", &body)
        .await
        .expect_denied("workspace");
    let files = paths(&["a.txt"]);
    post(&daemon, PRESENT, "f", &files)
        .await
        .expect_denied("workspace");
    switch(true).await;
    // The same key, the same request, and now another one too: nothing was done with it yet.
    post(&daemon, BASH, "k", &command("write a.txt 1"))
        .await
        .expect(200);
    let presented = post(&daemon, PRESENT, "f", &files).await.expect(200).json();
    assert_eq!(presented["outputs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_end_of_a_command_is_remembered_across_a_restart() {
    let daemon = TestDaemon::start().await;
    let body = command("err oh; exit 7");
    let long = command("big 100000; exit 3");
    let first = post(&daemon, BASH, "k", &body).await.expect(200).json();
    post(&daemon, BASH, "long", &long).await.expect(200);
    let daemon = daemon.stop().await.start_again().await;
    let again = post(&daemon, BASH, "k", &body).await.expect(200).json();
    assert_eq!(first, again);
    // As events too.
    let headers = [
        JSON,
        ("idempotency-key", "k"),
        ("accept", "text/event-stream"),
    ];
    let events = daemon
        .client
        .send("POST", BASH, &headers, body.to_string())
        .await
        .expect(200);
    let text = String::from_utf8_lossy(&events.body).into_owned();
    assert!(text.contains("event: result"), "{text}");
    let gone = post(&daemon, BASH, "long", &long).await;
    gone.expect_code(409, "idempotency_answer_gone");
    assert!(
        gone.json()["detail"]
            .as_str()
            .unwrap()
            .contains("exit code 3")
    );
    // A key is good for a day.
    daemon.clock.advance(24 * 3_600);
    let anew = post(&daemon, BASH, "k", &body).await.expect(200).json();
    assert_ne!(anew["call"], first["call"]);
}

#[tokio::test]
async fn a_command_that_was_cut_off_never_runs_again() {
    let daemon = TestDaemon::start().await;
    let body = command("append /workspace/log x; hang");
    let client = daemon.client.clone();
    let sent = body.to_string();
    let running = tokio::spawn(async move {
        let headers = [JSON, ("idempotency-key", "k")];
        client.send("POST", BASH, &headers, sent).await
    });
    hotcell_testkit::wait_for("the command", async || {
        content(&daemon).await.contains('x').then_some(())
    })
    .await;
    // A crash in the middle: whether it ran is not known, so it is not run again.
    let crashed = daemon.crashed().await.start_again().await;
    post(&crashed, BASH, "k", &body)
        .await
        .expect_code(409, "idempotency_cut_off");
    // The next command of the chat runs in a new sandbox, which nothing was appended in.
    let log = crashed
        .bash("c1", "cat /workspace/log")
        .await
        .expect(200)
        .json();
    assert_eq!(log["stdout"], "");
    crashed.stop().await;
    // A shutdown ends it with a problem, which is its end for good.
    let stopped = daemon.stop().await;
    running.await.unwrap().expect_code(503, "shutting_down");
    let daemon = stopped.start_again().await;
    post(&daemon, BASH, "k", &body)
        .await
        .expect_code(503, "shutting_down");
}

#[tokio::test]
async fn files_are_collected_once_for_one_key() {
    let daemon = TestDaemon::start().await;
    daemon.bash("c1", "write a.txt 123").await.expect(200);
    let body = paths(&["a.txt", "none.txt"]);
    let first = post(&daemon, PRESENT, "k", &body).await.expect(200).json();
    let calls = (0..8).map(|_| post(&daemon, PRESENT, "k", &body));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.expect(200).json(), first);
    }
    let calls = (0..8).map(|_| post(&daemon, PRESENT, "at once", &body));
    for answer in futures_util::future::join_all(calls).await {
        answer.expect_code(400, "bad_request");
    }
    let calls = (0..8).map(|_| post(&daemon, PRESENT, "at-once", &body));
    let mut seen = std::collections::BTreeSet::new();
    for answer in futures_util::future::join_all(calls).await {
        let answer = answer.expect(200).json();
        seen.insert(answer["outputs"][0]["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen.len(), 1);
    let daemon = daemon.stop().await.start_again().await;
    let again = post(&daemon, PRESENT, "k", &body).await.expect(200).json();
    assert_eq!(first, again);
    let listed = daemon
        .client
        .get("/v1/workspaces/w1/chats/c1/outputs?user=u1&role=editor")
        .await
        .expect(200)
        .json();
    assert_eq!(listed["outputs"].as_array().unwrap().len(), 2);
    // Nothing to collect is an answer as well.
    let none = paths(&["none.txt"]);
    post(&daemon, PRESENT, "n", &none).await.expect(200);
    post(&daemon, PRESENT, "n", &none).await.expect(200);
}
