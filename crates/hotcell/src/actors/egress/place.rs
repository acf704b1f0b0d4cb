//! Where tables belong: which network namespace, and what for.

use std::{net::Ipv4Addr, os::fd::OwnedFd, sync::Arc};

use hotcell_egress::{
    layout::{self, Scope},
    ruleset::{InterfaceName, ObjectName, Ruleset},
    way_out,
};
use hotcell_runtime::{FilterSite, Gateway, RuntimeError};
use hotcell_types::InstallationId;

use super::unenforceable;

/// A network namespace, and what else is in it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Device and inode of the namespace's file; none for the daemon's own.
    pub(super) identity: Option<(u64, u64)>,
    pub(super) namespace: Option<Arc<OwnedFd>>,
    pub(super) kind: Kind,
}

/// What a table is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The filters of sandboxes.
    Filters(Scope),
    /// What comes out of a namespace of sandboxes, on its way through the host's.
    WayOut {
        interface: InterfaceName,
        gateway: Ipv4Addr,
    },
}

/// How the names of the tables begin that let filtered packets through the host's namespace.
pub(super) fn out_prefix(installation: &InstallationId) -> String {
    format!("hotcell_out_{installation}_")
}

fn uplink(name: &str) -> Result<InterfaceName, RuntimeError> {
    name.parse()
        .map_err(|_| unenforceable(format!("the uplink has a name that cannot be: {name}")))
}

fn identity(namespace: Option<&Arc<OwnedFd>>) -> Result<Option<(u64, u64)>, RuntimeError> {
    let Some(namespace) = namespace else {
        return Ok(None);
    };
    let stat = rustix::fs::fstat(namespace)
        .map_err(|error| unenforceable(format!("the network namespace is lost: {error}")))?;
    Ok(Some((stat.st_dev, stat.st_ino)))
}

impl Place {
    /// Where the filter of this site belongs.
    pub(super) fn of(site: &FilterSite) -> Result<Self, RuntimeError> {
        let scope = match &site.uplink {
            None => Scope::Host,
            Some(uplink) => Scope::Gateway {
                uplink: self::uplink(uplink)?,
            },
        };
        Ok(Self {
            identity: identity(site.namespace.as_ref())?,
            namespace: site.namespace.clone(),
            kind: Kind::Filters(scope),
        })
    }

    /// Where what comes out of this site's namespace goes on, if it does.
    pub(super) fn way_out_of(site: &FilterSite) -> Result<Option<Self>, RuntimeError> {
        let Some(way_out) = &site.way_out else {
            return Ok(None);
        };
        let interface = way_out.interface.parse().map_err(|_| {
            let name = &way_out.interface;
            unenforceable(format!("the way out has a name that cannot be: {name}"))
        })?;
        Ok(Some(Self {
            identity: None,
            namespace: None,
            kind: Kind::WayOut {
                interface,
                gateway: way_out.gateway,
            },
        }))
    }

    /// The table with nothing about any lease.
    pub(super) fn base(&self, installation: &InstallationId) -> Ruleset {
        let table = |what: &str| -> ObjectName {
            format!("{what}_{installation}")
                .parse()
                .expect("an id has letters, digits and _, and is far below the longest name")
        };
        match &self.kind {
            Kind::Filters(scope) => layout::base(table("hotcell"), scope),
            Kind::WayOut { interface, gateway } => {
                // There may be more than one way out, and each comes and goes by itself.
                let name: ObjectName = format!("{}{interface}", out_prefix(installation))
                    .parse()
                    .expect("a prefix that can be, and the name of an interface behind it");
                way_out::ruleset(name, interface, *gateway)
            }
        }
    }

    /// Whether filters of leases belong here.
    pub(super) fn has_filters(&self) -> bool {
        matches!(self.kind, Kind::Filters(_))
    }

    /// Whether the filter of this site belongs here.
    pub(super) fn is_of(&self, site: &FilterSite) -> Result<bool, RuntimeError> {
        Ok(self.has_filters() && identity(site.namespace.as_ref())? == self.identity)
    }

    /// A namespace that a runtime keeps for sandboxes, and for nothing else.
    pub(super) fn of_gateway(gateway: &Gateway) -> Result<Self, RuntimeError> {
        Ok(Self {
            identity: identity(gateway.namespace.as_ref())?,
            namespace: gateway.namespace.clone(),
            kind: Kind::Filters(Scope::Gateway {
                uplink: uplink(&gateway.uplink)?,
            }),
        })
    }

    /// Whether others have packets here too.
    pub(super) fn is_shared(&self) -> bool {
        self.kind == Kind::Filters(Scope::Host)
    }
}
