//! One sandbox that takes all it can: EX-04 and EX-20, as the others and the operator see it.

use std::time::Duration;

use hotcell_testkit::{Client, wait_for};
use serde_json::json;
use tokio::time::Instant;

use super::{bash, chat_path, end, on_both_engines, site, user};

const MEMBER: &str = "user=u&role=editor";

on_both_engines!(
    a_fork_bomb_is_felt_by_nobody_else,
    a_sandbox_without_memory_says_so_soon
);

/// How long each of these took, the longest last.
async fn times(client: &Client, until: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while Instant::now() < until {
        let begin = Instant::now();
        let target = chat_path("other", &format!("lease?{MEMBER}"));
        let _ = client.get(&target).await.expect(200);
        times.push(begin.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    times.sort_unstable();
    times
}

async fn a_fork_bomb_is_felt_by_nobody_else(engine: &str) {
    let site = site(engine);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let _ = bash(&client, "other", "echo warm").await;
    let _ = bash(&client, "bomb", "echo warm").await;
    let bomb = {
        let client = client.clone();
        let body = json!({"user": user("u"), "command": ":(){ :|:& };:; wait; sleep 60", "timeout_ms": 6_000});
        tokio::spawn(async move { client.post(&chat_path("bomb", "bash"), &body).await })
    };
    let api = {
        let client = client.clone();
        let until = Instant::now() + Duration::from_secs(6);
        tokio::spawn(async move { times(&client, until).await })
    };
    for _ in 0..5 {
        let other = bash(&client, "other", "echo ok").await;
        assert_eq!(other["stdout"], "ok\n", "another sandbox works on: {other}");
    }
    let api = api.await.unwrap();
    let p99 = api[api.len() * 99 / 100];
    assert!(p99 < Duration::from_secs(1), "p99 of the API is {p99:?}");
    let ended = bomb.await.unwrap();
    if ended.status == 200 {
        assert_eq!(ended.json()["timed_out"], true, "{:?}", ended.body);
    } else {
        let code = ended.json()["code"].clone();
        assert!(
            ["sandbox_lost", "out_of_memory"].contains(&code.as_str().unwrap()),
            "{code}"
        );
    }
    let begin = Instant::now();
    let again = bash(&client, "bomb", "echo ok").await;
    assert_eq!(again["stdout"], "ok\n", "{again}");
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    for chat in ["bomb", "other"] {
        end(&client, chat).await;
    }
    daemon.stop();
}

async fn a_sandbox_without_memory_says_so_soon(engine: &str) {
    let site = site(engine);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = bash(&client, "c", "echo kept > /mnt/user-data/f").await;
    let body = json!({"user": user("u"), "command": "python3 -c \"a = bytearray(8 << 30)\nfor i in range(0, len(a), 4096): a[i] = 1\""});
    let hungry = client.post(&chat_path("c", "bash"), &body).await;
    if hungry.status != 200 {
        let shown = wait_for("the end with its reason", async || {
            let target = chat_path("c", &format!("lease?{MEMBER}"));
            let shown = client.get(&target).await.expect(200).json()["lease"].clone();
            (shown["state"] == "ended").then_some(shown)
        });
        let shown = tokio::time::timeout(Duration::from_secs(5), shown).await;
        let shown = shown.unwrap_or_else(|_| panic!("its state is not right within five seconds"));
        assert_eq!(shown["id"], first["lease"]["id"]);
        assert!(
            ["out_of_memory", "sandbox_lost"].contains(&shown["end"].as_str().unwrap()),
            "{shown}"
        );
        let audit = daemon.operator.get("/v1/admin/audit?limit=20").await.json();
        let subject = format!("lease/{}", shown["id"].as_str().unwrap());
        let rows = audit["rows"].as_array().unwrap();
        assert!(
            rows.iter()
                .any(|row| row["action"] == "lease.ended" && row["subject"] == subject.as_str()),
            "{audit}"
        );
    }
    let next = bash(&client, "c", "cat /mnt/user-data/f").await;
    assert_eq!(next["stdout"], "kept\n", "{next}");
    end(&client, "c").await;
    daemon.stop();
}
