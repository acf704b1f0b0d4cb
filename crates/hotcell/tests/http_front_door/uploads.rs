//! Uploads: FA-14, FA-15, FA-18.

use std::os::unix::fs::MetadataExt;

use hotcell_testkit::wait_until;
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    client::{head, raw, read_head},
    daemon::TestDaemon,
};

const MIB: usize = 1 << 20;
const LIST: &str = "/v1/workspaces/w1/chats/c1/uploads?user=u1&role=viewer";

fn target(name: &str) -> String {
    format!("/v1/workspaces/w1/chats/c1/uploads/{name}?user=u1&role=editor")
}

/// FA-14: sizes around every limit that a framework might have.
#[tokio::test]
async fn the_limit_is_the_documented_one() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    for bytes in [0, 1, 2 * MIB - 1, 2 * MIB + 1, 25 * MIB] {
        let body = vec![b'x'; bytes];
        let stored = client
            .send("PUT", &target(&format!("f{bytes}")), &[], body.clone())
            .await
            .expect(201)
            .json();
        assert_eq!(stored["bytes"], bytes);
        // Chunked: the same limits without a length.
        let headers = [
            client.signed("PUT", &target(&format!("c{bytes}")), &body),
            vec![("transfer-encoding".to_owned(), "chunked".to_owned())],
        ]
        .concat();
        let mut stream = TcpStream::connect(client.addr).await.unwrap();
        stream
            .write_all(head("PUT", &target(&format!("c{bytes}")), &headers).as_bytes())
            .await
            .unwrap();
        for piece in body.chunks(1_000_000) {
            stream
                .write_all(format!("{:x}\r\n", piece.len()).as_bytes())
                .await
                .unwrap();
            stream.write_all(piece).await.unwrap();
            stream.write_all(b"\r\n").await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        assert!(
            read_head(&mut stream).await.starts_with("HTTP/1.1 201"),
            "{bytes} chunked"
        );
    }
    let over = vec![b'x'; 25 * MIB + 1];
    let answer = client.send("PUT", &target("over"), &[], over.clone()).await;
    answer.expect_code(413, "upload_too_large");
    assert_eq!(answer.json()["limit_bytes"], 25 * MIB);

    // With a length, before any of it is read: here none of it is ever sent.
    let headers = [
        client.signed("PUT", &target("over"), &over),
        vec![("content-length".to_owned(), over.len().to_string())],
    ]
    .concat();
    let answer = raw(
        client.addr,
        head("PUT", &target("over"), &headers).as_bytes(),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");

    // A length that lies: what comes after it is no part of this body, and the hash tells.
    let headers = [
        client.signed("PUT", &target("lie"), &over),
        vec![("content-length".to_owned(), "10".to_owned())],
    ]
    .concat();
    let request = [
        head("PUT", &target("lie"), &headers).as_bytes(),
        &over[..100],
    ]
    .concat();
    let answer = raw(client.addr, &request).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert_eq!(daemon.temporary_files(), 0);
    assert_eq!(
        client.get(LIST).await.json()["uploads"]
            .as_array()
            .unwrap()
            .len(),
        10
    );
}

/// FA-14: all of a chat together, also at once.
#[tokio::test]
async fn a_chat_has_a_total() {
    let daemon = TestDaemon::start().await;
    let body = bytes::Bytes::from(vec![b'x'; 25 * MIB]);
    let mut uploads = tokio::task::JoinSet::new();
    for number in 0..10 {
        let (client, body) = (daemon.client.clone(), body.clone());
        uploads.spawn(async move {
            client
                .send("PUT", &target(&format!("f{number}")), &[], body)
                .await
        });
    }
    for answer in uploads.join_all().await {
        answer.expect(201);
    }
    let client = &daemon.client;
    let list = client.get(LIST).await.json();
    assert_eq!(
        (&list["total_bytes"], &list["limit_bytes"]),
        (&json!(250 * MIB), &json!(256 * MIB))
    );
    let answer = client
        .send("PUT", &target("f10"), &[], body.slice(..6 * MIB + 1))
        .await;
    answer.expect_code(413, "uploads_full");
    assert_eq!(answer.json()["limit_bytes"], 256 * MIB);
    client
        .send("PUT", &target("f10"), &[], body.slice(..6 * MIB))
        .await
        .expect(201);
    client
        .send("PUT", &target("one"), &[], "x")
        .await
        .expect_code(413, "uploads_full");
    // What is replaced makes room for what replaces it.
    client
        .send("PUT", &target("f3"), &[], body.clone())
        .await
        .expect(200);
    client
        .send("DELETE", &target("f3"), &[], "")
        .await
        .expect(204);
    client
        .send("DELETE", &target("f3"), &[], "")
        .await
        .expect_code(404, "unknown_upload");
    client
        .send("PUT", &target("one"), &[], "x")
        .await
        .expect(201);
    // Another chat has its own.
    let elsewhere = target("f").replace("/c1/", "/c2/");
    client.send("PUT", &elsewhere, &[], body).await.expect(201);
    assert_eq!(daemon.temporary_files(), 0);
}

/// FA-18: one name twice.
#[tokio::test]
async fn the_later_upload_replaces_the_earlier() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let first = client
        .send("PUT", &target("image.png"), &[], "first")
        .await
        .expect(201)
        .json();
    assert_eq!(
        (&first["replaced"], &first["path"]),
        (&json!(false), &json!("/mnt/uploaded-files/image.png"))
    );
    let second = client
        .send("PUT", &target("image.png"), &[], "second!")
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&second["replaced"], &second["path"], &second["bytes"]),
        (&json!(true), &first["path"], &json!(7))
    );
    assert_eq!(client.get(&target("image.png")).await.body, "second!");
    client
        .send("PUT", &target("Image.PNG"), &[], "other")
        .await
        .expect(201);
    let list = client.get(LIST).await.json();
    let names: Vec<_> = list["uploads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["name"].clone())
        .collect();
    assert_eq!(names, ["Image.PNG", "image.png"]);
    // At the same moment: one of the two, whole.
    let (a, b) = (vec![b'a'; 3 * MIB], vec![b'b'; 3 * MIB]);
    let race = target("race.bin");
    let (one, two) = tokio::join!(
        client.send("PUT", &race, &[], a.clone()),
        client.send("PUT", &race, &[], b.clone())
    );
    let mut statuses = [one.status.as_u16(), two.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
    let stored = client.get(&race).await.body;
    assert!(stored == a || stored == b);
    daemon.bash("c1", "true").await.expect(200);
}

/// FA-15: whose they are.
#[tokio::test]
async fn uploads_belong_to_the_sandboxs_user() {
    let daemon = TestDaemon::start().await;
    daemon
        .client
        .send("PUT", &target("mine"), &[], "x")
        .await
        .expect(201);
    let path = daemon.state().join("volumes/w1/chats/c1/uploads/mine");
    let data = std::fs::metadata(path).unwrap();
    assert_eq!(data.mode() & 0o7777, 0o644);
    if rustix::process::geteuid().is_root() {
        assert_eq!((data.uid(), data.gid()), (1000, 1000));
    }
}

#[tokio::test]
async fn names_that_are_no_names_and_bodies_that_are_no_files() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    for bad in [
        "..",
        ".",
        "a%2Fb",
        "..%2Fx",
        "%2E%2E",
        "a%00b",
        "%FF",
        &"x".repeat(256),
    ] {
        let answer = client.send("PUT", &target(bad), &[], "x").await;
        assert!(
            answer.status == 400 || answer.status == 404,
            "{bad}: {}",
            answer.status
        );
        answer.code();
    }
    let form = [("content-type", "multipart/form-data; boundary=x")];
    let answer = client.send("PUT", &target("x"), &form, "--x--").await;
    answer.expect_code(415, "unsupported_media_type");
    assert!(answer.json()["detail"].as_str().unwrap().contains("PUT"));
    client
        .get(&target("none"))
        .await
        .expect_code(404, "unknown_upload");
    let uploads = daemon.state().join("volumes/w1/chats/c1/uploads");
    if uploads.exists() {
        assert_eq!(std::fs::read_dir(uploads).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_nothing() {
    let daemon = TestDaemon::start().await;
    let client = &daemon.client;
    let body = vec![b'x'; 5 * MIB];
    let headers = [
        client.signed("PUT", &target("half"), &body),
        vec![("content-length".to_owned(), body.len().to_string())],
    ]
    .concat();
    let mut stream = TcpStream::connect(client.addr).await.unwrap();
    stream
        .write_all(head("PUT", &target("half"), &headers).as_bytes())
        .await
        .unwrap();
    stream.write_all(&body[..3 * MIB]).await.unwrap();
    wait_until("a temporary file", || daemon.temporary_files() == 1).await;
    drop(stream);
    wait_until("no temporary file", || daemon.temporary_files() == 0).await;
    assert_eq!(client.get(LIST).await.json()["uploads"], json!([]));
    // Its reservation is gone with it.
    client
        .send("PUT", &target("half"), &[], body)
        .await
        .expect(201);
}
