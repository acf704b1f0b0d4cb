//! Names that stay here.

use crate::rig::*;

#[tokio::test]
async fn eg07_expanded_names_are_nxdomain_and_stay_here() {
    let rig = Rig::new().await;
    let sandbox = rig.plain(&["allow api.example.org"]).await;
    rig.script.set(
        "api.example.org",
        RecordType::A,
        &[("api.example.org", 60, a("203.0.113.5"))],
    );
    for suffix in ["ns.svc.cluster.local", "svc.cluster.local"] {
        let answer = sandbox
            .ask(&format!("api.example.org.{suffix}"), RecordType::A)
            .await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    }
    assert_eq!(
        shown(&sandbox.ask("API.example.ORG", RecordType::A).await),
        [ip("203.0.113.5")]
    );
    assert_eq!(rig.script.asked(), ["api.example.org"]);
}

#[tokio::test]
async fn eg28_numbers_are_not_asked_for() {
    let rig = Rig::new().await;
    let sandbox = rig.sandbox("allow", &[], |_, _| {}).await;
    for name in [
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "127.1",
        "1.2.3.4",
    ] {
        let answer = sandbox.ask(name, RecordType::A).await;
        assert_eq!(
            answer.metadata.response_code,
            ResponseCode::NXDomain,
            "{name}"
        );
    }
    assert!(rig.script.asked().is_empty());
}

#[tokio::test]
async fn eg30_denied_names_never_leave() {
    let rig = Rig::new().await;
    rig.script.set(
        "pypi.org",
        RecordType::A,
        &[("pypi.org", 60, a("203.0.113.5"))],
    );
    let sandbox = rig.plain(&["allow pypi.org"]).await;
    let kinds = [
        RecordType::A,
        RecordType::TXT,
        RecordType::NULL,
        RecordType::MX,
    ];
    for n in 0..50_usize {
        let name = format!("{n:032x}.t.evil.example");
        let answer = sandbox.ask(&name, kinds[n % 4]).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        let expected = (15, "blocked by network policy".to_owned());
        assert_eq!(extended_error(&answer), Some(expected));
    }
    for (name, kind) in [
        ("x.pypi.org", RecordType::A),
        ("8.8.8.8.in-addr.arpa", RecordType::PTR),
    ] {
        let answer = sandbox.ask(name, kind).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    }
    // Without the extension there is no extended error, and the same denial.
    let (plain, _) = sandbox
        .udp(&question("evil.example", RecordType::A, None))
        .await;
    assert_eq!(
        (plain.metadata.response_code, plain.edns),
        (ResponseCode::NXDomain, None)
    );
    assert!(rig.script.asked().is_empty());
    let denials = sandbox.events();
    assert_eq!(denials.len(), 53);
    assert!(denials.iter().all(|e| matches!(
        e,
        FilterEvent::NameDenied {
            denial: Denial::Policy(_),
            ..
        }
    )));
    // The control.
    assert_eq!(
        shown(&sandbox.ask("pypi.org", RecordType::A).await),
        [ip("203.0.113.5")]
    );
    // Under default allow it is the names of the deny rule that stay here.
    let open = rig
        .sandbox("allow", &["deny *.evil.example"], |_, _| {})
        .await;
    open.ask("x.evil.example", RecordType::A).await;
    open.ask("fine.example", RecordType::A).await;
    assert_eq!(rig.script.asked(), ["pypi.org", "fine.example"]);
}
