//! Two filtered sandboxes at once, through the front door, on every engine that can have them: what
//! each reaches, that they do not reach each other, that the end of one is none of the other, and that
//! neither a daemon's death nor a flushed packet filter opens anything for either.
//!
//! ```text
//!  chat a ─ sandbox ─┐                              ┌─ 203.0.113.5 (ok.example.org)
//!                    ├─ filters ─ the stub's host ──┤
//!  chat b ─ sandbox ─┘                              └─ 203.0.113.99 (no.example.org)
//! ```

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use hotcell_testkit::{Client, Footprint, Process, Site, internet::Internet, wait_for, wait_until};
use serde_json::json;

use super::{
    bash, chat_path, end,
    engines::ContainerEngine,
    filtered::{
        self, ALLOWED, DENIED, ask, assert_never_open, background, connect, events, fetch, goes_on,
        save, says,
    },
    on_runtimes, site_with, user,
};

on_runtimes!(runsc runc docker docker_runsc podman podman_runsc: (two_filtered_sandboxes_are_apart));

const ALLOW_OK: &str = r#"{"egress": [{"action": "allow", "target": "ok.example.org"}]}"#;
/// What an operator is promised after a flush.
const RESTORED_WITHIN: Duration = Duration::from_secs(5);

/// One chat's sandbox.
struct Half {
    chat: &'static str,
    lease: String,
    address: String,
    gateway: String,
    loops: String,
}

impl Half {
    async fn of(client: &Client, chat: &'static str) -> Self {
        let where_it_is = "python3 - <<'PY'
import socket
s = socket.create_connection(('ok.example.org', 443), 5)
print(s.getsockname()[0], open('/etc/resolv.conf').read().split()[1])
PY
python3 -m http.server 8000 >/dev/null 2>&1 &
for i in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && break; sleep 0.1; done";
        let said = bash(client, chat, where_it_is).await;
        assert_eq!(said["exit_code"], 0, "{said}");
        let text = said["stdout"].as_str().unwrap().trim();
        let (address, gateway) = text.split_once(' ').unwrap();
        Self {
            chat,
            lease: said["lease"]["id"].as_str().unwrap().to_owned(),
            address: address.to_owned(),
            gateway: gateway.to_owned(),
            loops: format!("said-{chat}"),
        }
    }

    /// Where the filter of this sandbox is.
    fn namespace(&self, site: &Site) -> PathBuf {
        let own = self.own_namespace(site);
        // The embedded runtime has one for all of them.
        if own.exists() {
            own
        } else {
            site.dir().join("run/netns/gateway")
        }
    }

    /// The one that an engine's sandbox has for itself.
    fn own_namespace(&self, site: &Site) -> PathBuf {
        site.dir().join("run/containers/netns").join(&self.lease)
    }

    /// What another sandbox would reach of this one.
    fn doors(&self) -> Vec<String> {
        [
            (&self.address, 8000),
            (&self.address, 8888),
            (&self.gateway, 53),
        ]
        .map(|(address, port)| format!("{address}:{port}"))
        .to_vec()
    }
}

