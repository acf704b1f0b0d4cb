//! A packet filter that is data.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::lock;
use crate::{
    firewall::{Firewall, FirewallError, OpenAddress},
    layout::{FORWARD_MAP, INPUT_MAP, LeaseRules, REPLY_MAP, Reach},
    report::{ChainReport, Difference, SetReport, TableReport},
    ruleset::{Element, ObjectName, Ruleset, SetKind, Verdict},
};

/// A call at the seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FirewallCall {
    /// [`Firewall::replace`].
    Replace,
    /// [`Firewall::remove`].
    Remove,
    /// [`Firewall::add_lease`].
    AddLease,
    /// [`Firewall::remove_lease`].
    RemoveLease,
    /// [`Firewall::connect`].
    Connect,
    /// [`Firewall::open`].
    Open,
    /// [`Firewall::close`].
    Close,
}

/// Runs before every change. It may fail it, or never return: that is a crash at this point.
pub type FirewallHook =
    Arc<dyn Fn(FirewallCall) -> BoxFuture<'static, Result<(), FirewallError>> + Send + Sync>;

#[derive(Clone)]
struct Table {
    ruleset: Ruleset,
    timed: BTreeMap<(String, IpAddr), Instant>,
}

#[derive(Default)]
struct State {
    tables: BTreeMap<String, Table>,
    calls: Vec<FirewallCall>,
    comparisons: usize,
    hook: Option<FirewallHook>,
}

/// The packet filter. Clones share it.
#[derive(Clone, Default)]
pub struct FakeFirewall(Arc<Mutex<State>>);

impl FakeFirewall {
    /// Runs before every change from now on; `None` removes it.
    pub fn set_hook(&self, hook: Option<FirewallHook>) {
        lock(&self.0).hook = hook;
    }

    /// Every change that was asked for and got past the hook, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<FirewallCall> {
        lock(&self.0).calls.clone()
    }

    /// How often a ruleset was compared with what is there.
    #[must_use]
    pub fn comparisons(&self) -> usize {
        lock(&self.0).comparisons
    }

    /// Somebody flushes everything.
    pub fn flush(&self) {
        lock(&self.0).tables.clear();
    }

    /// Somebody removes the tables whose names begin with this.
    pub fn flush_tables(&self, prefix: &str) {
        lock(&self.0)
            .tables
            .retain(|name, _| !name.starts_with(prefix));
    }

    /// The names of all tables, sorted.
    #[must_use]
    pub fn table_names(&self) -> Vec<String> {
        lock(&self.0).tables.keys().cloned().collect()
    }

    /// Somebody changes a table.
    ///
    /// # Panics
    /// When there is none.
    pub fn tamper(&self, change: impl FnOnce(&mut Ruleset)) {
        let mut state = lock(&self.0);
        let table = state.tables.values_mut().next();
        let table = table.unwrap_or_else(|| panic!("there is no table"));
        change(&mut table.ruleset);
    }

    /// The short ids of the leases that have chains, sorted.
    #[must_use]
    pub fn leases(&self) -> Vec<String> {
        let state = lock(&self.0);
        let mut found: Vec<String> = state
            .tables
            .values()
            .flat_map(|table| &table.ruleset.chains)
            .filter_map(|chain| {
                let name = chain.name.as_str().strip_prefix("l_")?;
                Some(name.strip_suffix("_forward")?.to_owned())
            })
            .collect();
        found.sort();
        found
    }

    /// Whether packets that come in by this interface reach a lease's chain.
    #[must_use]
    pub fn is_connected(&self, interface: &str) -> bool {
        self.jumps(FORWARD_MAP, interface)
    }

    /// Whether packets that come in by this interface reach the gateway by a lease's chain.
    #[must_use]
    pub fn reaches_gateway(&self, interface: &str) -> bool {
        self.jumps(INPUT_MAP, interface)
    }

    fn jumps(&self, map: &str, interface: &str) -> bool {
        let state = lock(&self.0);
        let of_interface = |element: &Element| matches!(element, Element::Interface(name, Verdict::Jump(_)) if name.as_str() == interface);
        state.tables.values().any(|table| {
            let sets = table.ruleset.sets.iter();
            sets.filter(|set| set.name.as_str() == map)
                .any(|set| set.elements.iter().any(of_interface))
        })
    }

    /// The addresses that are open in this timed set, sorted.
    #[must_use]
    pub fn open_in(&self, set: &ObjectName) -> Vec<IpAddr> {
        let now = Instant::now();
        let state = lock(&self.0);
        state
            .tables
            .values()
            .flat_map(|table| &table.timed)
            .filter(|((of, _), until)| of == set.as_str() && **until > now)
            .map(|((_, address), _)| *address)
            .collect()
    }

    async fn change<T>(
        &self,
        call: FirewallCall,
        change: impl FnOnce(&mut State) -> Result<T, FirewallError>,
    ) -> Result<T, FirewallError> {
        let hook = lock(&self.0).hook.clone();
        if let Some(hook) = hook {
            hook(call).await?;
        }
        let mut state = lock(&self.0);
        state.calls.push(call);
        change(&mut state)
    }
}

