//! The filter through the front door: the daemon as a process on the host of a stub internet, real
//! sandboxes, the kernel's packet filter.

use std::process::Command;

use hotcell_testkit::{
    Client, Footprint, Process, Site,
    internet::{Internet, RESOLVER},
    wait_for, wait_until,
};
use http::Method;
use serde_json::{Value, json};

use super::{HOTCELL, bash, end, given, images};

const POLICY: &str = "/v1/admin/organizations/o/network-policy";
const ALLOW_TWO: &str = r#"{"egress": [
    {"action": "allow", "target": "ok.example.org"},
    {"action": "allow", "target": "inside.example.org"}
]}"#;
const ALLOWED: &str = "203.0.113.5";
const DENIED: &str = "203.0.113.99";

/// Tries an allowed and a denied address again and again, and writes down which answered, where the
/// host sees it too.
const BACKGROUND: &str = r"cat > /workspace/loop.py <<'PY'
import socket, time
def reached(address):
    try:
        socket.create_connection((address, 443), timeout=0.3).close()
        return True
    except OSError:
        return False
while True:
    allowed, denied = reached('203.0.113.5'), reached('203.0.113.99')
    print('A' if allowed else 'a', 'D' if denied else 'd', sep='', flush=True)
    time.sleep(0.05)
PY
python3 /workspace/loop.py >/mnt/user-data/said 2>&1 &
for i in $(seq 200); do grep -q A /mnt/user-data/said && break; sleep 0.05; done
grep -c A /mnt/user-data/said";

fn fetch(host: &str) -> String {
    let program = format!(
        "import urllib.request as r; print(r.urlopen('http://{host}/', timeout=5).read().decode())"
    );
    format!("python3 -c \"{program}\"")
}

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
    let runtime = format!(
        "kind = \"embedded\"\noci_runtime = \"{engine}\"\nimage = \"base\"\n\
         network = \"filtered\"\ndns_upstreams = [\"{}\"]",
        RESOLVER.ip()
    );
    let site = Site::new(
        HOTCELL.as_ref(),
        &given("HOTCELL_TEST_AGENT"),
        images(),
        &runtime,
    );
    // The daemon starts where its test is.
    internet.on_host(async || Box::pin(chat(&internet, &site)).await);
}

async fn save(operator: &Client, text: &str) {
    let headers = [("content-type", "application/json")];
    let saved = operator.request(Method::PUT, POLICY, &headers, text.to_owned());
    let _ = saved.await.expect(200);
}

async fn events(operator: &Client, kind: &str) -> Vec<Value> {
    let page = operator.get("/v1/admin/egress-events?limit=1000").await;
    let page = page.expect(200).json();
    let events = page["events"].as_array().unwrap().iter();
    events.filter(|it| it["kind"] == kind).cloned().collect()
}

fn says(result: &Value, part: &str) -> bool {
    result["notes"].to_string().contains(part)
}

/// What the loop said so far, read on the host: a line for each try.
fn said(site: &Site) -> Vec<String> {
    let mut dirs = vec![site.dir().join("state/volumes")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if entry.file_name() == "said" {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                return text.lines().map(str::to_owned).collect();
            }
        }
    }
    panic!("the loop says nothing");
}

/// Waits until the loop, from now on, reached what is allowed a few times.
async fn goes_on(site: &Site) {
    let before = said(site).len();
    wait_until("the loop to go on", || {
        let reached = said(site)[before..]
            .iter()
            .filter(|line| *line == "Ad")
            .count();
        reached >= 3
    })
    .await;
}

fn assert_never_open(site: &Site) {
    let lines = said(site);
    assert!(
        !lines.iter().any(|line| line.contains('D')),
        "it was open for a moment: {lines:?}"
    );
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
    let counted = bash(&client, "c", BACKGROUND).await;
    assert_eq!(counted["exit_code"], 0, "{counted}");
    let other = bash(&client, "other", &fetch("ok.example.org")).await;
    assert_ne!(other["exit_code"], 0, "the next sandbox has the new one");
    end(&client, "other").await;

    undone(internet, site, &client, operator).await;
    daemon.kill();
    // What is open stays open while nobody is there, and nothing else opens.
    goes_on(site).await;
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
    goes_on(site).await;
    assert_never_open(site);
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
    goes_on(site).await;
    assert_never_open(site);
    let reached = bash(&client, "c", &fetch("ok.example.org")).await;
    assert_eq!(reached["exit_code"], 0, "the policy of then: {reached}");
    let denied = bash(&client, "c", &fetch("no.example.org")).await;
    assert!(
        says(&denied, "blocked by network policy: no.example.org"),
        "{denied}"
    );
    (client, daemon)
}
