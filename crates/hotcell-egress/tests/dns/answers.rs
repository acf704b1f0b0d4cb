//! What is answered.

use crate::rig::*;

#[tokio::test]
async fn eg01_chains_in_one_message_and_over_two() {
    let rig = Rig::new().await;
    let sandbox = rig
        .plain(&["allow shop.example.org", "allow split.example.org"])
        .await;
    rig.script.set(
        "shop.example.org",
        RecordType::A,
        &[
            ("shop.example.org", 60, cname("e1.edge.example.net")),
            ("e1.edge.example.net", 60, cname("e1.pop.example.net")),
            ("e1.pop.example.net", 60, a("203.0.113.10")),
            ("elsewhere.example.net", 60, a("203.0.113.66")),
        ],
    );
    let answer = sandbox.ask("shop.example.org", RecordType::A).await;
    assert_eq!(
        (answer.metadata.response_code, answer.answers.len()),
        (ResponseCode::NoError, 3)
    );
    assert_eq!(shown(&answer), [ip("203.0.113.10")]);
    // Upstream gives only the alias; the rest is asked for by us.
    rig.script.set(
        "split.example.org",
        RecordType::A,
        &[("split.example.org", 60, cname("far.example.net"))],
    );
    rig.script.set(
        "far.example.net",
        RecordType::A,
        &[("far.example.net", 60, a("203.0.113.11"))],
    );
    let answer = sandbox.ask("split.example.org", RecordType::A).await;
    assert_eq!(shown(&answer), [ip("203.0.113.11")]);
    assert_eq!(
        sandbox.ledger.addresses(),
        [ip("203.0.113.10"), ip("203.0.113.11")].into()
    );
    // The aliases themselves stay denied.
    let denied = sandbox.ask("e1.pop.example.net", RecordType::A).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn eg08_aaaa_is_empty_without_ipv6() {
    let rig = Rig::new().await;
    rig.script.set(
        "v4only.example.org",
        RecordType::A,
        &[("v4only.example.org", 60, a("203.0.113.5"))],
    );
    rig.script.set(
        "dual.example.org",
        RecordType::A,
        &[("dual.example.org", 60, a("203.0.113.6"))],
    );
    rig.script.set(
        "dual.example.org",
        RecordType::AAAA,
        &[("dual.example.org", 60, aaaa("2001:db8::6"))],
    );
    let off = rig.plain(&["allow *.example.org"]).await;
    for name in ["v4only.example.org", "dual.example.org"] {
        let answer = off.ask(name, RecordType::AAAA).await;
        assert_eq!(
            (answer.metadata.response_code, answer.answers.len()),
            (ResponseCode::NoError, 0)
        );
        assert_eq!(shown(&off.ask(name, RecordType::A).await).len(), 1);
    }
    let on = rig
        .sandbox("deny", &["allow *.example.org"], |settings, _| {
            settings.ipv6 = true
        })
        .await;
    assert_eq!(
        shown(&on.ask("dual.example.org", RecordType::AAAA).await),
        [ip("2001:db8::6")]
    );
    // There is none upstream: no error, and no answer, either.
    let none = on.ask("v4only.example.org", RecordType::AAAA).await;
    assert_eq!(
        (none.metadata.response_code, none.answers.len()),
        (ResponseCode::NoError, 0)
    );
}

#[tokio::test]
async fn eg10_answers_of_every_size() {
    let rig = Rig::new().await;
    for count in [25_u8, 40, 120] {
        let name = format!("many{count}.example.org");
        let records: Vec<_> = (1..=count)
            .map(|n| (name.as_str(), 60, a(&format!("203.0.113.{n}"))))
            .collect();
        rig.script.set(&name, RecordType::A, &records);
        let sandbox = rig.plain(&["allow *.example.org"]).await;
        let all: HashSet<IpAddr> = (1..=count)
            .map(|n| IpAddr::from([203, 0, 113, n]))
            .collect();
        for (edns, limit) in [
            (None, 512),
            (Some(512), 512),
            (Some(1232), 1232),
            (Some(4096), 4096),
        ] {
            let (answer, length) = sandbox.udp(&question(&name, RecordType::A, edns)).await;
            assert!(length <= limit, "{length} over {limit}");
            let code = answer.metadata.response_code;
            assert_eq!(
                code,
                ResponseCode::NoError,
                "{count} {edns:?}: {:?}",
                sandbox.events()
            );
            let whole = answer.answers.len() == usize::from(count);
            assert_eq!(answer.metadata.truncation, !whole, "{count} {edns:?}");
            // 16 bytes a record; everything that fits is there.
            assert_eq!(
                whole,
                70 + 16 * usize::from(count) <= limit,
                "{count} {edns:?}"
            );
            assert!(
                shown(&answer)
                    .iter()
                    .all(|address| sandbox.ledger.addresses().contains(address))
            );
        }
        let answer = sandbox.tcp(&question(&name, RecordType::A, None)).await;
        assert_eq!(shown(&answer).into_iter().collect::<HashSet<_>>(), all);
        assert!(!answer.metadata.truncation);
        assert_eq!(sandbox.ledger.addresses(), all);
    }
}

#[tokio::test]
async fn service_bindings_lose_their_hints() {
    let rig = Rig::new().await;
    let hints = vec![
        (SvcParamKey::Port, SvcParamValue::Port(443)),
        (
            SvcParamKey::Ipv4Hint,
            SvcParamValue::Ipv4Hint(IpHint(vec![A(Ipv4Addr::new(203, 0, 113, 66))])),
        ),
        (
            SvcParamKey::Ipv6Hint,
            SvcParamValue::Ipv6Hint(IpHint(vec![AAAA("2001:db8::66".parse().unwrap())])),
        ),
    ];
    let service = RData::HTTPS(HTTPS(SVCB::new(1, fqdn("svc.example.net"), hints)));
    rig.script.set(
        "www.example.org",
        RecordType::HTTPS,
        &[("www.example.org", 60, service)],
    );
    let sandbox = rig.plain(&["allow www.example.org"]).await;
    let answer = sandbox.ask("www.example.org", RecordType::HTTPS).await;
    let RData::HTTPS(https) = &answer.answers[0].data else {
        panic!("{answer:?}");
    };
    let keys: Vec<SvcParamKey> = https.0.svc_params.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [SvcParamKey::Port]);
    assert!(sandbox.ledger.addresses().is_empty());
    // Other kinds pass, and open nothing.
    let text = RData::TXT(TXT::new(vec!["hello".to_owned()]));
    rig.script.set(
        "www.example.org",
        RecordType::TXT,
        &[("www.example.org", 60, text)],
    );
    let mail = RData::MX(MX::new(10, fqdn("mail.example.net")));
    rig.script.set(
        "www.example.org",
        RecordType::MX,
        &[("www.example.org", 60, mail)],
    );
    for kind in [RecordType::TXT, RecordType::MX] {
        assert_eq!(sandbox.ask("www.example.org", kind).await.answers.len(), 1);
    }
    assert!(sandbox.ledger.addresses().is_empty());
}

