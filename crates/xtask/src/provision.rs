//! Installs what tests and demo need, from the distribution's packages and nowhere else.

use anyhow::{Context, Result, bail};

use crate::shell::{self, step};

/// A program, the package that brings it, and whether it comes from the backports.
const NEEDED: &[(&str, &str)] = &[
    ("runc", "runc"),
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.ext4", "e2fsprogs"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("pkg-config", "pkg-config"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    ("musl-gcc", "musl-tools"),
];

/// Libraries that are linked, by their header file.
const LIBRARIES: &[(&str, &str)] = &[
    ("/usr/include/libnftnl/common.h", "libnftnl-dev"),
    ("/usr/include/libmnl/libmnl.h", "libmnl-dev"),
];

/// Python modules that the host parses results back with.
const PYTHON_PACKAGES: &[(&str, &str)] = &[
    ("openpyxl", "python3-openpyxl"),
    ("docx", "python3-docx"),
    ("PIL", "python3-pil"),
];

/// The system's own Python, which sees the distribution's modules.
pub(crate) const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// Installs what is missing. Does nothing, quickly, when all is there.
pub(crate) fn ensure() -> Result<()> {
    let mut packages: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !shell::has(program))
        .map(|(_, package)| *package)
        .collect();
    packages.extend(
        LIBRARIES
            .iter()
            .filter(|(header, _)| !std::path::Path::new(header).exists())
            .map(|(_, package)| *package),
    );
    for (module, package) in PYTHON_PACKAGES {
        let mut probe = shell::limited(30, SYSTEM_PYTHON);
        if shell::quiet(probe.args(["-c", &format!("import {module}")])).is_err() {
            packages.push(package);
        }
    }
    let need_gvisor = !shell::has("runsc");
    if packages.is_empty() && !need_gvisor {
        return Ok(());
    }
    if !shell::has("apt-get") {
        bail!(
            "missing: {}{}; install them (on NixOS: run this inside `nix develop`)",
            packages.join(" "),
            if need_gvisor { " runsc" } else { "" }
        );
    }
    step(&format!(
        "installing {}{}",
        packages.join(" "),
        if need_gvisor { " runsc" } else { "" }
    ));
    apt_update()?;
    packages.sort_unstable();
    packages.dedup();
    if !packages.is_empty() {
        install(&packages, None)?;
    }
    if need_gvisor {
        install_gvisor()?;
    }
    Ok(())
}

fn apt_update() -> Result<()> {
    shell::quiet(shell::limited(300, "apt-get").arg("update"))
        .context("apt-get update failed; this needs root and the distribution's mirror")
}

/// Installs packages, from one release only when it is named.
pub(crate) fn install(packages: &[&str], release: Option<&str>) -> Result<()> {
    let mut command = shell::limited(900, "apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args([
        "install",
        "-y",
        "--no-install-recommends",
    ]);
    if let Some(release) = release {
        command.args(["-t", release]);
    }
    shell::quiet(command.args(packages))
}

/// Installs QEMU, which only tests in guests need. Debian 12's own would remove newer tools.
pub(crate) fn ensure_qemu() -> Result<()> {
    if shell::has("qemu-system-x86_64") && shell::has("qemu-img") {
        return Ok(());
    }
    step("installing qemu-system-x86");
    apt_update()?;
    let backports = format!("{}-backports", release_codename()?);
    let known = shell::output(shell::limited(60, "apt-cache").arg("policy"))?;
    let release = known.contains(&backports).then_some(backports.as_str());
    install(&["qemu-system-x86", "qemu-utils"], release)
}

/// Debian 12 itself has a runsc that is too old; its backports have a good one.
fn install_gvisor() -> Result<()> {
    let codename = release_codename()?;
    let release = format!("{codename}-backports");
    let known = shell::output(shell::limited(60, "apt-cache").arg("policy"))?;
    if !known.contains(&release) {
        let line = format!("deb {} {release} main\n", mirror()?);
        std::fs::write("/etc/apt/sources.list.d/hotcell-backports.list", line)
            .context("cannot add the backports; this needs root")?;
        apt_update()?;
    }
    install(&["runsc"], Some(&release))
}

/// The distribution mirror that this machine already uses.
///
/// apt names only the indexes that it has fetched, so a machine whose lists were cleared gets
/// them fetched first.
pub(crate) fn mirror() -> Result<String> {
    if let Some(mirror) = known_mirror()? {
        return Ok(mirror);
    }
    apt_update()?;
    known_mirror()?.context("apt knows no mirror of this release, even after an update")
}

fn known_mirror() -> Result<Option<String>> {
    let mut command = shell::limited(60, "apt-get");
    let lines =
        shell::output(command.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)"]))?;
    let codename = release_codename()?;
    Ok(lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(uri, release)| {
            !uri.contains("security") && (*release == codename || *release == "stable")
        })
        .map(|(uri, _)| uri.to_owned()))
}

/// The code name of the running release, such as `bookworm`.
pub(crate) fn release_codename() -> Result<String> {
    let text = std::fs::read_to_string("/etc/os-release")?;
    text.lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .context("/etc/os-release names no release")
}
