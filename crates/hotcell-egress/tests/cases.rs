//! The acceptance cases of the filter's model.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{collections::HashSet, net::IpAddr};

use hotcell_egress::{
    filter::{
        AnswerData, AnswerRecord, Denial, FilterSettings, Hidden, Permit, QuestionKind, Ruling,
        SandboxFilter, Sifted,
    },
    learned::{LearnedLimits, LearnedTable},
};
use hotcell_policy::{DomainName, Inside, Policy, RuleIndex, Surroundings, Why};
use hotcell_types::UnixMillis;
use proptest::prelude::*;

const NOW: UnixMillis = UnixMillis(1_000_000);

fn policy(default: &str, rules: &[&str]) -> Policy {
    let rules: Vec<_> = rules
        .iter()
        .map(|rule| {
            let (action, target) = rule.split_once(' ').unwrap();
            serde_json::json!({ "action": action, "target": target })
        })
        .collect();
    let document = serde_json::json!({ "defaultAction": default, "egress": rules });
    Policy::parse(&document.to_string()).unwrap()
}

fn filter(default: &str, rules: &[&str], ipv6: bool) -> SandboxFilter {
    let around = Surroundings {
        host: vec!["10.200.0.1".parse().unwrap()],
        appliance: vec!["203.0.113.200".parse().unwrap()],
        ..Surroundings::default()
    };
    let settings = FilterSettings {
        ipv6,
        ..FilterSettings::default()
    };
    SandboxFilter::new(Some(policy(default, rules)), &around, settings)
}

fn name(text: &str) -> DomainName {
    DomainName::from_question(text).unwrap()
}

fn ruling(filter: &SandboxFilter, text: &str) -> Ruling {
    filter.rule_on(DomainName::from_question(text), QuestionKind::A)
}

fn permit(filter: &SandboxFilter, text: &str) -> Permit {
    match ruling(filter, text) {
        Ruling::Ask(permit) => permit,
        other => panic!("{text}: {other:?}"),
    }
}

fn is_denied(filter: &SandboxFilter, text: &str) -> bool {
    matches!(ruling(filter, text), Ruling::Deny(_))
}

fn address(owner: &str, address: &str) -> AnswerRecord {
    AnswerRecord {
        owner: Some(name(owner)),
        data: AnswerData::Address(address.parse().unwrap()),
        ttl_seconds: 60,
    }
}

fn alias(owner: &str, target: &str) -> AnswerRecord {
    AnswerRecord {
        owner: Some(name(owner)),
        data: AnswerData::Alias(name(target)),
        ttl_seconds: 60,
    }
}

fn take_in(filter: &mut SandboxFilter, asked: &str, records: &[AnswerRecord]) -> Sifted {
    let permit = permit(filter, asked);
    filter.take_in(NOW, &permit, records, HashSet::new)
}

fn opened(sifted: &Sifted) -> Vec<String> {
    sifted
        .changes
        .open
        .iter()
        .map(|(a, _)| a.to_string())
        .collect()
}

#[test]
fn eg01_addresses_hang_on_the_end_of_the_chain() {
    let mut filter = filter("deny", &["allow shop.example.org"], false);
    let mut records = vec![
        alias("shop.example.org", "e1.edge.example.net"),
        alias("e1.edge.example.net", "e1.pop.example.net"),
        address("e1.pop.example.net", "203.0.113.10"),
    ];
    let sifted = take_in(&mut filter, "shop.example.org", &records);
    assert_eq!(
        (sifted.keep.len(), opened(&sifted)),
        (3, vec!["203.0.113.10".to_owned()])
    );
    assert!(is_denied(&filter, "e1.pop.example.net"));
    // In any order, and not what hangs on nothing.
    records.reverse();
    records.push(address("unrelated.example.net", "203.0.113.66"));
    let sifted = take_in(&mut filter, "shop.example.org", &records);
    assert_eq!(
        (sifted.keep.clone(), opened(&sifted)),
        (vec![0, 1, 2], vec!["203.0.113.10".to_owned()])
    );
    // Eight aliases; and a loop ends.
    let mut long: Vec<AnswerRecord> = (0..8)
        .map(|i| {
            let owner = if i == 0 {
                "shop.example.org".to_owned()
            } else {
                format!("a{i}.example.net")
            };
            alias(&owner, &format!("a{}.example.net", i + 1))
        })
        .collect();
    long.push(address("a8.example.net", "203.0.113.10"));
    assert_eq!(
        opened(&take_in(&mut filter, "shop.example.org", &long)),
        ["203.0.113.10"]
    );
    let circle = [
        alias("shop.example.org", "b.example.net"),
        alias("b.example.net", "shop.example.org"),
    ];
    assert_eq!(
        opened(&take_in(&mut filter, "shop.example.org", &circle)),
        [""; 0]
    );
}

