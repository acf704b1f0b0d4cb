//! Network namespaces for tests, with `ip`, `nft` and small Python programs as witnesses that
//! share no code with what is tested. Needs root.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests may panic, and not each test uses all of them"
)]

pub mod net;

use std::{
    fs::File,
    io::{BufRead, BufReader, Lines, Write},
    net::IpAddr,
    os::fd::OwnedFd,
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use hotcell_egress::{
    firewall::OpenAddress,
    layout::{self, LeaseFilter, LeaseRules, Link, Scope},
    ruleset::{LogGroup, ObjectName, Ruleset},
};
use hotcell_policy::{AddressPlan, FilterMode, Policy, Surroundings};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A namespace that is gone when this is dropped.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(what: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hctest-{}-{number}-{what}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let space = Self(name);
        space.run("ip", &["link", "set", "lo", "up"]);
        space
    }

    pub fn fd(&self) -> OwnedFd {
        File::open(format!("/run/netns/{}", self.0)).unwrap().into()
    }

    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args([
            "netns", "exec", &self.0, "timeout", "-k", "5", "30", program,
        ]);
        command.args(arguments);
        command
    }

    pub fn output(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program, arguments).output().unwrap()
    }

    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        checked(self.output(program, arguments), program, arguments)
    }

    pub fn nft(&self, command: &str) -> String {
        self.run("nft", &[command])
    }

    pub fn python(&self, program: &str) -> Output {
        self.output("python3", &["-c", program])
    }

    /// Starts a program that says `ready` on a line when it is, and ends with its standard input.
    pub fn start(&self, program: &str) -> Running {
        self.start_with(program, &[])
    }

    /// The same with arguments.
    pub fn start_with(&self, program: &str, arguments: &[String]) -> Running {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.0, "python3", "-u", "-c", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Running { child, lines }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// A program that is ended when this is dropped.
pub struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Its next line.
    pub fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// A line for it.
    pub fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
    }

    /// Everything that it says until it ends by itself.
    pub fn rest(&mut self) -> Vec<String> {
        self.lines.by_ref().map(Result::unwrap).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `ip netns exec` becomes the program, so this is the program itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn checked(output: Output, program: &str, arguments: &[&str]) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    checked(
        Command::new(program).args(arguments).output().unwrap(),
        program,
        arguments,
    )
}

pub fn name(text: &str) -> ObjectName {
    text.parse().unwrap()
}

pub fn table() -> ObjectName {
    name("hotcell")
}

pub fn policy(default: &str, rules: &[&str]) -> Policy {
    let rules: Vec<String> = rules
        .iter()
        .map(|rule| {
            let (action, target) = rule.split_once(' ').unwrap();
            format!(r#"{{"action":"{action}","target":"{target}"}}"#)
        })
        .collect();
    let text = format!(
        r#"{{"defaultAction":"{default}","egress":[{}]}}"#,
        rules.join(",")
    );
    Policy::parse(&text).unwrap()
}

pub fn plan(policy: &Policy, around: &Surroundings) -> AddressPlan {
    AddressPlan::new(policy, FilterMode::DnsNft, around)
}

pub fn base() -> Ruleset {
    let uplink = "up0".parse().unwrap();
    layout::base(table(), &Scope::Gateway { uplink })
}

/// The lease number `n`: 10.77.n.2 behind `sb<n>`, its gateway 10.77.n.1.
pub fn lease(n: u8, plan: &AddressPlan, v6: bool, blocked: &[IpAddr]) -> LeaseRules {
    logging_lease(n, plan, v6, blocked, None)
}

/// The same, with denials told.
pub fn logging_lease(
    n: u8,
    plan: &AddressPlan,
    v6: bool,
    blocked: &[IpAddr],
    log: Option<LogGroup>,
) -> LeaseRules {
    LeaseFilter {
        short: &format!("lease{n}"),
        interface: format!("sb{n}").parse().unwrap(),
        v4: Link {
            sandbox: [10, 77, n, 2].into(),
            gateway: [10, 77, n, 1].into(),
        },
        v6: v6.then(|| Link {
            sandbox: format!("fd77::{n}:2").parse().unwrap(),
            gateway: format!("fd77::{n}:1").parse().unwrap(),
        }),
        plan,
        blocked,
        log,
    }
    .rules()
}

/// An opening of one address for so long.
pub fn open(set: &str, address: &str, for_ms: u64) -> OpenAddress {
    OpenAddress {
        set: name(set),
        address: address.parse().unwrap(),
        for_ms,
    }
}
