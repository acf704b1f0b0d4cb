//! What the kernel is told is what `nft` sees there, and the other way round.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::time::Duration;

use common::{Namespace, base, lease, logging_lease, name, open, plan, policy, table};
use hotcell_egress::{
    firewall::{Firewall, FirewallError},
    layout::{self, Reach, Scope, learned_set},
    report::Difference,
    ruleset::{Family, LogGroup},
    way_out,
};
use hotcell_nft::NftFirewall;
use hotcell_policy::Surroundings;

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