#[test]
fn eg08_aaaa_without_ipv6_is_empty_not_denied() {
    let off = filter("deny", &["allow v4only.example.org"], false);
    let asked = off.rule_on(Ok(name("v4only.example.org")), QuestionKind::Aaaa);
    assert_eq!(asked, Ruling::Empty);
    let denied = off.rule_on(Ok(name("other.example.org")), QuestionKind::Aaaa);
    assert!(matches!(denied, Ruling::Deny(_)));
    let on = filter("deny", &["allow v4only.example.org"], true);
    assert!(matches!(
        on.rule_on(Ok(name("v4only.example.org")), QuestionKind::Aaaa),
        Ruling::Ask(_)
    ));
}

#[test]
fn eg12_the_ceiling_lets_the_oldest_without_a_connection_go() {
    let limits = LearnedLimits {
        ceiling: 4,
        ..LearnedLimits::default()
    };
    let mut table = LearnedTable::new(limits);
    let ip = |n: u8| IpAddr::from([203, 0, 113, n]);
    let at = |seconds: u64| NOW.plus_millis(seconds * 1_000);
    for n in 1..=4 {
        let changes = table.learn(at(n.into()), None, 5_000, &[ip(n)], || {
            panic!("not at the ceiling")
        });
        assert!(changes.close.is_empty());
    }
    // 1 is the oldest and in use: 2 goes.
    let changes = table.learn(at(10), None, 5_000, &[ip(5)], || HashSet::from([ip(1)]));
    assert_eq!((changes.close, changes.evicted_in_use), (vec![ip(2)], 0));
    // All in use: a new answer is still never refused.
    let all = || (1..=5).map(ip).collect();
    let changes = table.learn(at(11), None, 5_000, &[ip(6)], all);
    assert_eq!((changes.close, changes.evicted_in_use), (vec![ip(1)], 1));
    assert_eq!(table.len(), 4);
    assert!(table.get(ip(6), at(12)).is_some());
    // An address of the same answer is not what makes room for it.
    let changes = table.learn(at(12), None, 5_000, &[ip(3), ip(7), ip(8)], HashSet::new);
    assert_eq!(changes.close, [ip(4), ip(5)]);
}

#[test]
fn eg16_an_address_stays_for_the_grace() {
    let mut filter = filter("deny", &["allow api.example.org"], false);
    let sifted = take_in(
        &mut filter,
        "api.example.org",
        &[address("api.example.org", "203.0.113.5")],
    );
    // An hour, and a quarter of one so that not every answer needs a change.
    let granted = [("203.0.113.5".parse().unwrap(), 4_500_000)];
    assert_eq!(sifted.changes.open, granted);
    let open = |seconds: u64| {
        filter
            .learned()
            .get(
                "203.0.113.5".parse().unwrap(),
                NOW.plus_millis(seconds * 1_000),
            )
            .is_some()
    };
    assert!(open(370) && open(900) && open(3_600) && open(4_499) && !open(4_500));
}

