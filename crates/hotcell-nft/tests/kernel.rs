//! What the kernel is told is what `nft` sees there, and the other way round.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::time::Duration;

use common::{Namespace, base, lease, logging_lease, name, plan, policy, table};
use hotcell_egress::{
    firewall::{Firewall, FirewallError, OpenAddress},
    layout::{self, Reach, Scope, learned_set},
    report::Difference,
    ruleset::{Family, LogGroup},
    way_out,
};
use hotcell_nft::{NftFirewall, Watcher};
use hotcell_policy::Surroundings;

fn open(set: &str, address: &str, for_ms: u64) -> OpenAddress {
    OpenAddress {
        set: name(set),
        address: address.parse().unwrap(),
        for_ms,
    }
}

/// A rule with everything that the layout uses, both families, and logging.
#[tokio::test]
async fn nft_reads_what_we_wrote() {
    let space = Namespace::new("read");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let policy = policy(
        "deny",
        &[
            "allow 198.51.100.0/24",
            "allow 2001:db8::/32",
            "allow 255.255.255.255",
        ],
    );
    let plan = plan(&policy, &Surroundings::default());
    let mut ruleset = base();
    firewall.replace(&ruleset, &[]).await.unwrap();
    let lease = lease(1, &plan, true, &["192.0.2.53".parse().unwrap()]);
    firewall.add_lease(&table(), &lease).await.unwrap();
    lease.join(&mut ruleset, Reach::Outside);
    assert_eq!(firewall.differences(&ruleset).await.unwrap(), []);

    let seen = space.nft("list ruleset");
    let chain = |name: &str| {
        let (_, from) = seen.split_once(&format!("chain {name} {{\n")).unwrap();
        let (inside, _) = from.split_once("\n\t}").unwrap();
        inside
            .lines()
            .map(|l| l.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        chain("l_lease1_forward"),
        [
            "ip saddr != 10.77.1.2 drop",
            "ip6 saddr != fd77::1:2 drop",
            "ip option lsrr exists drop",
            "ip option ssrr exists drop",
            "ct state invalid drop",
            "ip daddr @l_lease1_closed4 drop",
            "ip6 daddr @l_lease1_closed6 drop",
            "ct state established accept",
            "meta l4proto != @protocols drop",
            "th dport @dns_ports drop",
            "ip daddr @l_lease1_blocked4 drop",
            "ip6 daddr @l_lease1_blocked6 drop",
            "ip daddr @l_lease1_learned4 accept",
            "ip6 daddr @l_lease1_learned6 accept",
            "ip daddr @l_lease1_static4 accept",
            "ip6 daddr @l_lease1_static6 accept",
            "drop",
        ]
    );
    assert_eq!(
        chain("l_lease1_input"),
        [
            "icmpv6 type 133-136 accept",
            "ip saddr != 10.77.1.2 drop",
            "ip6 saddr != fd77::1:2 drop",
            "ct state established,related accept",
            "ip daddr 10.77.1.1 meta l4proto @protocols th dport 53 accept",
            "ip6 daddr fd77::1:1 meta l4proto @protocols th dport 53 accept",
            "drop",
        ]
    );
    assert_eq!(
        chain("forward"),
        [
            "type filter hook forward priority filter - 10; policy drop;",
            "iifname vmap @lease_forward",
            "oifname vmap @lease_reply",
            "drop",
        ]
    );
    assert_eq!(
        chain("masquerade"),
        [
            "type nat hook postrouting priority srcnat; policy accept;",
            "oifname \"up0\" masquerade",
        ]
    );
    assert!(
        seen.contains("elements = { \"sb1\" : jump l_lease1_forward }"),
        "{seen}"
    );
    assert!(seen.contains("elements = { 198.51.100.0/24 }"), "{seen}");
    assert!(
        seen.contains("224.0.0.0/3"),
        "the last address has no end: {seen}"
    );
    assert!(
        seen.contains("elements = { 53, 137, 853, 5353, 5355 }"),
        "{seen}"
    );
    assert!(
        seen.contains("type ipv4_addr\n\t\tsize 65535\n\t\tflags timeout"),
        "{seen}"
    );
}

/// EG-15: renewing really renews. A plain add of an element that is there does not.
#[tokio::test]
async fn eg15_renewal_gives_the_full_time_again() {
    let space = Namespace::new("renew");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let policy = policy("deny", &[]);
    let plan = plan(&policy, &Surroundings::default());
    firewall.replace(&base(), &[]).await.unwrap();
    firewall
        .add_lease(&table(), &lease(1, &plan, false, &[]))
        .await
        .unwrap();
    let set = learned_set("lease1", Family::V4);
    let remaining = async || {
        let report = firewall.report(&table()).await.unwrap().unwrap();
        report.sets[set.as_str()].remaining_ms.clone()
    };
    let learn = [open(set.as_str(), "192.0.2.1", 20_000)];
    firewall.open(&table(), &learn).await.unwrap();
    // Six seconds of the kernel's own time.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let before = remaining().await;
    let left = before[&learn[0].address];
    assert!((13_000..=14_100).contains(&left), "{left} ms");
    firewall.open(&table(), &learn).await.unwrap();
    let left = remaining().await[&learn[0].address];
    assert!(left >= 19_000, "{left} ms");
    // The witness reads the same from the kernel.
    let seen = space.nft("list set inet hotcell l_lease1_learned4");
    assert!(seen.contains("192.0.2.1 timeout 20s expires 19s"), "{seen}");

    // What is not there is opened the same way, and closing is no error twice.
    let more = [open(set.as_str(), "192.0.2.2", 5_000), learn[0].clone()];
    firewall.open(&table(), &more).await.unwrap();
    assert_eq!(remaining().await.len(), 2);
    let close = [(set.clone(), learn[0].address)];
    firewall.close(&table(), &close).await.unwrap();
    firewall.close(&table(), &close).await.unwrap();
    assert_eq!(
        remaining().await.into_keys().collect::<Vec<_>>(),
        [more[0].address]
    );
}

/// EG-18: overlapping ranges load and keep their order, as the kernel's own elements show.
#[tokio::test]
async fn eg18_overlapping_ranges_load() {
    let listed = [
        "allow 100.64.0.0/10",
        "allow 100.64.0.7",
        "allow 100.64.0.0/10",
        "allow 10.0.0.0/8",
        "deny 10.1.0.0/16",
        "allow 2001:db8::/32",
        "allow 2001:db8::5",
    ];
    let mut swapped = listed;
    swapped.swap(3, 4);
    let space = Namespace::new("ranges");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    firewall.replace(&base(), &[]).await.unwrap();
    for (n, rules, expected) in [(1, &listed, true), (2, &swapped, false)] {
        let plan = plan(&policy("deny", rules), &Surroundings::default());
        firewall
            .add_lease(&table(), &lease(n, &plan, true, &[]))
            .await
            .unwrap();
        let has = |set: &str, address: &str| {
            let element = format!("{{ {address} }}");
            let set = format!("l_lease{n}_{set}");
            let got = space.output(
                "nft",
                &["get", "element", "inet", "hotcell", &set, &element],
            );
            got.status.success()
        };
        assert_eq!(has("static4", "10.1.2.3"), expected);
        assert!(has("static4", "10.2.2.3"));
        assert!(has("static4", "100.64.0.7"));
        assert!(has("static6", "2001:db8::5"));
        assert!(!has("static6", "2001:db9::5"));
        assert!(has("closed4", "192.168.0.1"));
        assert!(has("closed4", "100.100.100.200"));
    }
}

/// Telling denials and sitting in the host's namespace is also read back as it was meant.
#[tokio::test]
async fn logging_and_the_host_scope_are_read_back() {
    let space = Namespace::new("log");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let log = LogGroup {
        group: 77,
        per_second: 10,
    };
    let mut ruleset = layout::base(table(), &Scope::Host);
    for (n, default) in [(1, "deny"), (2, "allow")] {
        let plan = plan(
            &policy(default, &["deny 203.0.113.0/24"]),
            &Surroundings::default(),
        );
        logging_lease(n, &plan, true, &[], Some(log)).join(&mut ruleset, Reach::Outside);
    }
    firewall.replace(&ruleset, &[]).await.unwrap();
    assert_eq!(firewall.differences(&ruleset).await.unwrap(), []);
    let seen = space.nft("list chain inet hotcell l_lease1_forward");
    let told =
        "limit rate 10/second burst 10 packets log prefix \"l_lease1_denied\" group 77 snaplen 96";
    assert!(seen.contains(told), "{seen}");
    let seen = space.nft("list chain inet hotcell forward");
    assert!(seen.contains("policy accept"), "{seen}");
    // The same of the host's side of a gateway, which asks the kernel for the host's addresses.
    let host = way_out::ruleset(
        name("other"),
        &"hcu-x".parse().unwrap(),
        [100, 65, 0, 2].into(),
    );
    firewall.replace(&host, &[]).await.unwrap();
    assert_eq!(firewall.differences(&host).await.unwrap(), []);
    let seen = space.nft("list chain inet other before_routing");
    let local = "iifname \"hcu-x\" fib daddr type local drop";
    assert!(
        seen.contains(local) && seen.contains("priority mangle"),
        "{seen}"
    );
}

#[tokio::test]
async fn thousands_of_rules_are_one_change() {
    let space = Namespace::new("many");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let rules: Vec<String> = (0..4096_u32)
        .map(|i| {
            format!(
                "allow {}",
                std::net::Ipv4Addr::from(0x0b00_0000 + i * 2 * 256)
            )
        })
        .map(|target| format!("{target}/24"))
        .collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let plan = plan(&policy("deny", &rules), &Surroundings::default());
    let mut ruleset = base();
    lease(1, &plan, true, &[]).join(&mut ruleset, Reach::Outside);
    firewall.replace(&ruleset, &[]).await.unwrap();
    assert_eq!(firewall.differences(&ruleset).await.unwrap(), []);
    let report = firewall.report(&table()).await.unwrap().unwrap();
    assert_eq!(report.sets["l_lease1_static4"].elements.len(), 4096);
}

/// A refused change leaves nothing behind.
#[tokio::test]
async fn a_change_is_made_whole_or_not_at_all() {
    let space = Namespace::new("whole");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let plan = plan(&policy("deny", &[]), &Surroundings::default());
    let ruleset = base();
    firewall.replace(&ruleset, &[]).await.unwrap();
    let mut broken = lease(1, &plan, false, &[]);
    broken.sets.pop();
    let refused = firewall.add_lease(&table(), &broken).await;
    assert!(
        matches!(refused, Err(FirewallError::Refused { .. })),
        "{refused:?}"
    );
    assert_eq!(firewall.differences(&ruleset).await.unwrap(), []);
    // Opening into a lease that is not there is refused, and costs one that waits with it nothing.
    firewall
        .add_lease(&table(), &lease(2, &plan, false, &[]))
        .await
        .unwrap();
    let good = [open("l_lease2_learned4", "203.0.113.1", 60_000)];
    let bad = [open("l_lease1_learned4", "203.0.113.1", 60_000)];
    let table = table();
    let (good, bad) = tokio::join!(firewall.open(&table, &good), firewall.open(&table, &bad));
    good.unwrap();
    assert!(matches!(bad, Err(FirewallError::Refused { .. })), "{bad:?}");
}

#[tokio::test]
async fn leases_come_and_go() {
    let space = Namespace::new("leases");
    let firewall = NftFirewall::open(Some(space.fd())).unwrap();
    let plan = plan(
        &policy("allow", &["deny 203.0.113.0/24"]),
        &Surroundings::default(),
    );
    let (one, two) = (lease(1, &plan, true, &[]), lease(2, &plan, false, &[]));
    let mut meant = base();
    firewall.replace(&meant, &[]).await.unwrap();
    firewall.add_lease(&table(), &one).await.unwrap();
    firewall.add_lease(&table(), &two).await.unwrap();
    firewall
        .connect(&table(), &two, Reach::Nothing)
        .await
        .unwrap();
    one.join(&mut meant, Reach::Outside);
    two.join(&mut meant, Reach::Nothing);
    assert_eq!(firewall.differences(&meant).await.unwrap(), []);
    assert!(
        space
            .nft("list map inet hotcell lease_forward")
            .contains("\"sb2\" : drop")
    );
    firewall
        .connect(&table(), &two, Reach::Outside)
        .await
        .unwrap();
    firewall.remove_lease(&table(), &one).await.unwrap();
    firewall.remove_lease(&table(), &one).await.unwrap();
    let mut meant = base();
    two.join(&mut meant, Reach::Outside);
    assert_eq!(firewall.differences(&meant).await.unwrap(), []);
    firewall.remove(&table()).await.unwrap();
    assert_eq!(firewall.report(&table()).await.unwrap(), None);
    assert_eq!(
        firewall.differences(&meant).await.unwrap(),
        [Difference::TableMissing]
    );
    assert_eq!(space.nft("list ruleset"), "");
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

#[tokio::test]
async fn the_filter_of_one_namespace_leaves_others_alone() {
    let (one, two) = (Namespace::new("one"), Namespace::new("two"));
    let firewall = NftFirewall::open(Some(one.fd())).unwrap();
    firewall.replace(&base(), &[]).await.unwrap();
    assert!(one.nft("list ruleset").contains("table inet hotcell"));
    assert_eq!(two.nft("list ruleset"), "");
}

#[tokio::test]
async fn what_is_no_namespace_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(
        NftFirewall::open(Some(file.into())),
        Err(hotcell_nft::OpenError::Namespace(_))
    ));
}
