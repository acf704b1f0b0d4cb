//! `cargo xtask bench`: measures, side by side in one run, and writes `docs/performance.md`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{
    daemon::{Daemon, Engine, Parts},
    engines::{self, Started},
    provision,
    shell::{self, step},
};

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// Only this group; the other rows of docs/performance.md stay as they are.
    #[arg(value_enum)]
    group: Option<Group>,
    /// Also write the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// What a `bash` call costs.
    Exec,
    /// What a chat's first call costs.
    Start,
    /// What the daemon holds.
    Daemon,
    /// Fifty sandboxes at once: made, used and ended.
    Fleet,
    /// What thousands of leases cost, on the engine in memory.
    Scale,
    /// The egress filter beside dnsmasq, unbound and forked `nft`.
    Egress,
}

impl Group {
    /// Whether it needs no appliance.
    const fn stands_alone(self) -> bool {
        matches!(self, Self::Scale | Self::Egress)
    }
}

#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    value: Option<f64>,
    unit: String,
    target: String,
    met: Option<bool>,
    note: String,
}

/// Measures; fails when something could not be measured at all, not when a target is missed.
pub(crate) fn run(options: &Options) -> Result<()> {
    provision::ensure()?;
    let mut rows = Vec::new();
    if matches!(options.group, None | Some(Group::Scale)) {
        rows.extend(scale()?);
    }
    if matches!(options.group, None | Some(Group::Egress)) {
        rows.extend(egress()?);
    }
    if !options.group.is_some_and(Group::stands_alone) {
        rows.extend(appliance(options.group)?);
    }
    rows.sort_by(|a: &Row, b: &Row| a.name.cmp(&b.name));
    if rows.is_empty() {
        bail!("nothing was measured");
    }
    let lines: Vec<(String, String)> = rows
        .iter()
        .map(|row| (row.name.clone(), line(row)))
        .collect();
    println!("\n{}", render(&lines));
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&rows)? + "\n")?;
    }
    let path = shell::root().join("docs/performance.md");
    let lines = match options.group {
        None => lines,
        Some(_) => joined(&fs::read_to_string(&path)?, lines),
    };
    fs::write(&path, page(&render(&lines))?)?;
    println!("wrote docs/performance.md");
    Ok(())
}

/// The lines of a page by the names of their rows, with `new` ones in place of those of the same
/// name.
fn joined(page: &str, new: Vec<(String, String)>) -> Vec<(String, String)> {
    let old = page.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some((name.to_owned(), line.to_owned()))
    });
    let all: BTreeMap<String, String> = old.chain(new).collect();
    all.into_iter().collect()
}

/// Many leases, without a real engine.
fn scale() -> Result<Vec<Row>> {
    step("measuring thousands of leases on the engine in memory");
    let directory = shell::target().join("bench-scale");
    fs::create_dir_all(&directory)?;
    let mut bench = shell::cargo(3_600);
    bench.env("TMPDIR", &directory).args([
        "bench", "--quiet", "--locked", "-p", "hotcell", "--bench", "scale",
    ]);
    let output = shell::output(&mut bench);
    fs::remove_dir_all(&directory)?;
    rows_of(&output?)
}

/// The egress filter, beside resolvers in a network namespace of the measurement's own.
fn egress() -> Result<Vec<Row>> {
    step("measuring the egress filter and its peers");
    if let Err(error) = engines::ensure_resolvers() {
        println!("a resolver is left out: {error:#}");
    }
    let mut rows = Vec::new();
    for (package, bench) in [("hotcell-policy", "policy"), ("hotcell-nft", "egress")] {
        let mut measurement = shell::cargo(3_600);
        measurement.args([
            "bench", "--quiet", "--locked", "-p", package, "--bench", bench,
        ]);
        rows.extend(rows_of(&shell::output(&mut measurement)?)?);
    }
    Ok(rows)
}

fn rows_of(output: &str) -> Result<Vec<Row>> {
    output
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).with_context(|| format!("not a row: {line}")))
        .collect()
}

