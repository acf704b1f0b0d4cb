//! The uplink as part of a runtime: made for the first filtered sandbox, adopted while there are
//! any, removed when there are none; and where a sandbox's filter sits.

use std::net::IpAddr;

use hotcell_runtime::{FilterSite, LinkAddresses, NetworkMode, RuntimeError, WayOut};
use hotcell_types::LeaseId;

use crate::{
    embedded::{Embedded, leases},
    fault,
    layout::link_name,
    net::{self, SLOT_RANGE, Slot, UPLINK, UPLINK_RANGE, UplinkAddresses},
    record::Record,
};

impl Embedded {
    /// Makes sure that filtered sandboxes have a way to their filter and out. Looks each time: the
    /// host's end is where others may remove it.
    pub(crate) async fn need_uplink(&self) -> Result<UplinkAddresses, RuntimeError> {
        let _one_at_a_time = self.uplink.lock().await;
        let made = self.gateway.uplink(&self.uplink_name, self.uplink_seed());
        made.await.map_err(|error| {
            RuntimeError::EgressUnenforceable(format!("the way out cannot be made: {error}"))
        })
    }

    /// Adopts the uplink when sandboxes need it, and removes one that none needs. One that cannot be
    /// had is no reason not to open: filtered sandboxes reach nothing then, and the next one that is
    /// made says why.
    pub(crate) async fn settle_uplink(&self) -> Result<(), RuntimeError> {
        let needed = leases(&self.layout)?
            .iter()
            .filter_map(|lease| Record::load(&self.layout.lease(lease)).ok())
            .any(|record| record.network == NetworkMode::Filtered);
        if needed {
            if let Err(error) = self.need_uplink().await {
                tracing::warn!(%error, "filtered sandboxes reach nothing");
            }
            return Ok(());
        }
        net::remove_host_end(&self.uplink_name).map_err(fault::of("remove the uplink"))
    }

    /// Two installations on one host begin to look for addresses at different places.
    fn uplink_seed(&self) -> u32 {
        self.uplink_name.bytes().fold(0, |sum: u32, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        })
    }

    pub(crate) async fn site(
        &self,
        lease: &LeaseId,
        network: NetworkMode,
        slot: Slot,
    ) -> Result<FilterSite, RuntimeError> {
        // No default arm: a new mode must be thought about here.
        match network {
            NetworkMode::None => Err(RuntimeError::Unsupported {
                what: "a filter for a sandbox without a network",
                reason: "it reaches nothing that could be filtered".into(),
            }),
            NetworkMode::Filtered => {
                let uplink = self.need_uplink().await?;
                Ok(FilterSite {
                    namespace: Some(self.gateway.namespace()),
                    uplink: Some(UPLINK.to_owned()),
                    interface: link_name(lease.short()),
                    v4: LinkAddresses {
                        sandbox: slot.sandbox(),
                        gateway: slot.gateway(),
                    },
                    v6: None,
                    way_out: Some(WayOut {
                        interface: self.uplink_name.clone(),
                        gateway: uplink.gateway,
                    }),
                    ranges: [SLOT_RANGE, UPLINK_RANGE]
                        .map(|(address, bits)| (IpAddr::V4(address), bits))
                        .to_vec(),
                })
            }
        }
    }
}
