//! `present_files`: FA-22.

use serde_json::{Value, json};

use crate::{client::Answer, daemon::TestDaemon, hostile::hostile};

const PRESENT: &str = "/v1/workspaces/w1/chats/c1/present_files";
const OUTPUTS: &str = "/v1/workspaces/w1/chats/c1/outputs?user=u1&role=viewer";

async fn present(daemon: &TestDaemon, paths: &[&str]) -> Answer {
    let body = json!({"user": {"id": "u1", "role": "editor"}, "paths": paths});
    daemon.client.post(PRESENT, &body).await
}

fn names(answer: &Value) -> Vec<&str> {
    answer["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["name"].as_str().unwrap())
        .collect()
}

fn reason<'a>(answer: &'a Value, path: &str) -> &'a str {
    let skipped = answer["skipped"].as_array().unwrap();
    let entry = skipped.iter().find(|entry| entry["path"] == path);
    entry.unwrap_or_else(|| panic!("{path} in {answer}"))["reason"]
        .as_str()
        .unwrap()
}

#[tokio::test]
async fn files_are_collected_and_the_rest_is_told() {
    let daemon = TestDaemon::start().await;
    daemon.bash("c1", "write /workspace/a.txt hello\nwrite /mnt/user-data/b.md there\nmkdir /workspace/d.txt\nmkfifo /workspace/p.csv\nlink /workspace/l.txt /etc/passwd\nwrite /workspace/x.exe no").await.expect(200);
    let paths = [
        "a.txt",
        "/mnt/user-data/b.md",
        "d.txt",
        "p.csv",
        "none.txt",
        "x.exe",
        "/etc/passwd",
        "l.txt",
        "./a.txt",
        "/..",
    ];
    let answer = present(&daemon, &paths).await.expect(200).json();
    assert_eq!(names(&answer), ["a.txt", "b.md"]);
    // A link that leads out of its directory is as if it were not there (FA-01).
    for path in ["none.txt", "l.txt"] {
        assert_eq!(reason(&answer, path), "there is no such file", "{path}");
    }
    assert_eq!(reason(&answer, "./a.txt"), "it is listed before");
    for (path, part) in [
        ("d.txt", "regular"),
        ("p.csv", "regular"),
        ("x.exe", "type"),
        ("/etc/passwd", "only files in"),
        ("/..", "not a path"),
    ] {
        assert!(reason(&answer, path).contains(part), "{path}: {answer}");
    }
    let first = &answer["outputs"][0];
    assert_eq!(
        (&first["media_type"], &first["preview_url"]),
        (&json!("text/plain; charset=utf-8"), &Value::Null)
    );
    let url = format!(
        "{}?user=u1&role=viewer",
        first["content_url"].as_str().unwrap()
    );
    let content = daemon.client.get(&url).await.expect(200);
    assert_eq!(content.body.len() as u64, first["bytes"].as_u64().unwrap());
    assert_eq!(
        content.headers["etag"],
        format!("\"{}\"", first["sha256"].as_str().unwrap())
    );
    assert!(content.body.starts_with(b"hello"));
    // It stays when the file and the sandbox are gone.
    daemon.bash("c1", "rm /workspace/a.txt").await.expect(200);
    daemon
        .client
        .send(
            "DELETE",
            "/v1/workspaces/w1/chats/c1/lease?user=u1&role=editor",
            &[],
            "",
        )
        .await
        .expect(200);
    assert!(
        daemon
            .client
            .get(&url)
            .await
            .expect(200)
            .body
            .starts_with(b"hello")
    );
    assert_eq!(
        names(&daemon.client.get(OUTPUTS).await.json()),
        ["a.txt", "b.md"]
    );
    // Only in its chat.
    let elsewhere = url.replace("/c1/", "/c2/");
    daemon
        .client
        .get(&elsewhere)
        .await
        .expect_code(404, "unknown_output");
    // And after a restart, while what has no record is swept.
    let stray = daemon.state().join("outputs/zz");
    std::fs::create_dir_all(&stray).unwrap();
    std::fs::write(stray.join("ou_aaaaaaaaaaaaaaaaaaaaaaaazz"), "stray").unwrap();
    let daemon = daemon.stop().await.start_again().await;
    assert!(
        daemon
            .client
            .get(&url)
            .await
            .expect(200)
            .body
            .starts_with(b"hello")
    );
    assert_eq!(std::fs::read_dir(&stray).unwrap().count(), 0);
}

/// FA-22: what it says it has.
#[tokio::test]
async fn apparent_size_counts() {
    let daemon = TestDaemon::start().await;
    daemon
        .bash(
            "c1",
            "truncate -s 1099511627776 /workspace/big.csv\nwrite /workspace/ok.csv 1",
        )
        .await
        .expect(200);
    let answer = present(&daemon, &["big.csv", "ok.csv"])
        .await
        .expect(200)
        .json();
    assert_eq!(names(&answer), ["ok.csv"]);
    assert!(
        reason(&answer, "big.csv").contains("1099511627776"),
        "{answer}"
    );
    assert_eq!(daemon.temporary_files(), 0);
}

/// FA-22: what really comes.
#[tokio::test]
async fn files_that_lie_about_their_size_are_given_up() {
    let daemon = TestDaemon::with(hostile).await;
    let answer = present(&daemon, &["grows.csv", "shrinks.csv", "mib1.csv"])
        .await
        .expect(200)
        .json();
    assert_eq!(names(&answer), ["mib1.csv"]);
    assert!(
        reason(&answer, "grows.csv").contains("bytes of one call"),
        "{answer}"
    );
    assert!(
        reason(&answer, "shrinks.csv").contains("changed while"),
        "{answer}"
    );
    assert_eq!(daemon.temporary_files(), 0);
    // The connection breaks: nothing at all is collected.
    let answer = present(&daemon, &["mib1.csv", "breaks.csv"]).await;
    answer.expect_code(502, "sandbox_lost");
    assert_eq!(daemon.temporary_files(), 0);
    assert_eq!(names(&daemon.client.get(OUTPUTS).await.json()).len(), 1);
}

/// FA-22: 25 files and 100 MiB together.
#[tokio::test]
async fn a_collection_has_limits() {
    let daemon = TestDaemon::with(hostile).await;
    let paths: Vec<String> = (0..25).map(|n| format!("mib100-{n}.csv")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let answer = present(&daemon, &paths).await.expect(200).json();
    assert_eq!(names(&answer), ["mib100-0.csv"]);
    assert_eq!(answer["skipped"].as_array().unwrap().len(), 24);

    let tiny: Vec<String> = (0..26).map(|n| format!("mib0-{n}.csv")).collect();
    let tiny: Vec<&str> = tiny.iter().map(String::as_str).collect();
    let answer = present(&daemon, &tiny).await.expect(200).json();
    assert_eq!(names(&answer).len(), 25);
    assert!(
        reason(&answer, "mib0-25.csv").contains("25 files"),
        "{answer}"
    );

    let many: Vec<String> = (0..200)
        .map(|n| format!("{n}{}", "y".repeat(4_000)))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let answer = present(&daemon, &many).await.expect(200).json();
    let text: usize = answer["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            ["path", "reason"]
                .map(|field| entry[field].as_str().unwrap().chars().count())
                .iter()
                .sum::<usize>()
        })
        .sum();
    assert_eq!(answer["skipped"].as_array().unwrap().len(), 200);
    assert!(text <= 50_000, "{text}");
    let over = [many.as_slice(), &["one.txt"]].concat();
    present(&daemon, &over)
        .await
        .expect_code(400, "bad_request");
    present(&daemon, &[]).await.expect_code(400, "bad_request");
}