/// A real appliance on real engines.
fn appliance(group: Option<Group>) -> Result<Vec<Row>> {
    let parts = Parts::build()?;
    let mut build = shell::cargo(1_800);
    shell::run(build.args([
        "build",
        "--quiet",
        "--locked",
        "--release",
        "-p",
        "hotcell-bench",
    ]))?;
    let directory = shell::target().join("bench");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let tree = directory.join("tree");
    fs::create_dir_all(&tree)?;
    step("unpacking the image for the bare runtime");
    shell::quiet(
        shell::limited(300, "tar")
            .arg("-C")
            .arg(&tree)
            .arg("-xf")
            .arg(&parts.image),
    )?;
    let docker = peer("docker", engines::ensure_docker, &parts.image);
    let podman = peer("podman", engines::ensure_podman, &parts.image);
    let mut rows = Vec::new();
    let embedded = |oci_runtime, suffix| Subject {
        suffix,
        oci_runtime,
        engine: Engine::Embedded(oci_runtime.to_owned()),
        tree: Some(&tree),
        peer: docker.as_ref().map(|engine| ("docker", Arc::clone(engine))),
    };
    let containers = |kind, oci_runtime, suffix, engine: &Option<Arc<Started>>| {
        engine.as_ref().map(|engine| Subject {
            suffix,
            oci_runtime,
            engine: Engine::Containers {
                kind,
                oci_runtime: Some(oci_runtime),
                engine: Arc::clone(engine),
            },
            tree: None,
            peer: Some((kind, Arc::clone(engine))),
        })
    };
    let subjects = [
        Some(embedded("runsc", "")),
        Some(embedded("runc", "_runc")),
        containers("docker", "runsc", "_docker_runsc", &docker),
        containers("docker", "runc", "_docker_runc", &docker),
        containers("podman", "runc", "_podman_runc", &podman),
    ];
    for subject in subjects.into_iter().flatten() {
        if group.is_some_and(|group| !subject.has(group)) {
            continue;
        }
        step(&format!(
            "measuring {}",
            subject.suffix.trim_start_matches('_')
        ));
        rows.extend(measure(&parts, &directory, subject, group)?);
    }
    if matches!(group, None | Some(Group::Start)) {
        for (oci_runtime, suffix) in [("runsc", ""), ("runc", "_runc")] {
            step(&format!("measuring warm starts on {oci_runtime}"));
            rows.extend(warm(&parts, &directory, oci_runtime, suffix)?);
        }
    }
    fs::remove_dir_all(&directory)?;
    Ok(rows)
}

/// One appliance to measure.
struct Subject<'a> {
    /// What its rows are called.
    suffix: &'static str,
    oci_runtime: &'static str,
    engine: Engine,
    /// The image for the bare runtime, when starts are compared with that.
    tree: Option<&'a Path>,
    /// The engine whose own commands it is compared with.
    peer: Option<(&'static str, Arc<Started>)>,
}

impl Subject<'_> {
    /// What is left of a fleet is looked for where the embedded runtime puts it.
    fn has(&self, group: Group) -> bool {
        group != Group::Fleet || matches!(self.engine, Engine::Embedded(_))
    }
}

/// An engine with the same image, to be measured and to be measured beside. One that cannot be
/// had is left out, and said so.
fn peer(
    program: &'static str,
    start: impl FnOnce() -> Result<Started>,
    image: &Path,
) -> Option<Arc<Started>> {
    let import = || -> Result<Started> {
        let engine = start()?;
        let mut import = shell::limited(600, program);
        import
            .arg(if program == "docker" {
                "--host"
            } else {
                "--url"
            })
            .arg(format!("unix://{}", engine.socket.display()));
        shell::quiet(import.arg("import").arg(image).arg("hotcell-bench"))?;
        Ok(engine)
    };
    match import() {
        Ok(engine) => Some(Arc::new(engine)),
        Err(error) => {
            println!("{program} is left out: {error:#}");
            None
        }
    }
}

