//! Filtered sandboxes of container engines on a stub internet. The engine runs where it runs; the
//! daemon's side, and so everything that a packet passes, is in the stub's namespaces.
#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

mod common;

use common::{Case, Cell, Rig};
use hotcell_egress::firewall::Firewall;
use hotcell_runtime::{NetworkMode, ObservedState, Runtime, RuntimeError, SandboxSpec};
use hotcell_testkit::{
    clients,
    filters::{Filter, Guard, Probe, base, policy, probe_command, table},
    internet::{Internet, SERVICE_PORTS},
};
use hotcell_types::limits;

#[test]
fn docker_runc() {
    on_stage(Case::DockerRunc);
}

#[test]
fn docker_runsc() {
    on_stage(Case::DockerRunsc);
}

#[test]
fn podman() {
    on_stage(Case::Podman);
}

#[test]
fn podman_runsc() {
    on_stage(Case::PodmanRunsc);
}

/// EG-39, the other half: where nothing can be enforced nothing is made.
#[tokio::test(flavor = "multi_thread")]
async fn podman_rootless_is_refused() {
    let rig = Rig::open(Case::PodmanRootless).await;
    let (mut spec, _, _) = rig.spec();
    spec.network = NetworkMode::Filtered;
    let refused = rig.runtime.create(&spec).await;
    let reason = "rootless";
    assert!(
        matches!(&refused, Err(RuntimeError::EgressUnenforceable(why)) if why.contains(reason)),
        "{refused:?}"
    );
    // The control: without a network it is made.
    rig.start().await;
    rig.end().await;
}

fn on_stage(case: Case) {
    let internet = Internet::new();
    internet.on_host(async || {
        let rig = Rig::open(case).await;
        Box::pin(names_are_the_filters(&internet, &rig)).await;
        Box::pin(nothing_inside_is_reached(&internet, &rig)).await;
        Box::pin(a_restart_keeps_the_filter(&internet, &rig)).await;
        Box::pin(one_made_ahead_waits_for_its_filter(&internet, &rig)).await;
        rig.end().await;
        let links = internet.run_on_host("ip", &["-br", "link"]);
        assert!(!links.contains("hcu-"), "{links}");
    });
}

fn filtered(rig: &Rig) -> (SandboxSpec, hotcell_types::LeaseId, hotcell_types::AgentKey) {
    let (mut spec, lease, key) = rig.spec();
    spec.network = NetworkMode::Filtered;
    // Programs are brought along.
    spec.scratch_bytes = limits::DEFAULT_SCRATCH_BYTES;
    (spec, lease, key)
}

async fn sandbox(
    internet: &Internet,
    rig: &Rig,
    default: &str,
    rules: &[&str],
) -> (Guard, Filter, Cell) {
    let (spec, lease, key) = filtered(rig);
    rig.runtime.create(&spec).await.unwrap();
    let site = rig.runtime.filter_site(&lease).await.unwrap();
    let guard = Guard::open(internet, &site).await;
    let filter = guard.admit(&lease, &site, policy(default, rules)).await;
    let cell = rig.start_again(spec, lease, key).await;
    (guard, filter, cell)
}

