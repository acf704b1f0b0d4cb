//! What names a target stands for.

use crate::*;

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
