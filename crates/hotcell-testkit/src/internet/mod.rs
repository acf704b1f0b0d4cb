//! The internet, as small as a test needs it: network namespaces with name servers and hosts that
//! say who they are, and a host for the appliance to run on. Nothing of it reaches the machine's own
//! network. Needs root, `ip` and `nft`.
//!
//! ```text
//!  the test's namespace      "host": where the appliance runs        "world": everybody else
//!  hck<pid>-<n> ═══════════ control 198.19.x.2/30
//!                            uplink0 198.18.0.2/24 ════════════════ host0 198.18.0.1/24, the router
//!                                    2001:db8:18::2/64                     2001:db8:18::1/64
//!                            services on every address:             answers on every other address,
//!                            SERVICE_PORTS                          public or not: WEB_PORTS, and DNS
//! ```
//! - **Web hosts** are all addresses of 192.0.2.0/24, 198.51.100.0/24 and 203.0.113.0/24, which count
//!   as public: over TCP an HTTP request is answered with a line that names address and port, and
//!   whatever else comes is sent back; over UDP everything is sent back. The world answers on
//!   private addresses and as 169.254.169.254, too, so that a test can tell "closed" from "not there".
//! - **Names** are scripted in [`Names`]. The recursive resolver is [`RESOLVER`], but like everything
//!   in the world it answers on any address, so that a test sees questions that went around a filter.
//! - **The host** is a namespace with a default route and forwarding, as an operator sets it up.
//!   [`Internet::on_host`] runs a test's own code there, [`Internet::command`] a program. The test
//!   reaches what listens there at [`Internet::control`].
//! - **What arrived** in the world, by address and protocol, is in [`Internet::arrived`]; what came to
//!   the host's services is counted in [`Internet::host_hits`].
//!
//! Names carry the number of the test's process. Everything goes with the value; what a killed test
//! left is removed by the next.

mod hosts;
mod names;
mod namespace;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread,
};

/// Records for scripted answers.
pub use hickory_proto::rr as records;
pub use names::{Answer, Names};
use namespace::{Namespace, Resident, run, sweep};

/// The recursive resolver.
pub const RESOLVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 53)), 53);
/// The host's address towards the world.
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Where the world's hosts answer, over TCP and UDP.
pub const WEB_PORTS: [u16; 9] = [80, 123, 137, 443, 853, 5353, 5355, 8080, 9999];
/// Where the host's services answer, over TCP and UDP.
pub const SERVICE_PORTS: [u16; 4] = [22, 53, 8080, 2222];
const DNS_PORT: u16 = 53;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A stub internet. See the module.
pub struct Internet {
    names: Names,
    control: Ipv4Addr,
    host_hits: Arc<AtomicUsize>,
    // Servers go before the namespaces that they are in.
    _residents: Vec<Resident>,
    host: Namespace,
    world: Namespace,
}

impl Default for Internet {
    fn default() -> Self {
        Self::new()
    }
}

impl Internet {
    /// Lays it.
    ///
    /// # Panics
    /// When it cannot be laid: without root, without `ip` or `nft`.
    #[must_use]
    pub fn new() -> Self {
        sweep();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let host = Namespace::new(number, "host");
        let world = Namespace::new(number, "world");
        for space in [&host, &world] {
            space.set("net/ipv6/conf/default/accept_dad", "0");
            space.set("net/ipv6/conf/all/accept_dad", "0");
        }
        host.set("net/ipv4/ip_forward", "1");
        let control = control_link(&host, number);
        link_host_and_world(&host, &world);
        count_arrivals(&world);
        let (names, host_hits) = (Names::default(), Arc::new(AtomicUsize::new(0)));
        let (asked, hits) = (names.clone(), host_hits.clone());
        let in_world = world.resident(move || {
            let mut servers = hosts::dns(DNS_PORT, &asked);
            servers.extend(
                WEB_PORTS
                    .iter()
                    .flat_map(|port| hosts::web(*port, &Arc::default())),
            );
            servers
        });
        let on_host = host.resident(move || {
            SERVICE_PORTS
                .iter()
                .flat_map(|port| hosts::web(*port, &hits))
                .collect()
        });
        Self {
            names,
            control,
            host_hits,
            _residents: vec![in_world, on_host],
            host,
            world,
        }
    }

    /// What names stand for.
    #[must_use]
    pub const fn names(&self) -> &Names {
        &self.names
    }

    /// Where the test, outside, reaches what listens on the host.
    #[must_use]
    pub const fn control(&self) -> Ipv4Addr {
        self.control
    }

    /// Connections and datagrams that came to the host's services.
    #[must_use]
    pub fn host_hits(&self) -> usize {
        self.host_hits.load(Ordering::SeqCst)
    }

