//! Files by path.

use std::{
    os::unix::fs::{PermissionsExt as _, symlink},
    time::Duration,
};

use hotcell_agent_proto::{AgentErrorCode, DiskUsage, FileInfo, FileKind, Listing};

use crate::{
    client::{Request, read_head},
    host::{Host, now, owner, wait_for},
};

fn put(host: &Host, query: &str, body: &[u8]) -> FileInfo {
    host.send("PUT", &format!("/v1/files?{query}"), body).ok()
}

#[test]
fn files_come_back_as_they_went() {
    let host = Host::start();
    let body: Vec<u8> = (0..3_000_000u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    let info = put(
        &host,
        "path=a/b%20c/%E6%B5%8B%0A.bin&mode=448&mtime_ms=-1500",
        &body,
    );
    assert_eq!(
        (info.bytes, info.mode, info.mtime_ms),
        (3_000_000, 0o700, -1500)
    );
    assert_eq!(
        (info.name.as_str(), info.kind),
        ("测\n.bin", FileKind::File)
    );
    let path = host.workspace.join("a/b c/测\n.bin");
    assert_eq!(std::fs::read(&path).unwrap(), body);
    assert_eq!(owner(&path), owner(&host.workspace));
    let parent = std::fs::metadata(path.parent().unwrap()).unwrap();
    assert_eq!(parent.permissions().mode() & 0o7777, 0o755);

    let response = host.get("/v1/files?path=a/b%20c/%E6%B5%8B%0A.bin");
    assert_eq!((response.status, response.body == body), (200, true));
    let header: FileInfo = serde_json::from_str(&response.headers["hotcell-file"]).unwrap();
    assert_eq!(header, info);
    assert_eq!(
        host.get("/v1/stat?path=a/b%20c/%E6%B5%8B%0A.bin")
            .ok::<FileInfo>(),
        info
    );

    let empty = put(&host, "path=empty", b"");
    assert_eq!((empty.bytes, empty.mode), (0, 0o644));
    assert_eq!(host.get("/v1/files?path=empty").body, b"");

    // A link is replaced, not followed.
    symlink("empty", host.workspace.join("link")).unwrap();
    assert_eq!(
        host.get("/v1/stat?path=link").ok::<FileInfo>().kind,
        FileKind::Link
    );
    put(&host, "path=link", b"own");
    assert_eq!(std::fs::read(host.workspace.join("empty")).unwrap(), b"");
    assert_eq!(host.get("/v1/files?path=link").body, b"own");

    assert_eq!(host.send("DELETE", "/v1/files?path=a", "").status, 204);
    assert_eq!(
        host.get("/v1/files?path=a").error().code,
        AgentErrorCode::NotFound
    );
    let listing: Listing = host.get("/v1/list?path=.&limit=1").ok();
    assert_eq!(
        (listing.entries[0].name.as_str(), listing.more),
        ("empty", true)
    );
    let listing: Listing = host.get("/v1/list?path=.&limit=9&after=empty").ok();
    assert_eq!((listing.entries.len(), listing.more), (1, false));
}

#[test]
fn fa03_only_regular_files_and_never_a_wait() {
    let host = Host::start();
    host.bash(
        "mkfifo fifo; mkdir dir; ln -s /dev/zero zero; ln -s loop loop; touch shut; \
        chmod 0 shut; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
    );
    let begin = now();
    for (path, code) in [
        ("fifo", AgentErrorCode::NotARegularFile),
        ("dir", AgentErrorCode::NotARegularFile),
        ("zero", AgentErrorCode::NotARegularFile),
        ("sock", AgentErrorCode::NotARegularFile),
        ("/dev/tty", AgentErrorCode::NotARegularFile),
        ("loop", AgentErrorCode::Io),
        ("shut", AgentErrorCode::PermissionDenied),
        ("fifo/x", AgentErrorCode::NotFound),
        ("missing", AgentErrorCode::NotFound),
        ("", AgentErrorCode::BadRequest),
        ("a%00b", AgentErrorCode::BadRequest),
    ] {
        let error = host.get(&format!("/v1/files?path={path}")).error();
        assert_eq!(error.code, code, "{path}: {error}");
    }
    // Says that it is empty, and so it is.
    assert_eq!(host.get("/v1/files?path=/proc/self/status").body, b"");
    assert!(begin.elapsed() < Duration::from_secs(2));
    for (path, code) in [
        ("dir", AgentErrorCode::NotARegularFile),
        ("shut/x", AgentErrorCode::NotFound),
        ("/proc/x", AgentErrorCode::NotFound),
        ("/", AgentErrorCode::BadRequest),
    ] {
        let error = host
            .send("PUT", &format!("/v1/files?path={path}"), "x")
            .error();
        assert_eq!(error.code, code, "{path}: {error}");
    }
    let left: Listing = host.get("/v1/list?path=dir").ok();
    assert!(left.entries.is_empty());
}

#[test]
fn fa11_a_file_that_shrinks_breaks_the_connection() {
    let host = Host::start();
    host.bash("head -c 300M /dev/zero >big");
    let mut stream = Request::new("GET", "/v1/files?path=big", "").open(host.address);
    let (status, headers) = read_head(&mut stream);
    assert_eq!(
        (status, headers["content-length"].as_str()),
        (200, "314572800")
    );
    host.bash("truncate -s 1000 big");
    let read = std::io::copy(&mut stream, &mut std::io::sink());
    assert!(read.map_or(true, |bytes| bytes < 314_572_800));
    assert_eq!(host.get("/v1/files?path=big").body.len(), 1_000);
    // One that grows is cut at what was announced.
    host.bash("(while :; do echo more >>big; done) >/dev/null 2>&1 &");
    let response = host.get("/v1/files?path=big");
    assert_eq!(
        response.body.len().to_string(),
        response.headers["content-length"]
    );
}

#[test]
fn a_body_that_is_not_the_signed_one_leaves_nothing() {
    let host = Host::start();
    put(&host, "path=kept", b"old");
    let mut request = Request::new("PUT", "/v1/files?path=kept", "new");
    request.body = b"mew".to_vec();
    assert_eq!(
        request.send(host.address).error().code,
        AgentErrorCode::Unauthorized
    );
    let mut request = Request::new("PUT", "/v1/files?path=cut", "x".repeat(100_000));
    request.body.truncate(50_000);
    drop(
        request
            .header("content-length", "100000")
            .open(host.address),
    );
    assert_eq!(std::fs::read(host.workspace.join("kept")).unwrap(), b"old");
    wait_for("nothing else to be left", Duration::from_secs(5), || {
        std::fs::read_dir(&host.workspace).unwrap().count() == 1
    });
}

#[test]
fn fa10_names_that_are_not_utf8() {
    let host = Host::start();
    host.bash("printf x > $'\\xff\\xfe.txt'");
    let listing: Listing = host.get("/v1/list?path=.").ok();
    assert_eq!(listing.entries[0].name_hex.as_deref(), Some("fffe2e747874"));
    assert_eq!(host.get("/v1/files?path=%ff%fe.txt").body, b"x");
}

#[test]
fn disk_tells_of_what_is_there() {
    let host = Host::start();
    let usage: DiskUsage = host.get("/v1/disk").ok();
    let workspace = host.workspace.to_string_lossy().into_owned();
    for path in [workspace.as_str(), "/tmp"] {
        let mount = usage
            .mounts
            .iter()
            .find(|mount| mount.path == path)
            .unwrap();
        assert!(mount.total_bytes > 0 && mount.free_bytes <= mount.total_bytes);
    }
}

#[test]
fn a_refused_upload_is_read_to_its_end_and_its_connection_stays_of_use() {
    let host = Host::start();
    std::fs::create_dir(host.workspace.join("taken")).unwrap();
    for round in 0..8 {
        let body = vec![b'x'; 20 << 20];
        let mut stream = Request::new("PUT", "/v1/files?path=taken", body).open(host.address);
        let (status, headers) = read_head(&mut stream);
        assert_eq!(status, 409, "{round}");
        let mut why = vec![0; headers["content-length"].parse().unwrap()];
        std::io::Read::read_exact(&mut stream, &mut why).unwrap();
        let why: hotcell_agent_proto::AgentError = serde_json::from_slice(&why).unwrap();
        assert_eq!(why.code, AgentErrorCode::NotARegularFile);
        let next = Request::new("GET", "/v1/disk", "");
        next.over(stream.get_mut());
        assert_eq!(read_head(&mut stream).0, 200, "{round}");
    }
}

#[test]
fn what_a_link_puts_outside_is_not_found() {
    let host = Host::start();
    put(&host, "path=in/real", b"inside");
    put(&host, "path=out/real", b"outside");
    for (target, name) in [
        ("real", "in/link"),
        ("../in/link", "in/again"),
        ("../out/real", "in/leads-out"),
        ("../out", "in/directory"),
        ("/etc/passwd", "in/absolute"),
        ("/proc/uptime", "in/proc"),
    ] {
        symlink(target, host.workspace.join(name)).unwrap();
    }
    let read = |name: &str, beneath: &str| {
        let beneath = host.workspace.join(beneath);
        host.get(&format!(
            "/v1/files?path={name}&beneath={}",
            beneath.display()
        ))
    };
    for inside in ["in/real", "in/link", "in/again"] {
        assert_eq!(read(inside, "in").body, b"inside", "{inside}");
    }
    for outside in [
        "in/leads-out",
        "in/directory/real",
        "in/absolute",
        "in/proc",
        "in/none",
        "out/real",
    ] {
        let refused = read(outside, "in");
        assert_eq!(refused.status, 404, "{outside}");
        assert_eq!(refused.error().code, AgentErrorCode::NotFound, "{outside}");
    }
    // Whoever asks for no bound gets what the user's own commands get.
    assert_eq!(host.get("/v1/files?path=in/leads-out").body, b"outside");
}
