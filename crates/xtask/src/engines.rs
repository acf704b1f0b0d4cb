//! Container engines for tests and bench: installed when missing, started beside whatever runs on
//! this machine already, with sockets and data of their own, and ended by their process ids.
//!
//! ```text
//! /var/tmp/hotcell-engines/<name>/    data (images stay from run to run), configuration, log
//! /run/hotcell-engines/<name>/        sockets, state
//! ```
//!
//! A rootless engine's user must be able to pass through both, so they are not in `target`.

mod place;

use std::{
    ffi::OsString,
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    provision,
    shell::{self, step},
};

use place::Place;
pub(crate) use place::Started;

/// The user of the rootless engine: files of its sandboxes belong to it, and everywhere else they
/// belong to this one.
const SANDBOX_UID: u32 = 1000;

/// A program and the package that brings it: of the engines, and at the end those that sandboxes look names up with.
const NEEDED: [(&str, &str); 8] = [
    ("dockerd", "docker.io"),
    ("podman", "podman"),
    ("slirp4netns", "slirp4netns"),
    ("newuidmap", "uidmap"),
    ("fuse-overlayfs", "fuse-overlayfs"),
    ("runc", "runc"),
    ("node", "nodejs"),
    ("dig", "bind9-dnsutils"),
];

/// Resolvers that the bench compares with.
const RESOLVERS: [(&str, &str); 2] = [("dnsmasq", "dnsmasq-base"), ("unbound", "unbound")];
/// What packages ask before they start a service.
const SERVICE_RULE: &str = "/usr/sbin/policy-rc.d";

/// All of them.
pub(crate) struct Engines {
    docker: Started,
    podman: Started,
    podman_runsc: Started,
    podman_rootless: Started,
}

impl Engines {
    /// Installs what is missing and starts them.
    pub(crate) fn ensure() -> Result<Self> {
        Ok(Self {
            docker: ensure_docker()?,
            podman: ensure_podman()?,
            podman_runsc: ensure_podman_runsc()?,
            podman_rootless: ensure_podman_rootless()?,
        })
    }

    /// What tests and bench look for.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 4] {
        [
            ("HOTCELL_TEST_DOCKER", &self.docker),
            ("HOTCELL_TEST_PODMAN", &self.podman),
            ("HOTCELL_TEST_PODMAN_RUNSC", &self.podman_runsc),
            ("HOTCELL_TEST_PODMAN_ROOTLESS", &self.podman_rootless),
        ]
        .map(|(name, engine)| (name, engine.socket.clone().into_os_string()))
    }
}

/// Docker Engine with the runtimes runc and runsc. It makes no network and no rule.
pub(crate) fn ensure_docker() -> Result<Started> {
    install()?;
    let place = Place::make("docker", 0)?;
    let runsc = place.write_runsc()?;
    let config = serde_json::json!({ "runtimes": { "runsc": { "path": runsc } } });
    let config_file = place.write("daemon.json", &config.to_string())?;
    let mut command = Command::new("dockerd");
    command
        .arg("--config-file")
        .arg(config_file)
        .arg("--data-root")
        .arg(place.data.join("data"))
        .arg("--exec-root")
        .arg(place.run.join("exec"))
        .arg("--pidfile")
        .arg(place.run.join("dockerd.pid"))
        .arg("--host")
        .arg(format!("unix://{}", place.socket().display()))
        .args(["--iptables=false", "--ip6tables=false", "--bridge=none"]);
    place.start(command, None)
}

/// Podman as root, under runc.
pub(crate) fn ensure_podman() -> Result<Started> {
    podman_as_root("podman", "runc")
}

/// Podman as root, under gVisor: Podman takes one OCI runtime for all containers of a service.
pub(crate) fn ensure_podman_runsc() -> Result<Started> {
    podman_as_root("podman-runsc", "runsc")
}

fn podman_as_root(name: &str, runtime: &str) -> Result<Started> {
    install()?;
    let place = Place::make(name, 0)?;
    let mut command = podman(&place, runtime, podman_service(&place))?;
    command.env("XDG_RUNTIME_DIR", &place.run);
    place.start(command, None)
}

/// Podman as an ordinary user: the one with the sandbox's user id, made when there is none.
pub(crate) fn ensure_podman_rootless() -> Result<Started> {
    install()?;
    let user = ordinary_user()?;
    give_ids(&user)?;
    let place = Place::make("podman-rootless", SANDBOX_UID)?;
    let as_user = |mut inner: Command| {
        let mut command = Command::new("setpriv");
        let id = SANDBOX_UID.to_string();
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(inner.get_program())
            .args(inner.get_args());
        inner
            .env("HOME", &place.data)
            .env("USER", &user)
            .env("XDG_RUNTIME_DIR", &place.run);
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.env_remove("DBUS_SESSION_BUS_ADDRESS");
        command
    };
    place.forget_run()?;
    let service = podman(&place, "runc", podman_service(&place))?;
    // It holds the user namespace for the next service, and outlives this one.
    let survivor = place.run.join("libpod/tmp/pause.pid");
    place.start(as_user(service), Some(survivor))
}

