use super::*;

fn findings(text: &str) -> Vec<Finding> {
    of_text(text, &Overrides::default()).0
}

fn only(text: &str) -> Finding {
    let mut all = findings(text);
    assert_eq!(all.len(), 1, "{text}: {all:?}");
    all.remove(0)
}

#[test]
fn every_fault_is_told_at_once_with_its_key() {
    let text = "listne = '127.0.0.1:1'\nworker_threads = 0\n[limits]\nidle_timeout = 5\n\
                hard_timeout_ms = '90m'\nmax_sandboxes = 0\n[runtmie]\nkind = 'embedded'\n";
    let all = findings(text);
    let keys: Vec<_> = all.iter().map(|one| one.key.as_str()).collect();
    for key in [
        "listne",
        "worker_threads",
        "limits.idle_timeout",
        "limits.hard_timeout_ms",
        "limits.max_sandboxes",
        "runtmie",
    ] {
        assert!(keys.contains(&key), "{key} is not in {keys:?}");
    }
    assert_eq!(all.len(), 6, "{all:?}");
    assert!(all.iter().all(|one| !one.fix.is_empty()), "{all:?}");
}

#[test]
fn the_nearest_key_is_named_in_its_table() {
    for (text, near) in [
        ("listne = 'x'", "`listen`"),
        ("[limits]\nidle_timeout = 5", "`limits.idle_timeout_ms`"),
        ("[limits]\nidle_timeout_s = 5", "`limits.idle_timeout_ms`"),
        ("idle_timeout_ms = 5000", "`limits.idle_timeout_ms`"),
        ("[runtime]\noci-runtime = 'runc'", "`runtime.oci_runtime`"),
        ("[runtmie]\nkind = 'docker'", "`runtime`"),
    ] {
        let finding = only(text);
        assert!(finding.fix.contains(near), "{text}: {finding}");
    }
    assert!(
        only("completely_different = 1")
            .fix
            .starts_with("remove it")
    );
}

#[test]
fn a_number_with_a_unit_is_turned_into_the_number() {
    let finding = only("[limits]\nidle_timeout_ms = '10m'");
    assert!(
        finding
            .fix
            .contains("600000, without quotes (a number of milliseconds)"),
        "{finding}"
    );
    let finding = only("[limits]\nscratch_bytes = '2 GiB'");
    assert!(finding.fix.contains("2147483648"), "{finding}");
    let finding = only("[limits]\nscratch_bytes = 'a lot'");
    assert!(!finding.fix.contains("write"), "{finding}");
}

#[test]
fn seconds_where_milliseconds_belong_are_a_warning_and_the_configuration_holds() {
    let (all, config) = of_text("[limits]\nidle_timeout_ms = 600", &Overrides::default());
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].severity, Severity::Warning);
    assert!(all[0].fix.contains("600000"), "{}", all[0]);
    assert_eq!(config.unwrap().lease.idle_timeout_ms, 600);
}

#[test]
fn a_fault_of_syntax_names_its_line() {
    let finding = only("listen = '127.0.0.1:1'\nstate_dir = /var\n");
    assert!(finding.problem.starts_with("line 2:"), "{finding}");
}

#[test]
fn what_is_good_has_no_findings() {
    let (all, config) = of_text("", &Overrides::default());
    assert!(all.is_empty() && config.is_some());
}

#[test]
fn all_keys_are_known_and_documented() {
    let keys = known_keys();
    for key in [
        "listen",
        "state_dir",
        "runtime.kind",
        "limits.idle_timeout_ms",
        "log.format",
    ] {
        assert!(
            keys.iter().any(|known| known == key),
            "{key} is not in {keys:?}"
        );
    }
    let guide = include_str!("../../../../../docs/operating/configuration.md");
    for key in keys {
        assert!(
            guide.contains(&format!("`{key}`")),
            "configuration.md lacks {key}"
        );
    }
}
