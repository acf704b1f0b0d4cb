//! Deleting a workspace or a member with everything that belongs to it, whatever happens meanwhile.

use std::path::Path;

use hotcell_core::{deletion::DeletionRecord, model::Actor};
use hotcell_runtime::RuntimeError;
use hotcell_store::StoreError;
use hotcell_testkit::{Client, ORGANIZATION, Options, TestDaemon, WORKSPACE, wait_for};
use hotcell_types::UnixMillis;
use http::Method;
use serde_json::{Value, json};

fn chat(chat: &str, rest: &str) -> String {
    format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/{rest}")
}

fn user(id: &str) -> Value {
    json!({"id": id, "role": "editor"})
}

async fn daemon() -> (TestDaemon, Client) {
    let daemon = TestDaemon::start_with(Options {
        toml: "[runtime]\nimage = 'fake'\n[profile]\njobs = true\n".to_owned(),
        ..Options::default()
    })
    .await;
    let client = daemon.client().await;
    (daemon, client)
}

/// A chat of a member with everything that a chat can have.
async fn live(client: &Client, of: &str, member: &str) {
    let body = json!({"user": user(member), "command": "write a.csv 1"});
    let _ = client.post(&chat(of, "bash"), &body).await.expect(200);
    let body = json!({"user": user(member), "paths": ["a.csv"]});
    let _ = client
        .post(&chat(of, "present_files"), &body)
        .await
        .expect(200);
    let body = json!({"user": user(member), "command": "hang"});
    let _ = client.post(&chat(of, "jobs"), &body).await.expect(201);
    let upload = chat(of, &format!("uploads/f?user={member}&role=editor"));
    let stored = client.request(Method::PUT, &upload, &[], "x").await;
    assert!(stored.status.is_success(), "{:?}", stored.body);
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn files_beneath(dir: &Path) -> usize {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_beneath(&path)
            } else {
                1
            }
        })
        .sum()
}

