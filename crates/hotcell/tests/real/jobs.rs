//! Jobs, idleness and long silence on real engines.

use std::time::Duration;

use hotcell_testkit::{Client, Footprint, Process, Site, wait_for};
use http::Method;
use serde_json::{Value, json};

use super::{bash, chat_path, end, on_every_runtime, runtime_table, site_with, user};

const MEMBER: &str = "user=u&role=editor";

on_every_runtime!(
    a_job_is_followed_over_kills_and_the_end_of_its_sandbox,
    an_unused_sandbox_is_stopped_and_woken_and_a_job_is_use,
    a_sandbox_at_its_hard_limit_is_swept_and_goes
);

fn site(runtime: &str, limits: &str) -> Site {
    let table = runtime_table(runtime);
    site_with(&format!("{table}\n[profile]\njobs = true\n{limits}"))
}

fn signing(daemon: &Process, client: &Client) -> Client {
    let (key, secret) = client.credential().unwrap();
    daemon.operator.signing(key, secret)
}

async fn start(client: &Client, body: Value) -> Value {
    let target = chat_path("c", "jobs");
    client.post(&target, &body).await.expect(201).json()
}

fn path(job: &Value, rest: &str) -> String {
    let id = job["id"].as_str().unwrap();
    chat_path("c", &format!("jobs/{id}{rest}?{MEMBER}"))
}

async fn in_state(client: &Client, job: &Value, state: &str) -> Value {
    wait_for(state, async || {
        let shown = client.get(&path(job, "")).await.expect(200).json();
        (shown["state"] == state).then_some(shown)
    })
    .await
}

/// Reads a job's output to its end, or until it has been quiet for a moment.
async fn read_on(client: &Client, job: &Value, offset: &mut u64, text: &mut String) -> Value {
    let target = format!("{}&offset={offset}&wait_ms=3000", path(job, "/output"));
    let piece = client.get(&target).await.expect(200).json();
    assert_eq!(piece["offset"], *offset, "no gap and no repeat: {piece}");
    *offset = piece["next_offset"].as_u64().unwrap();
    text.push_str(piece["text"].as_str().unwrap());
    piece
}

/// LC-12.
async fn a_job_is_followed_over_kills_and_the_end_of_its_sandbox(engine: &str) {
    let site = site(engine, "");
    let daemon = site.start();
    let mut client = daemon.operator.switch_on().await;
    let counting = "for n in $(seq 1 60); do echo line $n; sleep 0.2; done; exit 7";
    let job = start(&client, json!({"user": user("u"), "command": counting})).await;
    let short =
        json!({"user": user("u"), "command": "(sleep 500 &) ; sleep 501", "max_seconds": 2});
    let short = start(&client, short).await;
    let (mut offset, mut text) = (0, String::new());
    let _ = read_on(&client, &job, &mut offset, &mut text).await;
    // Process ids come round; the job's id is its own.
    let many = bash(
        &client,
        "c",
        "for n in $(seq 1 400); do /bin/true; done; echo done",
    )
    .await;
    assert_eq!(many["stdout"], "done\n");

    daemon.kill();
    let daemon = site.start();
    client = signing(&daemon, &client);
    let over = in_state(&client, &short, "timed_out").await;
    assert!(over["duration_ms"].as_u64().unwrap() >= 2_000, "{over}");
    let left = bash(&client, "c", "pgrep -fc 'sleep 50[01]'").await;
    assert_eq!(left["stdout"], "0\n", "the whole tree is gone: {left}");
    loop {
        let piece = read_on(&client, &job, &mut offset, &mut text).await;
        if piece["state"] != "running" && piece["next_offset"] == piece["total_bytes"] {
            break;
        }
    }
    let expected: String = (1..=60).map(|n| format!("line {n}\n")).collect();
    assert_eq!(text, expected);
    let ended = in_state(&client, &job, "exited").await;
    assert_eq!(ended["exit_code"], 7, "{ended}");

    let lost = json!({"user": user("u"), "command": "echo alive; sleep 600"});
    let lost = start(&client, lost).await;
    end(&client, "c").await;
    let gone = in_state(&client, &lost, "lost").await;
    assert_eq!(gone["reason"], "requested", "{gone}");
    assert_eq!(in_state(&client, &job, "exited").await, ended);
    let kept = client.get(&path(&job, "/output")).await.expect(200).json();
    assert_eq!(kept["text"], expected.as_str());
    daemon.stop();
    assert_eq!(site.footprint(), Footprint::default());
}

