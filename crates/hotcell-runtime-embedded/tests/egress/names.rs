//! What a name opens.

use std::{net::IpAddr, time::Duration};

use hotcell_egress::{dns::FilterEvent, firewall::Firewall};
use hotcell_testkit::{clients, internet::Answer};

use crate::{
    stage::{Guard, Stage, policy, table},
    staged,
};

staged!(
    an_allowed_name_opens_its_addresses_and_nothing_else,
    an_alias_opens_what_it_stands_for,
    an_address_is_open_before_its_name_is_answered,
    one_sandbox_does_not_open_for_another,
    the_first_rule_that_matches_decides,
    a_name_that_points_inside_opens_nothing,
    the_resolver_is_the_filter,
    rules_about_the_gateways_range_do_not_cut_off_names,
);

/// EG-35 (2) and (3), EG-30, EG-31.
async fn an_allowed_name_opens_its_addresses_and_nothing_else(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("ok.example.org", &["203.0.113.5", "203.0.113.6"]);
    names.address("no.example.org", &["203.0.113.99"]);
    let (_guard, cell, filter) = stage.one("deny", &["allow ok.example.org"]).await;
    // Nothing is open before its name was asked for.
    let control = ("tcp", "ok.example.org", 443);
    cell.only(
        &[control],
        &[("tcp", "203.0.113.99", 443), ("udp", "203.0.113.99", 443)],
    )
    .await;
    cell.only(
        &[
            control,
            ("udp", "203.0.113.5", 443),
            ("tcp", "203.0.113.6", 80),
        ],
        &[
            ("tcp", "no.example.org", 443),
            ("tcp", "203.0.113.99", 80),
            ("udp", "203.0.113.99", 9999),
            ("tcp", "198.51.100.53", 53),
            ("udp", "198.51.100.53", 53),
            // DNS by another way, even where the address is open.
            ("tcp", "203.0.113.5", 853),
            ("udp", "203.0.113.5", 53),
            ("udp", "203.0.113.5", 5353),
        ],
    )
    .await;
    assert_eq!(cell.resolve("ok.example.org").await.len(), 2);
    assert!(cell.resolve("no.example.org").await.is_empty());
    assert!(cell.resolve("x.ok.example.org").await.is_empty());
    assert_eq!(
        names.asked_for("no.example.org"),
        0,
        "a denied name went out"
    );
    assert_eq!(
        names.asked_for("x.ok.example.org"),
        0,
        "a denied name went out"
    );
    let denied = |event: &FilterEvent| matches!(event, FilterEvent::NameDenied { name: Some(name), .. } if name.to_string() == "no.example.org");
    assert!(filter.events.all().iter().any(denied));
    // The world got packets for what was open and from the filter's own resolver, and no others.
    let strangers: Vec<_> = stage
        .internet
        .arrived()
        .into_iter()
        .filter(|(address, _)| {
            !["203.0.113.5", "203.0.113.6", "198.51.100.53"].contains(&&*address.to_string())
        })
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

/// EG-01.
async fn an_alias_opens_what_it_stands_for(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.set("shop.example.org", Answer::alias("e1.edge.example.net"));
    names.set("e1.edge.example.net", Answer::alias("e1.pop.example.net"));
    names.address("e1.pop.example.net", &["203.0.113.10"]);
    names.set("long.example.org", Answer::alias("n1.example.net"));
    for link in 1..8 {
        names.set(
            &format!("n{link}.example.net"),
            Answer::alias(&format!("n{}.example.net", link + 1)),
        );
    }
    names.address("n8.example.net", &["203.0.113.11"]);
    names.set(
        "split.example.org",
        Answer::alias("half.example.net").split(),
    );
    names.address("half.example.net", &["203.0.113.12"]);
    let rules = [
        "allow shop.example.org",
        "allow long.example.org",
        "allow split.example.org",
    ];
    let (_guard, cell, _filter) = stage.one("deny", &rules).await;
    let name = |name| ("tcp", name, 443);
    cell.only(
        &[
            name("shop.example.org"),
            name("long.example.org"),
            name("split.example.org"),
        ],
        &[
            name("e1.pop.example.net"),
            name("n8.example.net"),
            name("half.example.net"),
        ],
    )
    .await;
    cell.only(
        &[
            name("203.0.113.10"),
            name("203.0.113.11"),
            name("203.0.113.12"),
        ],
        &[name("203.0.113.13")],
    )
    .await;
}

/// EG-13, and its second run: what cannot be opened is not answered.
async fn an_address_is_open_before_its_name_is_answered(stage: &Stage<'_>) {
    const NAMES: u32 = 1_000;
    const MAX_CONNECT_MS: f64 = 200.0;
    let names = stage.internet.names();
    // More than there are documentation addresses; the world answers on these just as well.
    let first = u32::from_be_bytes([11, 1, 0, 0]);
    for number in 0..NAMES {
        let address = IpAddr::from((first + number).to_be_bytes());
        names.set(
            &format!("n{number}.fast.example.org"),
            Answer::addresses(&[address]),
        );
    }
    let (guard, cell, _filter) = stage.one("deny", &["allow *.fast.example.org"]).await;
    let said = cell
        .python(
            r"
import socket, time
worst = 0; total = 0
for n in range(1000):
    address = socket.getaddrinfo(f'n{n}.fast.example.org', 443, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    s = socket.socket(); s.settimeout(5)
    begin = time.monotonic(); s.connect(address); took = time.monotonic() - begin
    s.close(); worst = max(worst, took); total += took
print(worst * 1000, total)
",
            &[],
        )
        .await;
    let worst_ms: f64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!(worst_ms < MAX_CONNECT_MS, "{said}");
    // The table goes under the filter: no answer, and no way without one either.
    guard.firewall.remove(&table()).await.unwrap();
    names.address("late.fast.example.org", &["203.0.113.9"]);
    assert!(cell.resolve("late.fast.example.org").await.is_empty());
}

/// EG-21.
async fn one_sandbox_does_not_open_for_another(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("a.example.org", &["203.0.113.1"]);
    names.address("b.example.org", &["203.0.113.2"]);
    let (guard, a, _filter) = stage.one("deny", &["allow a.example.org"]).await;
    let (b, _other, _) = stage
        .sandbox(&guard, policy("deny", &["allow b.example.org"]))
        .await;
    a.only(
        &[("tcp", "a.example.org", 443)],
        &[("tcp", "203.0.113.2", 443)],
    )
    .await;
    b.only(
        &[("tcp", "b.example.org", 443)],
        &[("tcp", "203.0.113.1", 443), ("tcp", "a.example.org", 443)],
    )
    .await;
    assert_eq!(
        names.asked_for("a.example.org"),
        1,
        "the answer was in the cache"
    );
}

/// EG-24, on one runtime, a sandbox for each policy.
async fn the_first_rule_that_matches_decides(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("app.example.org", &["198.51.100.10", "203.0.113.20"]);
    names.address("api.example.org", &["203.0.113.31"]);
    names.address("www.example.org", &["203.0.113.32"]);
    let tcp = |host| ("tcp", host, 443);
    let (ten, twenty) = (tcp("198.51.100.10"), tcp("203.0.113.20"));
    let (guard, p1, _f1) = stage
        .one("deny", &["deny 198.51.100.0/24", "allow app.example.org"])
        .await;
    p1.resolve("app.example.org").await;
    p1.only(&[twenty], &[ten]).await;
    let (p2, _f2, _) = stage
        .sandbox(
            &guard,
            policy("deny", &["allow app.example.org", "deny 198.51.100.0/24"]),
        )
        .await;
    assert_eq!(p2.probe(&[ten]).await, [false]);
    p2.resolve("app.example.org").await;
    p2.only(&[ten, twenty], &[tcp("198.51.100.11")]).await;
    let (seven, eight, other) = (tcp("203.0.113.7"), tcp("203.0.113.8"), tcp("192.0.2.1"));
    let (p3, _f3, _) = stage
        .sandbox(
            &guard,
            policy("allow", &["deny 203.0.113.0/24", "allow 203.0.113.7"]),
        )
        .await;
    p3.only(&[other], &[seven, eight]).await;
    let (p4, _f4, _) = stage
        .sandbox(
            &guard,
            policy("allow", &["allow 203.0.113.7", "deny 203.0.113.0/24"]),
        )
        .await;
    p4.only(&[seven, other], &[eight]).await;
    let (api, www) = (tcp("api.example.org"), tcp("www.example.org"));
    let (p5, _f5, _) = stage
        .sandbox(
            &guard,
            policy("deny", &["deny api.example.org", "allow *.example.org"]),
        )
        .await;
    p5.only(&[www], &[api]).await;
    let (p6, _f6, _) = stage
        .sandbox(
            &guard,
            policy("deny", &["allow *.example.org", "deny api.example.org"]),
        )
        .await;
    p6.only(&[www, api], &[other]).await;
}

/// EG-26.
async fn a_name_that_points_inside_opens_nothing(stage: &Stage<'_>) {
    let names = stage.internet.names();
    let mut inside: Vec<String> = [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
    ]
    .map(str::to_owned)
    .to_vec();
    inside.extend(
        stage
            .internet
            .host_addresses()
            .iter()
            .filter(|a| a.is_ipv4())
            .map(ToString::to_string),
    );
    for (number, address) in inside.iter().enumerate() {
        names.address(&format!("r{number}.example.org"), &[address]);
    }
    names.address("mixed.example.org", &["203.0.113.5", "10.1.2.3"]);
    let (_guard, cell, _filter) = stage.one("deny", &["allow *.example.org"]).await;
    for (number, address) in inside.iter().enumerate() {
        let found = cell.resolve(&format!("r{number}.example.org")).await;
        assert!(found.is_empty(), "{address}: {found:?}");
    }
    assert_eq!(
        cell.resolve("mixed.example.org").await,
        ["203.0.113.5".parse::<std::net::Ipv4Addr>().unwrap()]
    );
    let closed: Vec<_> = inside
        .iter()
        .filter(|address| *address != "127.0.0.1" && *address != "0.0.0.0")
        .map(|address| ("tcp", address.as_str(), 8080))
        .collect();
    cell.only(&[("tcp", "203.0.113.5", 8080)], &closed).await;
    assert_eq!(stage.internet.host_hits(), 0);
}

/// EG-07 and EG-36, as far as they are ours.
async fn the_resolver_is_the_filter(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("ok.example.org", &["203.0.113.5"]);
    let slow = Answer::addresses(&["203.0.113.6".parse().unwrap()]);
    names.set("slow.example.org", slow.after(Duration::from_millis(300)));
    let many: Vec<IpAddr> = (1..=120)
        .map(|last| IpAddr::from([198, 51, 100, last]))
        .collect();
    names.set("many.example.org", Answer::addresses(&many));
    let (lease, key, site) = stage.create().await;
    let guard = Guard::open(stage.internet, &site).await;
    let _filter = guard
        .admit(&lease, &site, policy("deny", &["allow *.example.org"]))
        .await;
    let cell = stage.start(&lease, &key).await;
    let text = cell.get("cat /etc/resolv.conf").await;
    assert_eq!(
        text,
        format!("nameserver {}\noptions ndots:1", site.v4.gateway)
    );
    let changed = cell.sh("echo nameserver 8.8.8.8 > /etc/resolv.conf").await;
    assert_ne!(changed.code(), 0, "{changed:?}");
    assert_eq!(cell.get("cat /etc/resolv.conf").await, text);
    cell.only(
        &[
            ("tcp", "ok.example.org", 80),
            ("tcp", "slow.example.org", 80),
        ],
        &[("tcp", "ok.example.net", 80)],
    )
    .await;
    // Programs with resolvers of their own, too; those of a denied name find nothing.
    clients::push(&*cell.sandbox, clients::BUNDLE, clients::bundle()).await;
    let found = cell.get(&clients::ask("ok.example.org")).await;
    assert_eq!(found, clients::all_found("203.0.113.5"));
    let denied = cell.get(&clients::ask("ok.example.net")).await;
    assert!(!denied.contains("203."), "{denied}");
    assert_eq!(names.asked_for("ok.example.net"), 0);
    // Over TCP, since it does not fit into a datagram of 512 bytes.
    assert_eq!(cell.resolve("many.example.org").await.len(), 120);
    cell.only(
        &["198.51.100.1", "198.51.100.60", "198.51.100.120"].map(|host| ("tcp", host, 443)),
        &[("tcp", "198.51.100.121", 443)],
    )
    .await;
}

/// EG-43 and EG-48.
async fn rules_about_the_gateways_range_do_not_cut_off_names(stage: &Stage<'_>) {
    stage
        .internet
        .names()
        .address("ok.example.org", &["203.0.113.5"]);
    let rules = [
        "deny 127.0.0.0/8",
        "deny 100.64.0.0/10",
        "deny 10.0.0.0/8",
        "allow ok.example.org",
    ];
    let (_guard, cell, _filter) = stage.one("deny", &rules).await;
    cell.only(
        &[("tcp", "ok.example.org", 443)],
        &[("tcp", "10.1.2.3", 443)],
    )
    .await;
    let said = cell
        .python(
            r"
import socket
s = socket.socket(); s.bind(('127.0.0.1', 3000)); s.listen()
c = socket.create_connection(('127.0.0.1', 3000), 3)
print('looped')
",
            &[],
        )
        .await;
    assert_eq!(said, "looped");
}
