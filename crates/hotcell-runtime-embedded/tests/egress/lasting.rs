//! What outlives whom: filters and daemons, leases and their addresses.

use std::net::IpAddr;

use hotcell_egress::firewall::Firewall;
use hotcell_runtime::{ObservedState, Runtime};
use hotcell_testkit::internet::Internet;

use crate::{
    common::{Engine, Rig},
    stage::{Guard, Stage, policy, table},
    staged,
};

staged!(
    rules_outlive_the_filters_process,
    an_address_brings_no_connections_along,
    an_uplink_that_was_removed_comes_back,
);

/// Sends and hears without an end, in the background.
const LOOP: &str = r"python3 - <<'E' >/tmp/said 2>&1 &
import socket, time
s = socket.create_connection(('203.0.113.5', 443)); s.settimeout(5)
while True:
    try: s.send(b'x'); s.recv(9); print('.', end='', flush=True); time.sleep(0.02)
    except OSError: print('cut', flush=True); break
E
for i in $(seq 100); do grep -q '\.' /tmp/said && break; sleep 0.05; done";

/// EG-41, the filter's part: everything of it goes, again and again.
async fn rules_outlive_the_filters_process(stage: &Stage<'_>) {
    const DEATHS: usize = 4;
    let names = stage.internet.names();
    names.address("ok.example.org", &["203.0.113.5"]);
    let rules = ["allow ok.example.org", "allow *.new.example.org"];
    let (lease, key, site) = stage.create().await;
    let mut guard = Guard::open(stage.internet, &site).await;
    let mut filter = guard.admit(&lease, &site, policy("deny", &rules)).await;
    let cell = stage.start(&lease, &key).await;
    let ok = ("tcp", "ok.example.org", 443);
    cell.only(&[ok], &[("tcp", "no.example.org", 443)]).await;
    cell.get(LOOP).await;
    for death in 0..DEATHS {
        let fresh = format!("n{death}.new.example.org");
        let address = format!("198.51.100.{}", 10 + death);
        names.address(&fresh, &[&address]);
        drop(filter);
        drop(guard);
        // Learned addresses stay; nothing new opens, by name or by number.
        cell.only(
            &[("tcp", "203.0.113.5", 443)],
            &[("tcp", "203.0.113.99", 443), ("tcp", &address, 443)],
        )
        .await;
        let asked = cell.sh(&format!("timeout 2 getent ahostsv4 {fresh}")).await;
        assert_ne!(asked.code(), 0, "{asked:?}");
        guard = Guard::adopt(stage.internet, &site);
        filter = guard.readmit(&lease, &site, policy("deny", &rules)).await;
        cell.only(
            &[("tcp", &fresh, 443), ok],
            &[("tcp", "no.example.org", 443), ("tcp", "203.0.113.99", 443)],
        )
        .await;
        let learned = filter.dns.with_filter(|model, _| model.learned().len());
        assert_eq!(learned, death + 2);
    }
    let said = cell.get("cat /tmp/said").await;
    assert!(said.starts_with('.') && !said.contains("cut"), "{said}");
}

/// A new sandbox with the address of one that is gone does not inherit what that had open.
async fn an_address_brings_no_connections_along(stage: &Stage<'_>) {
    let (guard, first, filter) = stage.one("allow", &[]).await;
    first.get(LOOP).await;
    let site = stage.rig.runtime.filter_site(&first.lease).await.unwrap();
    let address = IpAddr::from(site.v4.sandbox);
    let remotes = guard.conntrack.remotes(address).unwrap();
    assert!(
        remotes.contains(&"203.0.113.5".parse().unwrap()),
        "{remotes:?}"
    );
    guard
        .firewall
        .remove_lease(&table(), &filter.rules)
        .await
        .unwrap();
    drop(filter);
    stage.rig.runtime.remove(&first.lease).await.unwrap();
    assert!(
        !guard.conntrack.remotes(address).unwrap().is_empty(),
        "nobody forgot them"
    );
    let (lease, key, site) = stage.create().await;
    assert_eq!(
        IpAddr::from(site.v4.sandbox),
        address,
        "the place is used again"
    );
    let _filter = guard
        .admit(&lease, &site, policy("deny", &["allow 203.0.113.6"]))
        .await;
    assert!(guard.conntrack.remotes(address).unwrap().is_empty());
    let cell = stage.start(&lease, &key).await;
    cell.only(
        &[("tcp", "203.0.113.6", 443)],
        &[("tcp", "203.0.113.5", 443)],
    )
    .await;
}

/// Somebody on the host removes the uplink: nothing passes, and the next look makes it again.
async fn an_uplink_that_was_removed_comes_back(stage: &Stage<'_>) {
    let (guard, cell, _filter) = stage.one("deny", &["allow 203.0.113.5"]).await;
    let open = ("tcp", "203.0.113.5", 443);
    cell.only(&[open], &[]).await;
    let site = stage.rig.runtime.filter_site(&cell.lease).await.unwrap();
    let host_end = site.way_out.as_ref().unwrap().interface.as_str();
    stage.internet.run_on_host("ip", &["link", "del", host_end]);
    assert_eq!(cell.probe(&[open]).await, [false]);
    let again = stage.rig.runtime.filter_site(&cell.lease).await.unwrap();
    assert_eq!(again.way_out, site.way_out);
    cell.only(&[open], &[("tcp", "203.0.113.6", 443)]).await;
    drop(guard);
}

/// The daemon is replaced while a filtered sandbox runs: link, routes and rules are adopted.
#[test]
fn a_new_daemon_adopts_the_way_out() {
    for engine in [Engine::RunscOwn, Engine::Runc] {
        let internet = Internet::new();
        internet.on_host(async || Box::pin(replace_the_daemon(&internet, engine)).await);
    }
}

async fn replace_the_daemon(internet: &Internet, engine: Engine) {
    let rules = || policy("deny", &["allow 203.0.113.5"]);
    let rig = Rig::open(engine).await;
    let stage = Stage { internet, rig };
    let (guard, cell, filter) = stage.one("deny", &["allow 203.0.113.5"]).await;
    cell.get(LOOP).await;
    let (lease, key) = (cell.lease.clone(), cell.key.clone());
    let before = stage.rig.runtime.filter_site(&lease).await.unwrap();
    drop((cell, filter, guard));
    let rig = stage.rig.reopen().await;
    let stage = Stage { internet, rig };
    let observed = stage.rig.runtime.list().await.unwrap();
    assert_eq!(observed[0].state, ObservedState::Running);
    let site = stage.rig.runtime.filter_site(&lease).await.unwrap();
    assert_eq!(
        (site.v4, &site.interface, &site.way_out),
        (before.v4, &before.interface, &before.way_out)
    );
    let guard = Guard::adopt(internet, &site);
    let filter = guard.readmit(&lease, &site, rules()).await;
    let cell = stage.rig.cell(&lease, &key).await;
    cell.only(
        &[("tcp", "203.0.113.5", 443)],
        &[("tcp", "203.0.113.6", 443)],
    )
    .await;
    let said = cell.get("cat /tmp/said").await;
    assert!(said.starts_with('.') && !said.contains("cut"), "{said}");
    drop((cell, filter, guard));
    stage.rig.end().await;
}
