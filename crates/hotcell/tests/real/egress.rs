//! The filter through the front door: the daemon as a process on the host of a stub internet, real
//! sandboxes, the kernel's packet filter.

use std::process::Command;

use hotcell_testkit::{Client, Footprint, Process, Site, internet::Internet, wait_for, wait_until};
use serde_json::{Value, json};

use super::{
    bash, end,
    filtered::{
        self, ALLOWED, DENIED, assert_never_open, background, events, fetch, goes_on, save, says,
    },
    site_with,
};

const ALLOW_TWO: &str = r#"{"egress": [
    {"action": "allow", "target": "ok.example.org"},
    {"action": "allow", "target": "inside.example.org"}
]}"#;

#[test]
fn a_chat_reaches_what_its_policy_allows_under_runsc() {
    on_internet("runsc");
}

#[test]
fn a_chat_reaches_what_its_policy_allows_under_runc() {
    on_internet("runc");
}

fn on_internet(engine: &str) {
    let internet = Internet::new();
    let names = internet.names();
    names.address("ok.example.org", &[ALLOWED]);
    names.address("no.example.org", &[DENIED]);
    names.address("inside.example.org", &["169.254.169.254"]);
    let site = site_with(&filtered::table(engine));
    // The daemon starts where its test is.
    internet.on_host(async || Box::pin(chat(&internet, &site)).await);
}

async fn chat(internet: &Internet, site: &Site) {
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let operator = &daemon.operator;
    save(operator, ALLOW_TWO).await;
    let lease = names_and_addresses(internet, &client, operator).await;

    // The policy of the organization changes, and this sandbox keeps its own.
    save(operator, r#"{"egress": []}"#).await;
    let kept = bash(&client, "c", &fetch("ok.example.org")).await;
    assert_eq!(kept["exit_code"], 0, "{kept}");
    let counted = bash(&client, "c", &background("said", &[])).await;
    assert_eq!(counted["exit_code"], 0, "{counted}");
    let other = bash(&client, "other", &fetch("ok.example.org")).await;
    assert_ne!(other["exit_code"], 0, "the next sandbox has the new one");
    end(&client, "other").await;

    undone(internet, site, &client, operator).await;
    daemon.kill();
    // What is open stays open while nobody is there, and nothing else opens.
    goes_on(site, "said").await;
    let (client, daemon) = adopted(site, &client, &lease).await;

    end(&client, "c").await;
    wait_until("the lease's directory to go", || {
        site.footprint().leases.is_empty()
    })
    .await;
    // Nothing of ours is left in the host's packet filter.
    let tables = internet.run_on_host("nft", &["list", "tables"]);
    assert!(!tables.contains("hotcell"), "{tables}");
    daemon.stop();
    assert_eq!(site.footprint(), Footprint::default());
    let log = std::fs::read_to_string(site.dir().join("daemon.log")).unwrap();
    assert!(!log.contains("hickory"), "a line for each question: {log}");
}

/// What is reached, what is not, and what is said about it. Returns the lease.
async fn names_and_addresses(internet: &Internet, client: &Client, operator: &Client) -> String {
    let allowed = bash(client, "c", &fetch("ok.example.org")).await;
    assert_eq!(allowed["exit_code"], 0, "{allowed}");
    assert!(allowed["stdout"].as_str().unwrap().contains(ALLOWED));
    assert!(!says(&allowed, "blocked"), "{allowed}");
    let denied = bash(client, "c", &fetch("no.example.org")).await;
    assert_ne!(denied["exit_code"], 0);
    assert!(
        says(&denied, "blocked by network policy: no.example.org"),
        "{denied}"
    );
    let inside = bash(client, "c", &fetch("inside.example.org")).await;
    assert_ne!(inside["exit_code"], 0);
    assert!(
        says(&inside, "169.254.169.254 (cloud metadata)"),
        "{inside}"
    );
    assert_eq!(internet.names().asked_for("no.example.org"), 0);

    // By number the packet is dropped, told and noted.
    let number = format!("timeout 2 bash -c '</dev/tcp/{DENIED}/443'; sleep 0.5");
    let denied = bash(client, "c", &number).await;
    assert!(
        says(
            &denied,
            &format!("blocked by network policy: {DENIED}:443 (tcp)")
        ),
        "{denied}"
    );
    let name = &events(operator, "name_denied").await[0];
    assert_eq!(
        (&name["name"], &name["layer"], &name["rule"]),
        (&json!("no.example.org"), &json!("name"), &Value::Null)
    );
    assert_eq!(events(operator, "name_allowed").await[0]["rule"], 0);
    assert!(!events(operator, "packet_denied").await.is_empty());
    allowed["lease"]["id"].as_str().unwrap().to_owned()
}

/// Somebody flushes both packet filters.
async fn undone(internet: &Internet, site: &Site, client: &Client, operator: &Client) {
    let gateway = site.dir().join("run/netns/gateway");
    let flushed = Command::new("nsenter")
        .arg(format!("--net={}", gateway.display()))
        .args(["nft", "flush", "ruleset"])
        .status();
    assert!(flushed.unwrap().success());
    wait_for("the restoration", async || {
        let changes = events(operator, "foreign_change").await;
        (!changes.is_empty()).then_some(())
    })
    .await;
    let change = &events(operator, "foreign_change").await[0];
    let words = change["detail"].as_str().unwrap();
    assert!(
        words.contains("changed by nft") && words.contains("restored"),
        "{words}"
    );
    internet.run_on_host("nft", &["flush", "ruleset"]);
    wait_until("the way out's table", || {
        let tables = internet.run_on_host("nft", &["list", "tables"]);
        tables.contains("hotcell_out")
    })
    .await;
    wait_for("both audit rows", async || {
        let page = operator.get("/v1/admin/audit").await.expect(200).json();
        let rows = page["rows"].as_array().unwrap().iter();
        let restored = rows.filter(|row| row["action"] == "packet_filter.restored");
        (restored.count() >= 2).then_some(())
    })
    .await;
    // What was open is open again, and nothing else was for a moment.
    let reached = bash(client, "c", &fetch("ok.example.org")).await;
    assert_eq!(reached["exit_code"], 0, "{reached}");
    goes_on(site, "said").await;
    assert_never_open(site, "said");
}

/// The next daemon after `kill -9`.
async fn adopted(site: &Site, client: &Client, lease: &str) -> (Client, Process) {
    let daemon = site.start();
    let (key, secret) = client.credential().unwrap();
    let client = daemon.operator.signing(key, secret);
    let after = bash(&client, "c", "true").await;
    assert_eq!(after["lease"]["id"], lease, "the live sandbox is adopted");
    let installed = events(&daemon.operator, "filter_installed").await;
    assert!(
        installed[0]["detail"]
            .as_str()
            .unwrap()
            .contains("taken over"),
        "{installed:?}"
    );
    assert!(events(&daemon.operator, "foreign_change").await.is_empty());
    goes_on(site, "said").await;
    assert_never_open(site, "said");
    let reached = bash(&client, "c", &fetch("ok.example.org")).await;
    assert_eq!(reached["exit_code"], 0, "the policy of then: {reached}");
    let denied = bash(&client, "c", &fetch("no.example.org")).await;
    assert!(
        says(&denied, "blocked by network policy: no.example.org"),
        "{denied}"
    );
    (client, daemon)
}
