//! What filters of sandboxes left behind that vanished while no daemon ran.
//!
//! A space that is opened makes its table what the leases there need, so leftovers go with that. What is
//! looked for here are the tables that nobody opens any more: the ways out of leases that are gone, and
//! rules in a namespace that outlives its sandboxes. Nothing passes by them, and nothing of them is
//! needed.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use hotcell_egress::{
    firewall::FirewallError, host::HostError, report::Difference, ruleset::ObjectName,
};
use hotcell_runtime::{Runtime, RuntimeError};

use super::{
    Egress, chain,
    place::{Place, out_prefix},
    prepare::{filtered, members_of},
    unenforceable,
};
use crate::actors::context::Context;

fn of_host(error: &HostError) -> RuntimeError {
    unenforceable(chain(error))
}

fn of_kernel(error: &FirewallError) -> RuntimeError {
    unenforceable(chain(error))
}

impl Egress {
    /// Removes what nobody needs, unless that was done since there may have been anything. Only for a
    /// store that knows of every sandbox there is.
    pub(crate) async fn sweep_leftovers(&self, context: &Arc<Context>, runtime: &dyn Runtime) {
        if !self.leftovers.swap(false, Ordering::AcqRel) {
            return;
        }
        match self.remove_leftovers(context, runtime).await {
            Ok(removed) if removed.is_empty() => {}
            Ok(removed) => {
                tracing::info!(
                    tables = removed.join(", "),
                    "removed what filters of sandboxes that are gone left behind"
                );
            }
            Err(error) => {
                self.leftovers.store(true, Ordering::Release);
                tracing::warn!(%error, "what filters may have left behind cannot be looked for yet");
            }
        }
    }

    async fn remove_leftovers(
        &self,
        context: &Arc<Context>,
        runtime: &dyn Runtime,
    ) -> Result<Vec<String>, RuntimeError> {
        // Nobody opens a table meanwhile.
        let spaces = self.spaces.lock().await;
        let mut needed: BTreeSet<ObjectName> =
            spaces.iter().map(|space| space.table().clone()).collect();
        for lease in filtered(context).await? {
            let site = match runtime.filter_site(&lease).await {
                Ok(site) => site,
                Err(RuntimeError::NoSuchSandbox) => continue,
                Err(error) => return Err(error),
            };
            let way_out = Place::way_out_of(&site)?;
            needed.extend(way_out.map(|place| place.base(&self.installation).table));
        }
        let mut removed = Vec::new();
        let edge = self.host.space(None).await;
        let firewall = edge.map_err(|error| of_host(&error))?.firewall();
        let there = firewall.tables(&out_prefix(&self.installation)).await;
        for table in there.map_err(|error| of_kernel(&error))? {
            if needed.contains(&table) {
                continue;
            }
            let gone = firewall.remove(&table).await;
            gone.map_err(|error| of_kernel(&error))?;
            removed.push(table.to_string());
        }
        for gateway in runtime.gateways().await? {
            let place = Place::of_gateway(&gateway)?;
            if spaces.iter().any(|space| space.is_at(&place))
                || !members_of(context, runtime, &place).await?.is_empty()
            {
                continue;
            }
            let edge = self.host.space(gateway.namespace).await;
            let firewall = edge.map_err(|error| of_host(&error))?.firewall();
            let base = place.base(&self.installation);
            let differences = firewall.differences(&base).await;
            let differences = differences.map_err(|error| of_kernel(&error))?;
            // Without a table nothing passes there.
            if differences.is_empty() || matches!(differences[..], [Difference::TableMissing]) {
                continue;
            }
            let replaced = firewall.replace(&base, &[]).await;
            replaced.map_err(|error| of_kernel(&error))?;
            removed.push(base.table.to_string());
        }
        Ok(removed)
    }
}
