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
    /// Makes sure that filtered sandboxes have a way to their filter and out.
    pub(crate) async fn need_uplink(&self) -> Result<UplinkAddresses, RuntimeError> {
        let mut known = self.uplink.lock().await;
        if let Some(addresses) = *known {
            return Ok(addresses);
        }
        let made = self.gateway.uplink(&self.uplink_name, self.uplink_seed());
        let addresses = made.await.map_err(|error| {
            RuntimeError::EgressUnenforceable(format!("the way out cannot be made: {error}"))
        })?;
        *known = Some(addresses);
        Ok(addresses)
    }

    /// Adopts the uplink when sandboxes need it, and removes one that none needs.
    pub(crate) async fn settle_uplink(&self) -> Result<(), RuntimeError> {
        let needed = leases(&self.layout)?
            .iter()
            .filter_map(|lease| Record::load(&self.layout.lease(lease)).ok())
            .any(|record| record.network == NetworkMode::Filtered);
        if needed {
            return self.need_uplink().await.map(drop);
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
