//! LC-06, LC-13: `kill -9` at random moments, again and again, with work under way: sandboxes are made,
//! stopped as unused, woken and ended, commands, jobs and uploads run. Nothing that was acknowledged is
//! missing afterwards, and nothing is left over.
//!
//! `HOTCELL_TEST_KILLS` says how often. Most lives are short: what is cut in the middle is the start of a
//! daemon and the first work after it, and a few are long enough for everything else.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use hotcell_testkit::{Client, Footprint, Process, Site, wait_for, wait_until};
use http::Method;
use serde_json::{Value, json};

use super::{HOTCELL, bash, chat_path, end, given, images, user};

const CHATS: [&str; 3] = ["a", "b", "c"];
/// Jobs of a chat that are looked for again.
const REMEMBERED_JOBS: usize = 80;
const MEMBER: &str = "user=u&role=editor";

/// What a daemon has said yes to.
#[derive(Default)]
struct Acknowledged {
    uploads: Vec<(String, String)>,
    lines: Vec<String>,
    jobs: Vec<(String, String)>,
    leases: Vec<String>,
    outputs: Vec<(String, String)>,
}

fn random() -> u64 {
    use hotcell_types::IdSource;
    u64::try_from(hotcell::clock::SystemIds.bits() >> 64).unwrap()
}

fn kills() -> usize {
    std::env::var("HOTCELL_TEST_KILLS").map_or(100, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("HOTCELL_TEST_KILLS is no number"))
    })
}

/// Sends without minding that the other side may die meanwhile. An answer of success, or nothing.
async fn try_send(client: &Client, method: Method, target: String, body: String) -> Option<Value> {
    let client = client.clone();
    let sent = tokio::spawn(async move {
        let headers = [("content-type", "application/json")];
        client.request(method, &target, &headers, body).await
    });
    // A client whose daemon dies panics, in a task of its own.
    let answer = sent.await.ok()?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status != 500, "{text}");
    answer
        .status
        .is_success()
        .then(|| serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// One chat at work, for as long as it is let.
async fn work(client: Client, chat: &'static str, known: Arc<Mutex<Acknowledged>>) {
    loop {
        let token = format!("{:016x}", random());
        match random() % 9 {
            // Long enough to be stopped as unused; the next step wakes it.
            8 => tokio::time::sleep(Duration::from_millis(400)).await,
            0 => {
                let target = chat_path(chat, &format!("uploads/{token}?{MEMBER}"));
                let stored = try_send(&client, Method::PUT, target, token.clone()).await;
                if stored.is_some() {
                    let at = chat_path(chat, &format!("uploads/{token}?{MEMBER}"));
                    known.lock().unwrap().uploads.push((at, token));
                }
            }
            1 => {
                let body = json!({"user": user("u"), "command": "echo begun; sleep 300"});
                let target = chat_path(chat, "jobs");
                let job = try_send(&client, Method::POST, target, body.to_string()).await;
                if let Some(id) = job.as_ref().and_then(|job| job["id"].as_str()) {
                    let mut known = known.lock().unwrap();
                    known.jobs.push((chat.to_owned(), id.to_owned()));
                    // A chat remembers two hundred, those that nobody heard of included.
                    let of_chat = known.jobs.iter().filter(|job| job.0 == chat).count();
                    if of_chat > REMEMBERED_JOBS {
                        let oldest = known.jobs.iter().position(|job| job.0 == chat);
                        oldest.map(|at| known.jobs.remove(at));
                    }
                }
            }
            2 => {
                let target = chat_path(chat, &format!("lease?{MEMBER}"));
                let _ = try_send(&client, Method::DELETE, target, String::new()).await;
            }
            3 => {
                let command = format!("echo {token} > /workspace/{token}.txt");
                let body = json!({"user": user("u"), "command": command});
                let _ = try_send(
                    &client,
                    Method::POST,
                    chat_path(chat, "bash"),
                    body.to_string(),
                )
                .await;
                let body = json!({"user": user("u"), "paths": [format!("{token}.txt")]});
                let target = chat_path(chat, "present_files");
                let shown = try_send(&client, Method::POST, target, body.to_string()).await;
                let url = shown
                    .as_ref()
                    .and_then(|it| it["outputs"][0]["content_url"].as_str());
                if let Some(url) = url {
                    let output = (format!("{url}?{MEMBER}"), format!("{token}\n"));
                    known.lock().unwrap().outputs.push(output);
                }
            }
            _ => {
                let command = format!("echo {token} >> /mnt/user-data/log");
                let body = json!({"user": user("u"), "command": command});
                let target = chat_path(chat, "bash");
                let done = try_send(&client, Method::POST, target, body.to_string()).await;
                if let Some(done) = done
                    && done["exit_code"] == 0
                {
                    let mut known = known.lock().unwrap();
                    known.lines.push(token);
                    let lease = done["lease"]["id"].as_str().unwrap_or_default().to_owned();
                    if !known.leases.contains(&lease) {
                        known.leases.push(lease);
                    }
                }
            }
        }
    }
}

/// Every control group of these leases.
fn groups(leases: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut stack = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if leases.iter().any(|lease| name.contains(lease.as_str())) {
                found.push(entry.path());
            }
            stack.push(entry.path());
        }
    }
    found
}

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

