//! LC-08: the engine is restarted under its sandboxes.

use std::time::{Duration, Instant};

use hotcell_testkit::{Footprint, wait_for};
use serde_json::{Value, json};

use super::{bash, chat_path, end, engines::OwnDocker, site_with, user};

/// What an operator is promised.
const TYPED_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::disallowed_methods,
    reason = "the promise is about real time, and the daemon is another process"
)]
async fn a_restarted_docker_ends_leases_with_a_reason() {
    let mut docker = OwnDocker::start().await;
    let table = docker.engine().table();
    let site = site_with(&format!("{table}\n[profile]\njobs = true"));
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = bash(
        &client,
        "c",
        "echo kept > /mnt/user-data/f; echo gone > /workspace/f",
    )
    .await;
    let lease = first["lease"]["id"].as_str().unwrap().to_owned();
    let body = json!({"user": user("u"), "command": "sleep 600"});
    let started = client.post(&chat_path("c", "jobs"), &body).await;
    let job = started.expect(201).json();

    let begin = Instant::now();
    docker.stop();
    docker.resume().await;
    let shown = wait_for("the lease's end", async || {
        let target = format!("{}?user=u&role=editor", chat_path("c", "lease"));
        let shown: Value = client.get(&target).await.json();
        (shown["lease"]["state"] == "ended").then_some(shown)
    })
    .await;
    assert!(begin.elapsed() < TYPED_WITHIN, "{:?}", begin.elapsed());
    assert_eq!(shown["lease"]["id"], lease.as_str(), "{shown}");
    assert_eq!(shown["lease"]["end"], "runtime_restarted", "{shown}");

    let target = format!(
        "{}?user=u&role=editor",
        chat_path("c", &format!("jobs/{}", job["id"].as_str().unwrap()))
    );
    let job = client.get(&target).await.expect(200).json();
    assert_eq!(job["state"], "lost", "{job}");

    let next = bash(&client, "c", "cat /mnt/user-data/f; ls /workspace").await;
    assert_ne!(next["lease"]["id"], lease.as_str());
    assert_eq!(next["stdout"], "kept\n", "{next}");
    end(&client, "c").await;
    assert_eq!(docker.engine().containers(&lease), "");
    daemon.stop();
    assert_eq!(site.footprint(), Footprint::default());
}
