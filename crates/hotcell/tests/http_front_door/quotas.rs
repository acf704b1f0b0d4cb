//! Quotas, denials and the audit trail, from outside.

use std::time::Duration;

use hotcell_runtime::RuntimeError;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{client::Answer, daemon::TestDaemon};

const HOUR_SECONDS: u64 = 3_600;

/// A daemon whose workspace has the default quotas.
async fn with_defaults() -> TestDaemon {
    let daemon = TestDaemon::start().await;
    put_quotas(
        &daemon,
        &json!({"max_concurrent": null, "max_jobs_per_hour": null}),
    )
    .await
    .expect(200);
    daemon
}

async fn put_quotas(daemon: &TestDaemon, quotas: &Value) -> Answer {
    let body = json!({"quotas": quotas});
    daemon.admin("PUT", "workspaces/w1", &body).await
}

async fn usage(daemon: &TestDaemon) -> Value {
    daemon
        .admin("GET", "workspaces/w1/usage", &Value::Null)
        .await
        .expect(200)
        .json()
}

async fn denials(daemon: &TestDaemon, query: &str) -> Vec<Value> {
    let path = format!("denials{query}");
    let page = daemon.admin("GET", &path, &Value::Null).await;
    page.expect(200).json()["denials"]
        .as_array()
        .unwrap()
        .clone()
}

async fn end(daemon: &TestDaemon, chat: &str) {
    let target = format!("/v1/workspaces/w1/chats/{chat}/lease?user=u1&role=editor");
    daemon
        .client
        .send("DELETE", &target, &[], "")
        .await
        .expect(200);
}

