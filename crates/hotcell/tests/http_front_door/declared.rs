//! What the configuration declares, through the API.

use std::{path::PathBuf, process::Command};

use hotcell::config::{Config, Overrides};
use hotcell_testkit::{Options, TestDaemon};
use serde_json::{Value, json};

const DECLARED: &str = r#"
    [organizations.acme]
    name = "Acme"
    enabled = true
    network_policy = { egress = [{ action = "allow", target = "*.example.com" }] }
    [workspaces.w1]
    organization = "acme"
    enabled = true
    quotas = { max_concurrent = 5 }
"#;

fn declared(toml: &str) -> hotcell_core::declared::Declarations {
    Config::parse(toml, &Overrides::default()).unwrap().declared
}

async fn start(toml: &str) -> TestDaemon {
    let daemon = TestDaemon::start_with(Options::default()).await;
    configured(daemon, toml).await
}

async fn configured(daemon: TestDaemon, toml: &str) -> TestDaemon {
    let declared = declared(toml);
    daemon
        .restart_configured(|config| {
            config.declared = declared;
            config.file = Some(PathBuf::from("/etc/hotcell/hotcell.toml"));
        })
        .await
}

async fn get(daemon: &TestDaemon, path: &str) -> Value {
    let path = format!("/v1/admin/{path}");
    daemon.operator().get(&path).await.expect(200).json()
}

