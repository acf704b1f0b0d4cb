//! What an answer opens, and when.

use crate::rig::*;

#[tokio::test]
async fn eg13_an_answer_leaves_after_the_packet_filter_or_not_at_all() {
    let rig = Rig::new().await;
    rig.script.set(
        "new.example.org",
        RecordType::A,
        &[("new.example.org", 60, a("203.0.113.5"))],
    );
    let sandbox = rig.plain(&["allow new.example.org"]).await;
    let closed = sandbox.ledger.gate.acquire_many(1_000).await.unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(sandbox.address).await.unwrap();
    let bytes = question("new.example.org", RecordType::A, None)
        .to_vec()
        .unwrap();
    socket.send(&bytes).await.unwrap();
    sandbox.ledger.asked.notified().await;
    // A second question for the same address meanwhile does not take the intention for the deed.
    socket.send(&bytes).await.unwrap();
    sandbox.ledger.asked.notified().await;
    let mut buffer = [0; 512];
    assert!(socket.try_recv(&mut buffer).is_err());
    drop(closed);
    for _ in 0..2 {
        let length = socket.recv(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(shown(&answer), [ip("203.0.113.5")]);
    }
    assert_eq!(sandbox.ledger.addresses(), [ip("203.0.113.5")].into());

    // Run 2: the packet filter does not take it.
    sandbox.ledger.broken.store(true, Ordering::SeqCst);
    rig.script.set(
        "other.example.org",
        RecordType::A,
        &[("other.example.org", 60, a("203.0.113.6"))],
    );
    let broken = rig.plain(&["allow other.example.org"]).await;
    broken.ledger.broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let answer = broken.ask("other.example.org", RecordType::A).await;
        assert_eq!(
            (answer.metadata.response_code, answer.answers.len()),
            (ResponseCode::ServFail, 0)
        );
    }
    assert!(matches!(
        broken.events()[..],
        [
            FilterEvent::PacketFilterFailed { .. },
            FilterEvent::PacketFilterFailed { .. }
        ]
    ));
    broken.ledger.broken.store(false, Ordering::SeqCst);
    assert_eq!(
        shown(&broken.ask("other.example.org", RecordType::A).await),
        [ip("203.0.113.6")]
    );
}

#[tokio::test]
async fn eg14_and_eg21_the_cache_gives_answers_not_leave() {
    let rig = Rig::new().await;
    rig.script.set(
        "a.example.org",
        RecordType::A,
        &[("a.example.org", 3600, a("203.0.113.1"))],
    );
    let first = rig.plain(&["allow a.example.org"]).await;
    let second = rig.plain(&["allow a.example.org"]).await;
    let third = rig.plain(&["allow b.example.org"]).await;
    assert_eq!(
        shown(&first.ask("a.example.org", RecordType::A).await),
        [ip("203.0.113.1")]
    );
    // Cached by the first: opened for the second all the same, and denied to the third.
    assert_eq!(
        shown(&second.ask("a.example.org", RecordType::A).await),
        [ip("203.0.113.1")]
    );
    assert_eq!(second.ledger.addresses(), [ip("203.0.113.1")].into());
    let denied = third.ask("a.example.org", RecordType::A).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    assert!(third.ledger.addresses().is_empty());
    assert_eq!(rig.script.asked(), ["a.example.org"]);
    // The kernel lost it: the next answer from the cache opens it again.
    second.filter.with_filter(|filter, _| filter.doubt());
    second.ledger.opened.lock().unwrap().clear();
    second.ask("a.example.org", RecordType::A).await;
    assert_eq!(second.ledger.addresses(), [ip("203.0.113.1")].into());
    assert_eq!(second.filter.open_addresses()[0].address, ip("203.0.113.1"));
}

#[tokio::test]
async fn eg26_rebinding_answers_nothing() {
    let rig = Rig::new().await;
    let inside = [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
    ];
    let sandbox = rig.plain(&["allow *.example.org"]).await;
    for (n, address) in inside.iter().enumerate() {
        let name = format!("r{n}.example.org");
        rig.script
            .set(&name, RecordType::A, &[(&name, 60, a(address))]);
        let answer = sandbox.ask(&name, RecordType::A).await;
        assert_eq!(
            (answer.metadata.response_code, answer.answers.len()),
            (ResponseCode::NoError, 0),
            "{address}"
        );
    }
    let mixed = [
        ("mixed.example.org", 60, a("203.0.113.5")),
        ("mixed.example.org", 60, a("10.1.2.3")),
    ];
    rig.script.set("mixed.example.org", RecordType::A, &mixed);
    assert_eq!(
        shown(&sandbox.ask("mixed.example.org", RecordType::A).await),
        [ip("203.0.113.5")]
    );
    assert_eq!(sandbox.ledger.addresses(), [ip("203.0.113.5")].into());
}

