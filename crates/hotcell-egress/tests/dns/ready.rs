//! Answers that are given again.

use std::time::Duration;

use hotcell_types::limits::MAX_DNS_BATCH;

use crate::rig::*;

const WEB: &str = "www.example.org";

async fn stocked() -> Rig {
    let rig = Rig::new().await;
    rig.script.set(
        WEB,
        RecordType::A,
        &[
            (WEB, 300, cname("edge.example.net")),
            ("edge.example.net", 200, a("203.0.113.10")),
            ("edge.example.net", 200, a("203.0.113.11")),
        ],
    );
    let text = RData::TXT(TXT::new(vec!["hello".to_owned()]));
    rig.script.set(WEB, RecordType::TXT, &[(WEB, 60, text)]);
    let mail = RData::MX(MX::new(10, fqdn("mail.example.net")));
    rig.script.set(WEB, RecordType::MX, &[(WEB, 60, mail)]);
    let service = SVCB::new(1, fqdn("svc.example.net"), Vec::new());
    let service = RData::HTTPS(HTTPS(service));
    rig.script
        .set(WEB, RecordType::HTTPS, &[(WEB, 60, service)]);
    rig
}

/// Waits until that many answers were told, and says how many of them out of what was ready.
async fn told(sandbox: &Sandbox, all: usize) -> usize {
    let patience = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let events = sandbox.events();
        let of = |event: &FilterEvent| match event {
            FilterEvent::NameAllowed { .. } => (1, 0),
            FilterEvent::NameAllowedAgain { times, .. } => (0, *times as usize),
            other => panic!("{other:?}"),
        };
        let (long, again) = events
            .iter()
            .map(of)
            .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        if long + again == all {
            return again;
        }
        assert!(
            long + again < all && tokio::time::Instant::now() < patience,
            "{all} answers: {events:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Lives as long in all records, which age while one asks.
fn ageless(mut message: Message) -> Message {
    for record in &mut message.answers {
        assert!((1..=300).contains(&record.ttl));
        record.ttl = 0;
    }
    message
}

fn variants(kind: RecordType) -> Vec<Message> {
    let mut all = Vec::new();
    for edns in [None, Some(0), Some(512), Some(4096), Some(65_535)] {
        all.push(question("wWw.eXample.ORG", kind, edns));
    }
    for edns in [None, Some(1232)] {
        let plain = question(WEB, kind, edns);
        let mut checking = plain.clone();
        checking.metadata.checking_disabled = true;
        let mut authentic = plain.clone();
        authentic.metadata.authentic_data = true;
        let mut undesired = plain.clone();
        undesired.metadata.recursion_desired = false;
        let mut with_cookie = plain.clone();
        let mut secure = plain.clone();
        if let (Some(with_cookie), Some(secure)) = (&mut with_cookie.edns, &mut secure.edns) {
            let cookie = EdnsOption::Unknown(10, vec![7; 8]);
            with_cookie.options_mut().insert(cookie);
            secure.set_dnssec_ok(true);
        }
        all.extend([plain, checking, authentic, undesired, with_cookie, secure]);
    }
    all
}

#[tokio::test]
async fn an_answer_that_is_ready_is_the_one_that_the_long_way_gives() {
    let rig = stocked().await;
    let kinds = [
        RecordType::A,
        RecordType::AAAA,
        RecordType::TXT,
        RecordType::MX,
        RecordType::HTTPS,
    ];
    for kind in kinds {
        let warm = rig.plain(&["allow www.example.org"]).await;
        warm.ask(WEB, kind).await;
        let variants = variants(kind);
        let asked = variants.len();
        for message in variants {
            let (again, _) = warm.udp(&message).await;
            let fresh = rig.plain(&["allow www.example.org"]).await;
            let (first, _) = fresh.udp(&message).await;
            assert_eq!(again.queries, message.queries);
            // Upper and lower case as they were asked for, which equality overlooks.
            let spelt = |message: &Message| message.queries[0].name().to_string();
            assert_eq!(spelt(&again), spelt(&message));
            assert_eq!(ageless(again), ageless(first), "{message:?}");
        }
        // Nothing is opened for an empty answer, and there is nothing to tell of it.
        if kind != RecordType::AAAA {
            assert_eq!(told(&warm, 1 + asked).await, asked, "{kind}");
        }
        let opened = warm.ledger.opened.lock().unwrap().len();
        assert_eq!(opened, if kind == RecordType::A { 2 } else { 0 });
    }
}

/// More at once than are read at once, ready and not, each from somewhere else.
#[tokio::test]
async fn everybody_gets_the_own_answer_of_many_at_once() {
    let rig = stocked().await;
    let sandbox = rig.plain(&["allow www.example.org"]).await;
    let kinds = [RecordType::A, RecordType::TXT, RecordType::MX];
    for kind in kinds {
        sandbox.ask(WEB, kind).await;
    }
    let mut clients = Vec::new();
    for (number, kind) in (0..3 * MAX_DNS_BATCH).zip(kinds.into_iter().cycle()) {
        let denied = number % 5 == 0;
        let name = if denied { "no.example.net" } else { WEB };
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(sandbox.address).unwrap();
        clients.push((client, question(name, kind, None), denied));
    }
    // Nothing in here waits, so the filter has its turn when all have asked.
    for (client, message, _) in &clients {
        client.send(&message.to_vec().unwrap()).unwrap();
    }
    for (client, message, denied) in clients {
        client.set_nonblocking(true).unwrap();
        let client = UdpSocket::from_std(client).unwrap();
        let mut buffer = [0; 512];
        let length = client.recv(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(answer.metadata.id, message.metadata.id);
        assert_eq!(answer.queries, message.queries);
        assert_eq!(answer.answers.is_empty(), denied, "{answer:?}");
        assert!(client.try_recv(&mut buffer).is_err(), "one answer");
    }
}

#[tokio::test]
async fn what_was_not_told_yet_is_told_at_the_end() {
    let rig = stocked().await;
    let sandbox = rig.plain(&["allow www.example.org"]).await;
    for _ in 0..4 {
        sandbox.ask(WEB, RecordType::A).await;
    }
    let events = sandbox.events.clone();
    let Sandbox {
        filter, _server, ..
    } = sandbox;
    drop((filter, _server));
    // The reader's task lets go a moment after its server.
    let patience = tokio::time::Instant::now() + Duration::from_secs(10);
    while events.0.lock().unwrap().len() < 2 {
        assert!(tokio::time::Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let events = events.0.lock().unwrap().clone();
    assert!(
        matches!(
            &events[..],
            [
                FilterEvent::NameAllowed { .. },
                FilterEvent::NameAllowedAgain { times: 3, .. }
            ]
        ),
        "{events:?}"
    );
}

#[tokio::test]
async fn an_answer_of_which_something_was_taken_is_told_each_time() {
    let rig = Rig::new().await;
    let mixed = [
        ("mixed.example.org", 60, a("203.0.113.5")),
        ("mixed.example.org", 60, a("10.1.2.3")),
    ];
    rig.script.set("mixed.example.org", RecordType::A, &mixed);
    let sandbox = rig.plain(&["allow mixed.example.org"]).await;
    for _ in 0..3 {
        let answer = sandbox.ask("mixed.example.org", RecordType::A).await;
        assert_eq!(shown(&answer), [ip("203.0.113.5")]);
    }
    let events = sandbox.events();
    assert_eq!(events.len(), 3);
    let told = |event: &FilterEvent| matches!(event, FilterEvent::NameAllowed { hidden, .. } if hidden.len() == 1);
    assert!(events.iter().all(told), "{events:?}");
}

#[tokio::test]
async fn the_rate_binds_answers_that_are_ready() {
    let rig = stocked().await;
    let allow = ["allow www.example.org"];
    let sandbox = rig.sandbox("deny", &allow, |_, rate| *rate = 5).await;
    let mut codes = Vec::new();
    for _ in 0..40 {
        codes.push(sandbox.ask(WEB, RecordType::A).await.metadata.response_code);
    }
    assert_eq!(codes[..5], [ResponseCode::NoError; 5]);
    assert!(codes.contains(&ResponseCode::Refused));
    assert!(sandbox.events().contains(&FilterEvent::RateExceeded));
}
