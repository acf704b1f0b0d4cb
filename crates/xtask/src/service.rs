//! What can be told of the service without starting it: its unit, and the Nix files.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    capabilities,
    shell::{self, step},
};

pub(crate) const UNIT: &str = "nixos/hotcell.service";
pub(crate) const RECORD: &str = "docs/operating/hardening.md";
const RECORD_BEGIN: &str = "<!-- exposure: ";
const COUNTED_BEGIN: &str = "<!-- counted: begin -->\n```text\n";
const COUNTED_END: &str = "```";

/// Checks what this machine has the tools for, and says what it has not.
pub(crate) fn check() -> Result<()> {
    step("the unit and the Nix files");
    let (unit, record) = (read(UNIT)?, read(RECORD)?);
    let count = capabilities::judge(&unit, &record).context(UNIT)?;
    println!("{count} capabilities, each with its reason");
    if shell::has("systemd-analyze") {
        verify(&unit)?;
        exposure(&unit, &record)?;
    } else {
        println!("NOT checked: the unit; systemd-analyze is not here");
    }
    nix()
}

fn read(path: &'static str) -> Result<String> {
    std::fs::read_to_string(shell::root().join(path)).context(path)
}

/// systemd must understand every line.
fn verify(text: &str) -> Result<()> {
    // The program is not installed here.
    let (_directory, path) = placed(&text.replace("/usr/local/bin/hotcell", "/bin/true"))?;
    let mut command = shell::limited(60, "sh");
    command
        .args(["-c", "systemd-analyze verify \"$0\" 2>&1"])
        .arg(&path);
    let said = shell::output(&mut command)?;
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("hotcell.service"))
        .collect();
    if ours.is_empty() {
        return Ok(());
    }
    bail!("{UNIT}: {}", ours.join("\n"))
}

/// A unit of this text, under its name.
fn placed(text: &str) -> Result<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("hotcell.service");
    std::fs::write(&path, text)?;
    Ok((directory, path))
}

/// What the service is exposed to must not grow unseen.
fn exposure(text: &str, record: &str) -> Result<()> {
    let now = judge(text, record)?;
    println!("exposure {now}, as recorded");
    Ok(())
}

/// The exposure of a unit of this text, if it is the recorded one, item by item.
///
/// The figure alone is rounded, and lets a small line go unseen.
fn judge(text: &str, record: &str) -> Result<f64> {
    let (_directory, path) = placed(text)?;
    let security = || {
        let mut command = shell::limited(60, "systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager"]);
        command
    };
    let said = shell::output(security().arg(&path))?;
    let now = exposure_of(&said).context("systemd-analyze names no exposure")?;
    let recorded = recorded_in(record).with_context(|| format!("{RECORD} records no exposure"))?;
    let said = shell::output(security().arg("--json=short").arg(&path))?;
    let counted = counted_of(&said)?;
    let known = counted_in(record).with_context(|| format!("{RECORD} lists no items"))?;
    let more: Vec<_> = counted.difference(&known).map(String::as_str).collect();
    if !more.is_empty() {
        bail!(
            "systemd counts more against the service: {}; see `systemd-analyze security --offline=true {UNIT}`",
            more.join(", ")
        );
    }
    let fewer: Vec<_> = known.difference(&counted).map(String::as_str).collect();
    if !fewer.is_empty() {
        bail!(
            "systemd no longer counts {} against the service: take it out of {RECORD}",
            fewer.join(", ")
        );
    }
    if now > recorded {
        bail!(
            "the exposure of the service grew from {recorded} to {now}: see `systemd-analyze security --offline=true {UNIT}`"
        );
    }
    if now < recorded {
        bail!("the exposure of the service fell from {recorded} to {now}: record it in {RECORD}");
    }
    Ok(now)
}

/// What systemd counts against a service, by the names that it gives to it.
fn counted_of(said: &str) -> Result<BTreeSet<String>> {
    let items: Vec<serde_json::Value> =
        serde_json::from_str(said).context("what systemd-analyze says is not JSON")?;
    let counted = items.iter().filter(|item| item["set"] == false);
    let names = counted.filter_map(|item| item["json_field"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// The same in the guide.
fn counted_in(record: &str) -> Option<BTreeSet<String>> {
    let (_, rest) = record.split_once(COUNTED_BEGIN)?;
    let (list, _) = rest.split_once(COUNTED_END)?;
    Some(list.split_whitespace().map(str::to_owned).collect())
}

/// The figure in what `systemd-analyze security` prints.
fn exposure_of(said: &str) -> Option<f64> {
    let (_, rest) = said
        .lines()
        .find_map(|line| line.split_once("exposure level for hotcell.service: "))?;
    rest.split(' ').next()?.parse().ok()
}

/// The figure in the guide.
fn recorded_in(record: &str) -> Option<f64> {
    let (_, rest) = record.split_once(RECORD_BEGIN)?;
    rest.split(' ').next()?.parse().ok()
}

fn nix() -> Result<()> {
    let mut files = shell::limited(30, "git");
    let files = shell::output(files.args(["ls-files", "*.nix"]))?;
    let files: Vec<&str> = files.lines().collect();
    for (tool, arguments) in [
        ("nixfmt", &["--check"] as &[&str]),
        ("deadnix", &["--fail"]),
        ("nix-instantiate", &["--parse"]),
    ] {
        if shell::has(tool) {
            shell::quiet(shell::limited(120, tool).args(arguments).args(&files))?;
        } else {
            println!(
                "NOT checked: {} Nix files with {tool}, which is not here",
                files.len()
            );
        }
    }
    println!("NOT checked here: that the flake evaluates; `nix flake check` does");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_found() {
        let said =
            "  NAME DESCRIPTION\n\n→ Overall exposure level for hotcell.service: 5.4 MEDIUM x\n";
        assert_eq!(exposure_of(said), Some(5.4));
        assert_eq!(exposure_of("nothing"), None);
        let record = std::fs::read_to_string(shell::root().join(RECORD)).unwrap();
        assert!(recorded_in(&record).is_some_and(|figure| figure < 6.0));
    }

    /// Lines of the hardening that systemd does not judge by themselves, or that say what is the default.
    const NOT_JUDGED: [&str; 3] = ["SystemCallErrorNumber=", "DeviceAllow=", "KeyringMode="];

    #[test]
    fn a_weakened_line_is_seen_each() {
        if !shell::has("systemd-analyze") {
            println!("NOT checked: systemd-analyze is not here");
            return;
        }
        let text = std::fs::read_to_string(shell::root().join(UNIT)).unwrap();
        let record = std::fs::read_to_string(shell::root().join(RECORD)).unwrap();
        judge(&text, &record).unwrap();
        let (_, hardening) = text.split_once("### What it may do\n").unwrap();
        let (hardening, _) = hardening.split_once("### Capabilities").unwrap();
        let lines = hardening.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter(|line| !NOT_JUDGED.iter().any(|key| line.starts_with(key)));
        let mut planted = 0;
        for line in lines.filter(|line| line.contains('=')) {
            let weaker = text.replace(&format!("{line}\n"), "");
            assert!(
                judge(&weaker, &record).is_err(),
                "nobody sees that {line} is gone"
            );
            planted += 1;
        }
        assert!(planted >= 15, "{planted}");
        for more in ["CAP_BPF", "CAP_MKNOD", "CAP_SYS_RAWIO"] {
            let begin = "CapabilityBoundingSet=";
            let weaker = text.replace(begin, &format!("{begin}{more} "));
            let error = judge(&weaker, &record).unwrap_err().to_string();
            assert!(error.contains(more), "{error}");
        }
    }
}
