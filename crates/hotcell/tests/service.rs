//! The daemon as a service: its signs of life, its break-glass switches, its command line, as a
//! process of its own. No sandbox runs here, so its engine is one that is not there.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use hotcell::switches::Switches;
use hotcell_testkit::{TestDaemon, WORKSPACE, wait_for};
use serde_json::{Value, json};

const HOTCELL: &str = env!("CARGO_BIN_EXE_hotcell");
/// What the watchdog of these tests waits for, in microseconds.
const WATCHDOG_MICROS: &str = "900000";
/// How long a process may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon that is killed when the test is over.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(dir: &Path, environment: &[(&str, &str)]) -> Process {
    let config = format!(
        "listen = '127.0.0.1:0'\nstate_dir = '{0}/state'\nrun_dir = '{0}/run'\n\
         [runtime]\nkind = 'docker'\nsocket = '{0}/no-engine.sock'\nimage = 'sha256:{1}'\n",
        dir.display(),
        "0".repeat(64),
    );
    std::fs::write(dir.join("hotcell.toml"), config).unwrap();
    let child = Command::new(HOTCELL)
        .args(["serve", "--config"])
        .arg(dir.join("hotcell.toml"))
        .env_remove("JOURNAL_STREAM")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn()
        .unwrap();
    Process(child)
}

fn command(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(HOTCELL)
        .args(arguments)
        .arg("--run-dir")
        .arg(dir.join("run"))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .output()
        .unwrap()
}