/// EG-12: at the ceiling, with connections tracked.
#[tokio::test]
async fn eg12_an_answer_at_the_ceiling_closes_the_oldest_that_nobody_uses() {
    let rig = Rig::new().await;
    let allow = ["allow *.example.org"];
    let (parts, ledger, events) = rig.parts("deny", &allow, |settings, _| {
        settings.learned.ceiling = 8;
    });
    let connected = Arc::new(Connected::default());
    let filter = DnsFilter::new(DnsParts {
        connections: connected.clone(),
        ..parts
    });
    let (udp, tcp, address) = sockets().await;
    let sandbox = Sandbox {
        address,
        ledger,
        events,
        _server: serve(filter.clone(), udp, tcp),
        filter,
    };
    // Two addresses an answer: 203.0.113.1 and 2, 3 and 4, and so on.
    let pair = |n: u8| [1, 2].map(|half| IpAddr::from([203, 0, 113, 2 * n + half]));
    let name = |n: u8| format!("n{n}.example.org");
    for n in 0..10 {
        let records = pair(n).map(|address| (name(n), 60, a(&address.to_string())));
        let records: Vec<_> = records
            .iter()
            .map(|(name, ttl, data)| (name.as_str(), *ttl, data.clone()))
            .collect();
        rig.script.set(&name(n), RecordType::A, &records);
    }
    let ask = async |n: u8| shown(&sandbox.ask(&name(n), RecordType::A).await);
    for n in 0..4 {
        assert_eq!(ask(n).await.len(), 2);
    }
    assert!(sandbox.ledger.closed.lock().unwrap().is_empty());
    // Full. The oldest pair is in use by half; the second is not.
    *connected.0.lock().unwrap() = [pair(0)[0], pair(2)[1]].into();
    assert_eq!(ask(4).await.len(), 2);
    assert_eq!(ask(5).await.len(), 2);
    let closed = sandbox.ledger.closed.lock().unwrap().clone();
    let expected = [pair(0)[1], pair(1)[0], pair(1)[1], pair(2)[0]];
    assert_eq!(closed, expected);
    // All in use: the new answer is given all the same, and the oldest go.
    let all: HashSet<IpAddr> = (0..6).flat_map(pair).collect();
    *connected.0.lock().unwrap() = all;
    assert_eq!(ask(6).await.len(), 2);
    let closed = sandbox.ledger.closed.lock().unwrap().clone();
    assert_eq!(closed[4..], [pair(0)[0], pair(2)[1]]);
    // Each time one event that says what went; nothing was refused.
    let made_room: Vec<usize> = sandbox
        .events()
        .iter()
        .map(|event| match event {
            FilterEvent::NameAllowed { closed, .. } => closed.len(),
            other => panic!("{other:?}"),
        })
        .filter(|count| *count > 0)
        .collect();
    assert_eq!(made_room, [2, 2, 2]);
    // A name that lost its address is opened again by its next answer, although that one was ready.
    sandbox.ledger.opened.lock().unwrap().clear();
    *connected.0.lock().unwrap() = HashSet::new();
    assert_eq!(ask(1).await.len(), 2);
    assert_eq!(sandbox.ledger.addresses(), pair(1).into());
    let open = sandbox
        .filter
        .with_filter(|filter, _| filter.learned().len());
    assert_eq!(open, 8);
}

/// Says how many lookups have come back.
struct Counted(Arc<dyn Upstream>, watch::Sender<usize>);

#[async_trait]
impl Upstream for Counted {
    async fn lookup(&self, name: Name, kind: RecordType) -> Result<UpstreamAnswer, UpstreamError> {
        let answer = self.0.lookup(name, kind).await;
        self.1.send_modify(|count| *count += 1);
        answer
    }
}

/// EG-12: whatever goes and comes at the ceiling at once, an address is open when its answer leaves.
#[tokio::test]
async fn eg12_a_closing_never_follows_the_opening_of_another_answer() {
    let rig = Rig::new().await;
    let name = |n: u8| format!("n{n}.example.org");
    let address = |n: u8| IpAddr::from([203, 0, 113, n]);
    for n in 1..=3 {
        let data = a(&address(n).to_string());
        rig.script
            .set(&name(n), RecordType::A, &[(&name(n), 60, data)]);
    }
    let (parts, ledger, _events) = rig.parts("deny", &["allow *.example.org"], |settings, _| {
        settings.learned.ceiling = 2;
    });
    let lookups = watch::Sender::new(0);
    let filter = DnsFilter::new(DnsParts {
        upstream: Arc::new(Counted(rig.upstream.clone(), lookups.clone())),
        ..parts
    });
    let (udp, tcp, here) = sockets().await;
    let _server = serve(filter.clone(), udp, tcp);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(here).await.unwrap();
    let ask = async |n: u8| {
        // Which is the oldest is told by the millisecond.
        let now = || filter.with_filter(|_, now| now);
        let before = now();
        while now() == before {
            tokio::task::yield_now().await;
        }
        let bytes = question(&name(n), RecordType::A, None).to_vec().unwrap();
        socket.send(&bytes).await.unwrap();
    };
    let answered = async || {
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).await.unwrap();
        let shown = shown(&Message::from_vec(&buffer[..length]).unwrap());
        assert!(ledger.open.lock().unwrap().contains(&shown[0]), "{shown:?}");
        shown
    };
    for n in 1..=3 {
        ask(n).await;
        assert_eq!(answered().await, [address(n)]);
    }
    let open = ledger.open.lock().unwrap().clone();
    assert_eq!(open, [address(2), address(3)].into());

    // The first comes back for the second, and the packet filter takes its time to hear of that.
    *ledger.held.lock().unwrap() = Some(address(2));
    let asked = lookups.subscribe().borrow().to_owned();
    let came_back = async |count: usize| {
        let mut lookups = lookups.subscribe();
        lookups.wait_for(|all| *all == asked + count).await.unwrap();
    };
    ask(1).await;
    came_back(1).await;
    // Meanwhile the second is asked for again, which has to wait: it would be closed after it was opened.
    ask(2).await;
    came_back(2).await;
    ledger.go_on.notify_one();
    assert_eq!(answered().await, [address(1)]);
    assert_eq!(answered().await, [address(2)]);
    let closed = ledger.closed.lock().unwrap().clone();
    assert_eq!(closed, [address(1), address(2), address(3)]);
}
