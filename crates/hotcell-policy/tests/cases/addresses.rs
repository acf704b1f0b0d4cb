//! What address rules and names that point somewhere decide.

use crate::*;

#[test]
fn eg18_overlapping_ranges_keep_their_order() {
    let listed = [
        "allow 100.64.0.0/10",
        "allow 100.64.0.7",
        "allow 100.64.0.0/10",
        "allow 10.0.0.0/8",
        "deny 10.1.0.0/16",
        "allow 2001:db8::/32",
        "allow 2001:db8::5",
    ];
    let policy_in_order = policy("deny", &listed);
    assert_eq!(
        addresses(
            &policy_in_order,
            &["10.1.2.3", "100.64.0.7", "2001:db8::5", "2001:db9::1"]
        ),
        [Allow, Allow, Allow, Deny]
    );
    let kernel = plan(&policy_in_order).kernel_v4();
    let shown: Vec<String> = kernel
        .exceptions
        .iter()
        .map(|r| format!("{}-{}", r.first, r.last))
        .collect();
    assert_eq!(
        shown,
        [
            // The host, the appliance and the sandboxes have been cut out.
            "10.0.0.0-10.200.0.0",
            "10.200.0.3-10.200.255.255",
            "10.202.0.0-10.255.255.255",
            // The metadata service of one cloud, too.
            "100.64.0.0-100.100.100.199",
            "100.100.100.201-100.127.255.255",
        ]
    );
    let mut swapped = listed;
    swapped.swap(3, 4);
    let swapped = policy("deny", &swapped);
    assert_eq!(
        addresses(&swapped, &["10.1.2.3", "10.2.2.3"]),
        [Deny, Allow]
    );
}

#[test]
fn eg24_order_across_rule_kinds() {
    let app = ["198.51.100.10", "203.0.113.20"].map(ip);
    let after_lookup = |policy: &Policy| {
        let verdict = policy.name_verdict(&name("app.example.org"));
        let Why::Rule(by) = verdict.why else {
            panic!("{verdict:?}")
        };
        assert_eq!(verdict.action, Allow);
        app.map(|address| plan(policy).opening(address, Some(by)))
    };
    let p1 = policy("deny", &["deny 198.51.100.0/24", "allow app.example.org"]);
    assert_eq!(
        after_lookup(&p1),
        [Opening::Closed(Why::Rule(RuleIndex(0))), Opening::Learn]
    );
    let p2 = policy("deny", &["allow app.example.org", "deny 198.51.100.0/24"]);
    assert_eq!(
        addresses(&p2, &["198.51.100.10", "198.51.100.11"]),
        [Deny, Deny]
    );
    assert_eq!(after_lookup(&p2), [Opening::Learn, Opening::Learn]);

    let p3 = policy("allow", &["deny 203.0.113.0/24", "allow 203.0.113.7"]);
    let asked = ["203.0.113.7", "203.0.113.8", "192.0.2.1"];
    assert_eq!(addresses(&p3, &asked), [Deny, Deny, Allow]);
    let p4 = policy("allow", &["allow 203.0.113.7", "deny 203.0.113.0/24"]);
    assert_eq!(addresses(&p4, &asked), [Allow, Deny, Allow]);

    let asked = ["api.example.org", "www.example.org"];
    let p5 = policy("deny", &["deny api.example.org", "allow *.example.org"]);
    assert_eq!(names(&p5, &asked), [Deny, Allow]);
    let p5 = policy("deny", &["allow *.example.org", "deny api.example.org"]);
    assert_eq!(names(&p5, &asked), [Allow, Allow]);
}

#[test]
fn eg26_names_that_point_inside() {
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
        "10.200.0.2",
        "198.51.100.200",
        "10.201.3.4",
        "100.100.100.200",
        "168.63.129.16",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "fc00::1",
        "ff02::1",
        "::ffff:10.1.2.3",
        "::ffff:203.0.113.5",
        "::10.1.2.3",
        "64:ff9b::10.1.2.3",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::203.0.113.5",
        "2002:a9fe:a9fe::1",
        "2001:0:1::5601:5601",
    ];
    let plain = policy("deny", &["allow rebind.example.org"]);
    let wide = policy(
        "allow",
        &[
            "allow rebind.example.org",
            "allow 0.0.0.0/0",
            "allow ::/0",
            "allow 8.0.0.0/5",
        ],
    );
    for address in inside.map(ip) {
        for policy in [&plain, &wide, &Policy::unrestricted()] {
            for by in [Some(RuleIndex(0)), None] {
                let opening = plan(policy).opening(address, by);
                assert!(
                    matches!(opening, Opening::Closed(Why::Inside(_))),
                    "{address}: {opening:?}"
                );
            }
            assert_eq!(plan(policy).verdict(address).action, Deny, "{address}");
        }
    }
    assert_eq!(
        plan(&plain).opening(ip("203.0.113.5"), Some(RuleIndex(0))),
        Opening::Learn
    );
    assert_eq!(
        plan(&plain).opening(ip("64:ff9b::203.0.113.5"), Some(RuleIndex(0))),
        Opening::Learn
    );

    // A rule within a private range opens it, and nothing opens the rest.
    let opened = policy(
        "deny",
        &[
            "allow rebind.example.org",
            "allow 10.0.0.0/8",
            "allow 100.64.0.0/10",
            "allow 169.254.0.0/16",
            "allow 127.0.0.1",
            "allow 198.51.100.200",
            "allow fd00:ec2::254",
        ],
    );
    let opening = |text: &str| plan(&opened).opening(ip(text), Some(RuleIndex(0)));
    assert_eq!(opening("10.1.2.3"), Opening::AlreadyOpen);
    assert_eq!(opening("100.64.0.1"), Opening::AlreadyOpen);
    for (text, reason) in [
        ("10.200.0.1", Inside::Host),
        ("10.200.0.2", Inside::Appliance),
        ("10.201.3.4", Inside::Sandboxes),
        ("100.100.100.200", Inside::Metadata),
        ("169.254.169.254", Inside::Metadata),
        ("169.254.1.2", Inside::LinkLocal),
        ("127.0.0.1", Inside::Special),
        ("198.51.100.200", Inside::Host),
        ("fd00:ec2::254", Inside::Metadata),
        ("192.168.0.1", Inside::Private),
    ] {
        assert_eq!(
            opening(text),
            Opening::Closed(Why::Inside(reason)),
            "{text}"
        );
    }
    // "Earlier" holds for private ranges too, and a wide allow is looked through.
    let ordered = policy(
        "deny",
        &["allow 0.0.0.0/0", "deny 10.1.0.0/16", "allow 10.0.0.0/8"],
    );
    assert_eq!(
        addresses(&ordered, &["10.1.0.1", "10.2.0.1", "172.16.0.1"]),
        [Deny, Allow, Deny]
    );
}