fn in_namespace(namespace: &Path, words: &[&str]) -> String {
    let output = Command::new("nsenter")
        .arg(format!("--net={}", namespace.display()))
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn two_filtered_sandboxes_are_apart(runtime: &str) {
    let internet = filtered::internet();
    let site = site_with(&filtered::table(runtime)).on_host_of(&internet);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    save(&daemon.operator, ALLOW_OK).await;
    let halves = [Half::of(&client, "a").await, Half::of(&client, "b").await];
    assert_ne!(halves[0].address, halves[1].address);
    for half in &halves {
        the_policy_holds(&internet, &client, half).await;
    }
    they_do_not_meet(&client, [&halves[0], &halves[1]]).await;
    they_do_not_meet(&client, [&halves[1], &halves[0]]).await;
    for (half, other) in [(0, 1), (1, 0)].map(|(i, j)| (&halves[i], &halves[j])) {
        let counted = bash(&client, half.chat, &background(&half.loops, &other.doors())).await;
        assert_eq!(counted["exit_code"], 0, "{counted}");
    }
    flushed(&internet, &site, &daemon.operator, &halves).await;
    daemon.kill();
    for half in &halves {
        goes_on(&site, &half.loops).await;
    }
    let daemon = site.start();
    let (key, secret) = client.credential().unwrap();
    let client = daemon.operator.signing(key, secret);
    adopted(&site, &daemon, &client, &halves).await;
    one_ends(&internet, &site, &client, &halves).await;
    daemon.stop();
    // The embedded runtime keeps its one until it ends itself.
    assert_eq!(uplinks(&internet), 0);
    assert_eq!(site.footprint(), Footprint::default());
}

async fn the_policy_holds(internet: &Internet, client: &Client, half: &Half) {
    let run = async |command: &str| bash(client, half.chat, command).await;
    let allowed = run(&fetch("ok.example.org")).await;
    assert_eq!(allowed["exit_code"], 0, "{allowed}");
    assert!(allowed["stdout"].as_str().unwrap().contains(ALLOWED));
    assert!(!says(&allowed, "blocked"), "{allowed}");
    // Not an answer that does not come: one that says there is no such name.
    let denied = run(&ask("no.example.org")).await;
    assert_eq!(denied["stdout"], "3\n", "{denied}");
    let note = "blocked by network policy: no.example.org";
    assert!(says(&denied, note), "{denied}");
    assert_eq!(run(&ask("ok.example.org")).await["stdout"], "0\n");
    let denied = run(&fetch("no.example.org")).await;
    assert_ne!(denied["exit_code"], 0, "{denied}");
    assert_eq!(internet.names().asked_for("no.example.org"), 0);
    assert_eq!(run(&connect(ALLOWED, 443)).await["stdout"], "open\n");
    let number = run(&connect(DENIED, 443)).await;
    assert_eq!(number["stdout"], "", "{number}");
    let note = format!("blocked by network policy: {DENIED}:443 (tcp)");
    assert!(says(&number, &note), "{number}");
}

/// The first finds none of the second's doors, which stand open within it.
async fn they_do_not_meet(client: &Client, [from, to]: [&Half; 2]) {
    for (door, port) in [(&to.address, 8000), (&to.gateway, 53)] {
        let open = bash(client, to.chat, &connect(door, port)).await;
        assert_eq!(open["stdout"], "open\n", "the control: {open}");
    }
    for door in to.doors() {
        let (address, port) = door.split_once(':').unwrap();
        let closed = bash(client, from.chat, &connect(address, port.parse().unwrap())).await;
        assert_eq!(closed["stdout"], "", "{door}: {closed}");
    }
    let open = bash(client, from.chat, &connect(ALLOWED, 443)).await;
    assert_eq!(open["stdout"], "open\n", "the control: {open}");
}

/// Somebody flushes the packet filters of the sandboxes and of the host.
#[expect(
    clippy::disallowed_methods,
    reason = "the promise is about real time, and the daemon is another process"
)]
async fn flushed(internet: &Internet, site: &Site, operator: &Client, halves: &[Half; 2]) {
    for half in halves {
        let namespace = half.namespace(site);
        let begin = Instant::now();
        in_namespace(&namespace, &["nft", "flush", "ruleset"]);
        wait_until("the filter's table", || {
            in_namespace(&namespace, &["nft", "list", "tables"]).contains("hotcell_")
        })
        .await;
        assert!(begin.elapsed() < RESTORED_WITHIN, "{:?}", begin.elapsed());
    }
    let tables = || internet.run_on_host("nft", &["list", "tables"]);
    let before = tables();
    let begin = Instant::now();
    internet.run_on_host("nft", &["flush", "ruleset"]);
    wait_until("the host's tables", || {
        let mut lines: Vec<String> = tables().lines().map(str::to_owned).collect();
        let mut wanted: Vec<String> = before.lines().map(str::to_owned).collect();
        lines.sort();
        wanted.sort();
        lines == wanted
    })
    .await;
    assert!(begin.elapsed() < RESTORED_WITHIN, "{:?}", begin.elapsed());
    wait_for("both to be told", async || {
        let told = events(operator, "foreign_change").await;
        let of = |half: &Half| told.iter().any(|event| event["lease"] == *half.lease);
        halves.iter().all(of).then_some(())
    })
    .await;
    for half in halves {
        goes_on(site, &half.loops).await;
        assert_never_open(site, &half.loops);
    }
}

