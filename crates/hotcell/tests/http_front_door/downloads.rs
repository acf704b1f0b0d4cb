//! Downloads: FA-05, FA-06, FA-11, FA-12 over the wire.

use std::io::Write;

use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    client::{head, read_head},
    daemon::TestDaemon,
};

fn target(name: &str) -> String {
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    format!("/v1/workspaces/w1/chats/c1/uploads/{name}?user=u1&role=editor")
}

/// FA-05 and FA-06.
#[tokio::test]
async fn every_name_comes_back_as_it_is() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let names = [
        "测试 报告.pdf",
        "résumé.txt",
        "плюс+100%.csv",
        "it's (1)*.md",
        "61,UF_1000,QL80.jpg",
        "rapport \"final\", v2;x.pdf",
        "a\r\nSet-Cookie: x=1.txt",
        "back\\slash.txt",
        "\ttab.txt",
        ".htaccess",
        "..foo",
        " lead.txt",
        "trail .txt",
        "-rf",
        "%41.txt",
        "con.txt",
    ];
    for name in names {
        client
            .send("PUT", &target(name), &[], "x")
            .await
            .expect(201);
        let answer = client.get(&target(name)).await.expect(200);
        let dispositions: Vec<_> = answer
            .headers
            .get_all("content-disposition")
            .iter()
            .collect();
        assert_eq!(dispositions.len(), 1);
        assert!(!answer.headers.contains_key("set-cookie"));
        let header = dispositions[0].to_str().unwrap();
        assert_eq!(header.matches("filename=").count(), 1, "{header}");
        if let Some((_, starred)) = header.split_once("filename*=UTF-8''") {
            assert_eq!(percent_decode_str(starred).decode_utf8().unwrap(), name);
        } else {
            assert_eq!(header, format!("attachment; filename=\"{name}\""));
        }
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    }
    let list = client
        .get("/v1/workspaces/w1/chats/c1/uploads?user=u1&role=viewer")
        .await
        .json();
    let mut listed: Vec<_> = list["uploads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["name"].as_str().unwrap())
        .collect();
    let mut sorted = names.to_vec();
    listed.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(listed, sorted);
}

/// FA-12.
#[tokio::test]
async fn ranges_over_the_wire() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let content: Vec<u8> = (0..100).collect();
    client
        .send("PUT", &target("f"), &[], content.clone())
        .await
        .expect(201);
    client
        .send("PUT", &target("empty"), &[], "")
        .await
        .expect(201);
    for (range, status, content_range, length) in [
        ("bytes=0-10", 206, Some("bytes 0-10/100"), 11),
        ("bytes=90-", 206, Some("bytes 90-99/100"), 10),
        ("bytes=-10", 206, Some("bytes 90-99/100"), 10),
        ("bytes=90-110", 206, Some("bytes 90-99/100"), 10),
        ("bytes=0-3145727", 206, Some("bytes 0-99/100"), 100),
        ("bytes=-2000", 206, Some("bytes 0-99/100"), 100),
        ("bytes=5-2", 200, None, 100),
        ("bytes=abc", 200, None, 100),
        ("lines=0-1", 200, None, 100),
        ("bytes=0-0,2-2", 200, None, 100),
        (
            "bytes=-18446744073709551616",
            206,
            Some("bytes 0-99/100"),
            100,
        ),
    ] {
        let answer = client
            .send("GET", &target("f"), &[("range", range)], "")
            .await
            .expect(status);
        let told = answer
            .headers
            .get("content-range")
            .map(|v| v.to_str().unwrap());
        assert_eq!(
            (told, answer.body.len()),
            (content_range, length),
            "{range}"
        );
        assert_eq!(answer.headers["content-length"], length.to_string());
        assert!(!answer.headers.contains_key("transfer-encoding"));
    }
    for (name, range, total) in [
        ("f", "bytes=100-", 100),
        ("f", "bytes=-0", 100),
        ("empty", "bytes=0-", 0),
        ("empty", "bytes=-5", 0),
    ] {
        let answer = client
            .send("GET", &target(name), &[("range", range)], "")
            .await;
        answer.expect_code(416, "range_not_satisfiable");
        assert_eq!(answer.headers["content-range"], format!("bytes */{total}"));
    }
    let answer = client
        .send("HEAD", &target("f"), &[("range", "bytes=0-9")], "")
        .await
        .expect(200);
    assert_eq!(
        (answer.body.len(), &answer.headers["content-length"]),
        (0, &"100".parse().unwrap())
    );
    let missing = client
        .send("HEAD", &target("none"), &[], "")
        .await
        .expect(404);
    assert_eq!(missing.body.len(), 0);
}

/// FA-11: a file that changes while it is sent.
#[tokio::test]
async fn a_changing_file_is_sent_as_announced_or_broken_off() {
    const BYTES: usize = 24 << 20;
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let path = daemon.state().join("volumes/w1/chats/c1/uploads/f");
    let content = vec![b'x'; BYTES];

    for change in ["grows", "replaced", "removed"] {
        client.send("PUT", &target("f"), &[], content.clone()).await;
        // Two requests on one connection: the second must find its place.
        let mut stream = tokio::net::TcpStream::connect(client.addr).await.unwrap();
        let request = head(
            "GET",
            &target("f"),
            &client.signed("GET", &target("f"), b""),
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let first = read_head(&mut stream).await;
        assert!(
            first.contains(&format!("content-length: {BYTES}\r\n")),
            "{first}"
        );
        match change {
            "grows" => std::fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .unwrap()
                .write_all(b"more")
                .unwrap(),
            "replaced" => {
                std::fs::write(path.with_extension("new"), "new").unwrap();
                std::fs::rename(path.with_extension("new"), &path).unwrap();
            }
            _ => std::fs::remove_file(&path).unwrap(),
        }
        let mut body = vec![0; BYTES];
        stream.read_exact(&mut body).await.unwrap();
        assert!(body == content, "{change}");
        let request = head("GET", "/v1/tools", &client.signed("GET", "/v1/tools", b""));
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(
            read_head(&mut stream).await.starts_with("HTTP/1.1 200"),
            "{change}"
        );
    }

    client
        .send("PUT", &target("f"), &[], content)
        .await
        .expect(201);
    let before = client.send("HEAD", &target("f"), &[], "").await.headers["etag"].clone();
    let (parts, body) = client.open("GET", &target("f"), &[], "").await;
    assert_eq!(parts.status, 200);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10)
        .unwrap();
    assert!(body.collect().await.is_err());
    let part = [
        ("range", "bytes=0-3"),
        ("if-range", before.to_str().unwrap()),
    ];
    let answer = client
        .send("GET", &target("f"), &part, "")
        .await
        .expect(200);
    assert_eq!(answer.body.len(), 10);
    assert_ne!(answer.headers["etag"], before);
    let tag = answer.headers["etag"].to_str().unwrap().to_owned();
    client
        .send("GET", &target("f"), &[("if-none-match", &tag)], "")
        .await
        .expect(304);
}
