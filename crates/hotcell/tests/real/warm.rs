//! A chat whose first call finds a warm sandbox.

use std::fs;

use hotcell_testkit::{Client, Footprint, Site, wait_for, wait_until};
use http::Method;
use serde_json::Value;

use super::{
    bash, chat_path, end, engines::ContainerEngine, on_runtimes, runtime_table, site_with,
};

on_runtimes!(
    runsc runc docker docker_runsc podman podman_runsc: (
        a_first_call_on_a_warm_daemon_sees_its_uploads,
        a_claimed_sandbox_sleeps_and_wakes_with_its_volumes,
        a_killed_daemons_pool_is_removed_by_the_next
    )
);
on_runtimes!(podman_rootless: (a_pool_that_cannot_be_is_refused_with_the_reason));

fn warm_site(runtime: &str) -> Site {
    let table = runtime_table(runtime);
    site_with(&format!(
        "{table}\n[profile]\nwarm_pool = 1\n[limits]\nidle_timeout_ms = 2000"
    ))
}

/// The leases that have a directory; those of the pool say so.
pub(crate) fn leases(site: &Site) -> (Vec<String>, Vec<String>) {
    let (mut claimed, mut warm) = (Vec::new(), Vec::new());
    let places = ["state/sandboxes", "state/volumes/.scratch"].into_iter();
    let entries = places.filter_map(|place| fs::read_dir(site.dir().join(place)).ok());
    for entry in entries.flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("ls_") {
            continue;
        }
        if path.join("warm").exists() {
            warm.push(name);
        } else {
            claimed.push(name);
        }
    }
    (claimed, warm)
}

/// Waits until the pool is full, and says which lease is in it.
pub(crate) async fn ready(operator: &Client, site: &Site) -> String {
    wait_for("the pool", async || {
        let listed: Value = operator.get("/v1/admin/profiles").await.expect(200).json();
        let warm = &listed["profiles"][0]["warm"];
        assert_eq!(warm["wanted"], 1, "{listed}");
        (warm["ready"] == 1).then_some(())
    })
    .await;
    let (_, warm) = leases(site);
    assert_eq!(warm.len(), 1);
    warm[0].clone()
}

/// Nothing of these leases is on the host or in the engine.
pub(crate) fn assert_gone(site: &Site, runtime: &str, gone: &[&str]) {
    assert_eq!(site.footprint(), Footprint::default());
    assert_eq!(leases(site), (Vec::new(), Vec::new()));
    if let Some(engine) = ContainerEngine::named(runtime) {
        for lease in gone {
            assert_eq!(engine.containers(lease), "", "{lease}");
        }
    }
}

async fn upload(client: &Client, chat: &str, name: &str, text: &'static str) {
    let target = chat_path(chat, &format!("uploads/{name}?user=u&role=editor"));
    let uploaded = client.request(Method::PUT, &target, &[], text).await;
    assert!(uploaded.status.is_success(), "{:?}", uploaded.body);
}

async fn a_first_call_on_a_warm_daemon_sees_its_uploads(runtime: &str) {
    let site = warm_site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let lease = ready(&daemon.operator, &site).await;
    upload(&client, "c", "a.txt", "mine\n").await;
    let first = bash(
        &client,
        "c",
        "cat /mnt/uploaded-files/a.txt; echo x > /mnt/uploaded-files/a.txt; \
         echo own > /mnt/user-data/f; echo ours > /mnt/workspace-data/f; pwd",
    )
    .await;
    assert_eq!(first["stdout"], "mine\n/workspace\n", "{first}");
    assert_eq!(first["lease"]["id"], lease.as_str(), "it was the warm one");
    // What is uploaded later is there too.
    upload(&client, "c", "b.txt", "later\n").await;
    let second = bash(&client, "c", "cat /mnt/uploaded-files/*").await;
    assert_eq!(second["stdout"], "mine\nlater\n", "{second}");

    // Another member's chat has another sandbox and sees what is shared, and nothing else.
    let other = ready(&daemon.operator, &site).await;
    assert_ne!(other, lease);
    let body = serde_json::json!({
        "user": {"id": "v", "role": "editor"},
        "command": "cat /mnt/workspace-data/f; ls -A /mnt/user-data /mnt/uploaded-files",
    });
    let seen = client.post(&chat_path("d", "bash"), &body).await;
    let seen: Value = seen.expect(200).json();
    assert_eq!(seen["lease"]["id"], other.as_str());
    assert_eq!(
        seen["stdout"], "ours\n/mnt/uploaded-files:\n\n/mnt/user-data:\n",
        "{seen}"
    );
    let metrics = daemon.operator.get("/metrics").await.expect(200);
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    for line in [
        "hotcell_warm_claims_total{outcome=\"warm\"} 2",
        "hotcell_start_duration_seconds_count{kind=\"warm\"} 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
    }
    assert!(!metrics.contains("kind=\"cold\""), "{metrics}");
    end(&client, "c").await;
    let target = format!("{}?user=v&role=editor", chat_path("d", "lease"));
    let _ = client.delete(&target).await.expect(200);
    wait_until("the leases to go", || leases(&site).0.is_empty()).await;
    // A daemon that stops takes its pool along.
    let last = ready(&daemon.operator, &site).await;
    daemon.stop();
    assert_gone(&site, runtime, &[&lease, &other, &last]);
}

