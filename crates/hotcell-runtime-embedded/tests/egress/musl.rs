//! Names as programs without glibc look them up: musl takes an answer that glibc forgives for the end.

use std::{path::Path, process::Command};

use hotcell_testkit::{clients::push, internet::Answer};

use crate::{common::Cell, stage::Stage, staged};

staged!(both_libraries_find_allowed_names);

/// What musl reads, and no other file.
const RESOLV_CONF: &[u8] = b"/etc/resolv.conf";
/// A name of the same length that the sandbox may write.
const OWN_CONF: &[u8] = b"/workspace/r.cnf";
/// A lookup that waits for an answer that never comes takes seconds.
const AT_ONCE_MS: u64 = 1_500;

/// The program of `lookup.c`, linked with musl.
fn program() -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/egress/lookup.c");
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("lookup");
    let status = Command::new("musl-gcc")
        .args(["-static", "-Os", "-s", "-o"])
        .args([&made, &source])
        .status();
    assert!(status.unwrap().success(), "musl-gcc");
    std::fs::read(made).unwrap()
}

/// The same with another file instead of the system's: nobody may change that in a sandbox.
fn with_own_conf(program: &[u8]) -> Vec<u8> {
    let mut program = program.to_vec();
    let length = RESOLV_CONF.len();
    let places: Vec<usize> = (0..program.len() - length)
        .filter(|at| program[*at..].starts_with(RESOLV_CONF))
        .collect();
    assert_eq!(places.len(), 1);
    program[places[0]..][..length].copy_from_slice(OWN_CONF);
    program
}

/// What a command says, and its code; it must not have waited for anything.
async fn at_once(cell: &Cell, command: &str) -> (i32, String) {
    let timed = format!(
        "b=$(date +%s%3N); {command}; c=$?; e=$(date +%s%3N); echo took $((e - b)); exit $c"
    );
    let said = cell.sh(&timed).await;
    let (text, took) = said.stdout.trim().rsplit_once("took ").unwrap();
    let took: u64 = took.parse().unwrap();
    assert!(took < AT_ONCE_MS, "{command}: {took} ms: {said:?}");
    (said.code(), text.trim().to_owned())
}

/// EG-07 and EG-08, with musl beside glibc: as sandboxes are, and with a search list and `ndots:5`.
async fn both_libraries_find_allowed_names(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("api.example.org", &["203.0.113.5"]);
    names.address("v4only.example.org", &["203.0.113.6"]);
    let both = ["203.0.113.7", "2001:db8::7"].map(|it| it.parse().unwrap());
    names.set("dual.example.org", Answer::addresses(&both));
    names.address("no.example.org", &["203.0.113.99"]);
    let rules = ["api", "v4only", "dual"].map(|it| format!("allow {it}.example.org"));
    let rules = rules.each_ref().map(String::as_str);
    let (_guard, cell, _filter) = stage.one("deny", &rules).await;
    let musl = program();
    push(&*cell.sandbox, "/workspace/own", with_own_conf(&musl)).await;
    push(&*cell.sandbox, "/workspace/lookup", musl).await;
    let search = "search ns.svc.cluster.local svc.cluster.local\noptions ndots:5\n";
    let written = format!(
        "(grep nameserver /etc/resolv.conf; printf '{search}') > /workspace/r.cnf && cat /workspace/r.cnf"
    );
    assert!(cell.get(&written).await.contains("ndots:5"));
    let listed = "LOCALDOMAIN='ns.svc.cluster.local svc.cluster.local' RES_OPTIONS=ndots:5";

    let found = [
        ("api.example.org", "203.0.113.5"),
        ("v4only.example.org", "203.0.113.6"),
        ("dual.example.org", "203.0.113.7"),
    ];
    for (name, address) in found {
        for program in ["/workspace/lookup", "/workspace/own"] {
            let said = at_once(&cell, &format!("{program} {name} 443")).await;
            // The IPv4 address alone, though the name may have another.
            assert_eq!(said, (0, format!("{address}\nopen")), "{program} {name}");
        }
        for environment in ["", listed] {
            let command = format!("env {environment} getent ahosts {name}");
            let (code, said) = at_once(&cell, &command).await;
            assert_eq!(code, 0, "{command}");
            let only = said.lines().all(|line| line.starts_with(address));
            assert!(only && !said.is_empty(), "{command}: {said}");
        }
    }
    for program in ["/workspace/lookup", "/workspace/own"] {
        let (code, said) = at_once(&cell, &format!("{program} no.example.org 443")).await;
        assert_eq!(code, 1, "{said}");
        assert!(said.starts_with("getaddrinfo: "), "{said}");
    }
    // What the list made of them was asked of the filter, and of nobody else.
    let asked = names.asked();
    assert!(
        asked
            .iter()
            .any(|(name, _)| name.contains("api.example.org"))
    );
    let strangers: Vec<_> = asked
        .iter()
        .filter(|(name, _)| name.contains("cluster.local") || name.contains("no.example.org"))
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}
