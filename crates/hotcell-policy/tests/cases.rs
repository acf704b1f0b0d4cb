//! The acceptance cases of the policy document.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::IpAddr;

use hotcell_policy::{
    Action, AddressPlan, DomainName, FilterMode, Inside, NameError, Opening, Policy, Reason,
    RuleIndex, Subject, Surroundings, TargetError, Why,
};

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

fn plan(policy: &Policy) -> AddressPlan {
    AddressPlan::new(policy, FilterMode::DnsNft, &around())
}

fn around() -> Surroundings {
    let prefixes = |list: &[&str]| list.iter().map(|p| p.parse().unwrap()).collect();
    Surroundings {
        host: prefixes(&["10.200.0.1", "198.51.100.200"]),
        appliance: prefixes(&["10.200.0.2"]),
        sandboxes: prefixes(&["10.201.0.0/16"]),
        metadata: Vec::new(),
    }
}

fn name(text: &str) -> DomainName {
    DomainName::from_question(text).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn names(policy: &Policy, names: &[&str]) -> Vec<Action> {
    names
        .iter()
        .map(|n| policy.name_verdict(&name(n)).action)
        .collect()
}

fn addresses(policy: &Policy, list: &[&str]) -> Vec<Action> {
    let plan = plan(policy);
    list.iter().map(|a| plan.verdict(ip(a)).action).collect()
}

use Action::{Allow, Deny};

#[test]
fn eg03_what_a_wildcard_covers() {
    let policy = policy("deny", &["allow *.example.org"]);
    let asked = [
        "a.example.org",
        "a.b.example.org",
        "example.org",
        "xexample.org",
        "example.org.evil.net",
        "_dmarc.example.org",
        "a.example.org.",
        "*.example.org",
    ];
    assert_eq!(
        names(&policy, &asked),
        [Allow, Allow, Deny, Deny, Deny, Allow, Allow, Allow]
    );
    let words = policy
        .explain(
            &Subject::Name(name("a.b.example.org")),
            FilterMode::DnsNft,
            &around(),
        )
        .words;
    assert!(
        words.contains("every name below example.org, at any depth, and not example.org itself")
    );
}

#[test]
fn eg04_targets_that_are_refused() {
    let long_label = format!("{}.org", "a".repeat(64));
    let long_name = format!("{}org", "abc.".repeat(63)).replace("abc.org", "abcorg");
    let long_name = format!("{long_name}{}", "x".repeat(254 - long_name.len()));
    assert_eq!(long_name.len(), 254);
    type Expected = fn(&TargetError) -> bool;
    let table: Vec<(&str, Expected)> = vec![
        ("*example.org", |e| *e == TargetError::Star),
        ("a.*.org", |e| *e == TargetError::Star),
        ("**.example.org", |e| *e == TargetError::Star),
        ("*.*.example.org", |e| *e == TargetError::Star),
        ("*", |e| *e == TargetError::Everything),
        ("*.", |e| *e == TargetError::Everything),
        (".example.org", |e| *e == NameError::EmptyLabel.into()),
        ("example..org", |e| *e == NameError::EmptyLabel.into()),
        ("example.org..", |e| *e == NameError::EmptyLabel.into()),
        (".", |e| *e == NameError::EmptyLabel.into()),
        ("", |e| *e == TargetError::Empty),
        (" example.org", |e| *e == TargetError::Space),
        ("https://example.org", |e| *e == TargetError::Url),
        ("example.org:443", |e| *e == TargetError::Port),
        ("192.0.2.1:443", |e| *e == TargetError::Port),
        ("example.org/path", |e| *e == TargetError::Path),
        ("/^api/", |e| *e == TargetError::Path),
        ("exa mple.org", |e| *e == TargetError::Space),
        (&long_label, |e| *e == NameError::LabelTooLong.into()),
        (&long_name, |e| *e == NameError::TooLong.into()),
        ("10.0.0.1/33", |e| matches!(e, TargetError::Prefix(_))),
        ("2001:db8::1/129", |e| matches!(e, TargetError::Prefix(_))),
        ("fe80::1%eth0", |e| *e == TargetError::Zone),
        ("[2001:db8::1]", |e| *e == TargetError::Brackets),
        ("-a.example.org", |e| *e == NameError::Hyphen.into()),
        ("ex*mple.org", |e| *e == TargetError::Star),
        ("exam\u{ff0a}ple.org", |e| matches!(e, TargetError::Name(_))),
        ("xn--a.example", |e| *e == NameError::Idna.into()),
    ];
    for (target, expected) in table {
        let document = serde_json::json!({ "egress": [
            { "action": "allow", "target": "pypi.org" },
            { "action": "allow", "target": target },
        ]});
        let error = Policy::parse(&document.to_string()).unwrap_err();
        let [problem] = error.problems() else {
            panic!("{target:?}: {error}");
        };
        assert_eq!(problem.path, "$.egress[1].target", "{target:?}");
        let Reason::Target { error, .. } = &problem.reason else {
            panic!("{target:?}: {problem}");
        };
        assert!(expected(error), "{target:?}: {error:?}");
        assert!(problem.to_string().len() < 600, "{problem}");
    }
    // Host bits: normalised, shown normalised, and said.
    let normalised = policy("deny", &["allow 10.0.0.1/8"]);
    assert_eq!(normalised.rules()[0].shown(), "10.0.0.0/8");
    assert!(normalised.to_json().contains("\"10.0.0.0/8\""));
    let warnings = normalised.warnings(FilterMode::DnsNft, &around());
    assert_eq!(
        warnings[0].to_string(),
        "egress[0]: \"10.0.0.1/8\" means 10.0.0.0/8 and is shown so"
    );
}

#[test]
fn eg05_spellings_of_one_name() {
    let policy = policy(
        "deny",
        &[
            "deny Bad.Example.org",
            "allow *.example.org",
            "allow bücher.example",
        ],
    );
    let asked = [
        "bad.example.org",
        "BAD.EXAMPLE.ORG.",
        "www.EXAMPLE.org",
        "xn--bcher-kva.example",
        "XN--BCHER-KVA.example",
    ];
    assert_eq!(names(&policy, &asked), [Deny, Deny, Allow, Allow, Allow]);
    assert_eq!(policy.rules()[0].shown(), "Bad.Example.org");
    assert_eq!(policy.rules()[2].shown(), "bücher.example");
    let again = Policy::parse(&policy.to_json()).unwrap();
    assert_eq!(again.rules(), policy.rules());
}

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
fn eg25_explain_says_that_names_share_addresses() {
    let policy = policy("deny", &["allow good.example"]);
    let explain =
        |text: &str, mode| policy.explain(&Subject::parse(text).unwrap(), mode, &around());
    for mode in [FilterMode::Dns, FilterMode::DnsNft] {
        let good = explain("good.example", mode);
        assert_eq!(good.rule, Some(RuleIndex(0)));
        assert!(
            good.words
                .contains("Names that share an address cannot be told apart")
        );
        assert_eq!(explain("bad.example", mode).verdict.action, Deny);
    }
    let denying = policy_with_domain_deny();
    let warnings = denying.warnings(FilterMode::DnsNft, &around());
    assert!(
        warnings
            .iter()
            .any(|w| w.to_string().contains("they bind names, not addresses")),
        "{warnings:?}"
    );
    // A domain deny closes no address: what another name resolves to is opened all the same.
    let shared = self::policy("deny", &["deny bad.example", "allow good.example"]);
    assert_eq!(
        plan(&shared).opening(ip("203.0.113.5"), Some(RuleIndex(1))),
        Opening::Learn
    );
}

fn policy_with_domain_deny() -> Policy {
    policy("allow", &["deny bad.example"])
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

#[test]
fn eg28_numeric_spellings() {
    let spellings = [
        ("2852039166", "169.254.169.254"),
        ("0xa9fea9fe", "169.254.169.254"),
        ("0251.0376.0251.0376", "169.254.169.254"),
        ("169.254.43518", "169.254.169.254"),
        ("127.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("1.2.3.4.", "1.2.3.4"),
        ("127.1/8", "127.0.0.1"),
    ];
    for (target, dotted) in spellings {
        let document = serde_json::json!({ "egress": [{ "action": "deny", "target": target }] });
        let error = Policy::parse(&document.to_string())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("write the address in dotted form: {dotted}")),
            "{target}: {error}"
        );
    }
    for (target, _) in &spellings[..7] {
        let verdict = Policy::unrestricted().name_verdict(&name(target));
        assert_eq!(
            (verdict.action, verdict.why),
            (Deny, Why::NumericName),
            "{target}"
        );
    }
    // Controls: digits elsewhere in a name are fine.
    assert_eq!(
        names(
            &Policy::unrestricted(),
            &["1.example.org", "8.8.8.8.in-addr.arpa"]
        ),
        [Allow, Allow]
    );
}

#[test]
fn eg45_explain_names_the_layer_that_stops_it() {
    let service = "db.data.svc.cluster.local";
    let explain = |policy: &Policy, text: &str| {
        policy.explain(
            &Subject::parse(text).unwrap(),
            FilterMode::DnsNft,
            &around(),
        )
    };
    let p1 = policy("deny", &["allow db.data.svc.cluster.local"]);
    assert!(
        explain(&p1, service)
            .words
            .contains("the address filter is what will stop it")
    );
    assert!(
        p1.warnings(FilterMode::DnsNft, &around())[0]
            .to_string()
            .contains("private addresses are taken out of its answers")
    );
    assert!(matches!(
        plan(&p1).opening(ip("10.96.7.7"), Some(RuleIndex(0))),
        Opening::Closed(_)
    ));

    let p2 = policy("deny", &["allow 10.96.0.0/12"]);
    let stopped = explain(&p2, service);
    assert_eq!(
        (stopped.verdict.action, stopped.layer.to_string().as_str()),
        (Deny, "name lookup")
    );
    assert!(stopped.words.contains("NXDOMAIN"));
    let open = explain(&p2, "10.96.7.7");
    assert_eq!(
        (open.verdict.action, open.rule),
        (Allow, Some(RuleIndex(0)))
    );

    for rules in [
        ["allow db.data.svc.cluster.local", "allow 10.96.0.0/12"],
        ["allow 10.96.0.0/12", "allow db.data.svc.cluster.local"],
    ] {
        let p3 = policy("deny", &rules);
        let verdict = p3.name_verdict(&name(service));
        let Why::Rule(by) = verdict.why else { panic!() };
        assert_eq!(
            plan(&p3).opening(ip("10.96.7.7"), Some(by)),
            Opening::AlreadyOpen
        );
        assert!(p3.warnings(FilterMode::DnsNft, &around()).is_empty());
    }
}

#[test]
fn eg46_misspelt_documents() {
    let huge = format!("{{\"egress\":[{}]}}", " ".repeat(2_000_000));
    let table: &[(&str, &str)] = &[
        (
            r#"{"defaultAcion":"deny","egress":[]}"#,
            r#"$: unknown key "defaultAcion"; did you mean "defaultAction"?"#,
        ),
        (
            r#"{"egres":[{"action":"allow","target":"pypi.org"}]}"#,
            r#"$: unknown key "egres"; did you mean "egress"?"#,
        ),
        (
            r#"{"egress":[{"Action":"allow","target":"pypi.org"}]}"#,
            r#"$.egress[0]: unknown key "Action"; did you mean "action"?; $.egress[0]: the key "action" is missing"#,
        ),
        (
            r#"{"egress":[{"action":"Deny","target":"pypi.org"}]}"#,
            r#"$.egress[0].action: "Deny" is no action; write "allow" or "deny""#,
        ),
        (
            r#"{"egress":[{"action":"block","target":"pypi.org"}]}"#,
            r#"$.egress[0].action: "block" is no action; write "allow" or "deny""#,
        ),
        (
            r#"{"egress":[{"action":"deny","target":"pypi.org","port":443}]}"#,
            r#"$.egress[0]: unknown key "port""#,
        ),
        (
            r#"{"egress":{}}"#,
            "$.egress: expected a list of rules, got an object",
        ),
        ("null", "$: expected an object, got null"),
        ("[]", "$: expected an object, got a list"),
        (r#""""#, "$: expected an object, got a string"),
        (
            r#"{"defaultAction":"deny","defaultAction":"allow"}"#,
            r#"$.defaultAction: the key "defaultAction" is given more than once"#,
        ),
        (
            r#"{"egress":[{"action":"deny","action":"deny","target":"a.org"}]}"#,
            r#"$.egress[0].action: the key "action" is given more than once"#,
        ),
        (&huge, "$: the document is longer than 1048576 bytes"),
        (
            r#"{"egress":[],}"#,
            "$: not JSON: trailing comma at line 1, column 14",
        ),
        (
            " ",
            "$: not JSON: EOF while parsing a value at line 1, column 1",
        ),
        (
            r#"{"defaultAction":null}"#,
            r#"$.defaultAction: expected "allow" or "deny", got null"#,
        ),
        (
            r#"{"egress":[null]}"#,
            "$.egress[0]: expected an object, got null",
        ),
        (
            r#"{} {}"#,
            "$: not JSON: trailing characters at line 1, column 4",
        ),
        (
            r#"{"egress":[{"action":"deny"}]}"#,
            r#"$.egress[0]: the key "target" is missing"#,
        ),
        (
            r#"{"egress":[{"action":"deny","target":8}]}"#,
            "$.egress[0].target: expected a string, got a number",
        ),
    ];
    for (document, message) in table {
        let short: String = document.chars().take(60).collect();
        let error = Policy::parse_field(document).unwrap_err();
        assert_eq!(error.to_string(), *message, "{short}");
    }
    // What is fine: nothing at all, and an empty object.
    assert!(Policy::parse_field("").unwrap().is_none());
    let empty = Policy::parse_field("{}").unwrap().unwrap();
    assert_eq!((empty.default_action(), empty.rules().len()), (Deny, 0));
}

#[test]
fn every_problem_is_named_up_to_the_limit() {
    let rules: Vec<_> = (0..100)
        .map(|_| serde_json::json!({ "action": "deny", "target": "*" }))
        .collect();
    let error = Policy::parse(&serde_json::json!({ "egress": rules }).to_string()).unwrap_err();
    assert_eq!((error.problems().len(), error.left_out()), (32, 68));
    assert_eq!(error.problems()[31].path, "$.egress[31].target");
    assert!(error.to_string().ends_with("; and 68 more"));
    let deep = format!("{{\"egress\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    assert!(Policy::parse(&deep).is_err());
    let many: Vec<_> = (0..8193)
        .map(|_| serde_json::json!({ "action": "deny", "target": "a.org" }))
        .collect();
    let error = Policy::parse(&serde_json::json!({ "egress": many }).to_string()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "$.egress: there are 8193 rules, and 8192 are allowed"
    );
}

#[test]
fn mode_dns_says_loudly_that_address_rules_are_not_enforced() {
    let policy = policy(
        "deny",
        &["allow pypi.org", "deny 203.0.113.0/24", "allow 10.0.0.0/8"],
    );
    let warnings = policy.warnings(FilterMode::Dns, &around());
    assert!(
        warnings[0]
            .to_string()
            .starts_with("2 address rule(s) are NOT enforced in mode dns (first: egress[1])"),
        "{}",
        warnings[0]
    );
    assert!(policy.warnings(FilterMode::DnsNft, &around()).is_empty());
    let explain =
        |text: &str| policy.explain(&Subject::parse(text).unwrap(), FilterMode::Dns, &around());
    let open = explain("203.0.113.1");
    assert_eq!(open.verdict.action, Allow);
    assert!(
        open.words.contains("Address rules are NOT enforced"),
        "{}",
        open.words
    );
    // What is inside is closed in every mode, and there no rule opens a private range.
    assert_eq!(explain("169.254.169.254").verdict.action, Deny);
    let plan = AddressPlan::new(&policy, FilterMode::Dns, &around());
    assert_eq!(plan.verdict(ip("203.0.113.1")).action, Allow);
    assert_eq!(plan.verdict(ip("10.1.1.1")).action, Deny);
}

#[test]
fn rules_that_never_decide_are_named() {
    let policy = policy(
        "deny",
        &[
            "allow *.example.org",
            "deny a.example.org",
            "deny *.b.example.org",
            "allow example.org",
            "allow Example.org",
            "deny 203.0.113.0/24",
            "allow 203.0.113.7",
            "allow 169.254.169.254",
            "allow 0.0.0.0/0",
        ],
    );
    let words: Vec<String> = policy
        .warnings(FilterMode::DnsNft, &around())
        .iter()
        .map(|w| {
            w.to_string()
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert_eq!(
        words,
        [
            "egress[1] never decides",
            "egress[2] never decides",
            "egress[4] never decides",
            "egress[6] never decides",
            "egress[7] allows addresses",
            "egress[8] does not",
        ]
    );
}

#[test]
fn explain_shows_what_is_hidden_in_an_address() {
    let policy = policy("allow", &["deny 203.0.113.0/24"]);
    let explain = |text: &str| {
        policy.explain(
            &Subject::parse(text).unwrap(),
            FilterMode::DnsNft,
            &around(),
        )
    };
    let mapped = explain("::ffff:203.0.113.9");
    assert_eq!(
        (mapped.verdict.action, mapped.rule),
        (Deny, Some(RuleIndex(0)))
    );
    assert!(
        mapped
            .words
            .contains("It carries the IPv4 address 203.0.113.9.")
    );
    let nat64 = explain("64:ff9b::203.0.113.9");
    assert_eq!(
        (nat64.verdict.action, nat64.rule),
        (Deny, Some(RuleIndex(0)))
    );
    assert_eq!(explain("64:ff9b::192.0.2.1").verdict.action, Allow);
}
