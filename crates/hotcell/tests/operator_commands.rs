//! The commands that an operator calls before there is a daemon: `check-config`, `install-unit`.
#![allow(clippy::unwrap_used, reason = "a test may fail with a panic")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// The command line, without the surroundings' settings.
fn hotcell(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotcell"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HOTCELL_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn write(directory: &Path, content: &str) -> String {
    let path = directory.join("hotcell.toml");
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_config_tells_every_fault_and_ends_with_three() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(
        directory.path(),
        "[limits]\nidle_timeout = '10m'\nhard_timeout_ms = '1h'\nmax_sandboxes = 0\n[log]\nlevel = 'info'\n",
    );
    let output = hotcell(&["check-config", "--offline", &file]);
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stdout);
    for part in [
        "limits.idle_timeout: is not known",
        "did you mean `limits.idle_timeout_ms`? (a number of milliseconds)",
        "write 3600000, without quotes",
        "limits.max_sandboxes: must be at least 1",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    assert!(
        text(&output.stderr).contains("3 errors"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn offline_asks_nothing_of_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(
        directory.path(),
        "agent_binary = '/nowhere/agent'\nstore_key_file = '/nowhere/key'\n",
    );
    let offline = hotcell(&["check-config", "--offline", &file]);
    assert_eq!(offline.status.code(), Some(0), "{}", text(&offline.stdout));
    let here = hotcell(&["check-config", &file]);
    assert_eq!(here.status.code(), Some(3));
    for key in ["agent_binary:", "store_key_file:"] {
        assert!(text(&here.stdout).contains(key), "{}", text(&here.stdout));
    }
}

#[test]
fn a_wrong_log_filter_is_told_too() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "[log]\nlevel = 'hotcell=loud'\n");
    let output = hotcell(&["check-config", "--offline", &file]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stdout).contains("log.level"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn what_install_unit_writes_passes_check_config_where_the_rest_is_installed() {
    let root = tempfile::tempdir().unwrap();
    let prefix = root.path().to_str().unwrap();
    let first = hotcell(&["install-unit", "--prefix", prefix]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let said = text(&first.stdout);
    assert!(
        said.contains("wrote") && said.contains("hotcell.service"),
        "{said}"
    );
    // No secret is told.
    let key = fs::read_to_string(root.path().join("etc/hotcell/credentials/store.key")).unwrap();
    assert!(!said.contains(key.trim()));
    let again = hotcell(&["install-unit", "--prefix", prefix]);
    assert!(
        !text(&again.stdout).contains("wrote"),
        "{}",
        text(&again.stdout)
    );
    let config = root.path().join("etc/hotcell/hotcell.toml");
    let check = hotcell(&["check-config", "--offline", config.to_str().unwrap()]);
    assert!(check.status.success(), "{}", text(&check.stdout));
}

#[test]
fn install_unit_refuses_a_binary_that_the_service_would_not_find() {
    let output = hotcell(&["install-unit", "--dry-run", "--binary", "hotcell"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("absolute"),
        "{}",
        text(&output.stderr)
    );
}