fn command_json(dir: &Path, arguments: &[&str]) -> Value {
    let output = command(dir, arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        panic!(
            "{error}: {text}{}{log}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn receive(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let bytes = socket.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..bytes].to_vec()).unwrap()
}

#[test]
fn the_service_manager_hears_of_every_turn() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let notify = path.to_str().unwrap();
    let daemon = serve(
        dir.path(),
        &[
            ("NOTIFY_SOCKET", notify),
            ("WATCHDOG_USEC", WATCHDOG_MICROS),
        ],
    );
    let ready = receive(&manager);
    assert!(
        ready.starts_with("READY=1\nSTATUS=serving on http://127.0.0.1:"),
        "{ready}"
    );
    for _ in 0..5 {
        assert_eq!(receive(&manager), "WATCHDOG=1");
    }
    let pid = daemon.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let mut last = receive(&manager);
    while last == "WATCHDOG=1" {
        last = receive(&manager);
    }
    assert!(last.starts_with("STOPPING=1\n"), "{last}");
}

/// A watchdog that is meant for another process is none of ours.
#[test]
fn a_foreign_watchdog_gets_no_pings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let notify = path.to_str().unwrap();
    let _daemon = serve(
        dir.path(),
        &[
            ("NOTIFY_SOCKET", notify),
            ("WATCHDOG_USEC", WATCHDOG_MICROS),
            ("WATCHDOG_PID", "1"),
        ],
    );
    assert!(receive(&manager).starts_with("READY=1\n"));
    manager
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let mut buffer = [0; 64];
    assert!(manager.recv(&mut buffer).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_stands_above_every_switch() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = serve(
        dir.path(),
        &[
            ("HOTCELL_ENABLED", "false"),
            ("HOTCELL_CONFIG_LOCKED", "true"),
        ],
    );
    wait_for("the local socket", async || {
        command(dir.path(), &["deployment", "show"])
            .status
            .success()
            .then_some(())
    })
    .await;
    let status = command_json(dir.path(), &["status", "--json"]);
    assert_eq!(status["deployment"]["forced_off"], json!(true));
    assert_eq!(status["deployment"]["config_locked"], json!(true));
    let refused = command(dir.path(), &["deployment", "enable"]);
    assert!(!refused.status.success());
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("config_locked"), "{words}");
    // A misspelt switch is no switch: nothing starts.
    let other = tempfile::tempdir().unwrap();
    let mut typo = serve(other.path(), &[("HOTCELL_ENABLED", "flase")]);
    assert_eq!(typo.0.wait().unwrap().code(), Some(3));
    let log = std::fs::read_to_string(other.path().join("log")).unwrap();
    assert!(log.contains("HOTCELL_ENABLED"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_off_denies_everything_and_locked_changes_nothing() {
    let daemon = TestDaemon::start().await;
    let client = daemon.client().await;
    let (key, secret) = client.credential().unwrap();
    let (key, secret) = (key.to_owned(), secret.to_owned());
    let bash = format!("/v1/workspaces/{WORKSPACE}/chats/c/bash");
    let body = json!({"user": {"id": "u", "role": "editor"}, "command": "true"});
    drop(client.post(&bash, &body).await.expect(200));
    let daemon = daemon
        .restart_with(Switches {
            forced_off: true,
            config_locked: false,
        })
        .await;
    let client = daemon.anonymous().signing(&key, &secret);
    let problem = client.post(&bash, &body).await.expect(403).json();
    assert_eq!(problem["denial"], json!("deployment"));
    let words = problem["detail"].as_str().unwrap();
    assert!(
        words.contains("orced off by the server's environment"),
        "{words}"
    );
    // What an operator sets then counts again when the environment lets go.
    let shown = daemon
        .operator()
        .get("/v1/admin/deployment")
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&shown["enabled"], &shown["forced_off"]),
        (&json!(true), &json!(true))
    );
    let daemon = daemon
        .restart_with(Switches {
            forced_off: false,
            config_locked: true,
        })
        .await;
    let client = daemon.anonymous().signing(&key, &secret);
    drop(client.post(&bash, &body).await.expect(200));
    let operator = daemon.operator();
    for (method, path, body) in [
        ("PUT", "deployment", json!({"enabled": false})),
        ("PUT", "organizations/o", json!({"enabled": false})),
        (
            "PUT",
            "workspaces/w",
            json!({"quotas": {"max_concurrent": 1}}),
        ),
        ("POST", "organizations/o/credentials", json!({})),
        ("DELETE", "workspaces/w", Value::Null),
    ] {
        let path = format!("/v1/admin/{path}");
        let headers = [("content-type", "application/json")];
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = operator
            .request(method.parse().unwrap(), &path, &headers, body)
            .await;
        assert_eq!(
            answer.expect(403).json()["code"],
            json!("config_locked"),
            "{path}"
        );
    }
    // Looking is no change, and nobody learns of the lock without the token.
    drop(operator.get("/v1/admin/deployment").await.expect(200));
    let stranger = daemon.anonymous();
    let refused = stranger.put("/v1/admin/deployment", &json!({})).await;
    assert_eq!(refused.status, 401);
    drop(client.post(&bash, &body).await.expect(200));
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_shows_what_there_is() {
    let daemon = TestDaemon::start().await;
    let client = daemon.client().await;
    let call = |chat: &str, role: &str| {
        let target = format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/bash");
        let body = json!({"user": {"id": "u", "role": role}, "command": "true"});
        let client = client.clone();
        async move { client.post(&target, &body).await }
    };
    drop(call("c1", "editor").await.expect(200));
    drop(call("c2", "viewer").await.expect(403));
    let dir = daemon.dir().to_owned();
    let look = move |arguments: &'static [&'static str]| {
        let dir = dir.clone();
        async move {
            let output = tokio::task::spawn_blocking(move || command(&dir, arguments));
            let output = output.await.unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{arguments:?}: {errors}");
            String::from_utf8(output.stdout).unwrap()
        }
    };
    let json = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    let leases = json(look(&["leases", "--json"]).await);
    assert_eq!(leases["leases"][0]["chat"], json!("c1"));
    assert!(look(&["leases"]).await.contains("1 live leases"));
    assert!(
        look(&["leases", "--workspace", "other"])
            .await
            .contains("0 live leases")
    );
    let denials = json(look(&["denials", "--json", "--name", "role"]).await);
    assert_eq!(denials["denials"][0]["chat"], json!("c2"));
    assert!(
        look(&["denials"])
            .await
            .contains("role  workspace w  chat c2  user u (viewer)")
    );
    let audit = json(look(&["audit", "--json", "--action", "lease."]).await);
    assert_eq!(audit["rows"].as_array().unwrap().len(), 1);
    let text = look(&[
        "audit",
        "--since",
        "2020-01-01T00:00:00Z",
        "--limit",
        "1000",
    ])
    .await;
    assert!(text.contains("workspace.created  workspace/w"), "{text}");
    let status = json(look(&["status", "--json"]).await);
    assert_eq!(status["readiness"]["ready"], json!(true));
    let put = look(&[
        "workspace",
        "put",
        "w",
        "--quota",
        "max_concurrent=default",
        "--quota",
        "max_resource_class=medium",
    ]);
    let put = json(put.await);
    assert_eq!(
        (
            &put["quotas"]["max_concurrent"],
            &put["quotas"]["max_resource_class"]
        ),
        (&json!(2), &json!("MEDIUM"))
    );
    let usage = json(look(&["workspace", "usage", "w"]).await);
    assert_eq!(usage["max_concurrent"]["used"], json!(1));
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_show_what_happens_and_name_nobody_to_strangers() {
    let daemon = TestDaemon::start().await;
    let client = daemon.client().await;
    let call = |chat: &str, role: &str| {
        let target = format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/bash");
        let body = json!({"user": {"id": "u", "role": role}, "command": "true"});
        let client = client.clone();
        async move { client.post(&target, &body).await }
    };
    drop(call("c1", "editor").await.expect(200));
    drop(call("c2", "viewer").await.expect(403));
    let scrape = async |client: hotcell_testkit::Client| {
        let answer = client.get("/metrics").await.expect(200);
        let kind = answer.headers["content-type"].to_str().unwrap().to_owned();
        assert!(
            kind.starts_with("application/openmetrics-text; version=1.0.0"),
            "{kind}"
        );
        String::from_utf8(answer.body.to_vec()).unwrap()
    };
    let text = wait_for("the call and its lease to be counted", async || {
        let text = scrape(daemon.anonymous()).await;
        // A call does not wait until it is written down that its sandbox runs.
        [
            "hotcell_calls_total{outcome=\"ok\"} 1",
            "hotcell_leases{state=\"running\"} 1",
        ]
        .iter()
        .all(|line| text.contains(line))
        .then_some(text)
    })
    .await;
    for line in [
        "hotcell_leases{state=\"running\"} 1",
        "hotcell_denials_total{name=\"role\"} 1",
        "hotcell_start_duration_seconds_count{kind=\"cold\"} 1",
        "hotcell_call_duration_seconds_count{kind=\"bash\"} 2",
        "hotcell_http_requests_total{method=\"POST\",status=\"403\"} 1",
        "hotcell_egress_events_total{kind=\"name_denied\"} 0",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    assert!(text.contains("hotcell_store_commit_duration_seconds_count"));
    assert!(!text.contains("workspace="), "{text}");
    let text = scrape(daemon.operator()).await;
    let line = "hotcell_quota_used{workspace=\"w\",quota=\"max_concurrent\"} 1";
    assert!(text.lines().any(|it| it == line), "{text}");
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_says_when_the_store_takes_no_writes() {
    let daemon = TestDaemon::start().await;
    let ready = daemon.anonymous().get("/readyz").await.expect(200).json();
    assert_eq!(ready["ready"], json!(true));
    // Closed under it, as a disk that went away would look.
    daemon.store().clone().close().await.unwrap();
    let text = wait_for("the store to be missed", async || {
        let answer = daemon.anonymous().get("/readyz").await;
        (answer.status.as_u16() == 503).then(|| answer.json())
    })
    .await;
    let store = &text["components"][0];
    assert_eq!(
        (&store["name"], &store["ok"]),
        (&json!("store"), &json!(false))
    );
    assert!(store["detail"].is_string());
    // A stopped tree answers nobody: the watchdog would go without its ping.
    let sandboxes = daemon.sandboxes();
    assert!(sandboxes.is_alive(1_000).await);
    daemon.shutdown().await;
    assert!(!sandboxes.is_alive(1_000).await);
}