/// LC-01 over HTTP: the limit holds to the number, and each refusal says what it is.
#[tokio::test]
async fn fifty_at_once_get_two_sandboxes() {
    let daemon = with_defaults().await;
    let calls = (0..50).map(|number| {
        let client = daemon.client.clone();
        tokio::spawn(async move {
            let user = if number % 2 == 0 { "u1" } else { "u2" };
            let body = json!({"user": {"id": user, "role": "editor"}, "command": "true"});
            let target = format!("/v1/workspaces/w1/chats/c{number}/bash");
            client.post(&target, &body).await
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut ran = 0;
    for call in calls {
        let answer = call.await.unwrap();
        if answer.status == 200 {
            ran += 1;
            continue;
        }
        let problem = answer.expect(403).json();
        assert_eq!(
            (&problem["code"], &problem["denial"], &problem["limit"]),
            (&json!("denied"), &json!("quota:max_concurrent"), &json!(2))
        );
    }
    assert_eq!(ran, 2);
    let meter = usage(&daemon).await["max_concurrent"].clone();
    assert_eq!((&meter["used"], &meter["limit"]), (&json!(2), &json!(2)));
    assert_eq!(
        denials(&daemon, "?name=quota:max_concurrent").await.len(),
        48
    );
}

/// LC-01: starts take a while and fail; while they last they count, and then no more.
#[tokio::test]
async fn failed_starts_give_their_places_back() {
    let daemon = with_defaults().await;
    let start = Duration::from_millis(300);
    daemon.fake.script(|script| script.create_delay = start);
    for round in 0..3 {
        for _ in 0..2 {
            daemon.fake.fail_next_create(RuntimeError::Failed {
                action: "make a sandbox",
                reason: "no image".into(),
            });
        }
        let begun = Instant::now();
        let calls = (0..25).map(|number| {
            let chat = format!("r{round}-c{number}");
            let daemon = &daemon;
            async move {
                let answer = daemon.bash(&chat, "true").await;
                (answer, begun.elapsed())
            }
        });
        let (mut failed, mut last) = (0, Duration::ZERO);
        for (answer, took) in futures_util::future::join_all(calls).await {
            last = last.max(took);
            if answer.status == 502 {
                failed += 1;
                assert!(took >= start);
            } else {
                answer.expect_denied("quota:max_concurrent");
            }
        }
        assert_eq!(failed, 2, "round {round}");
        let freed = async {
            while usage(&daemon).await["max_concurrent"]["used"] != json!(0) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(1), freed)
            .await
            .unwrap();
    }
    let meter = usage(&daemon).await["max_jobs_per_hour"].clone();
    assert_eq!(meter["used"], json!(6));
}

/// A crash counts nothing twice: what lived is ended or adopted, what was admitted stays admitted.
#[tokio::test]
async fn a_crash_leaves_the_count_right() {
    let daemon = with_defaults().await;
    daemon.bash("c1", "true").await.expect(200);
    daemon.bash("c2", "true").await.expect(200);
    let crashed = daemon.crashed().await.start_again().await;
    // Their sandboxes are gone with the engine, so their places are free.
    let used = usage(&crashed).await;
    assert_eq!(used["max_concurrent"]["used"], json!(0));
    assert_eq!(used["max_jobs_per_hour"]["used"], json!(2));
    crashed.bash("c1", "true").await.expect(200);
    crashed.bash("c3", "true").await.expect(200);
    crashed
        .bash("c4", "true")
        .await
        .expect_denied("quota:max_concurrent");
}

/// A start that fails gives its place back, and an ended sandbox does.
#[tokio::test]
async fn places_come_back() {
    let daemon = with_defaults().await;
    put_quotas(&daemon, &json!({"max_concurrent": 1}))
        .await
        .expect(200);
    daemon.bash("c1", "true").await.expect(200);
    daemon
        .bash("c2", "true")
        .await
        .expect_denied("quota:max_concurrent");
    // The chat that has one is not refused, whatever the limit is by now.
    put_quotas(&daemon, &json!({"max_concurrent": 0}))
        .await
        .expect(200);
    daemon.bash("c1", "true").await.expect(200);
    end(&daemon, "c1").await;
    daemon
        .bash("c1", "true")
        .await
        .expect_denied("quota:max_concurrent");
    put_quotas(&daemon, &json!({"max_concurrent": null}))
        .await
        .expect(200);
    daemon.bash("c1", "true").await.expect(200);
    daemon.bash("c2", "true").await.expect(200);
    daemon
        .bash("c3", "true")
        .await
        .expect_denied("quota:max_concurrent");
}

#[tokio::test]
async fn the_hour_rolls_and_tells_when_it_frees() {
    let daemon = with_defaults().await;
    put_quotas(&daemon, &json!({"max_jobs_per_hour": 3}))
        .await
        .expect(200);
    for chat in ["c1", "c2", "c3"] {
        daemon.bash(chat, "true").await.expect(200);
        end(&daemon, chat).await;
        daemon.clock.advance(60);
    }
    let refused = daemon.bash("c4", "true").await;
    let after: u64 = refused.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(after, HOUR_SECONDS - 180);
    let problem = refused.expect(403).json();
    assert_eq!(
        (&problem["denial"], &problem["limit"]),
        (&json!("quota:max_jobs_per_hour"), &json!(3))
    );
    let meter = usage(&daemon).await["max_jobs_per_hour"].clone();
    assert_eq!(
        (&meter["used"], &meter["is_default"]),
        (&json!(3), &json!(false))
    );
    let frees_at = meter["frees_at_ms"].as_u64().unwrap();
    let at = usage(&daemon).await["at_ms"].as_u64().unwrap();
    assert_eq!((frees_at - at).div_ceil(1_000), after);
    daemon.clock.advance(after);
    daemon.bash("c4", "true").await.expect(200);
    daemon
        .bash("c5", "true")
        .await
        .expect_denied("quota:max_jobs_per_hour");
    // It outlives a restart.
    let daemon = daemon.stop().await.start_again().await;
    daemon
        .bash("c5", "true")
        .await
        .expect_denied("quota:max_jobs_per_hour");
}

#[tokio::test]
async fn stored_bytes_count_for_the_utc_day() {
    let daemon = with_defaults().await;
    put_quotas(&daemon, &json!({"max_artifact_bytes_per_day": 10}))
        .await
        .expect(200);
    daemon
        .bash("c1", "write a.txt 12345; write b.txt 1234; write c.txt 123")
        .await
        .expect(200);
    let present = |paths: Value| {
        let body = json!({"user": {"id": "u1", "role": "editor"}, "paths": paths});
        let client = daemon.client.clone();
        async move {
            let target = "/v1/workspaces/w1/chats/c1/present_files";
            client.post(target, &body).await
        }
    };
    present(json!(["a.txt"])).await.expect(200);
    // All or nothing: what was refused left no file and took no byte.
    let refused = present(json!(["b.txt"])).await;
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    let problem = refused.expect(403).json();
    assert_eq!(
        (&problem["denial"], &problem["limit_bytes"]),
        (&json!("quota:max_artifact_bytes_per_day"), &json!(10))
    );
    assert_eq!(daemon.temporary_files(), 0);
    present(json!(["c.txt"])).await.expect(200);
    let meter = usage(&daemon).await["max_artifact_bytes_per_day"].clone();
    assert_eq!((&meter["used"], &meter["limit"]), (&json!(10), &json!(10)));
    // Full: refused before anything is read.
    present(json!(["c.txt"]))
        .await
        .expect_denied("quota:max_artifact_bytes_per_day");
    let kept = denials(&daemon, "?name=quota:max_artifact_bytes_per_day").await;
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[0]["limit_bytes"], json!(10));
    daemon.clock.advance(24 * HOUR_SECONDS);
    let meter = usage(&daemon).await["max_artifact_bytes_per_day"].clone();
    assert_eq!(
        (&meter["used"], &meter["frees_at_ms"]),
        (&json!(0), &Value::Null)
    );
    present(json!(["a.txt"])).await.expect(200);
}

#[tokio::test]
async fn quotas_are_set_in_parts_and_reset_with_null() {
    let daemon = with_defaults().await;
    let shown = daemon
        .admin("GET", "workspaces/w1", &Value::Null)
        .await
        .expect(200)
        .json();
    assert_eq!(
        shown["quotas"],
        json!({
            "max_concurrent": 2,
            "max_resource_class": "SMALL",
            "max_job_seconds": 3_600,
            "max_artifact_bytes_per_day": 1_073_741_824,
            "max_jobs_per_hour": 60,
            "set": [],
        })
    );
    let set = json!({"max_resource_class": "LARGE", "max_job_seconds": 5});
    let shown = put_quotas(&daemon, &set).await.expect(200).json();
    assert_eq!(
        shown["quotas"]["set"],
        json!(["max_resource_class", "max_job_seconds"])
    );
    let set = json!({"max_job_seconds": null});
    let shown = put_quotas(&daemon, &set).await.expect(200).json();
    assert_eq!(shown["quotas"]["max_job_seconds"], json!(3_600));
    assert_eq!(shown["quotas"]["set"], json!(["max_resource_class"]));
    for (bad, field) in [
        (json!({"max_concurent": 1}), "max_concurent"),
        (json!({"max_concurrent": -1}), "quotas.max_concurrent"),
        (json!({"max_concurrent": 100_001}), "quotas.max_concurrent"),
        (json!({"max_job_seconds": 1e9}), "quotas.max_job_seconds"),
        (
            json!({"max_resource_class": "HUGE"}),
            "quotas.max_resource_class",
        ),
    ] {
        let detail = put_quotas(&daemon, &bad).await.expect(400).json();
        let detail = detail["detail"].as_str().unwrap();
        assert!(detail.contains(field), "{detail}");
    }
    let listed = daemon.admin("GET", "workspaces", &Value::Null).await;
    let listed = listed.expect(200).json();
    assert_eq!(
        listed["workspaces"][0]["quotas"]["max_resource_class"],
        json!("LARGE")
    );
    daemon
        .admin("GET", "workspaces/nobody/usage", &Value::Null)
        .await
        .expect_code(404, "unknown_workspace");
    // The audit trail has the names of what changed, and nothing for what did not.
    put_quotas(&daemon, &json!({"max_resource_class": "LARGE"}))
        .await
        .expect(200);
    let rows = daemon
        .admin(
            "GET",
            "audit?action=workspace.&subject=workspace/w1&limit=3",
            &Value::Null,
        )
        .await
        .expect(200)
        .json();
    let fields: Vec<&Value> = rows["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["fields"])
        .collect();
    assert_eq!(
        fields,
        [
            &json!([]),
            &json!(["quotas.max_job_seconds"]),
            &json!(["quotas.max_job_seconds", "quotas.max_resource_class"]),
        ]
    );
}

#[tokio::test]
async fn every_refusal_is_kept_with_who_and_what() {
    let daemon = with_defaults().await;
    let viewer = json!({"user": {"id": "v", "role": "viewer"}, "command": "true"});
    let target = "/v1/workspaces/w1/chats/c9/bash";
    let refused = daemon.client.post(target, &viewer).await;
    let request = refused.json()["request_id"].clone();
    refused.expect_denied("role");
    let upload = "/v1/workspaces/w1/chats/c9/uploads/a.txt?user=v&role=viewer";
    daemon
        .client
        .send("PUT", upload, &[], "x")
        .await
        .expect_denied("role");
    daemon
        .client
        .send("DELETE", upload, &[], "")
        .await
        .expect_denied("role");
    let lease = "/v1/workspaces/w1/chats/c9/lease?user=v&role=viewer";
    daemon
        .client
        .send("DELETE", lease, &[], "")
        .await
        .expect_denied("role");
    daemon
        .admin("PUT", "workspaces/w1", &json!({"enabled": false}))
        .await
        .expect(200);
    daemon.bash("c1", "true").await.expect_denied("workspace");
    daemon
        .admin("PUT", "organizations/acme", &json!({"enabled": false}))
        .await
        .expect(200);
    daemon
        .bash("c1", "true")
        .await
        .expect_denied("organization");
    daemon
        .admin("PUT", "deployment", &json!({"enabled": false}))
        .await
        .expect(200);
    daemon.bash("c1", "true").await.expect_denied("deployment");
    let all = denials(&daemon, "").await;
    let names: Vec<&str> = all
        .iter()
        .map(|row| row["denial"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "deployment",
            "organization",
            "workspace",
            "role",
            "role",
            "role",
            "role"
        ]
    );
    let first = all.last().unwrap();
    assert_eq!(
        *first,
        json!({
            "at_ms": first["at_ms"],
            "denial": "role",
            "limit": null,
            "limit_bytes": null,
            "limit_class": null,
            "organization": "acme",
            "workspace": "w1",
            "chat": "c9",
            "user": "v",
            "role": "viewer",
            "request_id": request,
        })
    );
    // Pages and filters.
    let page = daemon
        .admin("GET", "denials?limit=4", &Value::Null)
        .await
        .expect(200)
        .json();
    let next = page["next"].as_str().unwrap().to_owned();
    let rest = denials(&daemon, &format!("?limit=4&after={next}")).await;
    assert_eq!(rest.len(), 3);
    assert_eq!(denials(&daemon, "?workspace=w2").await.len(), 0);
    assert_eq!(
        denials(&daemon, "?workspace=w1&name=workspace").await.len(),
        1
    );
    daemon
        .admin("GET", "denials?name=qouta", &Value::Null)
        .await
        .expect_code(400, "bad_request");
    // Also after a restart, those of the last moment too.
    daemon.bash("c1", "true").await.expect_denied("deployment");
    let daemon = daemon.stop().await.start_again().await;
    assert_eq!(denials(&daemon, "").await.len(), 8);
}

#[tokio::test]
async fn the_audit_trail_is_filtered() {
    let daemon = TestDaemon::start().await;
    daemon.bash("c1", "true").await.expect(200);
    let rows = |query: &'static str| {
        let daemon = &daemon;
        async move {
            let page = daemon.admin("GET", query, &Value::Null).await;
            page.expect(200).json()["rows"].as_array().unwrap().clone()
        }
    };
    let actor = format!("backend:{}", daemon.client.key);
    let of_backend: &'static str = Box::leak(format!("audit?actor={actor}").into_boxed_str());
    let of_backend = rows(of_backend).await;
    assert_eq!(of_backend.len(), 1);
    assert_eq!(of_backend[0]["action"], json!("lease.admitted"));
    let of_operator = rows("audit?actor=operator").await;
    assert!(of_operator.len() >= 4);
    assert!(
        of_operator
            .iter()
            .all(|row| row["actor"] == json!("operator"))
    );
    assert_eq!(rows("audit?action=credential.").await.len(), 1);
    assert_eq!(rows("audit?since_ms=99999999999999").await.len(), 0);
    assert_eq!(rows("audit?until_ms=1").await.len(), 0);
    for bad in [
        "audit?actor=somebody",
        "audit?after=x",
        "audit?since_ms=-1",
        "audit?x=1",
    ] {
        daemon
            .admin("GET", bad, &Value::Null)
            .await
            .expect_code(400, "bad_request");
    }
}
