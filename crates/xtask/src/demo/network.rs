//! The demo's second part: a filtered sandbox, and an internet for it that is nobody's.
//!
//! ```text
//!  this machine ═ hcd<pid> ══ "host": the appliance ══════ "world": names and pages
//!                 198.19.254.1     198.19.254.2   198.18.254.2     198.18.254.1, the router
//!                                                                  198.51.100.53   answers names
//!                                                                  203.0.113.10    allowed.example.org
//!                                                                  203.0.113.20    denied.example.org
//! ```
//! Two network namespaces, with addresses that are kept for documentation and tests. Nothing of it leaves
//! the machine, and no setting of the machine's own network is changed. It goes with the demo; what a
//! demo left that was killed, the next one removes.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{
    daemon::Daemon,
    provision,
    shell::{self, step},
};

/// Where the names of the namespaces and of the link begin; the number of the demo's process follows.
const PREFIX: &str = "hcd";
/// This machine's end of the link to the appliance, and the appliance's.
const CONTROL: [&str; 2] = ["198.19.254.1/30", "198.19.254.2/30"];
/// The way between the appliance's host and the world.
const WAY: [&str; 2] = ["198.18.254.2/24", "198.18.254.1/24"];
const RESOLVER: &str = "198.51.100.53";
/// What the world's names stand for.
const HOSTS: [(&str, &str); 2] = [
    ("allowed.example.org", "203.0.113.10"),
    ("denied.example.org", "203.0.113.20"),
];
/// Answers names and serves pages.
const WORLD: &str = include_str!("world.py");
/// Where namespaces have names.
const NAMESPACES: &str = "/run/netns";

/// Plays it with the runtime of the appliance in `main`, whose images it uses.
pub(super) fn play(hotcell: &Path, main: &Path) -> Result<()> {
    let internet = Internet::lay()?;
    let directory = main.join("network");
    fs::create_dir_all(directory.join("state"))?;
    let images = main.join("state/images");
    if images.exists() {
        std::os::unix::fs::symlink(images, directory.join("state/images"))?;
    }
    let config = fs::read_to_string(main.join("hotcell.toml"))?;
    fs::write(
        directory.join("hotcell.toml"),
        filtered(&config, main, &directory)?,
    )?;
    step("starting an appliance whose sandboxes are filtered");
    let daemon = Daemon::resume_in(&internet.launcher(), hotcell, &directory)?;
    let played = chat(&daemon);
    if played.is_err() {
        let log = fs::read_to_string(directory.join("daemon.log")).unwrap_or_default();
        eprintln!("the log of the filtered appliance:\n{log}");
    }
    daemon.remove()?;
    played
}

/// The same configuration in another directory, at the control link, with a filtered network.
fn filtered(config: &str, main: &Path, directory: &Path) -> Result<String> {
    let (common, runtime) = config
        .split_once("[runtime]\n")
        .context("the appliance's configuration names no runtime")?;
    let (from, to) = (main.display().to_string(), directory.display().to_string());
    let listen = CONTROL[1].replace("/30", ":0");
    let common = common
        .replace(&format!("{from}/"), &format!("{to}/"))
        .replace("127.0.0.1:0", &listen);
    Ok(format!(
        "{common}[runtime]\nnetwork = \"filtered\"\ndns_upstreams = [\"{RESOLVER}\"]\n{runtime}"
    ))
}

/// The chat is the Python client's, as the first part's.
fn chat(daemon: &Daemon) -> Result<()> {
    let mut command = shell::limited(300, provision::SYSTEM_PYTHON);
    command
        .arg(shell::root().join("docs/clients/python/demo_network.py"))
        .env("HOTCELL_URL", &daemon.url)
        .env("HOTCELL_ADMIN_TOKEN", daemon.operator_token()?);
    shell::run(&mut command)
}

/// The namespaces, the link, and what answers.
struct Internet {
    host: String,
    link: String,
    world: String,
    servers: Option<Child>,
}