/// Actions and subjects that the system did, the oldest first.
async fn audited(daemon: &TestDaemon) -> Vec<String> {
    let page = get(daemon, "audit?actor=system").await;
    let rows = page["rows"].as_array().unwrap();
    let show = |row: &Value| {
        format!(
            "{} {}",
            row["action"].as_str().unwrap(),
            row["subject"].as_str().unwrap()
        )
    };
    rows.iter().rev().map(show).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_declared_is_there_is_read_only_and_says_where() {
    let daemon = start(DECLARED).await;
    let operator = daemon.operator();
    let organization = get(&daemon, "organizations/acme").await;
    assert_eq!(
        (
            &organization["name"],
            &organization["enabled"],
            &organization["declared"]
        ),
        (&json!("Acme"), &json!(true), &json!(true))
    );
    let workspace = get(&daemon, "workspaces/w1").await;
    assert_eq!(workspace["declared"], true);
    assert_eq!(workspace["quotas"]["max_concurrent"], 5);
    let policy = get(&daemon, "organizations/acme/network-policy").await;
    assert_eq!(
        (&policy["declared"], &policy["rules"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(
        get(&daemon, "profiles").await["profiles"][0]["declared"],
        true
    );
    let listed = get(&daemon, "organizations").await;
    assert_eq!(listed["organizations"][0]["declared"], true);
    let listed = get(&daemon, "workspaces").await;
    assert_eq!(listed["workspaces"][0]["declared"], true);

    let before = (organization, workspace, policy);
    let rows = audited(&daemon).await;
    for (answer, key) in [
        (
            operator
                .put("/v1/admin/organizations/acme", &json!({"enabled": false}))
                .await,
            "organizations.acme",
        ),
        (
            operator.delete("/v1/admin/organizations/acme").await,
            "organizations.acme",
        ),
        (
            operator
                .put(
                    "/v1/admin/organizations/acme/network-policy",
                    &json!({"egress": []}),
                )
                .await,
            "organizations.acme.network_policy",
        ),
        (
            operator
                .delete("/v1/admin/organizations/acme/network-policy")
                .await,
            "organizations.acme.network_policy",
        ),
        (
            operator
                .put(
                    "/v1/admin/workspaces/w1",
                    &json!({"quotas": {"max_concurrent": 9}}),
                )
                .await,
            "workspaces.w1",
        ),
        (
            operator.delete("/v1/admin/workspaces/w1").await,
            "workspaces.w1",
        ),
    ] {
        let problem = answer.expect(409).json();
        assert_eq!(problem["code"], "declared", "{problem}");
        assert_eq!(problem["declared_in"], key, "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains("/etc/hotcell/hotcell.toml") && detail.contains(key),
            "{detail}"
        );
    }
    let after = (
        get(&daemon, "organizations/acme").await,
        get(&daemon, "workspaces/w1").await,
        get(&daemon, "organizations/acme/network-policy").await,
    );
    assert_eq!(before, after);
    assert_eq!(rows, audited(&daemon).await);

    // Secrets and what members made are no part of a declaration.
    let _ = operator
        .post("/v1/admin/organizations/acme/credentials", &json!({}))
        .await
        .expect(201);
    let gone = operator.delete("/v1/admin/workspaces/w1/users/u1").await;
    assert!(gone.status.is_success());
    // What is not declared is as it always was.
    let _ = operator
        .put("/v1/admin/workspaces/w2", &json!({"organization": "acme"}))
        .await
        .expect(201);
    assert_eq!(get(&daemon, "workspaces/w2").await["declared"], false);
    let gone = operator.delete("/v1/admin/workspaces/w2").await;
    assert!(gone.status.is_success());
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_changes_nothing_twice_and_deletes_nothing() {
    let daemon = start(DECLARED).await;
    let rows = audited(&daemon).await;
    assert!(
        rows.contains(&"workspace.declared workspace/w1".to_owned()),
        "{rows:?}"
    );
    let daemon = daemon.restart().await;
    assert_eq!(audited(&daemon).await, rows);

    // No longer declared: as it was, and an operator's again.
    let daemon = configured(daemon, "").await;
    let workspace = get(&daemon, "workspaces/w1").await;
    assert_eq!(
        (&workspace["declared"], &workspace["enabled"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(workspace["quotas"]["max_concurrent"], 5);
    let policy = get(&daemon, "organizations/acme/network-policy").await;
    assert_eq!(
        (&policy["declared"], &policy["rules"]),
        (&json!(false), &json!(1))
    );
    let now = audited(&daemon).await;
    for row in [
        "organization.released organization/acme",
        "network_policy.released organization/acme",
        "workspace.released workspace/w1",
    ] {
        assert!(now.contains(&row.to_owned()), "{now:?}");
    }
    let _ = daemon
        .operator()
        .put(
            "/v1/admin/workspaces/w1",
            &json!({"enabled": false, "name": "Mine"}),
        )
        .await
        .expect(200);

    // Declared again: what was changed meanwhile is as declared, and that is written down.
    let daemon = configured(daemon, DECLARED).await;
    let workspace = get(&daemon, "workspaces/w1").await;
    assert_eq!(
        (&workspace["name"], &workspace["enabled"]),
        (&json!("w1"), &json!(true))
    );
    let page = get(&daemon, "audit?action=workspace.updated&actor=system").await;
    assert_eq!(page["rows"][0]["fields"], json!(["name", "enabled"]));
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_organization_can_be_declared_without_its_policy() {
    let daemon = start("[organizations.acme]\nenabled = true").await;
    let path = "/v1/admin/organizations/acme/network-policy";
    let _ = daemon
        .operator()
        .put(path, &json!({"egress": []}))
        .await
        .expect(200);
    let daemon = daemon.restart().await;
    let policy = get(&daemon, "organizations/acme/network-policy").await;
    assert_eq!(
        (&policy["declared"], &policy["default_action"]),
        (&json!(false), &json!("deny"))
    );
    daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_contradicts_the_store_is_found_before_and_stops_a_start() {
    let daemon = TestDaemon::start_with(Options::default()).await;
    let operator = daemon.operator();
    for (path, body) in [
        ("organizations/mine", json!({})),
        ("workspaces/w1", json!({"organization": "mine"})),
    ] {
        let _ = operator
            .put(&format!("/v1/admin/{path}"), &body)
            .await
            .expect(201);
    }
    // `check-config` asks the daemon that runs.
    let file = daemon.dir().join("new.toml");
    let text = format!(
        "state_dir = '{d}/state'\nrun_dir = '{d}/run'\n{DECLARED}",
        d = daemon.dir().display()
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotcell"));
    command.arg("check-config").arg(&file);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success());
    assert!(
        told.contains("error: workspaces.w1.organization: is acme")
            && told.contains("fix: ")
            && told.contains("mine"),
        "{told}"
    );

    let mut config = daemon.config().clone();
    let organizations = daemon.store().read_now(|s| s.organizations()).unwrap();
    config.declared = declared(DECLARED);
    let (error, daemon) = daemon.refused_with(config).await;
    assert!(error.contains("workspaces.w1.organization"), "{error}");
    let now = daemon.store().read_now(|s| s.organizations()).unwrap();
    assert_eq!(now, organizations);
    daemon.shutdown().await;
}