#[test]
fn eg14_every_answer_renews_and_a_longer_promise_holds() {
    let ip: IpAddr = "203.0.113.5".parse().unwrap();
    let limits = LearnedLimits {
        grace_ms: 60_000,
        ..LearnedLimits::default()
    };
    let mut table = LearnedTable::new(limits);
    // An hour's promise, not yet kept by the packet filter: asked for again by the next answer.
    let first = table.learn(NOW, None, 3_600_000, &[ip], HashSet::new);
    assert_eq!(first.open, [(ip, 4_500_000)]);
    assert_eq!(
        table.learn(NOW, None, 1_000, &[ip], HashSet::new).open,
        [(ip, 4_500_000)]
    );
    table.confirm(NOW, &first);
    // Kept: a shorter promise changes nothing, and does not cut the longer one.
    let later = NOW.plus_millis(600_000);
    assert!(
        table
            .learn(later, None, 1_000, &[ip], HashSet::new)
            .open
            .is_empty()
    );
    // An answer from the cache when little is left opens the address again.
    let after = NOW.plus_millis(4_499_000);
    assert_eq!(
        table.learn(after, None, 1_000, &[ip], HashSet::new).open,
        [(ip, 75_000)]
    );
    // Once the packet filter is in doubt, so is everything in it.
    table.doubt();
    assert_eq!(
        table.learn(after, None, 1_000, &[ip], HashSet::new).open,
        [(ip, 75_000)]
    );
    // What the kernel still has is taken over.
    let adopted = LearnedTable::adopted(limits, after, [(ip, 5_000)]);
    assert_eq!(adopted.remaining(after).collect::<Vec<_>>(), [(ip, 5_000)]);
    assert!(adopted.get(ip, after.plus_millis(5_000)).is_none());
}

#[test]
fn eg21_and_eg22_shared_addresses() {
    // One sandbox's lookup opens nothing for another: the tables are apart.
    let mut a = filter("deny", &["allow a.example.org"], false);
    let b = filter("deny", &["allow b.example.org"], false);
    take_in(
        &mut a,
        "a.example.org",
        &[address("a.example.org", "203.0.113.1")],
    );
    assert!(is_denied(&b, "a.example.org") && b.learned().is_empty());
    // Exact, denied and other names on one address, in every order.
    let names = ["www.gapi.example", "maps.gapi.example", "x.other.example"];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let rules = [
            "allow www.gapi.example",
            "deny *.gapi.example",
            "allow *.other.example",
        ];
        let mut filter = filter("deny", &rules, false);
        for place in order {
            let asked = names[place];
            if place == 1 {
                assert!(is_denied(&filter, asked));
            } else {
                let sifted = take_in(&mut filter, asked, &[address(asked, "203.0.113.9")]);
                assert_eq!(opened(&sifted), ["203.0.113.9"], "{order:?}");
            }
        }
    }
}

#[test]
fn eg24_the_place_of_the_rules_decides() {
    let answer = |owner: &str| {
        [
            address(owner, "198.51.100.10"),
            address(owner, "203.0.113.20"),
        ]
    };
    let app = "app.example.org";
    let mut p1 = filter(
        "deny",
        &["deny 198.51.100.0/24", "allow app.example.org"],
        false,
    );
    let sifted = take_in(&mut p1, app, &answer(app));
    assert_eq!(
        (opened(&sifted), sifted.keep.clone()),
        (vec!["203.0.113.20".to_owned()], vec![1])
    );
    assert_eq!(
        sifted.stripped,
        [(
            "198.51.100.10".parse().unwrap(),
            Hidden::Policy(Why::Rule(RuleIndex(0)))
        )]
    );
    let mut p2 = filter(
        "deny",
        &["allow app.example.org", "deny 198.51.100.0/24"],
        false,
    );
    assert_eq!(
        opened(&take_in(&mut p2, app, &answer(app))),
        ["198.51.100.10", "203.0.113.20"]
    );
    // Under default allow only what a rule denies needs opening.
    let mut open = filter(
        "allow",
        &["allow app.example.org", "deny 198.51.100.0/24"],
        false,
    );
    let sifted = take_in(&mut open, app, &answer(app));
    assert_eq!(
        (opened(&sifted), sifted.keep.len()),
        (vec!["198.51.100.10".to_owned()], 2)
    );
}

