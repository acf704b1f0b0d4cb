//! `kill -9` at each step of a claim on a container engine: as soon as the call was sent, as soon as the record
//! says whose the sandbox is, as soon as the first volume is attached, as soon as the mark is gone. The next
//! daemon serves the chat, and of what the dead one left there is neither a container nor a mount.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use hotcell_testkit::{Process, Site, wait_until};
use http::Method;
use serde_json::json;
use tokio::time::Instant;

use super::{
    bash, chat_path, end, on_runtimes, runtime_table, site_with, user,
    warm::{assert_gone, leases, ready},
};

on_runtimes!(
    docker docker_runsc podman podman_runsc: (a_daemon_that_dies_in_a_claim_leaves_nothing)
);

/// How long a step may take to come.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy)]
enum Step {
    Asked,
    Written,
    Attached,
    Claimed,
}

impl Step {
    /// Whether a claim has come this far.
    fn has_come(self, lease: &Path) -> bool {
        match self {
            Self::Asked => true,
            Self::Written => {
                let whose = format!("\"workspace\":\"{}\"", hotcell_testkit::WORKSPACE);
                fs::read_to_string(lease.join("record.json"))
                    .is_ok_and(|record| record.contains(&whose))
            }
            Self::Attached => {
                let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
                mounts.contains(&format!("{}/mnt/", lease.display()))
            }
            Self::Claimed => !lease.join("warm").exists(),
        }
    }
}

fn scratch(site: &Site) -> PathBuf {
    site.dir().join("state/volumes/.scratch")
}

/// Sends a first call, and kills the daemon when its claim has come to this step.
async fn kill_at(step: Step, daemon: Process, client: &hotcell_testkit::Client, lease: PathBuf) {
    let calling = {
        let client = client.clone();
        let body = json!({"user": user("u"), "command": "echo x >> /mnt/user-data/log"});
        tokio::spawn(async move {
            let headers = [("content-type", "application/json")];
            let target = chat_path("c", "bash");
            client
                .request(Method::POST, &target, &headers, body.to_string())
                .await
        })
    };
    // Without a pause: the steps follow each other within a millisecond.
    tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + PATIENCE;
        while !step.has_come(&lease) {
            assert!(
                Instant::now() < deadline,
                "the claim does not come to {step:?}"
            );
        }
        daemon.kill();
    })
    .await
    .unwrap();
    // A client whose daemon dies panics, in a task of its own; one that was answered before does not.
    let _ = calling.await;
}

async fn a_daemon_that_dies_in_a_claim_leaves_nothing(runtime: &str) {
    let table = runtime_table(runtime);
    let site = site_with(&format!("{table}\n[profile]\nwarm_pool = 1"));
    let mut daemon = site.start();
    let mut client = daemon.operator.switch_on().await;
    let target = chat_path("c", "uploads/a.txt?user=u&role=editor");
    let uploaded = client.request(Method::PUT, &target, &[], "mine\n").await;
    assert!(uploaded.status.is_success(), "{:?}", uploaded.body);
    let mut seen = Vec::new();
    for step in [Step::Asked, Step::Written, Step::Attached, Step::Claimed] {
        let lease = ready(&daemon.operator, &site).await;
        kill_at(step, daemon, &client, scratch(&site).join(&lease)).await;
        seen.push(lease.clone());
        let (claimed, warm) = leases(&site);
        seen.extend(claimed);
        seen.extend(warm);

        daemon = site.start();
        let (key, secret) = client.credential().unwrap();
        client = daemon.operator.signing(key, secret);
        let command = "cat /mnt/uploaded-files/a.txt; echo own > /mnt/user-data/f; \
                       (: > /mnt/uploaded-files/a.txt) 2>/dev/null || echo closed";
        let after = bash(&client, "c", command).await;
        assert_eq!(after["stdout"], "mine\nclosed\n", "{step:?}: {after}");
        // Whoever finds an unknown sandbox sweeps nothing: there is none.
        let listed = daemon.operator.get("/v1/admin/profiles").await.json();
        assert_eq!(listed["profiles"][0]["unknown_sandboxes"], json!([]));
        seen.push(after["lease"]["id"].as_str().unwrap().to_owned());
        end(&client, "c").await;
        wait_until("what is not of this daemon's pool to go", || {
            let (claimed, warm) = leases(&site);
            claimed.is_empty() && !warm.iter().any(|lease| seen.contains(lease))
        })
        .await;
    }
    let last = ready(&daemon.operator, &site).await;
    daemon.stop();
    seen.push(last);
    let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
    assert_gone(&site, runtime, &seen);
}