fn podman_service(place: &Place) -> Command {
    let mut command = Command::new("podman");
    command
        .args(["system", "service", "--time=0"])
        .arg(format!("unix://{}", place.socket().display()));
    command
}

/// This command of Podman's, with files of its own instead of the machine's.
fn podman(place: &Place, runtime: &str, mut command: Command) -> Result<Command> {
    let runsc = place.write_runsc()?;
    let containers = format!(
        "[engine]\nruntime = \"{runtime}\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
         [engine.runtimes]\nrunsc = [\"{}\"]\n",
        runsc.display()
    );
    let storage = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
        place.data.join("data").display(),
        place.run.join("storage").display()
    );
    command
        .env(
            "CONTAINERS_CONF",
            place.write("containers.conf", &containers)?,
        )
        .env(
            "CONTAINERS_STORAGE_CONF",
            place.write("storage.conf", &storage)?,
        );
    Ok(command)
}

fn install() -> Result<()> {
    install_missing(&NEEDED)
}

fn install_missing(needed: &[(&str, &'static str)]) -> Result<()> {
    let packages: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| !shell::has(program))
        .map(|(_, package)| *package)
        .collect();
    if packages.is_empty() {
        return Ok(());
    }
    if !shell::has("apt-get") {
        bail!("missing: {}; install them", packages.join(" "));
    }
    step(&format!("installing {}", packages.join(" ")));
    shell::quiet(shell::limited(300, "apt-get").arg("update"))?;
    provision::install(&packages, None)
}

/// Installs the resolvers that the bench compares with. Neither is started: one package brings no
/// service, the other's is kept from starting.
pub(crate) fn ensure_resolvers() -> Result<()> {
    let _quiet = NoServices::begin()?;
    install_missing(&RESOLVERS)
}

/// While it lives, no package starts its service.
struct NoServices {
    /// Whether the rule is ours to take away again.
    made: bool,
}

impl NoServices {
    fn begin() -> Result<Self> {
        if RESOLVERS.iter().all(|(program, _)| shell::has(program)) {
            return Ok(Self { made: false });
        }
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(SERVICE_RULE);
        match file {
            Ok(mut file) => {
                let rule = Self { made: true };
                file.write_all(b"#!/bin/sh\nexit 101\n")
                    .context(SERVICE_RULE)?;
                Ok(rule)
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // Somebody's own rule; it must be one that keeps services from starting.
                let asked = Command::new(SERVICE_RULE)
                    .args(["unbound", "start"])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .status()
                    .context(SERVICE_RULE)?;
                ensure!(
                    asked.code() == Some(101),
                    "{SERVICE_RULE} lets unbound's service start: install unbound yourself"
                );
                Ok(Self { made: false })
            }
            Err(error) => Err(error).context(SERVICE_RULE),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(SERVICE_RULE);
        }
    }
}

/// The name of the user with the sandbox's id.
fn ordinary_user() -> Result<String> {
    let find = || -> Result<Option<String>> {
        let users = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
        Ok(users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == SANDBOX_UID.to_string()).then(|| name.to_owned())
        }))
    };
    if let Some(name) = find()? {
        return Ok(name);
    }
    let id = SANDBOX_UID.to_string();
    let mut command = shell::limited(30, "useradd");
    shell::quiet(command.args([
        "--system",
        "--no-create-home",
        "--uid",
        &id,
        "hotcell-sandbox",
    ]))?;
    find()?.context("the new user is not in /etc/passwd")
}

/// Subordinate ids, without which there is no rootless engine.
fn give_ids(user: &str) -> Result<()> {
    for (file, option) in [
        ("/etc/subuid", "--add-subuids"),
        ("/etc/subgid", "--add-subgids"),
    ] {
        let table = fs::read_to_string(file).unwrap_or_default();
        let own = [format!("{user}:"), format!("{SANDBOX_UID}:")];
        if table
            .lines()
            .any(|line| own.iter().any(|own| line.starts_with(own)))
        {
            continue;
        }
        let first = first_free(&table);
        let range = format!("{first}-{}", first + 65_535);
        shell::quiet(shell::limited(30, "usermod").args([option, &range, user]))?;
    }
    Ok(())
}

/// The first id after every range that is given away.
fn first_free(table: &str) -> u64 {
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':').skip(1).map(str::parse::<u64>);
            Some(fields.next()?.ok()? + fields.next()?.ok()?)
        })
        .max()
        .unwrap_or(0)
        .max(100_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap() {
        assert_eq!(first_free(""), 100_000);
        assert_eq!(first_free("a:100000:65536\nb:165536:65536\n"), 231_072);
        assert_eq!(first_free("broken\nc:5:\n"), 100_000);
    }
}
