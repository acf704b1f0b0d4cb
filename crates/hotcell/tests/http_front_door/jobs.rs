//! Jobs: off at first, started, followed, read by offset, stopped, and remembered.

use hotcell_core::lease::LeaseLimits;
use hotcell_runtime::SandboxEnd;
use hotcell_testkit::{Answer, Client, Options, TestDaemon, WORKSPACE, wait_for};
use hotcell_types::LeaseId;
use http::Method;
use serde_json::{Value, json};

const WITH_JOBS: &str = "[runtime]\nimage = 'fake'\n[profile]\njobs = true\n";
const MEMBER: &str = "user=u&role=editor";

fn chat(chat: &str, rest: &str) -> String {
    format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/{rest}")
}

fn expect_code(answer: &Answer, status: u16, code: &str) {
    let problem = answer.json();
    assert_eq!(
        (answer.status.as_u16(), &problem["code"]),
        (status, &json!(code)),
        "{problem}"
    );
}

async fn daemon_with(toml: &str, limits: Option<LeaseLimits>) -> (TestDaemon, Client) {
    let mut options = Options {
        toml: toml.to_owned(),
        ..Options::default()
    };
    if let Some(limits) = limits {
        options.limits = limits;
    }
    let daemon = TestDaemon::start_with(options).await;
    let client = daemon.client().await;
    (daemon, client)
}

fn body(command: &str) -> Value {
    json!({"user": {"id": "u", "role": "editor"}, "command": command})
}

async fn start(client: &Client, command: &str) -> Value {
    client
        .post(&chat("c", "jobs"), &body(command))
        .await
        .expect(201)
        .json()
}

fn path(job: &Value, rest: &str) -> String {
    let id = job["id"].as_str().unwrap();
    chat("c", &format!("jobs/{id}{rest}?{MEMBER}"))
}

async fn show(client: &Client, job: &Value) -> Value {
    client.get(&path(job, "")).await.expect(200).json()
}

async fn in_state(client: &Client, job: &Value, state: &str) -> Value {
    wait_for(state, async || {
        let shown = show(client, job).await;
        (shown["state"] == state).then_some(shown)
    })
    .await
}

async fn output(client: &Client, job: &Value, more: &str) -> Value {
    let target = format!("{}{more}", path(job, "/output"));
    client.get(&target).await.expect(200).json()
}

#[tokio::test]
async fn jobs_are_off_unless_the_profile_allows_them() {
    let (daemon, client) = daemon_with("", None).await;
    let refused = client.post(&chat("c", "jobs"), &body("true")).await;
    expect_code(&refused, 403, "jobs_off");
    assert_eq!(daemon.fake().running(), 0, "no sandbox for a refusal");
    daemon.shutdown().await;
}