#[test]
fn eg26_names_that_point_inside_open_nothing() {
    let inside = [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "10.200.0.1",
        "203.0.113.200",
        "::1",
        "fe80::1",
        "::ffff:10.1.2.3",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:1::5601:5601",
        "::7f00:1",
    ];
    let owner = "rebind.example.org";
    for text in inside {
        let mut filter = filter("deny", &["allow rebind.example.org"], true);
        let sifted = take_in(&mut filter, owner, &[address(owner, text)]);
        assert!(
            sifted.keep.is_empty() && sifted.changes.open.is_empty(),
            "{text}"
        );
        assert!(
            matches!(sifted.stripped[..], [(_, Hidden::Policy(Why::Inside(_)))]),
            "{text}"
        );
    }
    let mut plain = filter("deny", &["allow rebind.example.org"], false);
    let mixed = [address(owner, "203.0.113.5"), address(owner, "10.1.2.3")];
    let sifted = take_in(&mut plain, owner, &mixed);
    assert_eq!(
        (sifted.keep.clone(), opened(&sifted)),
        (vec![0], vec!["203.0.113.5".to_owned()])
    );
    // A rule within the private range lets its address be shown; it is open already.
    let mut opened_range = filter(
        "deny",
        &["allow rebind.example.org", "allow 10.1.0.0/16"],
        false,
    );
    let sifted = take_in(&mut opened_range, owner, &mixed);
    assert_eq!(
        (sifted.keep.clone(), opened(&sifted)),
        (vec![0, 1], vec!["203.0.113.5".to_owned()])
    );
    let host = take_in(&mut opened_range, owner, &[address(owner, "10.200.0.1")]);
    assert_eq!(
        host.stripped[0].1,
        Hidden::Policy(Why::Inside(Inside::Host))
    );
}

#[test]
fn eg28_numbers_are_no_names() {
    let open = SandboxFilter::new(None, &Surroundings::default(), FilterSettings::default());
    for text in [
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "127.1",
        "0177.0.0.1",
        "1.2.3.4.",
    ] {
        assert_eq!(
            ruling(&open, text),
            Ruling::Deny(Denial::Policy(Why::NumericName)),
            "{text}"
        );
    }
    let odd = DomainName::from_labels([b"a b".as_slice(), b"org"]);
    assert_eq!(
        open.rule_on(odd, QuestionKind::A),
        Ruling::Deny(Denial::NoName)
    );
    assert!(matches!(ruling(&open, "example.org"), Ruling::Ask(_)));
}

#[test]
fn eg30_denied_names_of_every_kind() {
    let filter = filter("deny", &["allow pypi.org"], false);
    for kind in [
        QuestionKind::A,
        QuestionKind::Aaaa,
        QuestionKind::Service,
        QuestionKind::Other,
        QuestionKind::Refused,
    ] {
        for text in ["x7f3.t.evil.example", "x.pypi.org", "8.8.8.8.in-addr.arpa"] {
            let got = filter.rule_on(Ok(name(text)), kind);
            assert_eq!(
                got,
                Ruling::Deny(Denial::Policy(Why::Default)),
                "{text} {kind:?}"
            );
        }
    }
    assert_eq!(
        filter.rule_on(Ok(name("pypi.org")), QuestionKind::Refused),
        Ruling::Refuse
    );
}

#[test]
fn encrypted_resolvers_are_neither_names_nor_answers() {
    let mut filter = filter("deny", &["allow *.example.org", "allow *.google"], false);
    assert_eq!(
        ruling(&filter, "dns.google"),
        Ruling::Deny(Denial::EncryptedResolver)
    );
    let owner = "doh.example.org";
    let sifted = take_in(&mut filter, owner, &[address(owner, "8.8.8.8")]);
    assert_eq!(
        sifted.stripped,
        [("8.8.8.8".parse().unwrap(), Hidden::EncryptedResolver)]
    );
    assert!(
        filter
            .blocked_addresses()
            .contains(&"1.1.1.1".parse().unwrap())
    );
}

