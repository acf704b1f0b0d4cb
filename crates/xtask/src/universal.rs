//! Proves the universal image: every promised runtime and conversion, by small programs in a sandbox.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    agent,
    daemon::{Daemon, Engine, Parts},
    provision,
    shell::{self, step},
};

/// What runs in the sandbox.
const PROGRAMS: &str = include_str!("../data/universal.sh");
/// How long all of it may take, in milliseconds.
const LIMIT_MS: &str = "1500000";

/// Starts an appliance on the image and runs the programs; fails when one of them did.
pub(crate) fn check(tar: &Path) -> Result<()> {
    step("building hotcell (release)");
    let mut build = shell::cargo(3_400);
    shell::run(build.args(["build", "--quiet", "--locked", "--release", "-p", "hotcell"]))?;
    let parts = Parts {
        hotcell: shell::target().join("release/hotcell"),
        agent: agent::build()?,
        image: tar.to_owned(),
    };
    let directory = shell::target().join("universal");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let runtime = std::env::var("HOTCELL_DEMO_RUNTIME").unwrap_or_else(|_| "auto".into());
    let daemon = Daemon::start(&parts, &directory, Engine::named(&runtime)?)?;
    let ran = run(&parts, &daemon);
    let ended = client(&daemon, &["end"]);
    daemon.remove()?;
    fs::remove_dir_all(&directory)?;
    ran.and(ended)
}

fn run(parts: &Parts, daemon: &Daemon) -> Result<()> {
    let operator = |words: &[&str]| -> Result<Value> {
        let mut command = shell::limited(60, &parts.hotcell);
        let config = daemon.directory.join("hotcell.toml");
        let text = shell::output(command.args(words).arg("--config").arg(config))?;
        Ok(serde_json::from_str(&text)?)
    };
    operator(&["deployment", "enable"])?;
    operator(&["organization", "put", "o1", "--enable"])?;
    operator(&["workspace", "put", "w1", "--organization", "o1", "--enable"])?;
    let credential = operator(&["credential", "create", "--organization", "o1"])?;
    let part = |name: &str| credential[name].as_str().context("no credential");
    let lines = format!("{}\n{}\n", part("key")?, part("secret")?);
    fs::write(daemon.directory.join("credential"), lines)?;
    step("running a program of every runtime in a sandbox");
    client(daemon, &["bash", PROGRAMS, "--timeout-ms", LIMIT_MS])
}

/// The published client, as a chat backend would use it.
fn client(daemon: &Daemon, words: &[&str]) -> Result<()> {
    let text = fs::read_to_string(daemon.directory.join("credential"))?;
    let Some((key, secret)) = text.trim().split_once('\n') else {
        bail!("the credential is not whole");
    };
    let mut command = shell::limited(1_800, provision::SYSTEM_PYTHON);
    command
        .arg("docs/clients/python/hotcell.py")
        .args(words)
        .env("HOTCELL_URL", &daemon.url)
        .env("HOTCELL_KEY", key)
        .env("HOTCELL_SECRET", secret)
        .env("HOTCELL_WORKSPACE", "w1");
    shell::run(&mut command)
}
