//! `hotcell policy` as a process: words, streams and exit codes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what is wrong by failing"
)]

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

const POLICY: &str = r#"{"egress": [
  {"action": "deny",  "target": "bad.example.org"},
  {"action": "allow", "target": "*.example.org"},
  {"action": "allow", "target": "203.0.113.0/24"}
]}"#;

fn hotcell(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hotcell"))
        .arg("policy")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_sound_policy_is_told_from_one_with_mistakes() {
    let sound = hotcell(&["check", "-"], POLICY);
    assert_eq!(sound.status.code(), Some(0));
    assert!(text(&sound.stdout).contains("3 rules, then deny"));
    let dns = hotcell(&["check", "-", "--mode", "dns"], POLICY);
    assert!(text(&dns.stdout).contains("NOT enforced"));
    let empty = hotcell(&["check", "-"], "");
    assert!(text(&empty.stdout).contains("no restriction"));

    let bad = hotcell(
        &["check", "-"],
        r#"{"egress":[{"action":"allow","target":"*.*.example"},{"acton":"deny"}]}"#,
    );
    assert_eq!(bad.status.code(), Some(7));
    assert_eq!(text(&bad.stdout), "");
    let words = text(&bad.stderr);
    assert!(words.contains("$.egress[0].target"), "{words}");
    assert!(words.contains("$.egress[1]"), "{words}");

    let missing = hotcell(&["check", "/nonexistent/policy.json"], "");
    assert_eq!(missing.status.code(), Some(1));
    let usage = hotcell(&["check", "-", "--mode", "nft"], POLICY);
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn why_is_answered_with_rule_layer_and_words() {
    for (target, code, parts) in [
        (
            "a.b.example.org",
            0,
            &[
                "allow",
                "egress[1]",
                "name lookup",
                "at any depth",
                "share an address",
            ][..],
        ),
        ("BAD.example.org.", 8, &["deny", "egress[0]", "NXDOMAIN"]),
        ("example.org", 8, &["deny", "by no rule", "defaultAction"]),
        ("203.0.113.9", 0, &["allow", "egress[2]", "address filter"]),
        ("169.254.169.254", 8, &["deny", "cloud metadata"]),
    ] {
        let explained = hotcell(&["explain", "-", target], POLICY);
        let words = text(&explained.stdout);
        assert_eq!(explained.status.code(), Some(code), "{target}: {words}");
        assert_eq!(text(&explained.stderr), "");
        for part in parts {
            assert!(words.contains(part), "{target}: {part:?} is not in {words}");
        }
    }
    let explained = hotcell(&["explain", "-", "bad.example.org", "--json"], POLICY);
    let json: serde_json::Value = serde_json::from_slice(&explained.stdout).unwrap();
    assert_eq!(
        (
            &json["action"],
            &json["rule"],
            &json["layer"],
            &json["mode"]
        ),
        (&"deny".into(), &0.into(), &"name".into(), &"dns+nft".into())
    );
    let dns = hotcell(&["explain", "-", "192.0.2.1", "--mode", "dns"], POLICY);
    assert_eq!(dns.status.code(), Some(0), "{}", text(&dns.stdout));
    let none = hotcell(&["explain", "-", "no such name"], POLICY);
    assert_eq!(none.status.code(), Some(1));
}
