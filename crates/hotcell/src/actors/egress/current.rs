//! Whoever speaks with the kernel for a namespace at the time. Filters keep this for good; when one
//! has ended, [`Space::reopen`](super::space::Space::reopen) puts another in its place.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use hotcell_egress::{
    firewall::{Firewall, FirewallError, OpenAddress},
    layout::{LeaseRules, Reach},
    report::{Difference, TableReport},
    ruleset::{ObjectName, Ruleset},
};

use crate::actors::live::lock;

pub(super) struct Current(Mutex<Arc<dyn Firewall>>);

impl Current {
    pub(super) fn new(firewall: Arc<dyn Firewall>) -> Self {
        Self(Mutex::new(firewall))
    }

    pub(super) fn set(&self, firewall: Arc<dyn Firewall>) {
        *lock(&self.0) = firewall;
    }

    fn get(&self) -> Arc<dyn Firewall> {
        Arc::clone(&lock(&self.0))
    }
}

#[async_trait]
impl Firewall for Current {
    async fn replace(&self, ruleset: &Ruleset, open: &[OpenAddress]) -> Result<(), FirewallError> {
        self.get().replace(ruleset, open).await
    }

    async fn remove(&self, table: &ObjectName) -> Result<(), FirewallError> {
        self.get().remove(table).await
    }

    async fn add_lease(&self, table: &ObjectName, lease: &LeaseRules) -> Result<(), FirewallError> {
        self.get().add_lease(table, lease).await
    }

    async fn remove_lease(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
    ) -> Result<(), FirewallError> {
        self.get().remove_lease(table, lease).await
    }

    async fn connect(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        self.get().connect(table, lease, reach).await
    }

    async fn open(
        &self,
        table: &ObjectName,
        addresses: &[OpenAddress],
    ) -> Result<(), FirewallError> {
        self.get().open(table, addresses).await
    }

    async fn close(
        &self,
        table: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError> {
        self.get().close(table, addresses).await
    }

    async fn tables(&self, prefix: &str) -> Result<Vec<ObjectName>, FirewallError> {
        self.get().tables(prefix).await
    }

    async fn report(&self, table: &ObjectName) -> Result<Option<TableReport>, FirewallError> {
        self.get().report(table).await
    }

    async fn differences(&self, ruleset: &Ruleset) -> Result<Vec<Difference>, FirewallError> {
        self.get().differences(ruleset).await
    }
}
