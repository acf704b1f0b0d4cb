//! What of an answer is shown, and what it opens.

use super::*;

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
