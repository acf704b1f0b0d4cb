//! FA-21 (a): a member fills a persistent volume to its size, on every runtime.

use hotcell_testkit::{Client, Footprint, wait_for, wait_until};
use serde_json::json;

use super::{bash, chat_path, end, on_every_runtime, runtime_table, site_with, user};

const SIZE_MIB: u64 = 64;

on_every_runtime!(a_full_volume_is_full_for_its_owner_alone);

async fn bash_of(client: &Client, who: &str, chat: &str, command: &str) -> serde_json::Value {
    let body = json!({"user": user(who), "command": command});
    let answer = client.post(&chat_path(chat, "bash"), &body).await;
    answer.expect(200).json()
}

async fn a_full_volume_is_full_for_its_owner_alone(engine: &str) {
    let site = site_with(&format!(
        "{}\n[limits]\nvolume_bytes = {}\nidle_timeout_ms = 2000\n",
        runtime_table(engine),
        SIZE_MIB << 20
    ));
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let full = bash(
        &client,
        "c",
        "cd /mnt/user-data && head -c 1G /dev/zero > big; echo $? $(stat -c %s big)",
    )
    .await;
    let stdout = full["stdout"].as_str().unwrap().trim().to_owned();
    let (code, bytes) = stdout.split_once(' ').unwrap();
    assert_ne!(code, "0", "{full}");
    assert!(
        full["stderr"].as_str().unwrap().contains("No space left"),
        "{full}"
    );
    let mib = bytes.parse::<u64>().unwrap() >> 20;
    assert!((SIZE_MIB / 2..SIZE_MIB).contains(&mib), "{full}");

    // Another member, the workspace's volume and the scratch disk have room.
    let other = bash_of(
        &client,
        "v",
        "d",
        "head -c 20M /dev/zero > /mnt/user-data/f && echo ok",
    )
    .await;
    assert_eq!(other["stdout"], "ok\n", "{other}");
    let elsewhere = "for at in /mnt/workspace-data /workspace /tmp; do head -c 10M /dev/zero > $at/f || exit 1; done; echo ok";
    let same = bash(&client, "c", elsewhere).await;
    assert_eq!(same["stdout"], "ok\n", "{same}");
    // What was removed is free at once.
    let again = "cd /mnt/user-data && rm big && head -c 40M /dev/zero > half && echo kept > note && echo ok";
    let freed = bash(&client, "c", again).await;
    assert_eq!(freed["stdout"], "ok\n", "{freed}");

    // It holds after an idle stop, a kill, and a restart, with what was written.
    let at = chat_path("c", "lease?user=u&role=editor");
    wait_for("the sandbox to be idle", async || {
        let shown = client.get(&at).await.expect(200).json();
        (shown["lease"]["state"] == "idle").then_some(())
    })
    .await;
    daemon.kill();
    let daemon = site.start();
    let (key, secret) = client.credential().unwrap();
    let client = daemon.operator.signing(key, secret);
    let woken = bash(
        &client,
        "c",
        "cd /mnt/user-data && cat note; head -c 1G /dev/zero > big; stat -c %s big",
    )
    .await;
    let stdout = woken["stdout"].as_str().unwrap();
    let (note, bytes) = stdout.trim().split_once('\n').unwrap();
    assert_eq!(note, "kept", "{woken}");
    let mib = bytes.parse::<u64>().unwrap() >> 20;
    assert!(mib < SIZE_MIB - 40, "{woken}");

    // Deleting the member gives everything back; the other one has its files.
    let target = format!(
        "/v1/admin/workspaces/{}/users/u",
        hotcell_testkit::WORKSPACE
    );
    let deleted = daemon.operator.delete(&target).await;
    assert!(
        [200, 202, 204].contains(&deleted.status.as_u16()),
        "{deleted:?}"
    );
    wait_until("the disk of the member to go", || {
        let left = site.footprint().loops;
        !left.iter().any(|file| file.contains("users/u/"))
    })
    .await;
    let other = bash_of(&client, "v", "d", "stat -c %s /mnt/user-data/f").await;
    assert_eq!(other["stdout"], "20971520\n", "{other}");
    let target = format!("{}?user=v&role=editor", chat_path("d", "lease"));
    let _ = client.delete(&target).await.expect(200);
    end(&client, "c").await;
    daemon.stop();
    wait_until("nothing to be left", || {
        site.footprint() == Footprint::default()
    })
    .await;
}
