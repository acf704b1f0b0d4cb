//! Which names are looked up.

use super::*;

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