async fn probe(cell: &Cell, probes: &[Probe<'_>]) -> Vec<bool> {
    let said = cell.run(&probe_command(probes)).await;
    said.trim().chars().map(|c| c == '1').collect()
}

/// Finds these open and those closed, in one go.
async fn only(cell: &Cell, open: &[Probe<'_>], closed: &[Probe<'_>]) {
    assert!(!open.is_empty(), "a control is missing");
    let all: Vec<Probe<'_>> = open.iter().chain(closed).copied().collect();
    let got = probe(cell, &all).await;
    let wrong: Vec<_> = all
        .iter()
        .zip(&got)
        .enumerate()
        .filter(|(i, (_, got))| **got != (*i < open.len()))
        .collect();
    assert!(wrong.is_empty(), "probe, got: {wrong:?}");
}

/// EG-36 and EG-39: the resolver is the filter, for every way to ask it.
async fn names_are_the_filters(internet: &Internet, rig: &Rig) {
    let names = internet.names();
    names.address("pypi.example.org", &["203.0.113.5"]);
    names.address("no.example.org", &["203.0.113.99"]);
    let (guard, filter, cell) = sandbox(internet, rig, "deny", &["allow pypi.example.org"]).await;
    let text = cell.run("cat /etc/resolv.conf").await;
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.len() == 2
            && lines[0].starts_with("nameserver 100.")
            && lines[1] == "options ndots:1",
        "{text}"
    );
    let found = cell.run("getent ahostsv4 pypi.example.org | head -1").await;
    assert!(found.starts_with("203.0.113.5"), "{found}");
    let over_tcp = r"python3 - <<'E'
import socket, struct
server = open('/etc/resolv.conf').read().split()[1]
name = b''.join(bytes([len(p)]) + p for p in b'pypi.example.org'.split(b'.')) + b'\0'
query = struct.pack('>6H', 7, 0x100, 1, 0, 0, 0) + name + struct.pack('>2H', 1, 1)
s = socket.create_connection((server, 53), 5); s.sendall(struct.pack('>H', len(query)) + query)
answer = s.recv(999)
print(socket.inet_ntoa(answer[-4:]))
E";
    assert_eq!(cell.run(over_tcp).await.trim(), "203.0.113.5");
    // Programs with resolvers of their own, too; those of a denied name find nothing.
    clients::push(&*cell.sandbox, clients::BUNDLE, clients::bundle()).await;
    let found = cell.run(&clients::ask("pypi.example.org")).await;
    assert_eq!(found.trim(), clients::all_found("203.0.113.5"));
    let denied = cell.run(&clients::ask("no.example.org")).await;
    assert!(!denied.contains("203."), "{denied}");
    only(
        &cell,
        &[
            ("tcp", "pypi.example.org", 443),
            ("udp", "203.0.113.5", 9999),
        ],
        &[
            ("tcp", "no.example.org", 443),
            ("tcp", "203.0.113.99", 443),
            ("udp", "8.8.8.8", 53),
            ("tcp", "127.0.0.11", 53),
            ("tcp", "2001:db8::5", 443),
        ],
    )
    .await;
    assert_eq!(names.asked_for("no.example.org"), 0);
    drop((guard, filter));
    rig.runtime.remove(&cell.lease).await.unwrap();
}