    /// Every address of the host but its loopback ones.
    #[must_use]
    pub fn host_addresses(&self) -> Vec<IpAddr> {
        let text = self
            .host
            .run("ip", &["-o", "addr", "show", "scope", "global"]);
        let of_line = |line: &str| {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| !word.starts_with("inet"));
            words.nth(1)?.split('/').next()?.parse().ok()
        };
        text.lines().filter_map(of_line).collect()
    }

    /// Addresses outside the host that packets came to from it, with their protocols, since the start.
    #[must_use]
    pub fn arrived(&self) -> BTreeSet<(Ipv4Addr, String)> {
        let text = self
            .world
            .run("nft", &["list", "set", "inet", "kit", "arrived"]);
        let mut found = BTreeSet::new();
        for part in text.split(['{', '}', ',', '=']) {
            let mut words = part.split_whitespace();
            if let (Some(address), Some("."), Some(protocol)) =
                (words.next(), words.next(), words.next())
                && let Ok(address) = address.parse()
            {
                found.insert((address, protocol.to_owned()));
            }
        }
        found
    }

    /// Runs the test's own code on the host, in a reactor of its own: whatever it opens, and every
    /// thread and process that it starts, is there.
    ///
    /// # Panics
    /// When it does.
    pub fn on_host<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> T {
        let namespace = self.host.file();
        let inside = move || {
            namespace::enter(&namespace);
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap_or_else(|error| panic!("no reactor: {error}"))
                .block_on(work())
        };
        let outcome = thread::scope(|scope| {
            thread::Builder::new()
                .name("on-host".into())
                .spawn_scoped(scope, inside)
                .unwrap_or_else(|error| panic!("no thread: {error}"))
                .join()
        });
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// A program on the host. Only its network is the host's: mounts and processes are the test's.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let launcher = self.launcher();
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).arg(program);
        command
    }

    /// What runs a program there that follows it. It becomes that program, so its process is it.
    #[must_use]
    pub fn launcher(&self) -> Vec<String> {
        let network = format!("--net={}", self.host.path());
        ["nsenter", &network, "--"].map(str::to_owned).to_vec()
    }

    /// Runs a program on the host that must succeed, and returns what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub fn run_on_host(&self, program: &str, arguments: &[&str]) -> String {
        self.host.run(program, arguments)
    }

    /// Runs a program in the world that must succeed, and returns what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub fn run_in_world(&self, program: &str, arguments: &[&str]) -> String {
        self.world.run(program, arguments)
    }
}

/// The test's way to the host: its end there, and the host's address on it.
fn control_link(host: &Namespace, number: u32) -> Ipv4Addr {
    let pid = std::process::id();
    let place = pid.wrapping_mul(8).wrapping_add(number) % (1 << 14);
    let first = u32::from(Ipv4Addr::new(198, 19, 0, 0)) + place * 4;
    let (ours, theirs) = (Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2));
    let name = format!("hck{pid}-{number}");
    run(
        "ip",
        &[
            "link",
            "add",
            &name,
            "type",
            "veth",
            "peer",
            "name",
            "control",
            "netns",
            host.name(),
        ],
    );
    run("ip", &["addr", "add", &format!("{ours}/30"), "dev", &name]);
    run("ip", &["link", "set", &name, "up"]);
    host.run(
        "ip",
        &["addr", "add", &format!("{theirs}/30"), "dev", "control"],
    );
    host.run("ip", &["link", "set", "control", "up"]);
    theirs
}

fn link_host_and_world(host: &Namespace, world: &Namespace) {
    host.run(
        "ip",
        &[
            "link",
            "add",
            "uplink0",
            "type",
            "veth",
            "peer",
            "name",
            "host0",
            "netns",
            world.name(),
        ],
    );
    for (space, link, addresses) in [
        (
            host,
            "uplink0",
            [&*format!("{HOST}/24"), "2001:db8:18::2/64"],
        ),
        (world, "host0", ["198.18.0.1/24", "2001:db8:18::1/64"]),
    ] {
        for address in addresses {
            space.run("ip", &["addr", "add", address, "dev", link]);
        }
        space.run("ip", &["link", "set", link, "up"]);
    }
    host.run("ip", &["route", "add", "default", "via", "198.18.0.1"]);
    host.run(
        "ip",
        &["-6", "route", "add", "default", "via", "2001:db8:18::1"],
    );
    // Every address that is nobody else's is the world's own. In the main table, so that the host's
    // network comes before it.
    for family in ["-4", "-6"] {
        world.run(
            "ip",
            &[
                family, "route", "add", "local", "default", "dev", "lo", "table", "main",
            ],
        );
    }
}

/// What comes in is written down before anything else happens to it.
fn count_arrivals(world: &Namespace) {
    world.run(
        "nft",
        &["add table inet kit
           add set inet kit arrived { type ipv4_addr . inet_proto ; flags dynamic ; size 65535 ; }
           add chain inet kit in { type filter hook prerouting priority -400 ; }
           add rule inet kit in iifname \"host0\" meta nfproto ipv4 update @arrived { ip daddr . meta l4proto }"],
    );
}
