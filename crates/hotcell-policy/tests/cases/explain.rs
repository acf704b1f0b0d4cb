//! What is said about a policy.

use crate::*;

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