proptest! {
    /// Whatever is learned in whatever order: never over the ceiling, everything of the last answer
    /// is open for at least the grace, and what the changes say is what the table holds.
    #[test]
    fn the_table_and_its_changes_agree(
        steps in prop::collection::vec((0_u64..4_000, prop::collection::vec(0_u8..40, 1..12), 0_u64..5_000), 1..80),
        ceiling in 12_usize..20,
        used in prop::collection::hash_set(0_u8..40, 0..40),
    ) {
        let ip = |n: u8| IpAddr::from([192, 0, 2, n]);
        let limits = LearnedLimits { grace_ms: 2_000, ceiling };
        let mut table = LearnedTable::new(limits);
        let mut kernel = std::collections::HashMap::<IpAddr, UnixMillis>::new();
        let mut now = NOW;
        for (wait_ms, answer, ttl_ms) in steps {
            now = now.plus_millis(wait_ms);
            kernel.retain(|_, until| *until > now);
            let answer: Vec<IpAddr> = answer.into_iter().map(ip).collect();
            let in_use = used.iter().copied().map(ip).collect::<HashSet<_>>();
            let changes = table.learn(now, None, ttl_ms, &answer, || in_use.clone());
            if changes.evicted_in_use == 0 {
                prop_assert!(changes.close.iter().all(|address| !in_use.contains(address)));
            }
            for address in &changes.close {
                prop_assert!(kernel.remove(address).is_some());
            }
            table.confirm(now, &changes);
            for (address, for_ms) in &changes.open {
                prop_assert!(*for_ms >= ttl_ms.max(2_000));
                kernel.insert(*address, now.plus_millis(*for_ms));
            }
            let due = now.plus_millis(ttl_ms.max(2_000));
            prop_assert!(answer.iter().all(|address| kernel.get(address) >= Some(&due)));
            prop_assert!(table.len() <= ceiling);
            let held: std::collections::HashMap<IpAddr, u64> = table.remaining(now).collect();
            let there: std::collections::HashMap<IpAddr, u64> =
                kernel.iter().map(|(address, until)| (*address, until.millis_since(now))).collect();
            prop_assert_eq!(held, there);
        }
    }

    /// Whatever an answer holds, only public addresses on the chain are ever opened.
    #[test]
    fn nothing_inside_and_nothing_off_the_chain_is_opened(
        records in prop::collection::vec((0_u8..5, prop_oneof![
            (0_u8..5).prop_map(Ok),
            prop_oneof![any::<u32>().prop_map(|n| IpAddr::from(n.to_be_bytes())),
                        any::<u128>().prop_map(|n| IpAddr::from(n.to_be_bytes()))].prop_map(Err),
        ]), 0..30),
    ) {
        let owner = |n: u8| name(&format!("n{n}.example.org"));
        let records: Vec<AnswerRecord> = records.into_iter().map(|(n, data)| AnswerRecord {
            owner: Some(owner(n)),
            data: match data { Ok(n) => AnswerData::Alias(owner(n)), Err(address) => AnswerData::Address(address) },
            ttl_seconds: 1,
        }).collect();
        let mut filter = filter("deny", &["allow n0.example.org"], true);
        let sifted = take_in(&mut filter, "n0.example.org", &records);
        // Reachability the slow way: the first alias of each name counts.
        let mut reached = vec![owner(0)];
        while let Some(next) = records.iter().find_map(|r| {
            let AnswerData::Alias(target) = &r.data else { return None };
            let first = records.iter().find(|o| o.owner == r.owner && matches!(o.data, AnswerData::Alias(_)));
            (first == Some(r) && reached.contains(r.owner.as_ref()?) && !reached.contains(target)).then(|| target.clone())
        }) {
            reached.push(next);
        }
        for (address, _) in &sifted.changes.open {
            let on_chain = records.iter().any(|r| {
                r.data == AnswerData::Address(*address) && r.owner.as_ref().is_some_and(|o| reached.contains(o))
            });
            prop_assert!(on_chain);
            prop_assert_eq!(filter.plan().verdict(*address).why, Why::Default);
        }
    }
}
