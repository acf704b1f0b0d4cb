//! `cargo xtask vm-test`: the tests of `vm-tests/` on Debian guests, under QEMU.
//!
//! The same files run under NixOS's own driver as `nix build .#checks.x86_64-linux.vm-NAME`. Here the
//! guest is a plain Debian on which hotcell was installed as the operator guide says. Emulation in
//! software is enough; a guest then takes a minute to boot.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use sha2::{Digest, Sha256};

use crate::{
    agent, provision,
    shell::{self, step},
};

/// How long one test may take, in seconds.
const TEST_LIMIT_SECONDS: u32 = 1_800;

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// The tests, by the names of their files; all of them when none is named.
    names: Vec<String>,
    /// Only list them, with what they show.
    #[arg(long)]
    list: bool,
    /// Put a daemon without optimizations onto the guests: what `cargo xtask test` has built anyway.
    #[arg(long)]
    debug: bool,
}

/// Runs them; fails when one did.
pub(crate) fn run(options: &Options) -> Result<()> {
    let directory = shell::root().join("vm-tests");
    let tests = discover(&directory)?;
    if options.list {
        for (name, about) in &tests {
            println!("{name:<14}{about}");
        }
        return Ok(());
    }
    for name in &options.names {
        if !tests.iter().any(|(known, _)| known == name) {
            bail!("there is no test {name}; `cargo xtask vm-test --list` lists them");
        }
    }
    let names: Vec<&str> = if options.names.is_empty() {
        tests.iter().map(|(name, _)| name.as_str()).collect()
    } else {
        options.names.iter().map(String::as_str).collect()
    };
    provision::ensure()?;
    build(options.debug)?;
    on_guests(&directory, &guest(&directory)?, &names, options.debug)
}

/// Those that `cargo xtask test` runs: that the service works as it ships, and that its death opens nothing
/// and loses no sandbox.
const IN_SUITE: [&str; 2] = ["serves", "killed"];

/// Runs these with the daemon that the tests before were built with. A machine that cannot have guests is no
/// fault of what is tested: that is said, and does not count as passed.
pub(crate) fn in_suite() -> Result<()> {
    let directory = shell::root().join("vm-tests");
    match guest(&directory) {
        Ok(guest) => on_guests(&directory, &guest, &IN_SUITE, true),
        Err(error) => {
            println!("NOT checked: {} in guests: {error:#}", IN_SUITE.join(", "));
            Ok(())
        }
    }
}

/// Runs them with a daemon that is built.
fn on_guests(directory: &Path, guest: &Path, names: &[&str], debug: bool) -> Result<()> {
    let payload = payload(directory, debug)?;
    step(&format!("{} tests in guests", names.len()));
    let limit = TEST_LIMIT_SECONDS.saturating_mul(u32::try_from(names.len()).unwrap_or(u32::MAX));
    let mut command = shell::limited(limit, provision::SYSTEM_PYTHON);
    command
        .arg(directory.join("driver/run.py"))
        .arg(guest)
        .arg(payload)
        .args(names);
    shell::run(&mut command)
}

/// The tests and what the first line of each says.
fn discover(directory: &Path) -> Result<Vec<(String, String)>> {
    let mut tests = Vec::new();
    for entry in fs::read_dir(directory).context("vm-tests")? {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else {
            continue;
        };
        if path.extension().is_none_or(|kind| kind != "py") || name == "lib" {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let about = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let about =
            about.with_context(|| format!("{name}.py does not begin with what it shows"))?;
        tests.push((name.to_owned(), about.to_owned()));
    }
    tests.sort_unstable();
    Ok(tests)
}

/// The guest, made once for each version of its recipe.
fn guest(directory: &Path) -> Result<PathBuf> {
    provision::ensure_qemu()?;
    let script = directory.join("driver/guest.sh");
    let hash = hex::encode(&Sha256::digest(fs::read(&script)?)[..8]);
    let guest = shell::target().join("vm").join(format!("guest-{hash}"));
    if !guest.join("root.img").exists() {
        step("building the guest (a few minutes, once)");
        let mut command = shell::limited(1_800, "bash");
        command.arg(script).arg(&guest).arg(provision::mirror()?);
        shell::quiet(&mut command)?;
    }
    Ok(guest)
}

fn build(debug: bool) -> Result<()> {
    step("building what goes onto the guests");
    let mut build = shell::cargo(3_400);
    build.args(["build", "--quiet", "--locked", "-p", "hotcell"]);
    if !debug {
        build.arg("--release");
    }
    shell::run(&mut build)
}

/// What is installed on the guest.
fn payload(directory: &Path, debug: bool) -> Result<PathBuf> {
    let built = if debug { "debug" } else { "release" };
    let agent = agent::build()?;
    let payload = shell::target().join("vm/payload");
    fs::create_dir_all(&payload)?;
    let hotcell = shell::target().join(built).join("hotcell");
    fs::copy(hotcell, payload.join("hotcell"))?;
    fs::copy(agent, payload.join("hotcell-agent"))?;
    shell::quiet(
        shell::limited(120, "bash")
            .arg(directory.join("driver/image.sh"))
            .arg(payload.join("image.tar")),
    )?;
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_says_what_it_shows() {
        let tests = discover(&shell::root().join("vm-tests")).unwrap();
        assert!(tests.len() >= 12, "{tests:?}");
        assert!(
            tests.iter().all(|(_, about)| about.ends_with('.')),
            "{tests:?}"
        );
    }
}