/// The next daemon after `kill -9`.
async fn adopted(site: &Site, daemon: &Process, client: &Client, halves: &[Half; 2]) {
    for half in halves {
        let after = bash(client, half.chat, "true").await;
        assert_eq!(after["lease"]["id"], *half.lease, "it is adopted");
        let installed = events(&daemon.operator, "filter_installed").await;
        let of_half: Vec<_> = installed
            .iter()
            .filter(|event| event["lease"] == *half.lease)
            .collect();
        assert!(
            of_half[0]["detail"]
                .as_str()
                .unwrap()
                .contains("taken over"),
            "{installed:?}"
        );
        goes_on(site, &half.loops).await;
        assert_never_open(site, &half.loops);
        let reached = bash(client, half.chat, &fetch("ok.example.org")).await;
        assert_eq!(reached["exit_code"], 0, "{reached}");
        let denied = bash(client, half.chat, &ask("no.example.org")).await;
        assert_eq!(denied["stdout"], "3\n", "{denied}");
        let note = "blocked by network policy: no.example.org";
        assert!(says(&denied, note), "{denied}");
    }
    assert!(events(&daemon.operator, "foreign_change").await.is_empty());
}

/// One lease ends: the other goes on, and with the second everything is gone.
async fn one_ends(internet: &Internet, site: &Site, client: &Client, halves: &[Half; 2]) {
    let [first, second] = halves;
    end(client, first.chat).await;
    wait_until("the first lease's directory to go", || {
        !site.footprint().leases.contains(&first.lease)
    })
    .await;
    assert!(!first.own_namespace(site).exists());
    assert_eq!(uplinks(internet), 1);
    goes_on(site, &second.loops).await;
    let reached = bash(client, second.chat, &fetch("ok.example.org")).await;
    assert_eq!(reached["exit_code"], 0, "{reached}");
    let number = bash(client, second.chat, &connect(DENIED, 443)).await;
    assert_eq!(number["stdout"], "", "{number}");
    assert_never_open(site, &second.loops);
    end(client, second.chat).await;
    wait_until("the leases' directories to go", || {
        site.footprint().leases.is_empty()
    })
    .await;
    assert!(!second.own_namespace(site).exists());
    let tables = internet.run_on_host("nft", &["list", "tables"]);
    assert!(!tables.contains("hotcell"), "{tables}");
}

fn uplinks(internet: &Internet) -> usize {
    let links = internet.run_on_host("ip", &["-br", "link"]);
    links.matches("hcu-").count()
}

/// EG-39, the other half: an engine whose namespaces are its user's cannot be filtered, and no user
/// code runs there under the pretence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rootless_engine_is_refused_with_its_reason() {
    let internet = filtered::internet();
    let site = site_with(&filtered::table("podman_rootless"));
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    save(&daemon.operator, ALLOW_OK).await;
    let command = "touch /mnt/user-data/ran";
    let body = json!({"user": user("u"), "command": command});
    let refused = client.post(&chat_path("c", "bash"), &body).await;
    let refused = refused.expect(503).json();
    assert_eq!(refused["code"], "egress_unenforceable", "{refused}");
    let words = refused["detail"].as_str().unwrap();
    assert!(words.contains("rootless"), "{refused}");
    let told = events(&daemon.operator, "filter_not_installed").await;
    assert!(
        told.iter()
            .any(|event| event["detail"].as_str().unwrap().contains("rootless")),
        "{told:?}"
    );
    wait_until("what was made for it to go", || {
        site.footprint().leases.is_empty()
    })
    .await;
    let engine = ContainerEngine::named("podman_rootless").unwrap();
    for event in &told {
        assert_eq!(engine.containers(event["lease"].as_str().unwrap()), "");
    }
    daemon.stop();
    drop(internet);
    // The control: without a network the same engine runs it; nothing ran before.
    let site = super::site("podman_rootless");
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let ran = bash(&client, "c", "ls /mnt/user-data; touch /mnt/user-data/ran").await;
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(0), &json!("")));
    end(&client, "c").await;
    daemon.stop();
}
