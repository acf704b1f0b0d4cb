//! What others do to the packet filter is seen, told from our own doing, and undone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::time::Duration;

use common::{Namespace, base, lease, open, plan, policy, table};
use hotcell_egress::{firewall::Firewall, layout::Reach, report::Difference};
use hotcell_nft::{NftFirewall, Watcher};
use hotcell_policy::Surroundings;

#[tokio::test]
async fn every_foreign_change_is_a_difference() {
    let space = Namespace::new("foreign");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let plan = plan(
        &policy("deny", &["allow 198.51.100.0/24"]),
        &Surroundings::default(),
    );
    let mut meant = base();
    lease(1, &plan, false, &[]).join(&mut meant, Reach::Outside);
    let handle = |chain: &str, rule: &str| {
        let listed = space.run("nft", &["-a", "list", "chain", "inet", "hotcell", chain]);
        let line = listed
            .lines()
            .find(|line| line.contains(rule))
            .unwrap()
            .to_owned();
        line.rsplit_once("# handle ").unwrap().1.to_owned()
    };
    let forward = "l_lease1_forward";
    let changed = || Difference::RulesChanged(forward.to_owned());
    type Expected = Box<dyn Fn(&[Difference]) -> bool>;
    let is = |difference: Difference| -> Expected { Box::new(move |d| d == [difference.clone()]) };
    let table_of: Vec<(&str, Expected)> = vec![
        (
            "insert rule inet hotcell l_lease1_forward accept",
            is(changed()),
        ),
        (
            "insert rule inet hotcell l_lease1_forward ip daddr 203.0.113.9 accept",
            is(changed()),
        ),
        (
            "delete rule inet hotcell l_lease1_forward handle LAST",
            is(changed()),
        ),
        ("flush chain inet hotcell l_lease1_forward", is(changed())),
        (
            "add element inet hotcell l_lease1_static4 { 203.0.113.0/24 }",
            Box::new(
                |d| matches!(d, [Difference::ElementForeign(set, _)] if set == "l_lease1_static4"),
            ),
        ),
        (
            "delete element inet hotcell l_lease1_closed4 { 192.168.0.0/16 }",
            Box::new(
                |d| matches!(d, [Difference::ElementMissing(set, _)] if set == "l_lease1_closed4"),
            ),
        ),
        (
            "delete element inet hotcell lease_forward { \"sb1\" }",
            Box::new(
                |d| matches!(d, [Difference::ElementMissing(set, _)] if set == "lease_forward"),
            ),
        ),
        (
            "add element inet hotcell lease_forward { \"eth9\" : accept }",
            Box::new(
                |d| matches!(d, [Difference::ElementForeign(set, _)] if set == "lease_forward"),
            ),
        ),
        (
            "add chain inet hotcell other { type filter hook forward priority -20; }",
            is(Difference::ChainForeign("other".to_owned())),
        ),
        (
            "add set inet hotcell other { type ipv4_addr; }",
            is(Difference::SetForeign("other".to_owned())),
        ),
        (
            "chain inet hotcell forward { policy accept; }",
            is(Difference::ChainMoved("forward".to_owned())),
        ),
        ("delete table inet hotcell", is(Difference::TableMissing)),
        ("flush ruleset", is(Difference::TableMissing)),
    ];
    for (command, expected) in table_of {
        firewall.replace(&meant, &[]).await.unwrap();
        let last = handle(forward, "drop # handle");
        space.nft(&command.replace("LAST", &last));
        let found = firewall.differences(&meant).await.unwrap();
        assert!(expected(&found), "{command}: {found:?}");
    }
    // What comes and goes in timed sets, and other tables, are none.
    firewall.replace(&meant, &[]).await.unwrap();
    firewall
        .open(
            &table(),
            &[open("l_lease1_learned4", "203.0.113.1", 60_000)],
        )
        .await
        .unwrap();
    space.nft("add table inet other");
    assert_eq!(firewall.differences(&meant).await.unwrap(), []);
}

/// A flush is noticed at once; our own changes are not taken for somebody else's.
#[tokio::test]
async fn a_watcher_tells_foreign_changes_from_our_own() {
    let space = Namespace::new("watch");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let mut watcher = Watcher::start(Some(space.fd()), firewall.port()).unwrap();
    let plan = plan(&policy("deny", &[]), &Surroundings::default());
    firewall.replace(&base(), &[]).await.unwrap();
    firewall
        .add_lease(&table(), &lease(1, &plan, false, &[]))
        .await
        .unwrap();
    firewall
        .open(
            &table(),
            &[open("l_lease1_learned4", "203.0.113.1", 60_000)],
        )
        .await
        .unwrap();
    space.nft("flush ruleset");
    let limit = Duration::from_secs(5);
    let change = tokio::time::timeout(limit, watcher.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(change.process.as_deref(), Some("nft"), "{change:?}");
    // Nothing else was told: the next is the next foreign change.
    space.nft("add table inet other");
    let next = tokio::time::timeout(limit, watcher.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(next.generation, change.generation + 1, "{next:?}");
}

/// Replacing keeps what was learned, in the same change.
#[tokio::test]
async fn a_restored_table_has_its_learned_addresses() {
    let space = Namespace::new("restore");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let plan = plan(&policy("deny", &[]), &Surroundings::default());
    let mut meant = base();
    lease(1, &plan, true, &[]).join(&mut meant, Reach::Outside);
    let learned = [
        open("l_lease1_learned4", "203.0.113.1", 60_000),
        open("l_lease1_learned6", "2001:db8::1", 60_000),
    ];
    firewall.replace(&meant, &learned).await.unwrap();
    space.nft("flush ruleset");
    assert_eq!(firewall.report(&table()).await.unwrap(), None);
    firewall.replace(&meant, &learned).await.unwrap();
    let report = firewall.report(&table()).await.unwrap().unwrap();
    for address in &learned {
        let left = report.sets[address.set.as_str()].remaining_ms[&address.address];
        assert!(left > 50_000, "{left} ms");
    }
}
