//! The resolvers that are compared, each a process with files of its own.

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, id},
    time::Duration,
};

use crate::{load, ours, upstream};

const START_PATIENCE: Duration = Duration::from_secs(10);

/// A resolver that runs; it ends when this is dropped, or when this process does.
pub(crate) struct Resolver {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Drop for Resolver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of this run.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("hotcell-bench-egress-{}", id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn program(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("there is no {name}"))
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Starts it and asks it for every name once.
fn start(
    files: &Files,
    program: &Path,
    arguments: &[&str],
    address: SocketAddr,
) -> Result<Resolver, String> {
    let log = files.write("log", "");
    let output = File::create(&log).unwrap();
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .map_err(|error| format!("setpriv: {error}"))?;
    let resolver = Resolver { address, child };
    load::warm(address, START_PATIENCE).map_err(|why| {
        let words = fs::read_to_string(&log).unwrap_or_default();
        format!("{why}; {}", words.lines().last().unwrap_or_default())
    })?;
    Ok(resolver)
}

pub(crate) fn ours(files: &Files) -> Result<Resolver, String> {
    let own = std::env::current_exe().unwrap();
    start(files, &own, &["resolver"], ours::ADDRESS)
}

/// As it filters by name: what it answers is put into a timed set of a table of its own.
pub(crate) fn dnsmasq(files: &Files) -> Result<Resolver, String> {
    let program = program("dnsmasq")?;
    let rules = files.write(
        "dnsmasq.nft",
        "add table inet peer\nadd set inet peer learned { type ipv4_addr; flags timeout; timeout 1h; }\n",
    );
    let made = Command::new("nft").arg("-f").arg(rules).status();
    if !made.is_ok_and(|status| status.success()) {
        return Err("nft made no set for dnsmasq".to_owned());
    }
    let address = local(5302);
    let config = files.write(
        "dnsmasq.conf",
        &format!(
            "port={}\nlisten-address=127.0.0.1\nbind-interfaces\nno-resolv\nno-hosts\nno-poll\n\
             user=root\npid-file=\ncache-size=10000\nserver=127.0.0.1#{}\n\
             nftset=/example.org/4#inet#peer#learned\n",
            address.port(),
            upstream::ADDRESS.port()
        ),
    );
    let option = format!("--conf-file={}", config.display());
    let resolver = start(files, &program, &["--keep-in-foreground", &option], address)?;
    let set = Command::new("nft")
        .args(["list", "set", "inet", "peer", "learned"])
        .output()
        .map_err(|error| format!("nft: {error}"))?;
    if !String::from_utf8_lossy(&set.stdout).contains("203.0.113.1 ") {
        return Err("this dnsmasq does not fill the set".to_owned());
    }
    Ok(resolver)
}

/// As its package sets it up, but for validation, which nobody else here does.
pub(crate) fn unbound(files: &Files) -> Result<Resolver, String> {
    let program = program("unbound")?;
    let address = local(5303);
    let config = files.write(
        "unbound.conf",
        &format!(
            "server:\n  interface: 127.0.0.1@{}\n  directory: \"\"\n  chroot: \"\"\n  username: \"\"\n  \
             pidfile: \"\"\n  use-syslog: no\n  logfile: \"\"\n  verbosity: 0\n  num-threads: 1\n  \
             do-not-query-localhost: no\n  module-config: \"iterator\"\n\
             remote-control:\n  control-enable: no\n\
             forward-zone:\n  name: \".\"\n  forward-addr: 127.0.0.1@{}\n",
            address.port(),
            upstream::ADDRESS.port()
        ),
    );
    let path = config.display().to_string();
    start(files, &program, &["-d", "-c", &path], address)
}
