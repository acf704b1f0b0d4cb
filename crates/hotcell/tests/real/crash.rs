//! `kill -9` of the daemon, with sandboxes and calls under it.

use hotcell_testkit::{Footprint, Site, wait_for, wait_until};
use serde_json::{Value, json};

use super::{bash, chat_path, end, engines::ContainerEngine, on_every_runtime, site, user};

on_every_runtime!(
    a_killed_daemon_loses_and_leaks_nothing,
    a_dead_sandbox_is_swept
);

async fn a_killed_daemon_loses_and_leaks_nothing(runtime: &str) {
    let site = site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = bash(
        &client,
        "c",
        "echo here > /workspace/f; cd /tmp; export A=kept; (sleep 300 &)",
    )
    .await;
    assert_eq!(first["still_running"], 1, "{first}");
    let running = {
        let client = client.clone();
        let body = json!({"user": user("u"), "command": "touch /workspace/began; sleep 200"});
        tokio::spawn(async move { client.post(&chat_path("c", "bash"), &body).await.status })
    };
    wait_for("the call in progress", async || {
        let seen = bash(&client, "c", "ls /workspace").await;
        seen["stdout"].as_str()?.contains("began").then_some(())
    })
    .await;
    daemon.kill();
    assert!(
        running.await.is_err(),
        "a killed daemon cannot have answered"
    );

    let daemon = site.start();
    let (key, secret) = client.credential().unwrap();
    let client = daemon.operator.signing(key, secret);
    let after = bash(
        &client,
        "c",
        "cat /workspace/f; pwd; echo $A; pgrep -c sleep",
    )
    .await;
    assert_eq!(
        after["lease"]["id"], first["lease"]["id"],
        "the live sandbox is adopted"
    );
    assert_eq!(
        after["stdout"], "here\n/tmp\nkept\n1\n",
        "the call's own processes end with its connection: {after}"
    );
    end(&client, "c").await;
    wait_until("the lease's directory to go", || {
        site.footprint().leases.is_empty()
    })
    .await;
    daemon.stop();
    assert_nothing_left(&site, runtime, first["lease"]["id"].as_str().unwrap());
}

async fn a_dead_sandbox_is_swept(runtime: &str) {
    let site = site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = bash(&client, "c", "echo kept > /mnt/user-data/f").await;
    let lease = first["lease"]["id"].as_str().unwrap().to_owned();
    // A call does not wait until it is written down that its sandbox runs; one whose start is all
    // that is known would be started again. Writes keep their order.
    let path = format!("/v1/admin/workspaces/{}", hotcell_testkit::WORKSPACE);
    let renamed = daemon.operator.put(&path, &json!({"name": "n"})).await;
    assert!(renamed.status.is_success(), "{:?}", renamed.body);
    daemon.kill();
    match ContainerEngine::named(runtime) {
        Some(engine) => engine.kill(&lease),
        None => kill_group(&lease),
    }

    let daemon = site.start();
    let (key, secret) = client.credential().unwrap();
    let client = daemon.operator.signing(key, secret);
    let shown = wait_for("the end of the dead lease", async || {
        let target = format!("{}?user=u&role=editor", chat_path("c", "lease"));
        let shown: Value = client.get(&target).await.json();
        (shown["lease"]["state"] == "ended").then_some(shown)
    })
    .await;
    assert_eq!(shown["lease"]["id"], lease.as_str(), "{shown}");
    let fresh = bash(&client, "c", "cat /mnt/user-data/f").await;
    assert_ne!(fresh["lease"]["id"], lease.as_str());
    assert_eq!(fresh["stdout"], "kept\n");
    end(&client, "c").await;
    daemon.stop();
    assert_nothing_left(&site, runtime, &lease);
}

/// Nothing of the site, and nothing of this lease in its engine.
fn assert_nothing_left(site: &Site, runtime: &str, lease: &str) {
    assert_eq!(site.footprint(), Footprint::default());
    if let Some(engine) = ContainerEngine::named(runtime) {
        assert_eq!(engine.containers(lease), "");
    }
}

/// Kills every process in the lease's control group, as an operator with a heavy hand would.
fn kill_group(lease: &str) {
    let mut killed = 0;
    let mut stack = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if path.to_string_lossy().contains(lease) {
                for pid in std::fs::read_to_string(path.join("cgroup.procs"))
                    .unwrap_or_default()
                    .lines()
                {
                    let killing = std::process::Command::new("kill")
                        .args(["-KILL", pid])
                        .status();
                    killed += usize::from(killing.is_ok_and(|status| status.success()));
                }
            }
            stack.push(path);
        }
    }
    assert!(killed > 0, "the sandbox has no control group");
}
