//! What goes wrong.

use crate::rig::*;

#[tokio::test]
async fn a_dead_upstream_is_a_failure_and_comes_back() {
    let rig = Rig::new().await;
    rig.script.set(
        "a.example.org",
        RecordType::A,
        &[("a.example.org", 60, a("203.0.113.1"))],
    );
    rig.script.dead.store(true, Ordering::SeqCst);
    let sandbox = rig.plain(&["allow a.example.org"]).await;
    let answer = sandbox.ask("a.example.org", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(extended_error(&answer).unwrap().0, 22);
    assert!(matches!(
        sandbox.events()[..],
        [FilterEvent::UpstreamFailed { .. }]
    ));
    rig.script.dead.store(false, Ordering::SeqCst);
    assert_eq!(
        shown(&sandbox.ask("a.example.org", RecordType::A).await),
        [ip("203.0.113.1")]
    );
}

#[tokio::test]
async fn the_rate_is_bounded() {
    let rig = Rig::new().await;
    let sandbox = rig.sandbox("deny", &[], |_, rate| *rate = 5).await;
    let mut codes = Vec::new();
    for _ in 0..40 {
        codes.push(
            sandbox
                .ask("x.example.org", RecordType::A)
                .await
                .metadata
                .response_code,
        );
    }
    assert_eq!(codes[..5], [ResponseCode::NXDomain; 5]);
    assert!(codes.contains(&ResponseCode::Refused));
    assert!(sandbox.events().contains(&FilterEvent::RateExceeded));
}

/// Answers after a while, or at once, by falling over.
struct Falls {
    waits: bool,
}

#[async_trait]
impl Upstream for Falls {
    async fn lookup(
        &self,
        _: Name,
        _: RecordType,
    ) -> Result<
        hotcell_egress::dns::upstream::UpstreamAnswer,
        hotcell_egress::dns::upstream::UpstreamError,
    > {
        if self.waits {
            tokio::task::yield_now().await;
        }
        panic!("told to")
    }
}

/// Its end, for as long as a test waits.
async fn end_of(server: &mut hotcell_egress::dns::DnsServer) -> String {
    let ended = tokio::time::timeout(Duration::from_secs(20), server.block_until_done()).await;
    ended.unwrap().unwrap_err().to_string()
}

#[tokio::test]
async fn a_reader_that_panics_ends_its_server() {
    for waits in [false, true] {
        let rig = Rig::new().await;
        let parts = rig.parts("deny", &["allow a.example.org"], |_, _| {});
        let filter = DnsFilter::new(DnsParts {
            upstream: Arc::new(Falls { waits }),
            ..parts.0
        });
        let (udp, tcp, address) = sockets().await;
        let mut server = serve(filter, udp, tcp);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let asked = question("a.example.org", RecordType::A, None);
        socket
            .send_to(&asked.to_vec().unwrap(), address)
            .await
            .unwrap();
        let why = end_of(&mut server).await;
        assert!(why.contains("panic"), "{why}");
    }
}

#[tokio::test]
async fn a_reader_that_cannot_read_ends_its_server() {
    let rig = Rig::new().await;
    let (_, tcp, _) = sockets().await;
    // No datagram can be read from what is no socket of datagrams and leads nowhere.
    let nowhere = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    nowhere.shutdown(std::net::Shutdown::Both).unwrap();
    nowhere.set_nonblocking(true).unwrap();
    let udp = std::net::UdpSocket::from(std::os::fd::OwnedFd::from(nowhere));
    let parts = rig.parts("deny", &["allow a.example.org"], |_, _| {});
    let mut server = serve(
        DnsFilter::new(parts.0),
        UdpSocket::from_std(udp).unwrap(),
        tcp,
    );
    let why = end_of(&mut server).await;
    assert!(!why.is_empty(), "{why}");
}
