//! What a sandbox cannot reach, change or see.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::{io::Write, net::TcpListener};

use common::Rig;
use hotcell_runtime::{Facts, Isolation, Runtime};
use hotcell_runtime_embedded::CHECKS;
use hotcell_types::VolumeKind;

on_every_engine!(
    nothing_is_reached_but_itself,
    user_code_has_no_privilege,
    read_only_volumes_cannot_be_written,
    the_root_is_read_only,
    facts_are_true,
);

/// Tries to connect; prints `OPEN` or the name of the error.
const CONNECT: &str = r#"
connect() { timeout 3 python3 -c '
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)
print("OPEN")' "$1" "$2" 2>/dev/null || echo BLOCKED; }
"#;

async fn nothing_is_reached_but_itself(rig: &Rig) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let v6 = TcpListener::bind("[::]:0").ok();
    let v6_port = v6
        .and_then(|v6| v6.local_addr().ok())
        .map_or(9, |at| at.port());
    let accepts = std::thread::spawn(move || {
        // Ends with the test's own connection at the end.
        let (mut stream, from) = listener.accept().unwrap();
        let _ = stream.write_all(b"x");
        from
    });
    let (one, other) = tokio::join!(rig.start(), rig.start());
    let address = |cell: &common::Cell| {
        let lease = cell.lease.clone();
        let record = rig
            .config
            .state_dir
            .join("sandboxes")
            .join(lease.as_str())
            .join("sandbox.json");
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        let slot = u32::try_from(record["slot"].as_u64().unwrap()).unwrap();
        let at = |host| std::net::Ipv4Addr::from(0x6440_0000 + slot * 4 + host).to_string();
        (at(1), at(2))
    };
    let (gateway, mine) = address(&one);
    let (_, theirs) = address(&other);
    let try_all = |targets: Vec<(String, u16)>| {
        let mut text = CONNECT.to_owned();
        for (host, port) in targets {
            text += &format!("connect {host} {port} &\n");
        }
        text + "wait\n"
    };
    // The positive control: the sandbox's own agent, and its own loopback.
    let open = one.get(&try_all(vec![(mine.clone(), 8888)])).await;
    assert_eq!(open, "OPEN");
    let own = one
        .get("python3 -m http.server 3000 --bind 127.0.0.1 >/dev/null 2>&1 & \
              for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 3000))' 2>/dev/null && echo OPEN && break; sleep 0.1; done; kill %1")
        .await;
    assert_eq!(own, "OPEN");
    let mut targets: Vec<(String, u16)> = host_addresses()
        .into_iter()
        .map(|host| (host, port))
        .collect();
    targets.extend([
        (gateway.clone(), port),
        (gateway, 22),
        (theirs.clone(), 8888),
        (theirs, 22),
        ("169.254.169.254".into(), 80),
        ("1.1.1.1".into(), 443),
        ("127.0.0.1".into(), port),
        ("::1".into(), v6_port),
        ("fe80::1%eth0".into(), v6_port),
        ("2606:4700:4700::1111".into(), 443),
        ("example.org".into(), 80),
    ]);
    let count = targets.len();
    let blocked = one.get(&try_all(targets)).await;
    assert_eq!(blocked, vec!["BLOCKED"; count].join("\n"));
    // Nothing came to the host's listener: the first who connects is this test.
    let mine = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(accepts.join().unwrap(), mine.local_addr().unwrap());
}

/// The host's own IPv4 addresses.
fn host_addresses() -> Vec<String> {
    let output = std::process::Command::new("hostname")
        .arg("-I")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace()
        .filter(|word| word.contains('.'))
        .map(str::to_owned)
        .collect()
}

