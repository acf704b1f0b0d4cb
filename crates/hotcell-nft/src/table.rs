//! What is done with tables: whole changes, each one transaction, and [listings](reading). Blocking.

use std::{collections::BTreeMap, net::IpAddr};

use hotcell_egress::{
    firewall::{FirewallError, OpenAddress},
    layout::{LeaseRules, Reach},
    report::{Difference, TableReport},
    ruleset::{Element, InterfaceName, ObjectName, Ruleset},
};

use crate::{batch::Batch, decode, netlink::Netlink};

mod reading;

/// The packet filter of one network namespace.
pub(crate) struct Tables {
    netlink: Netlink,
}

impl Tables {
    pub(crate) fn open() -> std::io::Result<Self> {
        Ok(Self {
            netlink: Netlink::open()?,
        })
    }

    pub(crate) fn port(&self) -> u32 {
        self.netlink.port()
    }

    fn commit(&mut self, doing: &'static str, batch: Batch) -> Result<(), FirewallError> {
        let transaction = batch.finish()?;
        self.netlink.commit(doing, &transaction)
    }

    pub(crate) fn replace(
        &mut self,
        ruleset: &Ruleset,
        open: &[OpenAddress],
    ) -> Result<(), FirewallError> {
        let table = &ruleset.table;
        let mut batch = self.netlink.batch();
        // Adding first makes deleting a table that is not there no error.
        batch.add_table(table);
        batch.delete_table(table);
        batch.add_table(table);
        for (id, set) in (1..).zip(&ruleset.sets) {
            batch.add_set(table, set, id);
        }
        for chain in &ruleset.chains {
            batch.add_chain(table, chain);
        }
        for set in &ruleset.sets {
            batch.add_elements(table, set);
        }
        for chain in &ruleset.chains {
            batch.add_rules(table, chain);
        }
        renew(&mut batch, table, open);
        self.commit("install the table", batch)?;
        self.confirm(ruleset)
    }

    fn confirm(&mut self, ruleset: &Ruleset) -> Result<(), FirewallError> {
        match self.differences(ruleset)?.first() {
            None => Ok(()),
            Some(difference) => Err(FirewallError::NotThere(difference.to_string())),
        }
    }

    pub(crate) fn remove(&mut self, table: &ObjectName) -> Result<(), FirewallError> {
        let mut batch = self.netlink.batch();
        batch.add_table(table);
        batch.delete_table(table);
        self.commit("remove the table", batch)
    }

    pub(crate) fn add_lease(
        &mut self,
        table: &ObjectName,
        lease: &LeaseRules,
    ) -> Result<(), FirewallError> {
        let mut batch = self.netlink.batch();
        for (id, set) in (1..).zip(&lease.sets) {
            batch.add_set(table, set, id);
        }
        for chain in &lease.chains {
            batch.add_chain(table, chain);
        }
        for set in &lease.sets {
            batch.add_elements(table, set);
        }
        for chain in &lease.chains {
            batch.add_rules(table, chain);
        }
        for (map, element) in lease.map_elements(Reach::Outside) {
            batch.add_verdict(table, &map, &element);
        }
        self.commit("add a lease", batch)?;
        self.confirm_lease(table, lease, Reach::Outside)
    }

    /// Compares only what is the lease's.
    fn confirm_lease(
        &mut self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        let mut meant = Ruleset {
            table: table.clone(),
            sets: Vec::new(),
            chains: Vec::new(),
        };
        lease.join(&mut meant, reach);
        let meant = decode::expected(&meant);
        let mut there = TableReport::default();
        let listed = self.sets(table)?;
        for set in &lease.sets {
            let name = set.name.to_string();
            if let Some(mut report) = listed.get(&name).cloned() {
                self.elements(table, &set.name)?.fill(&mut report);
                there.sets.insert(name, report);
            }
        }
        let mut chains = self.chains(table)?;
        for chain in &lease.chains {
            let name = chain.name.to_string();
            if let Some(mut report) = chains.remove(&name) {
                report.rules = self
                    .rules(table, Some(&chain.name))?
                    .remove(&name)
                    .unwrap_or_default();
                there.chains.insert(name, report);
            }
        }
        if let Some(difference) = meant.differences(Some(&there)).first() {
            return Err(FirewallError::NotThere(difference.to_string()));
        }
        self.confirm_maps(table, lease, reach)
    }

    fn confirm_maps(
        &mut self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        for (map, element) in lease.map_elements(reach) {
            let found = self.verdicts(table, &map)?;
            if !found.contains(&element) {
                let difference = Difference::ElementMissing(map.to_string(), element);
                return Err(FirewallError::NotThere(difference.to_string()));
            }
        }
        Ok(())
    }

