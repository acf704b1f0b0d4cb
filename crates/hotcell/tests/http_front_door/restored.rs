//! A store that is older than what the engine runs: restored from a backup.

use std::process::Command;

use hotcell_runtime::Runtime;
use hotcell_testkit::{Options, TestDaemon, WORKSPACE};
use serde_json::{Value, json};

fn chat(chat: &str) -> String {
    format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/bash")
}

/// The command line, as an operator on the machine uses it.
async fn hotcell(daemon: &TestDaemon, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotcell"));
    command.args(arguments);
    command.arg("--run-dir").arg(daemon.dir().join("run"));
    command.arg("--state-dir").arg(daemon.dir().join("state"));
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_swept_until_an_operator_has_decided() {
    let daemon = TestDaemon::start_with(Options::default()).await;
    let client = daemon.client().await;
    let body = json!({"user": {"id": "u", "role": "editor"}, "command": "echo hi"});
    let old = client.post(&chat("old"), &body).await.expect(200).json();
    let (store, backup) = (
        daemon.dir().join("state/store.redb"),
        daemon.dir().join("backup.redb"),
    );
    daemon.store().backup(backup.clone()).await.unwrap();
    let new = client.post(&chat("new"), &body).await.expect(200).json();
    let (old, new) = (&old["lease"]["id"], &new["lease"]["id"]);
    let credential = client.credential().unwrap();
    let credential = (credential.0.to_owned(), credential.1.to_owned());
    let daemon = daemon
        .restart_after(|| {
            std::fs::copy(&backup, &store).unwrap();
        })
        .await;
    let client = daemon.anonymous().signing(&credential.0, &credential.1);
    let operator = daemon.operator();
    let unknown = async || {
        let answer = operator.get("/v1/admin/profiles").await.expect(200).json();
        answer["profiles"][0]["unknown_sandboxes"].clone()
    };
    assert_eq!(unknown().await, json!([new]));
    assert_eq!(daemon.fake().list().await.unwrap().len(), 2);
    let ready: Value = operator.get("/readyz").await.json();
    assert!(
        ready.to_string().contains("hotcell sandbox unknown"),
        "{ready}"
    );
    // What the store knows is served.
    let again = client.post(&chat("old"), &body).await.expect(200).json();
    assert_eq!(again["lease"]["id"], *old);

    let new = new.as_str().unwrap();
    let (good, text) = hotcell(&daemon, &["sandbox", "unknown"]).await;
    assert!(good && text.contains(new), "{text}");
    let old = old.as_str().unwrap();
    let (good, text) = hotcell(&daemon, &["sandbox", "remove-unknown", old]).await;
    assert!(!good && text.contains("no unknown sandbox"), "{text}");
    let path = "/v1/admin/profiles/default/unknown-sandboxes/remove";
    let refused = operator.post(path, &json!({"leases": [old]})).await;
    assert_eq!(refused.expect(409).json()["code"], "conflict");
    assert_eq!(daemon.fake().list().await.unwrap().len(), 2);

    let (good, text) = hotcell(&daemon, &["sandbox", "remove-unknown", new]).await;
    assert!(good && text.contains("removed 1"), "{text}");
    assert_eq!(unknown().await, json!([]));
    let left = daemon.fake().list().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].lease.as_str(), old);
    let audit = operator.get("/v1/admin/audit?limit=1").await.json();
    assert_eq!(audit["rows"][0]["action"], "sandbox.removed");
    assert_eq!(audit["rows"][0]["actor"], "local_operator");
    daemon.shutdown().await;
}