#[tokio::test]
async fn odd_questions_get_short_answers() {
    let rig = Rig::new().await;
    let sandbox = rig.sandbox("allow", &[], |_, _| {}).await;
    let mut two = question("a.example.org", RecordType::A, None);
    two.add_query(Query::query(fqdn("b.example.org"), RecordType::A));
    let mut none = Message::query();
    none.metadata.recursion_desired = true;
    let mut chaos = question("version.bind", RecordType::TXT, None);
    chaos.queries[0].set_query_class(DNSClass::CH);
    let mut update = question("a.example.org", RecordType::A, None);
    update.metadata.op_code = OpCode::Status;
    for (message, code) in [
        (two, ResponseCode::FormErr),
        (none, ResponseCode::FormErr),
        (chaos, ResponseCode::Refused),
        (update, ResponseCode::NotImp),
        (
            question("a.example.org", RecordType::ANY, None),
            ResponseCode::Refused,
        ),
        (
            question("a.example.org", RecordType::AXFR, None),
            ResponseCode::Refused,
        ),
    ] {
        let (answer, _) = sandbox.udp(&message).await;
        assert_eq!(answer.metadata.response_code, code, "{message:?}");
    }
    // A later version of the extensions is answered in ours, over both ways in.
    let mut later = question("a.example.org", RecordType::A, Some(1232));
    later.edns.as_mut().unwrap().set_version(1);
    for answer in [sandbox.udp(&later).await.0, sandbox.tcp(&later).await] {
        let edns = answer.edns.unwrap();
        assert_eq!((edns.version(), edns.rcode_high()), (0, 1));
        assert_eq!(answer.metadata.response_code.low(), 0);
    }
    // A label with a dot in it is no way round a rule.
    let mut bytes = question("a.example.org", RecordType::A, None)
        .to_vec()
        .unwrap();
    bytes[13] = b'.';
    let (answer, _) = sandbox.raw_udp(&bytes).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    assert!(rig.script.asked().is_empty());
}