    pub(crate) fn remove_lease(
        &mut self,
        table: &ObjectName,
        lease: &LeaseRules,
    ) -> Result<(), FirewallError> {
        let chains = self.chains(table)?;
        let sets = self.sets(table)?;
        let mut batch = self.netlink.batch();
        let mut empty = true;
        for (map, _) in lease.map_elements(Reach::Outside) {
            if self.has_interface(table, &map, &lease.interface)? {
                batch.delete_verdict(table, &map, &lease.interface);
                empty = false;
            }
        }
        let there = lease
            .chains
            .iter()
            .filter(|chain| chains.contains_key(chain.name.as_str()));
        for chain in there.clone() {
            batch.delete_rules(table, &chain.name);
        }
        for chain in there {
            batch.delete_chain(table, &chain.name);
            empty = false;
        }
        for set in lease
            .sets
            .iter()
            .filter(|set| sets.contains_key(set.name.as_str()))
        {
            batch.delete_set(table, &set.name);
            empty = false;
        }
        if empty {
            return Ok(());
        }
        self.commit("remove a lease", batch)
    }

    pub(crate) fn connect(
        &mut self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        let mut batch = self.netlink.batch();
        for (map, element) in lease.map_elements(reach) {
            if self.has_interface(table, &map, &lease.interface)? {
                batch.delete_verdict(table, &map, &lease.interface);
            }
            batch.add_verdict(table, &map, &element);
        }
        let doing = match reach {
            Reach::Outside => "connect a lease",
            Reach::Gateway | Reach::Nothing => "cut a lease off",
        };
        self.commit(doing, batch)?;
        self.confirm_maps(table, lease, reach)
    }

    fn has_interface(
        &mut self,
        table: &ObjectName,
        map: &ObjectName,
        interface: &InterfaceName,
    ) -> Result<bool, FirewallError> {
        let found = self.verdicts(table, map)?;
        Ok(found
            .iter()
            .any(|element| matches!(element, Element::Interface(name, _) if name == interface)))
    }

    fn verdicts(
        &mut self,
        table: &ObjectName,
        map: &ObjectName,
    ) -> Result<std::collections::BTreeSet<Element>, FirewallError> {
        let Some(mut report) = self.sets(table)?.remove(map.as_str()) else {
            return Ok(std::collections::BTreeSet::new());
        };
        self.elements(table, map)?.fill(&mut report);
        Ok(report.elements)
    }

    pub(crate) fn open_addresses(
        &mut self,
        table: &ObjectName,
        addresses: &[OpenAddress],
    ) -> Result<(), FirewallError> {
        if addresses.is_empty() {
            return Ok(());
        }
        let mut batch = self.netlink.batch();
        let by_set = renew(&mut batch, table, addresses);
        self.commit("open addresses", batch)?;
        for (set, addresses) in by_set {
            let wanted: Vec<IpAddr> = addresses.iter().map(|(address, _)| *address).collect();
            let there = self.find(table, set, &wanted)?;
            if let Some(missing) = wanted.iter().find(|address| !there.contains_key(*address)) {
                return Err(FirewallError::NotThere(format!("{missing} in {set}")));
            }
        }
        Ok(())
    }

    pub(crate) fn close_addresses(
        &mut self,
        table: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError> {
        if addresses.is_empty() {
            return Ok(());
        }
        let mut by_set: BTreeMap<&ObjectName, Vec<IpAddr>> = BTreeMap::new();
        for (set, address) in addresses {
            by_set.entry(set).or_default().push(*address);
        }
        let mut batch = self.netlink.batch();
        for (set, addresses) in by_set {
            batch.expire(table, set, &addresses);
        }
        self.commit("close addresses", batch)
    }
}

fn renew<'a>(
    batch: &mut Batch,
    table: &ObjectName,
    addresses: &'a [OpenAddress],
) -> BTreeMap<&'a ObjectName, Vec<(IpAddr, u64)>> {
    let mut by_set: BTreeMap<&ObjectName, BTreeMap<IpAddr, u64>> = BTreeMap::new();
    for open in addresses {
        let longest = by_set
            .entry(&open.set)
            .or_default()
            .entry(open.address)
            .or_default();
        *longest = open.for_ms.max(*longest);
    }
    let by_set: BTreeMap<&ObjectName, Vec<(IpAddr, u64)>> = by_set
        .into_iter()
        .map(|(set, addresses)| (set, addresses.into_iter().collect()))
        .collect();
    for (set, addresses) in &by_set {
        batch.renew(table, set, addresses);
    }
    by_set
}
