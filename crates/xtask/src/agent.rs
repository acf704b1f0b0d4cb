//! Builds the static agent.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds `hotcell-agent` so that it runs in any image, and returns where it is.
///
/// Its own target directory keeps the flags from rebuilding everything else.
pub(crate) fn build() -> Result<PathBuf> {
    // A development shell brings one that was built by other means.
    if let Some(path) = std::env::var_os("HOTCELL_STATIC_AGENT") {
        return Ok(path.into());
    }
    let directory = shell::target().join("agent");
    let mut command = shell::cargo(1_800);
    command
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_TARGET_DIR", &directory)
        .args([
            "build",
            "--quiet",
            "--locked",
            "--release",
            "-p",
            "hotcell-agent",
            "--target",
            TARGET,
        ]);
    shell::run(&mut command)?;
    Ok(directory.join(TARGET).join("release/hotcell-agent"))
}