fn refused(doing: &'static str, kind: io::ErrorKind) -> FirewallError {
    FirewallError::Refused {
        doing,
        source: kind.into(),
    }
}

impl State {
    fn table(&mut self, table: &ObjectName) -> Result<&mut Table, FirewallError> {
        self.tables
            .get_mut(table.as_str())
            .ok_or_else(|| refused("find the table", io::ErrorKind::NotFound))
    }
}

impl Table {
    fn open(&mut self, addresses: &[OpenAddress]) -> Result<(), FirewallError> {
        let now = Instant::now();
        let known = |set: &ObjectName| {
            let mut sets = self.ruleset.sets.iter();
            sets.any(|it| it.name == *set && it.kind == SetKind::Timed)
        };
        if !addresses.iter().all(|open| known(&open.set)) {
            return Err(refused("open addresses", io::ErrorKind::NotFound));
        }
        for open in addresses {
            let until = now + Duration::from_millis(open.for_ms);
            let key = (open.set.as_str().to_owned(), open.address);
            self.timed.insert(key, until);
        }
        Ok(())
    }

    fn forget(&mut self, lease: &LeaseRules) {
        let is_ours = |name: &ObjectName| {
            let sets = lease.sets.iter().map(|set| &set.name);
            sets.chain(lease.chains.iter().map(|chain| &chain.name))
                .any(|it| it == name)
        };
        self.ruleset.sets.retain(|set| !is_ours(&set.name));
        self.ruleset.chains.retain(|chain| !is_ours(&chain.name));
        self.timed
            .retain(|(set, _), _| !lease.sets.iter().any(|it| it.name.as_str() == set));
        self.disconnect(lease);
    }

    fn disconnect(&mut self, lease: &LeaseRules) {
        for map in [FORWARD_MAP, REPLY_MAP, INPUT_MAP] {
            if let Some(set) = self.ruleset.set_mut(&ObjectName::fixed(map)) {
                set.elements.retain(
                    |it| !matches!(it, Element::Interface(name, _) if *name == lease.interface),
                );
            }
        }
    }

    fn report(&self) -> TableReport {
        let now = Instant::now();
        let mut report = meant(&self.ruleset);
        for ((set, address), until) in &self.timed {
            let left = until.saturating_duration_since(now);
            if let Some(set) = report.sets.get_mut(set)
                && !left.is_zero()
            {
                let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                set.remaining_ms.insert(*address, left_ms);
            }
        }
        report
    }
}

