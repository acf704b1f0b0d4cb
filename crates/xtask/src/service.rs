//! What can be told of the service without starting it: its unit, and the Nix files.

use anyhow::{Context, Result, bail};

use crate::shell::{self, step};

const UNIT: &str = "nixos/hotcell.service";
const RECORD: &str = "docs/operating/hardening.md";
const RECORD_BEGIN: &str = "<!-- exposure: ";

/// Checks what this machine has the tools for, and says what it has not.
pub(crate) fn check() -> Result<()> {
    step("the unit and the Nix files");
    if shell::has("systemd-analyze") {
        verify()?;
        exposure()?;
    } else {
        println!("NOT checked: the unit; systemd-analyze is not here");
    }
    nix()
}

/// systemd must understand every line.
fn verify() -> Result<()> {
    let text = std::fs::read_to_string(shell::root().join(UNIT)).context(UNIT)?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("hotcell.service");
    // The program is not installed here.
    std::fs::write(&path, text.replace("/usr/local/bin/hotcell", "/bin/true"))?;
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

/// What the service is exposed to must not grow unseen.
fn exposure() -> Result<()> {
    let mut command = shell::limited(60, "systemd-analyze");
    let said = shell::output(command.args(["security", "--offline=true", "--no-pager", UNIT]))?;
    let now = exposure_of(&said).context("systemd-analyze names no exposure")?;
    let record = std::fs::read_to_string(shell::root().join(RECORD)).context(RECORD)?;
    let recorded = recorded_in(&record).with_context(|| format!("{RECORD} records no exposure"))?;
    if now > recorded {
        bail!(
            "the exposure of the service grew from {recorded} to {now}: see `systemd-analyze security --offline=true {UNIT}`"
        );
    }
    if now < recorded {
        bail!("the exposure of the service fell from {recorded} to {now}: record it in {RECORD}");
    }
    println!("exposure {now}, as recorded");
    Ok(())
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
}