/// What a claimed one is shown comes back with it, and no writable way to what it may only read.
async fn a_claimed_sandbox_sleeps_and_wakes_with_its_volumes(runtime: &str) {
    let site = warm_site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let lease = ready(&daemon.operator, &site).await;
    upload(&client, "c", "a.txt", "mine\n").await;
    let write = "echo kept > /workspace/f; echo own > /mnt/user-data/f";
    let first = bash(&client, "c", write).await;
    assert_eq!(first["lease"]["id"], lease.as_str(), "{first}");
    for turn in 0..2 {
        wait_for("the sandbox to be idle", async || {
            let target = format!("{}?user=u&role=editor", chat_path("c", "lease"));
            let shown = client.get(&target).await.expect(200).json();
            (shown["lease"]["state"] == "idle").then_some(())
        })
        .await;
        // Uploaded while it sleeps.
        upload(&client, "c", "b.txt", "later\n").await;
        let woken = bash(
            &client,
            "c",
            "cat /workspace/f /mnt/user-data/f /mnt/uploaded-files/*; \
             (: > /mnt/uploaded-files/a.txt) 2>/dev/null || echo closed; \
             touch /mnt/skills/x 2>/dev/null || echo closed",
        )
        .await;
        let expected = "kept\nown\nmine\nlater\nclosed\nclosed\n";
        assert_eq!(woken["stdout"], expected, "{turn}: {woken}");
        assert_eq!(woken["lease"]["id"], lease.as_str(), "{turn}");
    }
    end(&client, "c").await;
    wait_until("the lease to go", || leases(&site).0.is_empty()).await;
    daemon.stop();
    assert_gone(&site, runtime, &[&lease]);
}

/// A daemon that cannot have a pool does not seem to have one: it says what is wrong where it is asked.
async fn a_pool_that_cannot_be_is_refused_with_the_reason(runtime: &str) {
    let site = warm_site(runtime);
    let daemon = site.start();
    let listed = wait_for("the profile to be refused", async || {
        let listed: Value = daemon
            .operator
            .get("/v1/admin/profiles")
            .await
            .expect(200)
            .json();
        (listed.to_string().contains("warm pool")).then_some(listed)
    })
    .await;
    assert!(listed.to_string().contains("rootless"), "{listed}");
    daemon.stop();
}

async fn a_killed_daemons_pool_is_removed_by_the_next(runtime: &str) {
    let site = warm_site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = ready(&daemon.operator, &site).await;
    let claimed = bash(
        &client,
        "c",
        "echo kept > /workspace/f; echo own > /mnt/user-data/f",
    )
    .await;
    assert_eq!(claimed["lease"]["id"], first.as_str());
    let left = ready(&daemon.operator, &site).await;
    // That it runs is written down after the answer; writes keep their order.
    let path = format!("/v1/admin/workspaces/{}", hotcell_testkit::WORKSPACE);
    let renamed = daemon
        .operator
        .put(&path, &serde_json::json!({"name": "n"}))
        .await;
    assert!(renamed.status.is_success(), "{:?}", renamed.body);
    daemon.kill();

    let daemon = site.start();
    let (key, secret) = client.credential().unwrap();
    let client = daemon.operator.signing(key, secret);
    // The claimed one is adopted with its volumes; nobody's is gone, and no unknown one.
    let after = bash(&client, "c", "cat /workspace/f /mnt/user-data/f").await;
    assert_eq!(after["stdout"], "kept\nown\n", "{after}");
    assert_eq!(after["lease"]["id"], first.as_str());
    wait_until("the old pool to go", || {
        let (claimed, warm) = leases(&site);
        claimed == [first.clone()] && !warm.contains(&left)
    })
    .await;
    let listed: Value = daemon.operator.get("/v1/admin/profiles").await.json();
    assert_eq!(
        listed["profiles"][0]["unknown_sandboxes"],
        serde_json::json!([])
    );
    let last = ready(&daemon.operator, &site).await;
    end(&client, "c").await;
    wait_until("the lease to go", || leases(&site).0.is_empty()).await;
    daemon.stop();
    assert_gone(&site, runtime, &[&first, &left, &last]);
}
