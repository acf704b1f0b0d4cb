//! The kit itself: a test that finds something closed must be able to trust that it was there.
//! Needs root.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RecordType},
};
use hotcell_testkit::internet::{Answer, HOST, Internet, RESOLVER};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::Instant,
};

async fn get(to: (&str, u16)) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text.lines().last().unwrap().to_owned()
}

async fn ask(to: SocketAddr, name: &str, kind: RecordType) -> Message {
    let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.connect(to).await.unwrap();
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    socket.send(&question.to_vec().unwrap()).await.unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).await.unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

#[test]
fn the_world_answers_with_names_and_hosts() {
    let internet = Internet::new();
    internet
        .names()
        .address("a.example.org", &["203.0.113.1", "2001:db8::1"]);
    internet
        .names()
        .set("w.example.org", Answer::alias("a.example.org"));
    internet
        .names()
        .set("s.example.org", Answer::alias("a.example.org").split());
    internet.names().set("bad.example.org", Answer::failure());
    let late = Answer::addresses(&["203.0.113.2".parse().unwrap()]);
    internet
        .names()
        .set("late.example.org", late.after(Duration::from_millis(80)));
    let many: Vec<IpAddr> = (1..=120)
        .map(|last| IpAddr::from([203, 0, 113, last]))
        .collect();
    internet
        .names()
        .set("many.example.org", Answer::addresses(&many));
    internet.on_host(async || {
        for address in [
            "203.0.113.1",
            "198.51.100.7",
            "192.0.2.9",
            "169.254.169.254",
            "10.1.2.3",
        ] {
            assert_eq!(
                get((address, 80)).await,
                format!("this is {address} port 80")
            );
        }
        assert_eq!(
            get(("2001:db8::77", 443)).await,
            "this is 2001:db8::77 port 443"
        );
        let count = async |name: &str| ask(RESOLVER, name, RecordType::A).await.answers.len();
        assert_eq!(count("a.example.org.").await, 1);
        assert_eq!(count("w.example.org.").await, 2);
        assert_eq!(count("s.example.org.").await, 1);
        let truncated = ask(RESOLVER, "many.example.org.", RecordType::A).await;
        assert!(truncated.metadata.truncation && truncated.answers.is_empty());
        for (name, code) in [
            ("bad.example.org.", ResponseCode::ServFail),
            ("none.example.org.", ResponseCode::NXDomain),
        ] {
            let reply = ask(RESOLVER, name, RecordType::A).await;
            assert_eq!(reply.metadata.response_code, code);
        }
        let begin = Instant::now();
        assert_eq!(count("late.example.org.").await, 1);
        assert!(begin.elapsed() >= Duration::from_millis(80));
        // Any address is a name server, so that a way around the resolver is seen.
        ask(
            "8.8.8.8:53".parse().unwrap(),
            "stray.example.org.",
            RecordType::TXT,
        )
        .await;
    });
    assert_eq!(internet.names().asked_for("stray.example.org"), 1);
    let arrived = internet.arrived();
    assert!(
        arrived.contains(&(Ipv4Addr::new(203, 0, 113, 1), "tcp".into())),
        "{arrived:?}"
    );
    assert!(
        arrived.contains(&(Ipv4Addr::new(8, 8, 8, 8), "udp".into())),
        "{arrived:?}"
    );
}

#[tokio::test]
async fn the_host_is_reached_by_the_control_link_and_gone_afterwards() {
    let internet = Internet::new();
    let control = internet.control();
    assert!(internet.host_addresses().contains(&control.into()));
    assert!(internet.host_addresses().contains(&HOST.into()));
    let said = get((&control.to_string(), 8080)).await;
    assert_eq!(said, format!("this is {control} port 8080"));
    assert_eq!(internet.host_hits(), 1);
    let launcher = internet.launcher();
    let name = launcher[1].trim_start_matches("--net=").to_owned();
    assert!(std::path::Path::new(&name).exists());
    drop(internet);
    assert!(!std::path::Path::new(&name).exists());
}
