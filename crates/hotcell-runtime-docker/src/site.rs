//! Where the filter of a sandbox sits: in the far end of its link, which is its gateway.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use hotcell_runtime::{FilterSite, LinkAddresses, NetworkMode, RuntimeError, WayOut};
use hotcell_types::LeaseId;
use hotcell_uplink::{RANGE, UPLINK};

use crate::{
    fault,
    net::{self, Ends, FAR_NAME, Pin},
    runtime::{Core, blocking, write_public},
    scratch::Record,
};

impl Core {
    /// Whether a container of its own keeps the sandbox's network: gVisor must find a link there when
    /// it starts, and a filtered network is one.
    pub(crate) fn has_holder(&self, record: &Record) -> bool {
        self.engine.is_gvisor() || record.network == NetworkMode::Filtered
    }

    /// The sandbox's `/etc/resolv.conf`, on this host.
    pub(crate) fn resolver_of(&self, record: &Record) -> PathBuf {
        match record.network {
            NetworkMode::None => self.resolv_conf.clone(),
            NetworkMode::Filtered => self.own_resolver(&record.labels.lease),
        }
    }

    /// The file of a sandbox that has a resolver.
    pub(crate) fn own_resolver(&self, lease: &LeaseId) -> PathBuf {
        let dir = self.config.run_dir.join("resolvers");
        dir.join(lease.as_str()).with_extension("conf")
    }

    pub(crate) async fn site(&self, lease: &LeaseId) -> Result<FilterSite, RuntimeError> {
        let (scratch, same) = (self.scratch.clone(), lease.clone());
        let record = blocking(move || scratch.record(&same)).await?;
        let record = record.ok_or(RuntimeError::NoSuchSandbox)?;
        if record.network == NetworkMode::None {
            return Err(RuntimeError::Unsupported {
                what: "a filter for a sandbox without a network",
                reason: "it reaches nothing that could be filtered".into(),
            });
        }
        let (pin, same) = (self.pin(lease), lease.clone());
        let (far, uplink) = blocking(move || {
            let open = || -> io::Result<_> {
                let far = pin.open()?;
                let uplink = net::connect_out(&far, &same)?;
                Ok((far, uplink))
            };
            open().map_err(|error| RuntimeError::EgressUnenforceable(error.to_string()))
        })
        .await?;
        let ends = Ends::of(lease);
        Ok(FilterSite {
            namespace: Some(Arc::new(far)),
            uplink: Some(UPLINK.to_owned()),
            interface: FAR_NAME.to_owned(),
            v4: LinkAddresses {
                sandbox: ends.near,
                gateway: ends.far,
            },
            v6: None,
            way_out: Some(WayOut {
                interface: net::host_end(lease),
                gateway: uplink.gateway,
            }),
            ranges: vec![(IpAddr::V4(RANGE.0), RANGE.1), (IpAddr::V4(ends.far), 30)],
        })
    }
}

/// Makes the far end of a filtered sandbox with its uplink, and tells the sandbox who answers for
/// names.
pub(crate) fn lay_gateway(pin: &Pin, lease: &LeaseId, resolver: &Path) -> Result<(), RuntimeError> {
    let lay = || -> io::Result<()> { net::connect_out(&pin.make()?, lease).map(drop) };
    lay().map_err(|error| RuntimeError::EgressUnenforceable(error.to_string()))?;
    let text = format!("nameserver {}\noptions ndots:1\n", Ends::of(lease).far);
    let write = || -> io::Result<()> {
        if let Some(dir) = resolver.parent() {
            fs::create_dir_all(dir)?;
        }
        write_public(resolver, text.as_bytes(), 0o644)
    };
    write().map_err(fault::at("write", resolver))
}
