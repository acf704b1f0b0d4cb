//! How long what a name opened stays open.

use std::net::IpAddr;

use hotcell_egress::{
    filter::FilterSettings, firewall::Firewall, layout::learned_set, learned::LearnedLimits,
    ruleset::Family,
};
use hotcell_testkit::{internet::Answer, wait_for};
use hotcell_types::LeaseId;

use crate::{
    stage::{Guard, Stage, policy, table},
    staged,
};

staged!(
    a_cached_answer_opens_as_long_as_it_is_cached,
    an_idle_client_comes_back_without_a_question,
);

/// What the kernel has open for a sandbox, with the time that each has left.
async fn left_ms(guard: &Guard, lease: &LeaseId, address: &str) -> Option<u64> {
    let report = guard.firewall.report(&table()).await.unwrap().unwrap();
    let set = learned_set(lease.short(), Family::V4).to_string();
    let address: IpAddr = address.parse().unwrap();
    report.sets[&set].remaining_ms.get(&address).copied()
}

/// EG-14: for who asked first, and for a second sandbox that finds the answer in the cache.
async fn a_cached_answer_opens_as_long_as_it_is_cached(stage: &Stage<'_>) {
    const TTL_SECONDS: u32 = 7_200;
    let names = stage.internet.names();
    let answer = Answer::addresses(&["203.0.113.5".parse().unwrap()]).ttl_seconds(TTL_SECONDS);
    names.set("a.example.org", answer);
    let (guard, first, _filter) = stage.one("deny", &["allow a.example.org"]).await;
    let (second, _second_filter, _) = stage
        .sandbox(&guard, policy("deny", &["allow a.example.org"]))
        .await;
    let (open, closed) = (("tcp", "203.0.113.5", 443), ("tcp", "203.0.113.6", 443));
    for cell in [&first, &second] {
        assert_eq!(cell.probe(&[open]).await, [false]);
        assert_eq!(cell.resolve("a.example.org").await.len(), 1);
        cell.only(&[open], &[closed]).await;
        let left = left_ms(&guard, &cell.lease, "203.0.113.5").await.unwrap();
        assert!(left >= u64::from(TTL_SECONDS) * 1_000 - 60_000, "{left}");
    }
    assert_eq!(names.asked_for("a.example.org"), 1);
}

/// EG-16, with a grace of seconds: longer than the answer's own time, not longer than the grace, and
/// a connection that is open outlives both.
async fn an_idle_client_comes_back_without_a_question(stage: &Stage<'_>) {
    const GRACE_MS: u64 = 6_000;
    const TTL_SECONDS: u32 = 1;
    let names = stage.internet.names();
    let answer = Answer::addresses(&["203.0.113.5".parse().unwrap()]).ttl_seconds(TTL_SECONDS);
    names.set("api.example.org", answer);
    let (lease, key, site) = stage.create().await;
    let guard = Guard::open(stage.internet, &site).await;
    let settings = FilterSettings {
        learned: LearnedLimits {
            grace_ms: GRACE_MS,
            ..LearnedLimits::default()
        },
        ..FilterSettings::default()
    };
    let rules = ["allow api.example.org", "allow 192.0.2.9"];
    let _filter = guard
        .admit_with(&lease, &site, policy("deny", &rules), settings)
        .await;
    let cell = stage.start(&lease, &key).await;
    cell.get(
        "python3 - <<'E' >/tmp/said 2>&1 &
import socket, time
s = socket.create_connection(('api.example.org', 443)); s.settimeout(5)
while True:
    try: s.send(b'x'); s.recv(9); print('.', end='', flush=True); time.sleep(0.05)
    except OSError: print('cut', flush=True); break
E
for i in $(seq 100); do grep -q '\\.' /tmp/said && break; sleep 0.05; done",
    )
    .await;
    let granted = left_ms(&guard, &lease, "203.0.113.5").await.unwrap();
    assert!(granted > u64::from(TTL_SECONDS) * 1_000, "{granted}");
    let (open, control) = (("tcp", "203.0.113.5", 443), ("tcp", "192.0.2.9", 443));
    wait_for("the answer's own time to be over", async || {
        let left = left_ms(&guard, &lease, "203.0.113.5").await.unwrap();
        (left + u64::from(TTL_SECONDS) * 2_000 < granted).then_some(())
    })
    .await;
    let asked = names.asked_for("api.example.org");
    cell.only(&[open, control], &[("tcp", "203.0.113.6", 443)])
        .await;
    assert_eq!(names.asked_for("api.example.org"), asked);
    wait_for("the kernel to let it go", async || {
        let left = left_ms(&guard, &lease, "203.0.113.5").await;
        left.is_none().then_some(())
    })
    .await;
    cell.only(&[control], &[open]).await;
    let said = async || cell.get("wc -c < /tmp/said").await.parse::<u64>().unwrap();
    let before = said().await;
    wait_for("the open connection to go on", async || {
        (said().await > before + 3).then_some(())
    })
    .await;
    assert!(!cell.get("cat /tmp/said").await.contains("cut"));
    // A lookup opens it again.
    assert_eq!(cell.resolve("api.example.org").await.len(), 1);
    cell.only(&[open, control], &[("tcp", "203.0.113.6", 443)])
        .await;
}
