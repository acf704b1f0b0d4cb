//! FA-21: the disk of the daemon's state is full, and is not any more. Needs root, for a file system
//! of its own.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use hotcell_testkit::{Options, TestDaemon, WORKSPACE, wait_for};
use http::Method;
use serde_json::{Value, json};

const MEMBER: &str = "user=u&role=editor";

/// A small file system, for as long as it lives.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"])
            .arg(dir.path())
            .status();
        assert!(mounted.unwrap().success(), "no file system can be mounted");
        Self { dir }
    }

    fn filler(&self) -> PathBuf {
        self.dir.path().join("filler")
    }

    /// Leaves not one byte free.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        let piece = vec![0; 4096];
        while filler.write_all(&piece).is_ok() {}
        while filler.write_all(&[0]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.path())
            .status();
    }
}

fn chat(chat: &str, rest: &str) -> String {
    format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/{rest}")
}

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_what_is_new_and_nothing_else() {
    let disk = Disk::new();
    let daemon = TestDaemon::start_with(Options {
        toml: "[runtime]\nimage = 'fake'\n[profile]\njobs = true\n".to_owned(),
        parent: Some(disk.dir.path().to_owned()),
        ..Options::default()
    })
    .await;
    let client = daemon.client().await;
    let member = json!({"id": "u", "role": "editor"});
    let bash = async |of: &str, command: &str| {
        let body = json!({"user": member, "command": command});
        client.post(&chat(of, "bash"), &body).await
    };
    let upload = async |name: &str| {
        let target = chat("c", &format!("uploads/{name}?{MEMBER}"));
        client
            .request(Method::PUT, &target, &[], vec![b'x'; 1 << 20])
            .await
    };
    let _ = bash("c", "write a.csv 1").await.expect(200);
    let _ = bash("d", "write a.csv 1").await.expect(200);
    let _ = upload("before").await.expect(201);
    let body = json!({"user": member, "command": "sleep 1000; echo done"});
    let job = client
        .post(&chat("c", "jobs"), &body)
        .await
        .expect(201)
        .json();
    disk.fill();

    // What is new is refused, and says why.
    let full = upload("during").await.expect(507).json();
    assert_eq!(full["code"], "disk_full", "{full}");
    let body = json!({"user": member, "paths": ["a.csv"]});
    let full = client.post(&chat("c", "present_files"), &body).await;
    assert_eq!(full.expect(507).json()["code"], "disk_full");
    // What is there works on.
    let still = bash("c", "cat a.csv").await.expect(200).json();
    assert_eq!(still["stdout"], "1\n");
    let before = chat("c", &format!("uploads/before?{MEMBER}"));
    assert_eq!(client.get(&before).await.expect(200).body.len(), 1 << 20);
    assert_eq!(daemon.anonymous().get("/healthz").await.status, 200);
    let state = daemon.dir().join("state");
    assert_eq!(
        files_in(&state.join("tmp")),
        0,
        "nothing half-written stays"
    );

    // Removing what is there makes room, also when nothing else does.
    let removed = client.delete(&before).await;
    assert!(removed.status == 204 || removed.json()["code"] == "disk_full");
    let gone = client.get(&before).await;
    assert_eq!(gone.status, 404, "the file is gone in any case");
    let end = chat("d", &format!("lease?{MEMBER}"));
    let ended: Value = client.delete(&end).await.expect(200).json();
    assert_eq!(ended["lease"]["state"], "ended", "{ended}");
    let id = job["id"].as_str().unwrap();
    let at = chat("c", &format!("jobs/{id}?{MEMBER}"));
    wait_for("the end of the job", async || {
        (client.get(&at).await.expect(200).json()["state"] == "exited").then_some(())
    })
    .await;

    // And with room again everything works, without a restart.
    disk.free();
    let _ = upload("after").await.expect(201);
    let _ = bash("new", "echo hi").await.expect(200);
    daemon.shutdown().await;
}
