//! A warm pool behind a filter: a sandbox that is nobody's has a way out and nothing passes; the first call of
//! a chat finds the filter of its own policy, with what is allowed beside what is not.

use hotcell_testkit::{internet::Internet, wait_until};

use super::{
    bash, end,
    filtered::{self, ALLOWED, DENIED, ask, connect, events, fetch, save, says},
    on_runtimes, site_with,
    warm::{assert_gone, leases, ready},
};

on_runtimes!(
    runsc runc docker docker_runsc podman podman_runsc: (a_first_call_finds_its_filter)
);

const ALLOW_OK: &str = r#"{"egress": [{"action": "allow", "target": "ok.example.org"}]}"#;

/// What goes out, and beside it everything that must not, in the first command of a chat.
fn first_command() -> String {
    format!(
        "{}; {}; {}; {}",
        fetch("ok.example.org"),
        connect(DENIED, 443),
        connect("169.254.169.254", 80),
        ask("no.example.org")
    )
}

async fn a_first_call_finds_its_filter(runtime: &str) {
    let internet = filtered::internet();
    let table = format!("{}\n[profile]\nwarm_pool = 1", filtered::table(runtime));
    let site = site_with(&table).on_host_of(&internet);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let operator = &daemon.operator;
    save(operator, ALLOW_OK).await;
    let lease = ready(operator, &site).await;
    // Nothing of nobody's went anywhere.
    assert!(internet.arrived().is_empty());
    let first = bash(&client, "c", &first_command()).await;
    assert_eq!(first["lease"]["id"], lease.as_str(), "it was the warm one");
    let stdout = first["stdout"].as_str().unwrap();
    assert!(!stdout.contains("open"), "{first}");
    // The page that was allowed, and the answer that there is no such name.
    assert!(
        stdout.contains(ALLOWED) && stdout.ends_with("\n3\n"),
        "{first}"
    );
    let blocked = format!("blocked by network policy: {DENIED}:443 (tcp)");
    assert!(says(&first, &blocked), "{first}");
    assert_eq!(internet.names().asked_for("no.example.org"), 0);

    // The next one has the policy of its own beginning, not that of when it was made.
    let other = ready(operator, &site).await;
    assert_ne!(other, lease);
    save(operator, r#"{"egress": []}"#).await;
    let arrived = internet.arrived();
    let second = bash(&client, "d", &connect(ALLOWED, 443)).await;
    assert_eq!(second["lease"]["id"], other.as_str(), "it was the warm one");
    assert_eq!(second["stdout"], "", "{second}");
    assert!(says(&second, "blocked by network policy"), "{second}");
    let name = bash(&client, "d", &ask("ok.example.org")).await;
    assert_eq!(name["stdout"], "3\n", "{name}");
    assert_eq!(internet.arrived(), arrived);
    // The control: the first keeps its own.
    let kept = bash(&client, "c", &fetch("ok.example.org")).await;
    assert_eq!(kept["exit_code"], 0, "{kept}");
    assert!(!events(operator, "packet_denied").await.is_empty());

    let last = ready(operator, &site).await;
    for chat in ["c", "d"] {
        end(&client, chat).await;
    }
    wait_until("the leases to go", || leases(&site).0.is_empty()).await;
    assert_eq!(internet.host_hits(), 0);
    daemon.stop();
    assert_gone(&site, runtime, &[&lease, &other, &last]);
    no_links(&internet);
}

/// Nothing of ours is left in the host's packet filter and among its links.
fn no_links(internet: &Internet) {
    let tables = internet.run_on_host("nft", &["list", "tables"]);
    assert!(!tables.contains("hotcell"), "{tables}");
    let links = internet.run_on_host("ip", &["-br", "link"]);
    assert!(!links.contains("hcu-"), "{links}");
}