/// EG-38, and nothing before a filter stands or after it was flushed.
async fn nothing_inside_is_reached(internet: &Internet, rig: &Rig) {
    let (spec, lease, key) = filtered(rig);
    rig.runtime.create(&spec).await.unwrap();
    let cell = rig.start_again(spec, lease, key).await;
    let before = internet.arrived();
    let open: [Probe<'_>; 2] = [("tcp", "203.0.113.7", 80), ("udp", "198.51.100.9", 9999)];
    assert_eq!(probe(&cell, &open).await, [false; 2]);
    assert_eq!(internet.arrived(), before);
    let site = rig.runtime.filter_site(&cell.lease).await.unwrap();
    let guard = Guard::open(internet, &site).await;
    let filter = guard.admit(&cell.lease, &site, policy("allow", &[])).await;
    let (other_guard, other_filter, other) = sandbox(internet, rig, "allow", &[]).await;
    let neighbour = rig.runtime.filter_site(&other.lease).await.unwrap().v4;
    let host: Vec<String> = internet
        .host_addresses()
        .iter()
        .filter(|address| address.is_ipv4())
        .map(ToString::to_string)
        .collect();
    let mut closed: Vec<Probe<'_>> = Vec::new();
    for address in &host {
        for port in SERVICE_PORTS {
            closed.extend([
                ("tcp", address.as_str(), port),
                ("udp", address.as_str(), port),
            ]);
        }
    }
    let neighbours = [neighbour.sandbox.to_string(), neighbour.gateway.to_string()];
    for address in &neighbours {
        closed.extend([
            ("tcp", address.as_str(), 8888),
            ("udp", address.as_str(), 53),
        ]);
    }
    for address in [
        "169.254.169.254",
        "10.1.2.3",
        "172.17.0.1",
        "192.168.1.1",
        "169.254.1.2",
        "10.0.2.2",
    ] {
        closed.extend([("tcp", address, 80), ("udp", address, 9999)]);
    }
    only(&cell, &open, &closed).await;
    assert_eq!(internet.host_hits(), 0);
    guard.firewall.remove(&table()).await.unwrap();
    assert_eq!(probe(&cell, &open).await, [false; 2]);
    let mut whole = base(&site);
    filter
        .rules
        .join(&mut whole, hotcell_egress::layout::Reach::Outside);
    guard.firewall.replace(&whole, &[]).await.unwrap();
    only(&cell, &open, &[("tcp", "169.254.169.254", 80)]).await;
    drop((other_guard, other_filter));
    for lease in [&cell.lease, &other.lease] {
        rig.runtime.remove(lease).await.unwrap();
    }
}

/// A sandbox that is stopped and started again, and a daemon that is replaced, find the same filter.
async fn a_restart_keeps_the_filter(internet: &Internet, rig: &Rig) {
    let rules = ["allow 203.0.113.5"];
    let (open, closed) = ([("tcp", "203.0.113.5", 443)], [("tcp", "203.0.113.6", 443)]);
    let (_guard, _filter, cell) = sandbox(internet, rig, "deny", &rules).await;
    only(&cell, &open, &closed).await;
    let before = rig.runtime.filter_site(&cell.lease).await.unwrap();
    rig.runtime.stop(&cell.lease).await.unwrap();
    assert_eq!(rig.state(&cell.lease).await, Some(ObservedState::Stopped));
    let cell = rig.start_again(cell.spec, cell.lease, cell.key).await;
    only(&cell, &open, &closed).await;
    let other = hotcell_runtime_docker::DockerRuntime::open(rig.config.clone())
        .await
        .unwrap();
    let site = other.filter_site(&cell.lease).await.unwrap();
    assert_eq!((site.v4, &site.way_out), (before.v4, &before.way_out));
    let sandbox = other.sandbox(&cell.lease, &cell.key).unwrap();
    sandbox.ready(5_000).await.unwrap();
    only(&cell, &open, &closed).await;
    rig.runtime.remove(&cell.lease).await.unwrap();
}

/// What is nobody's has a way out from its birth: nothing passes there before a filter stands.
async fn one_made_ahead_waits_for_its_filter(internet: &Internet, rig: &Rig) {
    let (spec, lease, key) = filtered(rig);
    rig.runtime.warm(&spec.ahead()).await.unwrap();
    let cell = rig.enter(spec, lease, key).await;
    let open: [Probe<'_>; 2] = [("tcp", "203.0.113.77", 80), ("udp", "203.0.113.77", 9999)];
    let before = internet.arrived();
    assert_eq!(probe(&cell, &open).await, [false; 2], "it is nobody's");
    rig.runtime.claim(&cell.spec).await.unwrap();
    assert_eq!(probe(&cell, &open).await, [false; 2], "it is claimed");
    assert_eq!(internet.arrived(), before);
    let site = rig.runtime.filter_site(&cell.lease).await.unwrap();
    let guard = Guard::open(internet, &site).await;
    let rules = policy("deny", &["allow 203.0.113.77"]);
    let _filter = guard.admit(&cell.lease, &site, rules).await;
    let closed = [("tcp", "203.0.113.6", 80), ("tcp", "169.254.169.254", 80)];
    only(&cell, &open, &closed).await;
    // It keeps it over a stop, as any other.
    rig.runtime.stop(&cell.lease).await.unwrap();
    let cell = rig.start_again(cell.spec, cell.lease, cell.key).await;
    only(&cell, &open, &closed).await;
    rig.runtime.remove(&cell.lease).await.unwrap();
}
