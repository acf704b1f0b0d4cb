//! The daemon as a whole, on the engine in memory, over HTTP.

use hotcell::serve::{Daemon, StartError};
use hotcell_store::OpenError;
use hotcell_testkit::{Options, TestDaemon, wait_for};
use serde_json::json;

const BASH: &str = "/v1/workspaces/w/chats/c/bash";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_runs_and_its_sandbox_survives_a_restart_of_the_daemon() {
    let daemon = TestDaemon::start().await;
    let client = daemon.client().await;
    let body = |command: &str| json!({"user": {"id": "u", "role": "editor"}, "command": command});
    let first = client
        .post(BASH, &body("write /workspace/f 1; echo hi"))
        .await;
    let first = first.expect(200).json();
    assert_eq!(
        (&first["exit_code"], &first["stdout"]),
        (&json!(0), &json!("hi\n"))
    );

    let daemon = daemon.restart().await;
    let client = daemon.anonymous().signing(
        client.credential().unwrap().0,
        client.credential().unwrap().1,
    );
    let second = client.post(BASH, &body("cat /workspace/f")).await;
    let second = second.expect(200).json();
    assert_eq!(second["lease"]["id"], first["lease"]["id"]);
    assert!(second["stdout"].as_str().unwrap().starts_with('1'));
    assert_eq!(daemon.fake().running(), 1);
    daemon.shutdown().await;
}

/// An idle sandbox keeps its place until it ends, and its wake takes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_sandbox_counts_and_wakes_for_free() {
    let mut options = Options::default();
    options.limits.idle_timeout_ms = 200;
    let daemon = TestDaemon::start_with(options).await;
    let client = daemon.client().await;
    let quotas = json!({"quotas": {"max_concurrent": 1, "max_jobs_per_hour": 1}});
    let set = daemon
        .operator()
        .put("/v1/admin/workspaces/w", &quotas)
        .await;
    assert_eq!(set.status, 200);
    let call = async |chat: &str| {
        let body = json!({"user": {"id": "u", "role": "editor"}, "command": "true"});
        let target = format!("/v1/workspaces/w/chats/{chat}/bash");
        client.post(&target, &body).await
    };
    let first = call("c").await.expect(200).json();
    wait_for("the sandbox to be idle", async || {
        let target = "/v1/workspaces/w/chats/c/lease?user=u&role=editor";
        let lease = client.get(target).await.json();
        (lease["lease"]["state"] == "idle").then_some(())
    })
    .await;
    let denied = call("other").await.expect(403).json();
    assert_eq!(denied["denial"], "quota:max_concurrent");
    let woken = call("c").await.expect(200).json();
    assert_eq!(woken["lease"]["id"], first["lease"]["id"]);
    assert_eq!(woken["lease"]["fresh"], json!(true));
    let usage = daemon.operator().get("/v1/admin/workspaces/w/usage").await;
    let usage = usage.expect(200).json();
    assert_eq!(usage["max_concurrent"]["used"], json!(1));
    assert_eq!(usage["max_jobs_per_hour"]["used"], json!(1));
    // A switch that was turned off stands in the way of the next wake, too.
    let off = json!({"enabled": false});
    let set = daemon.operator().put("/v1/admin/workspaces/w", &off).await;
    assert_eq!(set.status, 200);
    let denied = call("c").await.expect(403).json();
    assert_eq!(denied["denial"], "workspace");
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_daemon_is_refused_and_touches_nothing() {
    let daemon = TestDaemon::start().await;
    let tmp = daemon.dir().join("state/tmp/half-written");
    std::fs::write(&tmp, "x").unwrap();
    let second = Box::pin(Daemon::start(
        daemon.config().clone(),
        hotcell::serve::Deps::default(),
    ));
    match second.await {
        Err(error @ StartError::Store(OpenError::AlreadyInUse { .. })) => {
            assert!(error.to_string().contains("already in use"), "{error}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("two daemons on one store"),
    }
    assert!(tmp.exists());
    // The first one still serves.
    wait_for("the health", async || {
        let answer = daemon.anonymous().get("/healthz").await;
        answer.status.is_success().then_some(())
    })
    .await;
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_made_private_and_a_lost_key_is_not_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let daemon = TestDaemon::start().await;
    let config = daemon.config().clone();
    for path in [
        &config.store_key_file,
        &config.operator_token_file,
        &config.store_path(),
        &config.admin_socket(),
    ] {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{path:?} {mode:o}");
    }
    let key = std::fs::read(&config.store_key_file).unwrap();
    // Kept alive: its directory goes with it.
    let dir = daemon.dir().to_owned();
    std::fs::remove_file(&config.store_key_file).unwrap();
    let refused = Box::pin(Daemon::start(
        config.clone(),
        hotcell::serve::Deps::default(),
    ));
    assert!(matches!(refused.await, Err(StartError::KeyMissing { .. })));
    assert!(!config.store_key_file.exists());
    std::fs::write(dir.join("state/store.key"), key).unwrap();
    daemon.restart().await.shutdown().await;
}
