//! What limits do to a lease: idleness, the hard limit, places, sizes.

use hotcell_core::lease::LeaseLimits;
use hotcell_testkit::{Client, Options, TestDaemon, WORKSPACE, wait_for};
use serde_json::{Value, json};

const MEMBER: &str = "user=u&role=editor";
const PATIENT: LeaseLimits = LeaseLimits {
    start_timeout_ms: 30_000,
    idle_timeout_ms: 3_600_000,
    hard_timeout_ms: 7_200_000,
};

fn chat(chat: &str, rest: &str) -> String {
    format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/{rest}")
}

async fn daemon(limits: LeaseLimits, max_sandboxes: usize, profile: &str) -> (TestDaemon, Client) {
    let daemon = TestDaemon::start_with(Options {
        limits,
        max_sandboxes,
        toml: format!("[runtime]\nimage = 'fake'\n[profile]\n{profile}"),
        ..Options::default()
    })
    .await;
    let client = daemon.client().await;
    (daemon, client)
}

async fn bash(client: &Client, of: &str, command: &str) -> Value {
    let body = json!({"user": {"id": "u", "role": "editor"}, "command": command});
    client
        .post(&chat(of, "bash"), &body)
        .await
        .expect(200)
        .json()
}

async fn lease(client: &Client, of: &str) -> Value {
    let target = chat(of, &format!("lease?{MEMBER}"));
    client.get(&target).await.expect(200).json()["lease"].clone()
}

async fn in_state(client: &Client, of: &str, state: &str) -> Value {
    wait_for(state, async || {
        let shown = lease(client, of).await;
        (shown["state"] == state).then_some(shown)
    })
    .await
}