fn signing(daemon: &Process, client: &Client) -> Client {
    let (key, secret) = client.credential().unwrap();
    daemon.operator.signing(key, secret)
}

async fn check(client: &Client, known: &Acknowledged) {
    let log = bash(client, "a", "cat /mnt/user-data/log").await;
    let log = log["stdout"].as_str().unwrap().to_owned();
    for line in &known.lines {
        assert!(log.contains(line.as_str()), "the line {line} is missing");
    }
    for (target, content) in known.uploads.iter().chain(&known.outputs) {
        let kept = client.get(target).await.expect(200);
        assert_eq!(kept.body, content.as_bytes(), "{target}");
    }
    for (chat, job) in &known.jobs {
        let target = chat_path(chat, &format!("jobs/{job}?{MEMBER}"));
        let shown = client.get(&target).await.expect(200).json();
        assert_ne!(shown["state"], "failed", "an acknowledged job ran: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_again_and_again_loses_and_leaks_nothing() {
    killed_again_and_again(0, kills()).await;
}

/// With a pool to fill and to claim from, too, a quarter as often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_with_a_warm_pool_that_is_killed_again_and_again_loses_and_leaks_nothing() {
    killed_again_and_again(2, kills().div_ceil(4)).await;
}

async fn killed_again_and_again(warm_pool: usize, kills: usize) {
    let runtime = &format!(
        "kind = \"embedded\"\noci_runtime = \"runc\"\nimage = \"base\"\n\
         [profile]\njobs = true\nwarm_pool = {warm_pool}\n[limits]\nidle_timeout_ms = 300\n"
    );
    let site = Site::new(
        Path::new(HOTCELL),
        &given("HOTCELL_TEST_AGENT"),
        images(),
        runtime,
    );
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    daemon.stop();
    let known: Arc<Mutex<Acknowledged>> = Arc::default();
    for _ in 0..kills {
        let daemon = site.start();
        let client = signing(&daemon, &client);
        let mut working = tokio::task::JoinSet::new();
        for chat in CHATS {
            working.spawn(work(client.clone(), chat, Arc::clone(&known)));
        }
        // The moment is the point of it.
        let longest_ms = if random().is_multiple_of(5) {
            1_500
        } else {
            400
        };
        tokio::time::sleep(Duration::from_millis(20 + random() % longest_ms)).await;
        daemon.kill();
        working.shutdown().await;
    }
    let daemon = site.start();
    let client = signing(&daemon, &client);
    let known = std::mem::take(&mut *known.lock().unwrap());
    assert!(!known.lines.is_empty() && !known.leases.is_empty());
    check(&client, &known).await;
    for chat in CHATS {
        end(&client, chat).await;
    }
    wait_for("every job to have ended", async || {
        for (chat, job) in &known.jobs {
            let target = chat_path(chat, &format!("jobs/{job}?{MEMBER}"));
            let shown = client.get(&target).await.expect(200).json();
            if ["starting", "running"].contains(&shown["state"].as_str()?) {
                return None;
            }
        }
        Some(())
    })
    .await;
    wait_until("the leases' directories to go", || {
        site.footprint().leases.len() <= warm_pool
    })
    .await;
    let ready = daemon.operator.get("/readyz").await.expect(200).json();
    assert_eq!(ready["ready"], true, "{ready}");
    daemon.stop();
    assert_eq!(site.footprint(), Footprint::default());
    assert_eq!(groups(&known.leases), Vec::<PathBuf>::new());
    assert_eq!(files_in(&site.dir().join("state/tmp")), 0);
}
