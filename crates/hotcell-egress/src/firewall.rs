//! The one seam to a packet filter.

use std::net::IpAddr;

use async_trait::async_trait;

use crate::{
    layout::{LeaseRules, Reach},
    report::{Difference, TableReport},
    ruleset::{ObjectName, Ruleset},
};

/// Why the packet filter did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The kernel refused the change. Nothing of it was made.
    #[error("the kernel refused to {doing}")]
    Refused {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Speaking with the kernel failed; whether the change was made is not known.
    #[error("speaking with the packet filter failed while trying to {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// The change was accepted, and is not there.
    #[error("the kernel accepted the change, but it is not there: {0}")]
    NotThere(String),
    /// Too much for one transaction, or nonsense out of the kernel.
    #[error("{0}")]
    Limit(&'static str),
    /// The thread that speaks with the kernel is gone.
    #[error("the packet filter's thread has ended")]
    Gone,
}

/// One address to be opened, or opened for longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenAddress {
    /// The timed set.
    pub set: ObjectName,
    /// The address.
    pub address: IpAddr,
    /// For how long from now, in milliseconds.
    pub for_ms: u64,
}

/// A packet filter that holds one table. Each change is one transaction: all of it or nothing, and
/// read back before it counts as made.
#[async_trait]
pub trait Firewall: Send + Sync {
    /// Makes the table exactly this, whatever was there, and fills its timed sets with `open`.
    async fn replace(&self, ruleset: &Ruleset, open: &[OpenAddress]) -> Result<(), FirewallError>;
    /// Removes the table.
    async fn remove(&self, table: &ObjectName) -> Result<(), FirewallError>;
    /// Adds a lease's objects and connects it.
    async fn add_lease(&self, table: &ObjectName, lease: &LeaseRules) -> Result<(), FirewallError>;
    /// Removes a lease's objects; what is already gone is no error.
    async fn remove_lease(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
    ) -> Result<(), FirewallError>;
    /// Points a lease's interface at its chains as far as `reach`, and at `drop` beyond.
    async fn connect(
        &self,
        table: &ObjectName,
        lease: &LeaseRules,
        reach: Reach,
    ) -> Result<(), FirewallError>;
    /// Opens addresses, or renews them: afterwards each has its full time.
    async fn open(
        &self,
        table: &ObjectName,
        addresses: &[OpenAddress],
    ) -> Result<(), FirewallError>;
    /// Closes addresses; what is already gone is no error.
    async fn close(
        &self,
        table: &ObjectName,
        addresses: &[(ObjectName, IpAddr)],
    ) -> Result<(), FirewallError>;
    /// The tables whose names begin with this, sorted.
    async fn tables(&self, prefix: &str) -> Result<Vec<ObjectName>, FirewallError>;
    /// What is there; `None` when the table is not.
    async fn report(&self, table: &ObjectName) -> Result<Option<TableReport>, FirewallError>;
    /// How what is there differs from this.
    async fn differences(&self, ruleset: &Ruleset) -> Result<Vec<Difference>, FirewallError>;
}