/// LC-04 for jobs.
#[tokio::test]
async fn a_job_starts_once_for_one_key() {
    let (daemon, client) = daemon_with(WITH_JOBS, None).await;
    let send = async |command: &str| {
        let (target, text) = (chat("c", "jobs"), body(command).to_string());
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", "k"),
        ];
        let answer = client.request(Method::POST, &target, &headers, text);
        answer.await
    };
    let (first, second) = tokio::join!(send("sleep 60000"), send("sleep 60000"));
    let first = first.expect(201).json();
    assert_eq!(second.expect(201).json()["id"], first["id"]);
    let again = send("sleep 60000").await.expect(201).json();
    assert_eq!(again, first);
    expect_code(&send("true").await, 409, "idempotency_key_reused");
    let list = client.get(&chat("c", &format!("jobs?{MEMBER}"))).await;
    assert_eq!(list.json()["jobs"].as_array().unwrap().len(), 1);
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_workspaces_quota_bounds_its_jobs() {
    let (daemon, client) = daemon_with(WITH_JOBS, None).await;
    let workspace = format!("/v1/admin/workspaces/{WORKSPACE}");
    let quotas = json!({"quotas": {"max_job_seconds": 5}});
    let set = daemon.operator().put(&workspace, &quotas).await;
    assert!(set.status.is_success(), "{:?}", set.body);
    let ask = async |seconds: Value| {
        let mut body = body("true");
        body["max_seconds"] = seconds;
        client.post(&chat("c", "jobs"), &body).await
    };
    let refused = ask(json!(6)).await;
    expect_code(&refused, 403, "denied");
    assert_eq!(refused.json()["denial"], "quota:max_job_seconds");
    assert_eq!(daemon.fake().running(), 0, "no sandbox for a refusal");
    assert_eq!(ask(json!(4)).await.expect(201).json()["max_seconds"], 4);
    assert_eq!(ask(json!(null)).await.expect(201).json()["max_seconds"], 5);
    let denials = daemon.operator().get("/v1/admin/denials").await;
    let denials = denials.expect(200).json();
    assert_eq!(
        denials["denials"][0]["denial"], "quota:max_job_seconds",
        "{denials}"
    );
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_job_runs_on_is_read_by_offset_and_its_end_is_kept() {
    let (daemon, client) = daemon_with(WITH_JOBS, None).await;
    let job = start(&client, "echo one; sleep 1500; echo two; err oops; exit 7").await;
    assert_eq!(job["state"], "running", "{job}");
    // The workspace's quota is shorter than what the profile allows.
    assert_eq!(job["max_seconds"], 3_600);
    let first = output(&client, &job, "&wait_ms=5000").await;
    assert_eq!(
        (&first["text"], &first["next_offset"]),
        (&json!("one\n"), &json!(4))
    );
    assert_eq!(first["state"], "running");
    // A read that waits gets the rest as soon as it comes, from where the first one ended.
    let rest = output(&client, &job, "&offset=4&wait_ms=20000").await;
    assert_eq!(
        (&rest["offset"], &rest["text"]),
        (&json!(4), &json!("two\n"))
    );
    let ended = in_state(&client, &job, "exited").await;
    assert_eq!(ended["exit_code"], 7, "{ended}");
    assert_eq!(
        (&ended["stdout_bytes"], &ended["stderr_bytes"]),
        (&json!(8), &json!(5))
    );
    assert!(ended["ended_at_ms"].as_u64() > job["created_at_ms"].as_u64());
    let part = output(&client, &job, "&offset=1&limit=16").await;
    assert_eq!(part["text"], "ne\ntwo\n");

    // The sandbox goes; what the job was stays.
    let end = chat("c", &format!("lease?{MEMBER}"));
    let _ = client.delete(&end).await.expect(200);
    assert_eq!(show(&client, &job).await, ended);
    let kept = output(&client, &job, "").await;
    assert_eq!(
        (&kept["text"], &kept["total_bytes"]),
        (&json!("one\ntwo\n"), &json!(8))
    );
    let kept = output(&client, &job, "&stream=stderr&offset=2").await;
    assert_eq!(kept["text"], "ps\n");
    let list = client
        .get(&chat("c", &format!("jobs?{MEMBER}")))
        .await
        .json();
    assert_eq!(list["jobs"], json!([ended]));
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_job_outlives_a_restart_of_the_daemon() {
    let (daemon, client) = daemon_with(WITH_JOBS, None).await;
    let job = start(&client, "echo before; sleep 2500; echo after").await;
    let (key, secret) = client
        .credential()
        .map(|(k, s)| (k.to_owned(), s.to_owned()))
        .unwrap();
    let daemon = daemon.restart().await;
    let client = daemon.anonymous().signing(&key, &secret);
    assert_eq!(show(&client, &job).await["state"], "running");
    let ended = in_state(&client, &job, "exited").await;
    assert_eq!(ended["exit_code"], 0);
    assert_eq!(output(&client, &job, "").await["text"], "before\nafter\n");
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_job_ends_at_its_ceiling_or_when_it_is_stopped() {
    let (daemon, client) = daemon_with(
        "[runtime]\nimage = 'fake'\n[profile]\njobs = true\nmax_job_ms = 20000\n",
        None,
    )
    .await;
    for (seconds, code) in [(json!(0), 400), (json!(21), 400), (json!(-1), 400)] {
        let mut body = body("true");
        body["max_seconds"] = seconds;
        let refused = client.post(&chat("c", "jobs"), &body).await;
        expect_code(&refused, code, "bad_request");
    }
    let mut short = body("echo begun; hang");
    short["max_seconds"] = json!(1);
    let short = client
        .post(&chat("c", "jobs"), &short)
        .await
        .expect(201)
        .json();
    let long = start(&client, "echo too; hang").await;
    assert_eq!(
        (&short["max_seconds"], &long["max_seconds"]),
        (&json!(1), &json!(20))
    );
    let over = in_state(&client, &short, "timed_out").await;
    assert_eq!(over["exit_code"], Value::Null, "{over}");

    let viewer = path(&long, "").replace("editor", "viewer");
    expect_code(&client.delete(&viewer).await, 403, "denied");
    let stopped = client.delete(&path(&long, "")).await.expect(200).json();
    assert_eq!(stopped["state"], "stopped", "{stopped}");
    let again = client.delete(&path(&long, "")).await.expect(200).json();
    assert_eq!(again, stopped);
    assert_eq!(output(&client, &long, "").await["text"], "too\n");
    let audit = daemon
        .operator()
        .get("/v1/admin/audit?limit=100")
        .await
        .json();
    let rows = audit["rows"].as_array().unwrap();
    let of = |action: &str| rows.iter().filter(|row| row["action"] == action).count();
    assert_eq!((of("job.started"), of("job.ended")), (2, 2), "{audit}");
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_job_that_loses_its_sandbox_says_to_what() {
    let (daemon, client) = daemon_with(WITH_JOBS, None).await;
    let job = start(&client, "echo last words; hang").await;
    // Its output must have been seen before its sandbox goes.
    wait_for("a look at it", async || {
        tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
        Some(())
    })
    .await;
    let lease: LeaseId = job["lease"].as_str().unwrap().parse().unwrap();
    assert!(daemon.fake().kill(&lease, SandboxEnd::OutOfMemory));
    let lost = in_state(&client, &job, "lost").await;
    assert_eq!(lost["reason"], "out_of_memory", "{lost}");
    assert_eq!(output(&client, &job, "").await["text"], "last words\n");

    let job = start(&client, "hang").await;
    let end = chat("c", &format!("lease?{MEMBER}"));
    let _ = client.delete(&end).await.expect(200);
    let lost = show(&client, &job).await;
    assert_eq!(
        (&lost["state"], &lost["reason"]),
        (&json!("lost"), &json!("requested"))
    );

    // And one that the daemon did not see go.
    let job = start(&client, "hang").await;
    let (key, secret) = client
        .credential()
        .map(|(k, s)| (k.to_owned(), s.to_owned()))
        .unwrap();
    let engine = daemon.fake();
    let daemon = daemon
        .restart_after(|| assert_eq!(engine.lose_all(), 1))
        .await;
    let client = daemon.anonymous().signing(&key, &secret);
    let lost = in_state(&client, &job, "lost").await;
    assert!(
        ["runtime_restarted", "sandbox_lost"].contains(&lost["reason"].as_str().unwrap()),
        "{lost}"
    );
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_job_keeps_its_sandbox_awake_and_the_hard_limit_ends_both() {
    let limits = LeaseLimits {
        start_timeout_ms: 30_000,
        idle_timeout_ms: 600,
        hard_timeout_ms: 3_600_000,
    };
    let (daemon, client) = daemon_with(WITH_JOBS, Some(limits)).await;
    let job = start(&client, "sleep 2500; echo done").await;
    let lease = chat("c", &format!("lease?{MEMBER}"));
    let ended = wait_for("the end of the job", async || {
        let state = client.get(&lease).await.json()["lease"]["state"].clone();
        let shown = show(&client, &job).await;
        if shown["state"] == "running" {
            assert_eq!(state, "running", "a working job is no idleness");
        }
        (shown["state"] == "exited").then_some(shown)
    })
    .await;
    let idle = wait_for("idleness after it", async || {
        let shown = client.get(&lease).await.json()["lease"].clone();
        (shown["state"] == "idle").then_some(shown)
    })
    .await;
    let (ended, idle) = (&ended["ended_at_ms"], &idle["changed_at_ms"]);
    let after = idle.as_u64().unwrap() - ended.as_u64().unwrap();
    assert!(
        after >= 500,
        "idleness counts from the end of the job: {after} ms"
    );
    daemon.shutdown().await;

    let limits = LeaseLimits {
        hard_timeout_ms: 1_500,
        ..limits
    };
    let (daemon, client) = daemon_with(WITH_JOBS, Some(limits)).await;
    let job = start(&client, "echo begun; hang").await;
    let lost = in_state(&client, &job, "lost").await;
    assert_eq!(lost["reason"], "hard_time_limit", "{lost}");
    daemon.shutdown().await;
}

#[tokio::test]
async fn jobs_of_others_and_of_nobody_are_unknown() {
    let (daemon, client) = daemon_with(WITH_JOBS, None).await;
    let job = start(&client, "true").await;
    let id = job["id"].as_str().unwrap();
    for target in [
        chat("other", &format!("jobs/{id}?{MEMBER}")),
        chat("c", &format!("jobs/jb_none?{MEMBER}")),
        chat("c", &format!("jobs/{id}x/output?{MEMBER}")),
    ] {
        expect_code(&client.get(&target).await, 404, "unknown_job");
    }
    let late = format!("{}&wait_ms=25001", path(&job, "/output"));
    expect_code(&client.get(&late).await, 400, "bad_request");
    let viewer = json!({"user": {"id": "u", "role": "viewer"}, "command": "true"});
    let refused = client
        .send_json(Method::POST, &chat("c", "jobs"), &viewer)
        .await;
    expect_code(&refused, 403, "denied");
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_character_is_not_cut_between_two_pieces() {
    let (daemon, client) = daemon_with(WITH_JOBS, None).await;
    let text = "aé€𝄞".repeat(40);
    let job = start(&client, &format!("printf {text}")).await;
    let _ = in_state(&client, &job, "exited").await;
    let mut read = String::new();
    let mut offset = 0;
    loop {
        let piece = output(&client, &job, &format!("&offset={offset}&limit=17")).await;
        assert_eq!(piece["offset"], offset);
        read.push_str(piece["text"].as_str().unwrap());
        offset = piece["next_offset"].as_u64().unwrap();
        if piece["next_offset"] == piece["total_bytes"] {
            break;
        }
    }
    assert_eq!(read, text);
    daemon.shutdown().await;
}