/// LC-10.
async fn an_unused_sandbox_is_stopped_and_woken_and_a_job_is_use(engine: &str) {
    let site = site(engine, "[limits]\nidle_timeout_ms = 3000\n");
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let lease = async || {
        let target = chat_path("c", &format!("lease?{MEMBER}"));
        client.get(&target).await.expect(200).json()["lease"].clone()
    };
    let first = bash(
        &client,
        "c",
        "echo kept > /workspace/f; mkdir /workspace/outputs; echo 1,2 > /workspace/outputs/t.csv",
    )
    .await;
    let job = start(&client, json!({"user": user("u"), "command": "sleep 7"})).await;
    let ended = wait_for("the end of the job", async || {
        let shown = client.get(&path(&job, "")).await.expect(200).json();
        if shown["state"] == "running" {
            assert_eq!(lease().await["state"], "running", "a job is use");
        }
        (shown["state"] == "exited").then_some(shown)
    })
    .await;
    // A process that a call left behind is none.
    let _ = bash(&client, "c", "(sleep 600 &)").await;
    let idle = wait_for("idleness", async || {
        let shown = lease().await;
        (shown["state"] == "idle").then_some(shown)
    })
    .await;
    let after = idle["changed_at_ms"].as_u64().unwrap() - ended["ended_at_ms"].as_u64().unwrap();
    assert!((2_900..20_000).contains(&after), "{after} ms");
    let woken = bash(&client, "c", "cat /workspace/f; pgrep -c sleep").await;
    assert_eq!(woken["stdout"], "kept\n0\n", "{woken}");
    assert_eq!(woken["lease"]["id"], first["lease"]["id"]);
    assert_eq!(woken["lease"]["fresh"], true);
    let target = chat_path("c", &format!("outputs?{MEMBER}"));
    let swept = client.get(&target).await.expect(200).json();
    assert_eq!(swept["outputs"][0]["name"], "t.csv", "{swept}");
    end(&client, "c").await;
    daemon.stop();
    assert_eq!(site.footprint(), Footprint::default());
}

/// LC-10: the hard limit wins over whatever works, and takes what is ready along.
async fn a_sandbox_at_its_hard_limit_is_swept_and_goes(engine: &str) {
    let site = site(engine, "[limits]\nhard_timeout_ms = 6000\n");
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = bash(&client, "c", "mkdir /workspace/outputs; echo 1,2 > /workspace/outputs/t.csv; echo kept > /mnt/user-data/f").await;
    let job = start(
        &client,
        json!({"user": user("u"), "command": "echo begun; sleep 600"}),
    )
    .await;
    let body = json!({"user": user("u"), "command": "sleep 600", "timeout_ms": 900_000});
    let cut = client.post(&chat_path("c", "bash"), &body).await;
    assert_eq!(cut.expect(409).json()["code"], "lease_ended");
    let lost = in_state(&client, &job, "lost").await;
    assert_eq!(lost["reason"], "hard_time_limit", "{lost}");
    let kept = client.get(&path(&job, "/output")).await.expect(200).json();
    assert_eq!(kept["text"], "begun\n");
    let next = bash(&client, "c", "cat /mnt/user-data/f; ls /workspace").await;
    assert_eq!(next["stdout"], "kept\n", "{next}");
    assert_ne!(next["lease"]["id"], first["lease"]["id"]);
    let target = chat_path("c", &format!("outputs?{MEMBER}"));
    let swept = client.get(&target).await.expect(200).json();
    let outputs = swept["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 1, "{swept}");
    assert_eq!(outputs[0]["name"], "t.csv");
    end(&client, "c").await;
    daemon.stop();
    assert_eq!(site.footprint(), Footprint::default());
}

/// EX-22: longer than any proxy waits in silence, as JSON and as events with keep-alives. It waits for
/// more than two minutes, so it does that under one engine only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_command_is_not_cut() {
    let site = site("runsc", "");
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let body = json!({"user": user("u"), "command": "sleep 130; echo x", "timeout_ms": 300_000});
    let events = {
        let (client, body) = (client.clone(), body.to_string());
        tokio::spawn(async move {
            let headers = [
                ("content-type", "application/json"),
                ("accept", "text/event-stream"),
            ];
            let target = chat_path("c", "bash");
            let response = client.send(Method::POST, &target, &headers, body).await;
            let mut body = response.into_body();
            let (mut text, mut longest) = (String::new(), Duration::ZERO);
            let mut last = tokio::time::Instant::now();
            while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
                longest = longest.max(last.elapsed());
                last = tokio::time::Instant::now();
                let data = frame.unwrap().into_data().unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(&data));
            }
            (text, longest)
        })
    };
    let plain = client
        .post(&chat_path("d", "bash"), &body)
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&plain["stdout"], &plain["exit_code"]),
        (&json!("x\n"), &json!(0))
    );
    assert!(plain["duration_ms"].as_u64().unwrap() >= 130_000);
    let (text, longest) = events.await.unwrap();
    assert!(
        text.contains("event: result") && text.contains("x\\n"),
        "{text}"
    );
    assert!(
        longest < Duration::from_millis(6_500),
        "{longest:?} of silence"
    );
    for chat in ["c", "d"] {
        end(&client, chat).await;
    }
    daemon.stop();
}