fn meant(ruleset: &Ruleset) -> TableReport {
    let mut report = TableReport::default();
    for chain in &ruleset.chains {
        let rules = chain.rules.iter().map(|rule| format!("{rule:?}")).collect();
        let of_chain = ChainReport {
            base: chain.base,
            rules,
        };
        report
            .chains
            .insert(chain.name.as_str().to_owned(), of_chain);
    }
    for set in &ruleset.sets {
        let elements = match set.kind {
            SetKind::Timed => Vec::new(),
            _ => set.elements.clone(),
        };
        let of_set = SetReport {
            key: Some(set.key),
            kind: Some(set.kind),
            elements: elements.into_iter().collect(),
            remaining_ms: BTreeMap::new(),
        };
        report.sets.insert(set.name.as_str().to_owned(), of_set);
    }
    report
}

#[async_trait]
impl Firewall for FakeFirewall {
    async fn replace(&self, ruleset: &Ruleset, open: &[OpenAddress]) -> Result<(), FirewallError> {
        self.change(FirewallCall::Replace, |state| {
            let mut table = Table {
                ruleset: ruleset.clone(),
                timed: BTreeMap::new(),
            };
            table.open(open)?;
            let name = ruleset.table.as_str().to_owned();
            state.tables.insert(name, table);
            Ok(())
        })
        .await
    }

    async fn remove(&self, table: &ObjectName) -> Result<(), FirewallError> {
        self.change(FirewallCall::Remove, |state| {
            state.tables.remove(table.as_str());
            Ok(())
        })
        .await
    }

    async fn add_lease(&self, table: &ObjectName, lease: &LeaseRules) -> Result<(), FirewallError> {
        self.change(FirewallCall::AddLease, |state| {
            let table = state.table(table)?;
            let chains = lease.chains.iter();
            let names: Vec<_> = chains.map(|chain| chain.name.clone()).collect();
            if table
                .ruleset
                .chains
                .iter()
                .any(|it| names.contains(&it.name))
            {
                return Err(refused("add a lease", io::ErrorKind::AlreadyExists));
            }
            lease.join(&mut table.ruleset, Reach::Outside);
            Ok(())
        })
        .await
    }

    async fn remove_lease(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
    ) -> Result<(), FirewallError> {
        self.change(FirewallCall::RemoveLease, |state| {
            if let Ok(table) = state.table(table) {
                table.forget(lease);
            }
            Ok(())
        })
        .await
    }

    async fn connect(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        self.change(FirewallCall::Connect, |state| {
            let table = state.table(table)?;
            table.disconnect(lease);
            for (map, element) in lease.map_elements(reach) {
                let set = table.ruleset.set_mut(&map);
                let set = set.ok_or_else(|| refused("connect a lease", io::ErrorKind::NotFound))?;
                set.elements.push(element);
            }
            Ok(())
        })
        .await
    }

    async fn open(
        &self,
        table: &ObjectName,
        addresses: &[OpenAddress],
    ) -> Result<(), FirewallError> {
        self.change(FirewallCall::Open, |state| {
            state.table(table)?.open(addresses)
        })
        .await
    }

    async fn close(
        &self,
        table: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError> {
        self.change(FirewallCall::Close, |state| {
            let table = state.table(table)?;
            for (set, address) in addresses {
                table.timed.remove(&(set.as_str().to_owned(), *address));
            }
            Ok(())
        })
        .await
    }

    async fn tables(&self, prefix: &str) -> Result<Vec<ObjectName>, FirewallError> {
        let state = lock(&self.0);
        let names = state.tables.values().map(|table| &table.ruleset.table);
        Ok(names
            .filter(|name| name.as_str().starts_with(prefix))
            .cloned()
            .collect())
    }

    async fn report(&self, table: &ObjectName) -> Result<Option<TableReport>, FirewallError> {
        let state = lock(&self.0);
        Ok(state.tables.get(table.as_str()).map(Table::report))
    }

    async fn differences(&self, ruleset: &Ruleset) -> Result<Vec<Difference>, FirewallError> {
        let mut state = lock(&self.0);
        state.comparisons += 1;
        let there = state.tables.get(ruleset.table.as_str());
        Ok(meant(ruleset).differences(there.map(Table::report).as_ref()))
    }
}