fn measure(
    parts: &Parts,
    directory: &Path,
    subject: Subject<'_>,
    group: Option<Group>,
) -> Result<Vec<Row>> {
    let place = directory.join(format!("daemon{}", subject.suffix));
    let groups: Vec<&str> = [
        ("exec", Group::Exec),
        ("start", Group::Start),
        ("daemon", Group::Daemon),
        ("fleet", Group::Fleet),
    ]
    .into_iter()
    .filter(|(_, of)| group.is_none_or(|group| group == *of) && subject.has(*of))
    .flat_map(|(name, _)| ["--groups", name])
    .collect();
    let daemon = Daemon::start(parts, &place, subject.engine)?;
    let mut command = shell::limited(900, shell::target().join("release/hotcell-bench"));
    command
        .env("HOTCELL_URL", &daemon.url)
        .env("HOTCELL_ADMIN_TOKEN", daemon.operator_token()?)
        .args(["--runtime", subject.oci_runtime])
        .arg(format!("--suffix={}", subject.suffix))
        .args(["--pid", &daemon.pid().to_string()]);
    if let Some(tree) = subject.tree {
        command.arg("--root-tree").arg(tree);
    }
    if let Some((program, engine)) = &subject.peer {
        command
            .arg("--engine")
            .arg(format!("{program}={}", engine.socket.display()));
    }
    command.args(groups);
    rows_and_end(&mut command, daemon)
}

/// What went wrong with the measurement is told before what that left behind.
fn rows_and_end(command: &mut Command, daemon: Daemon) -> Result<Vec<Row>> {
    let output = shell::output(command);
    let removed = daemon.remove();
    let rows = rows_of(&output?)?;
    removed?;
    Ok(rows)
}

/// First calls of chats that find a warm sandbox.
fn warm(parts: &Parts, directory: &Path, oci_runtime: &str, suffix: &str) -> Result<Vec<Row>> {
    let place = directory.join(format!("daemon-warm{suffix}"));
    let daemon = Daemon::start(parts, &place, Engine::EmbeddedWarm(oci_runtime.to_owned()))?;
    let mut command = shell::limited(900, shell::target().join("release/hotcell-bench"));
    command
        .env("HOTCELL_URL", &daemon.url)
        .env("HOTCELL_ADMIN_TOKEN", daemon.operator_token()?)
        .args(["--warm", "--runtime", oci_runtime])
        .arg(format!("--suffix={suffix}"))
        .args(["--pid", &daemon.pid().to_string()]);
    rows_and_end(&mut command, daemon)
}

fn render(lines: &[(String, String)]) -> String {
    let mut table = String::from("| row | value | target | met | how |\n|---|---|---|---|---|\n");
    for (_, line) in lines {
        table.push_str(line);
        table.push('\n');
    }
    table
}

fn line(row: &Row) -> String {
    let value = row
        .value
        .map_or_else(|| "–".into(), |value| format!("{value:.2} {}", row.unit));
    let met = match row.met {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "–",
    };
    format!(
        "| `{}` | {value} | {} | {met} | {} |",
        row.name, row.target, row.note
    )
}

fn page(table: &str) -> Result<String> {
    let release = shell::output(shell::limited(10, "uname").arg("-r"))?;
    // The rest of a release's name says more about a host than about its kernel.
    let kernel = release.split('.').take(2).collect::<Vec<_>>().join(".");
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "# Performance\n\n\
         Written by `cargo xtask bench`. Every figure is a median; what is compared was measured in turn, in \
         one run, so the ratios say more than the times. Machine: {cores} cores, Linux {}.\n\n{table}",
        kernel.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_groups_stay() {
        let page = "# P\n\n| row | value |\n|---|---|\n| `a` | 1 |\n| `c` | 3 |\n";
        let new = vec![
            ("b".to_owned(), "| `b` | 2 |".to_owned()),
            ("c".to_owned(), "| `c` | 4 |".to_owned()),
        ];
        let lines: Vec<String> = joined(page, new).into_iter().map(|it| it.1).collect();
        assert_eq!(lines, ["| `a` | 1 |", "| `b` | 2 |", "| `c` | 4 |"]);
    }
}