impl Internet {
    fn lay() -> Result<Self> {
        sweep();
        let pid = std::process::id();
        let mut internet = Self {
            host: format!("{PREFIX}{pid}-host"),
            link: format!("{PREFIX}{pid}"),
            world: format!("{PREFIX}{pid}-world"),
            servers: None,
        };
        internet.make()?;
        Ok(internet)
    }

    fn make(&mut self) -> Result<()> {
        let (host, world) = (self.host.clone(), self.world.clone());
        for space in [&host, &world] {
            ip(&["netns", "add", space])?;
            ip(&["-n", space, "link", "set", "lo", "up"])?;
        }
        let [ours, theirs] = CONTROL;
        ip(&[
            "link", "add", &self.link, "type", "veth", "peer", "name", "control", "netns", &host,
        ])?;
        ip(&["addr", "add", ours, "dev", &self.link])?;
        ip(&["link", "set", &self.link, "up"])?;
        ip(&["-n", &host, "addr", "add", theirs, "dev", "control"])?;
        ip(&["-n", &host, "link", "set", "control", "up"])?;
        ip(&[
            "-n", &host, "link", "add", "uplink0", "type", "veth", "peer", "name", "host0",
            "netns", &world,
        ])?;
        for (space, link, address) in [(&host, "uplink0", WAY[0]), (&world, "host0", WAY[1])] {
            ip(&["-n", space, "addr", "add", address, "dev", link])?;
            ip(&["-n", space, "link", "set", link, "up"])?;
        }
        let router = WAY[1].trim_end_matches("/24");
        ip(&["-n", &host, "route", "add", "default", "via", router])?;
        let mut addresses = HOSTS.map(|(_, address)| address).to_vec();
        addresses.push(RESOLVER);
        for address in addresses {
            ip(&[
                "-n",
                &world,
                "addr",
                "add",
                &format!("{address}/32"),
                "dev",
                "lo",
            ])?;
        }
        // A router, as an operator's machine with filtered sandboxes is.
        let mut forwarding = within(&host);
        forwarding.args(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        shell::quiet(&mut forwarding)?;
        self.servers = Some(serve(&world)?);
        Ok(())
    }

    /// What runs a program where the appliance is, and becomes it.
    fn launcher(&self) -> [String; 3] {
        let network = format!("--net={NAMESPACES}/{}", self.host);
        ["nsenter".to_owned(), network, "--".to_owned()]
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        if let Some(mut servers) = self.servers.take() {
            let _ = servers.kill();
            let _ = servers.wait();
        }
        remove(&[&self.host, &self.world], &self.link);
    }
}

fn ip(words: &[&str]) -> Result<()> {
    shell::quiet(shell::limited(20, "ip").args(words))
}

fn within(namespace: &str) -> Command {
    let mut command = shell::limited(20, "ip");
    command.args(["netns", "exec", namespace]);
    command
}

fn serve(world: &str) -> Result<Child> {
    let mut command = Command::new("ip");
    command
        .args([
            "netns",
            "exec",
            world,
            provision::SYSTEM_PYTHON,
            "-c",
            WORLD,
            RESOLVER,
        ])
        .args(HOSTS.map(|(name, address)| format!("{name}={address}")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut servers = command.spawn().context("the stub internet cannot start")?;
    let output = servers.stdout.take().context("the stub internet is mute")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let ready = line.trim() == "ready";
    if !ready {
        let _ = servers.kill();
        let _ = servers.wait();
    }
    ensure!(ready, "the stub internet does not answer");
    Ok(servers)
}

/// What is gone already is no failure.
fn remove(namespaces: &[&str], link: &str) {
    let _ = ip(&["link", "del", link]);
    for namespace in namespaces {
        let _ = ip(&["netns", "del", namespace]);
    }
}

/// Removes what demos left that were killed. Their servers have ended with them.
fn sweep() {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .map(|(pid, _)| pid)
            .filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
        if let Some(pid) = pid
            && !Path::new("/proc").join(pid).exists()
        {
            remove(&[&name], &format!("{PREFIX}{pid}"));
        }
    }
}
