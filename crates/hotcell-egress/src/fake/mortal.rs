//! A handle of the packet filter that does nothing any more once its host had a fault.

use std::net::IpAddr;

use async_trait::async_trait;

use super::{FakeFirewall, FakeHost};
use crate::{
    firewall::{Firewall, FirewallError, OpenAddress},
    layout::{LeaseRules, Reach},
    report::{Difference, TableReport},
    ruleset::{ObjectName, Ruleset},
};

pub(super) struct Mortal {
    pub(super) firewall: FakeFirewall,
    pub(super) host: FakeHost,
    /// The faults that there had been when it was made.
    pub(super) faults: u64,
}

impl Mortal {
    fn alive(&self) -> Result<&FakeFirewall, FirewallError> {
        match self.host.is_alive(self.faults) {
            true => Ok(&self.firewall),
            false => Err(FirewallError::Gone),
        }
    }
}

#[async_trait]
impl Firewall for Mortal {
    async fn replace(&self, ruleset: &Ruleset, open: &[OpenAddress]) -> Result<(), FirewallError> {
        self.alive()?.replace(ruleset, open).await
    }

    async fn remove(&self, table: &ObjectName) -> Result<(), FirewallError> {
        self.alive()?.remove(table).await
    }

    async fn add_lease(&self, table: &ObjectName, lease: &LeaseRules) -> Result<(), FirewallError> {
        self.alive()?.add_lease(table, lease).await
    }

    async fn remove_lease(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
    ) -> Result<(), FirewallError> {
        self.alive()?.remove_lease(table, lease).await
    }

    async fn connect(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        self.alive()?.connect(table, lease, reach).await
    }

    async fn open(
        &self,
        table: &ObjectName,
        addresses: &[OpenAddress],
    ) -> Result<(), FirewallError> {
        self.alive()?.open(table, addresses).await
    }

    async fn close(
        &self,
        table: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError> {
        self.alive()?.close(table, addresses).await
    }

    async fn tables(&self, prefix: &str) -> Result<Vec<ObjectName>, FirewallError> {
        self.alive()?.tables(prefix).await
    }

    async fn report(&self, table: &ObjectName) -> Result<Option<TableReport>, FirewallError> {
        self.alive()?.report(table).await
    }

    async fn differences(&self, ruleset: &Ruleset) -> Result<Vec<Difference>, FirewallError> {
        self.alive()?.differences(ruleset).await
    }
}
