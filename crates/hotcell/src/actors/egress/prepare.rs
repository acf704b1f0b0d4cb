//! From what a sandbox was created with, and where it is, to the filter that it needs.

use std::{net::IpAddr, sync::Arc};

use hotcell_egress::{
    filter::{FilterSettings, SandboxFilter},
    layout::{LeaseFilter, LeaseRules, Link, learned_set},
    learned::LearnedLimits,
    ruleset::{LogGroup, ObjectName},
};
use hotcell_policy::{Family, FilterMode, Policy, Prefix, Surroundings};
use hotcell_runtime::{FilterSite, Runtime, RuntimeError};
use hotcell_types::{LeaseId, limits};

use super::{chain, of_store, place::Place, unenforceable};
use crate::actors::context::Context;

/// Where dropped packets are told, in every namespace of sandboxes.
pub(super) const DENIED_GROUP: LogGroup = LogGroup {
    group: 8_470,
    per_second: limits::DENIED_PACKETS_PER_SECOND,
};

/// A filter before it is anywhere.
pub(super) struct Prepared {
    pub(super) model: SandboxFilter,
    pub(super) rules: LeaseRules,
    pub(super) learned_sets: [(Family, ObjectName); 2],
    pub(super) gateways: Vec<IpAddr>,
    pub(super) sandbox: Vec<IpAddr>,
}

fn link<A: Copy>(addresses: hotcell_runtime::LinkAddresses<A>) -> Link<A> {
    Link {
        sandbox: addresses.sandbox,
        gateway: addresses.gateway,
    }
}

/// The filter of a lease whose sandbox has this site.
pub(super) async fn prepare(
    context: &Context,
    lease: &LeaseId,
    site: &FilterSite,
) -> Result<Prepared, RuntimeError> {
    let kept = context.store.read_now(|view| view.lease_filter(lease));
    let kept = kept.map_err(|error| of_store(&error))?;
    let kept = kept.ok_or_else(|| unenforceable("the sandbox was created without a filter"))?;
    let ranges = site.ranges.iter();
    let ranges = ranges.map(|(address, bits)| Prefix::new(*address, *bits));
    let own = [
        Some(IpAddr::V4(site.v4.sandbox)),
        Some(IpAddr::V4(site.v4.gateway)),
        site.v6.map(|link| IpAddr::V6(link.sandbox)),
        site.v6.map(|link| IpAddr::V6(link.gateway)),
    ];
    let own = own.into_iter().flatten().map(Prefix::single);
    let egress = &context.egress;
    let around = egress.surroundings(ranges.chain(own).collect()).await?;
    let settings = FilterSettings {
        mode: if kept.enforces_addresses {
            FilterMode::DnsNft
        } else {
            FilterMode::Dns
        },
        ipv6: site.v6.is_some(),
        block_encrypted_dns: kept.blocks_encrypted_dns,
        learned: LearnedLimits {
            grace_ms: egress.network.learned_grace_ms,
            ceiling: limits::MAX_LEARNED_ADDRESSES,
        },
    };
    let (lease, site) = (lease.clone(), site.clone());
    // Some thousand rules take a moment.
    let made = tokio::task::spawn_blocking(move || {
        make(&lease, kept.policy.as_deref(), &site, &around, settings)
    });
    made.await
        .map_err(|error| unenforceable(error.to_string()))?
}

fn make(
    lease: &LeaseId,
    policy: Option<&str>,
    site: &FilterSite,
    around: &Surroundings,
    settings: FilterSettings,
) -> Result<Prepared, RuntimeError> {
    let policy = policy.map(Policy::parse).transpose().map_err(|error| {
        unenforceable(format!(
            "the policy that the sandbox was created with cannot be read: {error}"
        ))
    })?;
    let model = SandboxFilter::new(policy, around, settings);
    let short = lease.short();
    let interface = site.interface.parse();
    let rules = LeaseFilter {
        short,
        interface: interface.map_err(|error: hotcell_egress::ruleset::RulesetNameError| {
            unenforceable(format!(
                "the interface has a name that cannot be: {}",
                chain(&error)
            ))
        })?,
        v4: link(site.v4),
        v6: site.v6.map(link),
        plan: model.plan(),
        blocked: model.blocked_addresses(),
        log: Some(DENIED_GROUP),
    }
    .rules();
    let both = |v4, v6: Option<IpAddr>| std::iter::once(v4).chain(v6).collect();
    Ok(Prepared {
        rules,
        learned_sets: [Family::V4, Family::V6].map(|family| (family, learned_set(short, family))),
        gateways: both(
            IpAddr::V4(site.v4.gateway),
            site.v6.map(|link| IpAddr::V6(link.gateway)),
        ),
        sandbox: both(
            IpAddr::V4(site.v4.sandbox),
            site.v6.map(|link| IpAddr::V6(link.sandbox)),
        ),
        model,
    })
}

/// The leases of the store that have filters.
pub(super) async fn filtered(context: &Context) -> Result<Vec<LeaseId>, RuntimeError> {
    let filtered = context.store.read(|view| {
        let mut filtered = Vec::new();
        for record in view.leases()? {
            if view.lease_filter(&record.id)?.is_some() {
                filtered.push(record.id);
            }
        }
        Ok(filtered)
    });
    filtered.await.map_err(|error| of_store(&error))
}

/// The rules of every lease of the store whose filter sits at this place: what the table there shall
/// hold before anybody changes it.
pub(super) async fn members_of(
    context: &Arc<Context>,
    runtime: &dyn Runtime,
    place: &Place,
) -> Result<Vec<(LeaseId, LeaseRules)>, RuntimeError> {
    let mut members = Vec::new();
    for lease in filtered(context).await? {
        let prepared = async {
            let site = runtime.filter_site(&lease).await?;
            if !place.is_of(&site)? {
                return Ok(None);
            }
            prepare(context, &lease, &site).await.map(Some)
        };
        match prepared.await {
            Ok(Some(prepared)) => members.push((lease, prepared.rules)),
            Ok(None) | Err(RuntimeError::NoSuchSandbox) => {}
            // In a namespace of sandboxes nothing passes that no rule lets through. In the host's it
            // would: so the rules that are there stay.
            Err(error) if place.is_shared() => return Err(error),
            Err(error) => {
                tracing::warn!(%lease, %error, "the sandbox is cut off: its filter cannot be made");
            }
        }
    }
    Ok(members)
}