#[tokio::test]
async fn a_workspace_goes_with_all_that_it_has() {
    let (daemon, client) = daemon().await;
    live(&client, "c1", "u").await;
    live(&client, "c2", "v").await;
    let state = daemon.dir().join("state");
    assert_eq!(files_beneath(&state.join("outputs")), 2);
    assert_eq!(daemon.fake().running(), 2);
    let path = format!("/v1/admin/workspaces/{WORKSPACE}");
    let operator = daemon.operator();
    let _ = operator.delete(&path).await.expect(204);
    assert_eq!(daemon.fake().running(), 0);
    assert_eq!(names(&state.join("volumes")), Vec::<String>::new());
    assert_eq!(names(&state.join("tmp")), Vec::<String>::new());
    assert_eq!(files_beneath(&state.join("outputs")), 0);
    let workspace = WORKSPACE.parse().unwrap();
    let left = daemon.store().read_now(|view| {
        assert!(view.outputs_of_workspace(&workspace, 10)?.is_empty());
        assert!(view.jobs_of(&workspace, None)?.is_empty());
        assert!(view.leases()?.is_empty());
        Ok(view.deletions()?.len())
    });
    assert_eq!(left.unwrap(), 0);
    let gone = client.get(&chat("c1", "outputs?user=u&role=editor")).await;
    assert_eq!(gone.json()["code"], "unknown_workspace");
    let again = operator.delete(&path).await;
    assert_eq!(again.expect(404).json()["code"], "unknown_workspace");
    let audit = operator.get("/v1/admin/audit?limit=100").await.json();
    let actions: Vec<&str> = audit["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["action"].as_str().unwrap())
        .collect();
    for action in ["workspace.deletion_requested", "workspace.deleted"] {
        assert_eq!(
            actions.iter().filter(|it| **it == action).count(),
            1,
            "{actions:?}"
        );
    }
    // The same name is a new workspace.
    let body = json!({"organization": ORGANIZATION, "enabled": true});
    let _ = operator.put(&path, &body).await.expect(201);
    live(&client, "c1", "u").await;
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_member_goes_and_the_others_stay() {
    let (daemon, client) = daemon().await;
    live(&client, "c1", "u").await;
    live(&client, "c2", "v").await;
    let operator = daemon.operator();
    let path = format!("/v1/admin/workspaces/{WORKSPACE}/users/u");
    let _ = operator.delete(&path).await.expect(204);
    assert_eq!(daemon.fake().running(), 1);
    let volumes = daemon.dir().join("state/volumes").join(WORKSPACE);
    assert_eq!(names(&volumes.join("users")), ["v"]);
    let outputs = async |of: &str| {
        let target = chat(of, "outputs?user=u&role=editor");
        let list = client.get(&target).await.expect(200).json();
        list["outputs"].as_array().unwrap().len()
    };
    assert_eq!((outputs("c1").await, outputs("c2").await), (0, 1));
    let jobs = client
        .get(&chat("c2", "jobs?user=v&role=editor"))
        .await
        .json();
    assert_eq!(jobs["jobs"][0]["state"], "running");
    // Whoever comes back begins anew.
    live(&client, "c1", "u").await;
    let _ = operator.delete(&path).await.expect(204);
    let _ = operator.delete(&path).await.expect(204);
    let unknown = operator.delete("/v1/admin/workspaces/none/users/u").await;
    assert_eq!(unknown.expect(404).json()["code"], "unknown_workspace");
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_deletion_that_was_begun_is_finished_by_the_next_daemon() {
    let (daemon, client) = daemon().await;
    live(&client, "c1", "u").await;
    live(&client, "c2", "v").await;
    let intent = |user: Option<&str>| DeletionRecord {
        workspace: WORKSPACE.parse().unwrap(),
        user: user.map(|user| user.parse().unwrap()),
        actor: Actor::Operator,
        requested_at: UnixMillis(1),
        request: None,
    };
    // As a daemon leaves it that dies right after it wrote the intent down.
    daemon
        .store()
        .write::<_, StoreError, _>(move |tx| tx.begin_deletion(&intent(Some("u"))))
        .await
        .unwrap();
    let body = json!({"user": user("u"), "command": "true"});
    let refused = client.post(&chat("c3", "bash"), &body).await;
    assert_eq!(refused.expect(409).json()["code"], "being_deleted");

    let daemon = daemon.restart().await;
    let operator = daemon.operator();
    let done = async || {
        let list = operator.get("/v1/admin/deletions").await.expect(200).json();
        list["deletions"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    };
    wait_for("the end of the deletion", done).await;
    assert_eq!(daemon.fake().running(), 1);
    let volumes = daemon.dir().join("state/volumes").join(WORKSPACE);
    assert_eq!(names(&volumes.join("users")), ["v"]);
    daemon.shutdown().await;
}

#[tokio::test]
async fn a_deletion_waits_for_an_engine_that_does_not_remove() {
    let (daemon, client) = daemon().await;
    live(&client, "c1", "u").await;
    daemon.fake().script(|script| {
        for _ in 0..8 {
            script.remove_failures.push_back(RuntimeError::Failed {
                action: "remove it",
                reason: "the engine is busy".into(),
            });
        }
    });
    let operator = daemon.operator();
    let path = format!("/v1/admin/workspaces/{WORKSPACE}");
    let pending = operator.delete(&path).await.expect(202).json();
    assert_eq!(pending["workspace"], WORKSPACE);
    let refused = operator.put(&path, &json!({"enabled": true})).await;
    assert_eq!(refused.expect(409).json()["code"], "being_deleted");
    let body = json!({"user": user("u"), "command": "true"});
    let refused = client.post(&chat("c1", "bash"), &body).await;
    assert_eq!(refused.expect(403).json()["denial"], "workspace");
    let volumes = daemon.dir().join("state/volumes").join(WORKSPACE);
    assert!(
        volumes.exists(),
        "nothing is removed under a sandbox that may run"
    );
    daemon
        .fake()
        .script(|script| script.remove_failures.clear());
    wait_for("the end of the deletion", async || {
        (operator.get(&path).await.status == 404).then_some(())
    })
    .await;
    assert!(!volumes.exists());
    daemon.shutdown().await;
}