async fn user_code_has_no_privilege(rig: &Rig) {
    let cell = rig.start().await;
    let status = cell
        .get("grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
        .await;
    for line in status.lines() {
        let (name, value) = line.split_once(':').unwrap();
        let want = if name == "NoNewPrivs" { 1 } else { 0 };
        assert_eq!(
            u64::from_str_radix(value.trim(), 16).unwrap(),
            want,
            "{line}"
        );
    }
    assert_eq!(
        cell.get("id").await,
        "uid=1000(sandbox) gid=1000(sandbox) groups=1000(sandbox)"
    );
    for refused in [
        "mount -t tmpfs none /tmp",
        "unshare -m true",
        "unshare -n true",
        "chroot / true",
        "mknod /tmp/d b 7 0",
        "cat /etc/shadow",
        "chown 0 /workspace",
        "echo 1 > /proc/sys/kernel/panic",
        "echo c > /proc/sysrq-trigger",
        "ls /sys/firmware/* /proc/kcore/x",
        "cat /.hotcell/agent > /.hotcell/agent",
    ] {
        let said = cell.sh(refused).await;
        assert_ne!(said.code(), 0, "{refused}: {said:?}");
    }
    if !rig.engine.is_gvisor() {
        // gVisor lets its first process be killed from inside; the sandbox then ends.
        cell.sh("kill -9 1").await;
    }
    assert_eq!(cell.get("echo still here").await, "still here");
}

/// FA-19.
async fn read_only_volumes_cannot_be_written(rig: &Rig) {
    let volumes: Vec<_> = VolumeKind::ALL.map(|kind| rig.volume(kind)).into();
    for volume in &volumes {
        std::fs::write(volume.host_path.join("a"), "a").unwrap();
        std::os::unix::fs::chown(volume.host_path.join("a"), Some(1000), Some(1000)).unwrap();
    }
    let cell = rig.start_with(|spec| spec.mounts = volumes.clone()).await;
    for volume in &volumes {
        let path = volume.kind.mount_path();
        let said = cell
            .sh(&format!(
                "cd {path} && cat a && for t in 'echo x > a' 'echo x > new' 'rm a' 'mv a b' 'chmod 777 a' \
                 'touch a' 'ln a c' 'ln {path}/a /tmp/l' 'mkdir d' 'ln -s x y' \
                 'exec 3< a; echo x > /proc/self/fd/3' 'mount -o remount,rw {path}'; \
                 do (eval \"$t\") 2>/dev/null && echo \"WORKED $t\"; done; true"
            ))
            .await;
        if volume.kind.read_only() {
            assert_eq!(said.stdout, "a", "{path}: {said:?}");
            assert_eq!(cell.get(&format!("cat {path}/a; ls {path}")).await, "aa");
            assert_eq!(std::fs::read(volume.host_path.join("a")).unwrap(), b"a");
        } else {
            assert!(
                said.stdout.contains("WORKED echo x > a"),
                "{path}: {said:?}"
            );
            assert!(!said.stdout.contains("WORKED mount"), "{path}: {said:?}");
        }
    }
    let health = cell.sandbox.ready(1_000).await.unwrap();
    assert_eq!(health.writable_read_only_mounts, Vec::<String>::new());
    assert!(health.bash);
}

async fn the_root_is_read_only(rig: &Rig) {
    let cell = rig.start().await;
    let tree = rig.config.image_dir.join(rig.image.hex()).join("rootfs");
    let before = std::fs::metadata(tree.join("etc"))
        .unwrap()
        .modified()
        .unwrap();
    let said = cell
        .sh(
            "for d in / /etc /usr/bin /var /mnt /root /run /home /opt /.hotcell /sys /dev; do \
             (echo x > $d/written) 2>/dev/null && echo WORKED $d; done; true",
        )
        .await;
    assert_eq!(said.stdout, "", "{said:?}");
    for place in ["/tmp", "/var/tmp", "/dev/shm", "/workspace", "/run/hotcell"] {
        cell.get(&format!("echo x > {place}/written && cat {place}/written"))
            .await;
    }
    assert_eq!(
        std::fs::metadata(tree.join("etc"))
            .unwrap()
            .modified()
            .unwrap(),
        before
    );
    assert!(!tree.join("tmp/written").exists());
}

async fn facts_are_true(rig: &Rig) {
    let Facts {
        isolation,
        scratch_is_bounded,
        engine,
        kind,
    } = rig.runtime.facts();
    let cell = rig.start().await;
    let dmesg = cell.sh("cat /proc/version").await.stdout;
    assert_eq!(isolation == Isolation::Gvisor, rig.engine.is_gvisor());
    let host = std::fs::read_to_string("/proc/version").unwrap();
    assert_eq!(dmesg == host, !rig.engine.is_gvisor(), "{dmesg}");
    assert!(scratch_is_bounded);
    assert_eq!(kind, "embedded");
    assert!(
        engine.starts_with(if rig.engine.is_gvisor() {
            "runsc"
        } else {
            "runc"
        }),
        "{engine}"
    );
    let checks = rig.runtime.preflight().await;
    let mut ids: Vec<&str> = checks.iter().map(|check| check.id.as_str()).collect();
    let mut documented: Vec<&str> = CHECKS.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    documented.sort_unstable();
    assert_eq!(ids, documented);
    for check in checks {
        let shared = check.id == "runtime.gvisor" && !rig.engine.is_gvisor();
        let want = if shared {
            hotcell_runtime::CheckStatus::Warn
        } else {
            hotcell_runtime::CheckStatus::Pass
        };
        assert_eq!(check.status, want, "{check:?}");
    }
}