async fn outputs(client: &Client, of: &str) -> Vec<String> {
    let target = chat(of, &format!("outputs?{MEMBER}"));
    let list = client.get(&target).await.expect(200).json();
    let names = list["outputs"].as_array().unwrap().iter();
    names
        .map(|output| output["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn what_lies_in_outputs_survives_idleness_and_the_hard_limit() {
    let limits = LeaseLimits {
        idle_timeout_ms: 300,
        ..PATIENT
    };
    let (daemon, client) = daemon(limits, 8, "").await;
    let _ = bash(
        &client,
        "c",
        "mkdir /workspace/outputs; write /workspace/outputs/a.csv 1,2; write /workspace/outputs/b.exe x; \
         write /workspace/c.csv no; mkdir /workspace/outputs/deep; write /workspace/outputs/deep/d.txt y",
    )
    .await;
    let _ = in_state(&client, "c", "idle").await;
    assert_eq!(outputs(&client, "c").await, ["a.csv", "d.txt"]);
    // Woken and idle again: what has not changed is not collected again, what has is.
    let _ = bash(&client, "c", "append /workspace/outputs/a.csv 3,4").await;
    let _ = in_state(&client, "c", "idle").await;
    assert_eq!(outputs(&client, "c").await, ["a.csv", "d.txt", "a.csv"]);
    daemon.shutdown().await;

    let limits = LeaseLimits {
        hard_timeout_ms: 1_000,
        ..PATIENT
    };
    let (daemon, client) = self::daemon(limits, 8, "").await;
    let _ = bash(
        &client,
        "c",
        "mkdir /workspace/outputs; write /workspace/outputs/a.csv 1",
    )
    .await;
    let ended = in_state(&client, "c", "ended").await;
    assert_eq!(ended["end"], "hard_time_limit");
    assert_eq!(outputs(&client, "c").await, ["a.csv"]);
    assert_eq!(daemon.fake().running(), 0);

    // Asked for, the end takes everything along.
    let _ = bash(
        &client,
        "d",
        "mkdir /workspace/outputs; write /workspace/outputs/a.csv 1",
    )
    .await;
    let target = chat("d", &format!("lease?{MEMBER}"));
    let _ = client.delete(&target).await.expect(200);
    assert_eq!(outputs(&client, "d").await, Vec::<String>::new());
    daemon.shutdown().await;
}

#[tokio::test]
async fn the_hard_limit_wins_over_a_call_in_progress() {
    // LC-10: the hard limit wins over a call in progress, and the sandbox goes.
    let limits = LeaseLimits {
        hard_timeout_ms: 700,
        ..PATIENT
    };
    let (daemon, client) = daemon(limits, 8, "").await;
    let body = json!({"user": {"id": "u", "role": "editor"}, "command": "hang"});
    let cut = client.post(&chat("c", "bash"), &body).await;
    assert_eq!(cut.status, 409, "{:?}", cut.body);
    assert_eq!(cut.json()["code"], "lease_ended");
    let _ = in_state(&client, "c", "ended").await;
    let next = bash(&client, "c", "echo again").await;
    assert_eq!(next["lease"]["fresh"], true);
    daemon.shutdown().await;
}

#[tokio::test]
async fn calls_in_progress_are_no_idleness_and_a_background_process_is() {
    let limits = LeaseLimits {
        idle_timeout_ms: 400,
        ..PATIENT
    };
    let (daemon, client) = daemon(limits, 8, "").await;
    let long = bash(&client, "c", "sleep 1500; echo done").await;
    assert_eq!(long["stdout"], "done\n", "a silent call is use");
    let running = lease(&client, "c").await;
    assert_eq!(running["state"], "running");
    let _ = bash(&client, "c", "background 60000").await;
    let _ = in_state(&client, "c", "idle").await;
    let woken = bash(&client, "c", "echo awake").await;
    assert_eq!(
        (&woken["stdout"], &woken["lease"]["fresh"]),
        (&json!("awake\n"), &json!(true))
    );
    assert_eq!(woken["lease"]["id"], running["id"]);
    daemon.shutdown().await;
}

/// LC-05: use right at the moment at which the idle limit strikes.
#[tokio::test]
async fn use_at_the_moment_of_expiry_never_loses_the_sandbox() {
    let limits = LeaseLimits {
        idle_timeout_ms: 40,
        ..PATIENT
    };
    let (daemon, client) = daemon(limits, 64, "").await;
    let mut chats = tokio::task::JoinSet::new();
    for number in 0..16_u64 {
        let client = client.clone();
        chats.spawn(async move {
            let of = format!("c{number}");
            let first = bash(&client, &of, "write /workspace/kept yes").await;
            for round in 0..20_u64 {
                let pause = 36 + (number * 7 + round * 5) % 9;
                tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
                let again = bash(&client, &of, "cat /workspace/kept").await;
                assert_eq!(again["stdout"], "yes\n", "{again}");
                assert_eq!(again["lease"]["id"], first["lease"]["id"], "{again}");
            }
        });
    }
    chats.join_all().await;
    for number in 0..16 {
        let _ = in_state(&client, &format!("c{number}"), "idle").await;
    }
    wait_for("every sandbox to be stopped", async || {
        (daemon.fake().running() == 0).then_some(())
    })
    .await;
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_stopped_sandbox_takes_no_place_and_waking_it_needs_one() {
    let limits = LeaseLimits {
        idle_timeout_ms: 300,
        ..PATIENT
    };
    let (daemon, client) = daemon(limits, 1, "").await;
    let _ = bash(&client, "first", "echo 1").await;
    let _ = in_state(&client, "first", "idle").await;
    let body = json!({"user": {"id": "u", "role": "editor"}, "command": "sleep 1200"});
    let holding = {
        let client = client.clone();
        tokio::spawn(async move { client.post(&chat("second", "bash"), &body).await })
    };
    let _ = in_state(&client, "second", "running").await;
    let body = json!({"user": {"id": "u", "role": "editor"}, "command": "true"});
    let refused = client.post(&chat("first", "bash"), &body).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["code"]),
        (429, &json!("busy"))
    );
    let _ = holding.await.unwrap().expect(200);
    let _ = in_state(&client, "second", "idle").await;
    let woken = bash(&client, "first", "echo 2").await;
    assert_eq!(woken["stdout"], "2\n");

    // But there are not more stopped ones than four for each that may run.
    let _ = in_state(&client, "first", "idle").await;
    for of in ["third", "fourth"] {
        let _ = bash(&client, of, "true").await;
        let _ = in_state(&client, of, "idle").await;
    }
    let refused = client.post(&chat("fifth", "bash"), &body).await;
    assert_eq!(refused.status, 429, "{:?}", refused.body);
    daemon.shutdown().await;
}

#[tokio::test]
async fn the_profile_says_how_large_a_sandbox_is_and_what_goes_in_and_out() {
    let profile = "resource_class = 'LARGE'\noutput_types = ['csv']\nmax_output_files = 1\n\
                   max_output_bytes = 4\nmax_input_file_bytes = 3\nmax_input_bytes = 5\n";
    let (daemon, client) = daemon(PATIENT, 8, profile).await;
    // A workspace has small ones unless an operator says otherwise.
    let quotas = json!({"quotas": {"max_resource_class": "LARGE"}});
    let target = format!("/v1/admin/workspaces/{}", hotcell_testkit::WORKSPACE);
    let set = daemon.operator().put(&target, &quotas).await;
    assert!(set.status.is_success(), "{:?}", set.body);
    let _ = bash(
        &client,
        "c",
        "write a.csv 12345; write b.csv 12; write c.csv 1; write d.txt 1; truncate -s 1099511627776 big.csv",
    )
    .await;
    assert_eq!(lease(&client, "c").await["resource_class"], "LARGE");
    let body = json!({"user": {"id": "u", "role": "editor"}, "paths": ["a.csv", "d.txt", "big.csv", "b.csv", "c.csv"]});
    let result = client
        .post(&chat("c", "present_files"), &body)
        .await
        .expect(200)
        .json();
    assert_eq!(result["outputs"].as_array().unwrap().len(), 1, "{result}");
    assert_eq!(result["outputs"][0]["name"], "b.csv");
    let skipped: Vec<(&str, &str)> = result["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["path"].as_str().unwrap(), it["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(skipped.len(), 4, "{result}");
    for (path, part) in [
        ("a.csv", "of the 4 bytes"),
        ("d.txt", "these can: csv"),
        ("big.csv", "1099511627776 bytes"),
        ("c.csv", "1 files at most"),
    ] {
        let reason = skipped.iter().find(|it| it.0 == path).unwrap().1;
        assert!(reason.contains(part), "{path}: {reason}");
    }
    let put = async |name: &str, bytes: &'static str| {
        let target = chat("c", &format!("uploads/{name}?{MEMBER}"));
        client.request(http::Method::PUT, &target, &[], bytes).await
    };
    assert_eq!(put("a", "123").await.status, 201);
    let large = put("b", "1234").await;
    assert_eq!(large.json()["code"], "upload_too_large");
    assert_eq!(large.json()["limit_bytes"], 3);
    let full = put("b", "123").await;
    assert_eq!(full.json()["code"], "uploads_full");
    assert_eq!(full.json()["limit_bytes"], 5);
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_limit_that_passed_while_no_daemon_ran_is_kept_by_the_next_one() {
    let limits = LeaseLimits {
        hard_timeout_ms: 1_500,
        ..PATIENT
    };
    let (daemon, client) = daemon(limits, 8, "").await;
    let first = bash(
        &client,
        "c",
        "mkdir /workspace/outputs; write /workspace/outputs/a.csv 1",
    )
    .await;
    let credential = client.credential().unwrap();
    let credential = (credential.0.to_owned(), credential.1.to_owned());
    let until = lease(&client, "c").await["ends_at_ms"].as_u64().unwrap();
    let passed = || {
        let now = hotcell_types::Clock::now(&hotcell::clock::SystemClock);
        now.0 > until
    };
    let daemon = daemon
        .restart_after(|| {
            while !passed() {
                std::thread::yield_now();
            }
        })
        .await;
    let client = daemon.anonymous().signing(&credential.0, &credential.1);
    let ended = in_state(&client, "c", "ended").await;
    assert_eq!(
        (&ended["id"], &ended["end"]),
        (&first["lease"]["id"], &json!("hard_time_limit"))
    );
    assert_eq!(outputs(&client, "c").await, ["a.csv"], "and it was swept");
    assert_eq!(daemon.fake().running(), 0);
    daemon.shutdown().await;
}
