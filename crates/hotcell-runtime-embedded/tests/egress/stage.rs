//! A runtime on the host of a stub internet, and filters for its sandboxes, put together in the order
//! that keeps every packet filtered: create, filter, start.

use std::net::Ipv4Addr;

use hotcell_policy::Policy;
use hotcell_runtime::{FilterSite, NetworkMode, Runtime};
pub(crate) use hotcell_testkit::filters::{Filter, Guard, LOG, Probe, base, policy, table};
use hotcell_testkit::{filters::probe_command, internet::Internet};
use hotcell_types::{AgentKey, LeaseId};

use crate::common::{Cell, Engine, Rig};

pub(crate) struct Stage<'a> {
    pub(crate) internet: &'a Internet,
    pub(crate) rig: Rig,
}

impl Stage<'_> {
    pub(crate) fn run(engine: Engine, test: impl AsyncFnOnce(&Stage<'_>) + Send) {
        let internet = Internet::new();
        internet.on_host(async || {
            let stage = Stage {
                internet: &internet,
                rig: Rig::open(engine).await,
            };
            Box::pin(test(&stage)).await;
            stage.rig.end().await;
            let links = internet.run_on_host("ip", &["-br", "link"]);
            assert!(!links.contains("hcu-"), "{links}");
        });
    }

    /// Makes a sandbox with a filtered network; nothing of it runs yet.
    pub(crate) async fn create(&self) -> (LeaseId, AgentKey, FilterSite) {
        let (mut spec, lease, key) = self.rig.spec();
        spec.network = NetworkMode::Filtered;
        self.rig.runtime.create(&spec).await.unwrap();
        let site = self.rig.runtime.filter_site(&lease).await.unwrap();
        (lease, key, site)
    }

    pub(crate) async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Cell {
        self.rig.runtime.start(lease, key).await.unwrap();
        self.rig.cell(lease, key).await
    }

    /// A running sandbox behind a filter.
    pub(crate) async fn sandbox(
        &self,
        guard: &Guard,
        policy: Policy,
    ) -> (Cell, Filter, FilterSite) {
        let (lease, key, site) = self.create().await;
        let filter = guard.admit(&lease, &site, policy).await;
        (self.start(&lease, &key).await, filter, site)
    }

    /// A guard, and one running sandbox behind a filter of this policy.
    pub(crate) async fn one(&self, default: &str, rules: &[&str]) -> (Guard, Cell, Filter) {
        let (lease, key, site) = self.create().await;
        let guard = Guard::open(self.internet, &site).await;
        let filter = guard.admit(&lease, &site, policy(default, rules)).await;
        (guard, self.start(&lease, &key).await, filter)
    }
}

impl Cell {
    /// Runs a Python program that must succeed, and returns what it printed.
    pub(crate) async fn python(&self, program: &str, arguments: &[String]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|text| format!("'{text}'")).collect();
        let arguments = arguments.join(" ");
        self.get(&format!("python3 - {arguments} <<'E'\n{program}\nE"))
            .await
    }

    /// Asks all at once and says which got their echo in time.
    pub(crate) async fn probe(&self, probes: &[Probe<'_>]) -> Vec<bool> {
        let said = self.get(&probe_command(probes)).await;
        said.chars().map(|c| c == '1').collect()
    }

    /// Finds these open and those closed, in one go.
    #[track_caller]
    pub(crate) fn only<'a>(
        &'a self,
        open: &'a [Probe<'a>],
        closed: &'a [Probe<'a>],
    ) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            assert!(!open.is_empty(), "{place}: a control is missing");
            let all: Vec<Probe<'_>> = open.iter().chain(closed).copied().collect();
            let got = self.probe(&all).await;
            let wrong: Vec<_> = all
                .iter()
                .zip(&got)
                .enumerate()
                .filter(|(i, (_, got))| **got != (*i < open.len()))
                .collect();
            assert!(wrong.is_empty(), "{place}: probe, got: {wrong:?}");
        }
    }

    /// The addresses that a name has for the sandbox; nothing when it has none.
    pub(crate) async fn resolve(&self, name: &str) -> Vec<Ipv4Addr> {
        let said = self.sh(&format!("getent ahostsv4 {name}")).await;
        let of_line = |line: &str| line.split_whitespace().next()?.parse().ok();
        let mut found: Vec<Ipv4Addr> = said.stdout.lines().filter_map(of_line).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}
