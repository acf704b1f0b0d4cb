//! Running other programs: loud when they fail, with a limit on how long they may take.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap_or_else(|_| ".".into())
}

/// Where builds go; honours `CARGO_TARGET_DIR`.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Says what is being done.
pub(crate) fn step(text: &str) {
    println!("\x1b[1m==> {text}\x1b[0m");
}

/// A program that ends within `limit_seconds`, or is ended.
pub(crate) fn limited(limit_seconds: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", &limit_seconds.to_string()])
        .arg(program)
        .current_dir(root());
    command
}

/// `cargo`, the one that runs us.
pub(crate) fn cargo(limit_seconds: u32) -> Command {
    limited(
        limit_seconds,
        std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
    )
}

/// Runs it with its output on our terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(124 | 137) => bail!("took too long and was ended: {shown}"),
        _ => bail!("failed ({status}): {shown}"),
    }
}

/// Runs it and returns what it prints; its error output is shown when it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !output.status.success() {
        bail!(
            "failed ({}): {shown}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("output of {shown} is not UTF-8"))
}

/// Runs it quietly; its output is shown only when it fails.
pub(crate) fn quiet(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let tail: Vec<&str> = text.lines().rev().take(40).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    bail!("failed ({}): {shown}\n{tail}", output.status)
}

/// Whether a program is on the path (system directories included).
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"])
        .any(|directory| Path::new(directory).join(program).is_file())
}

fn show(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_args()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if command.get_program() == "timeout" && words.len() > 3 {
        words.drain(..3);
    } else {
        words.insert(0, command.get_program().to_string_lossy().into_owned());
    }
    words.join(" ")
}
