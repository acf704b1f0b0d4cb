//! The filters of sandboxes: one actor each, and one guard for each network namespace.
//!
//! ```text
//!   lease actor ──ensure──► Egress ──► filter actor   policy ► rules ► Space ► kernel
//!        │                    │             └──────── answers DNS on the gateway's address
//!        └──remove──────────► │
//!                             └──────► Space          one table, every lease's rules in it
//!                                        ▲
//!                                      guard actor    sees changes of others, restores
//! ```
//! Filters are not children of leases: when a lease's actor crashes its filter stays. When a filter's
//! actor crashes the rules stay in the kernel, nothing new is opened, and its successor takes over
//! what is there. So does the next daemon: before a table is touched, it is compared with what all
//! sandboxes of its namespace were created with.
//!
//! Everything fails closed: [`Egress::ensure`] returns only when the kernel has the rules and the
//! resolver listens, and no sandbox is started before.

mod checks;
mod current;
mod filter;
mod guard;
mod leftovers;
mod place;
mod prepare;
mod space;
mod users;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hotcell_core::{
    model::{LeaseRecord, LeaseState},
    network::LeaseFilterRecord,
};
use hotcell_egress::{dns::upstream::Upstream, firewall::FirewallError, host::Host};
use hotcell_policy::{FilterMode, Prefix, Surroundings};
use hotcell_runtime::{NetworkMode, Runtime, RuntimeError};
use hotcell_store::StoreError;
use hotcell_supervision::AddError;
use hotcell_types::{InstallationId, LeaseId, limits};
use tokio::sync::Mutex;

pub(crate) use filter::{Filter, FilterActor, FilterArguments};
#[cfg(test)]
pub(crate) use filter::{FilterMsg as FilterMsgForTests, FilterState as FilterStateForTests};
pub(crate) use guard::{GuardActor, GuardArguments};
pub(crate) use space::Space;

use self::{
    filter::{FilterMsg, FilterState},
    place::Place,
};
use super::{context::Context, live::lock};
use crate::{
    config::NetworkConfig,
    egress::{EgressParts, Happened, Journal, Whose},
};

/// The filters of this daemon, as everybody sees them.
pub(crate) struct Egress {
    pub(crate) network: NetworkConfig,
    pub(crate) journal: Arc<Journal>,
    host: Arc<dyn Host>,
    upstream: Result<Arc<dyn Upstream>, String>,
    appliance: Vec<Prefix>,
    installation: InstallationId,
    filters: StdMutex<HashMap<LeaseId, Arc<Filter>>>,
    spaces: Mutex<Vec<Arc<Space>>>,
    /// Whether tables may be there that nobody needs.
    leftovers: AtomicBool,
}

fn unenforceable(reason: impl Into<String>) -> RuntimeError {
    RuntimeError::EgressUnenforceable(reason.into())
}

fn of_store(error: &StoreError) -> RuntimeError {
    unenforceable(format!(
        "what the sandbox was created with cannot be read: {error}"
    ))
}

impl Egress {
    pub(crate) fn new(
        parts: EgressParts,
        journal: Arc<Journal>,
        installation: &InstallationId,
    ) -> Self {
        Self {
            network: parts.network,
            journal,
            host: parts.host,
            upstream: parts.upstream,
            appliance: parts.appliance,
            installation: installation.clone(),
            filters: StdMutex::default(),
            spaces: Mutex::default(),
            leftovers: AtomicBool::new(true),
        }
    }

    /// What surrounds sandboxes that have addresses from these ranges; asked anew for each filter.
    async fn surroundings(&self, sandboxes: Vec<Prefix>) -> Result<Surroundings, RuntimeError> {
        let host = self.host.addresses().await;
        let host = host.map_err(|error| unenforceable(chain(&error)))?;
        Ok(Surroundings {
            host: host.into_iter().map(Prefix::single).collect(),
            appliance: self.appliance.clone(),
            sandboxes,
            metadata: Vec::new(),
        })
    }

    fn upstream(&self) -> Result<Arc<dyn Upstream>, RuntimeError> {
        self.upstream.clone().map_err(unenforceable)
    }

    /// Decides with which network a lease's sandbox is created, and writes it down: with the policy that
    /// its organization has now, for good.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn pin(
        &self,
        context: &Context,
        record: &LeaseRecord,
    ) -> Result<NetworkMode, RuntimeError> {
        let id = record.id.clone();
        let known = context.store.read_now(|view| view.lease_filter(&id));
        if known.map_err(|error| of_store(&error))?.is_some() {
            return Ok(NetworkMode::Filtered);
        }
        if !self.network.filtered {
            return Ok(NetworkMode::None);
        }
        let organization = record.organization.clone();
        let enforces_addresses = self.network.mode == FilterMode::DnsNft;
        let blocks_encrypted_dns = self.network.block_encrypted_dns;
        let pinned = context
            .store
            .write::<(), StoreError, _>(move |tx| {
                let policy = tx.network_policy(&organization)?;
                let filter = LeaseFilterRecord {
                    policy: policy.map(|policy| policy.text),
                    enforces_addresses,
                    blocks_encrypted_dns,
                };
                tx.pin_lease_filter(&id, &filter)
            })
            .await;
        match pinned {
            Ok(()) => Ok(NetworkMode::Filtered),
            Err(StoreError::DiskFull) => Err(RuntimeError::DiskFull(
                "the network policy of the sandbox cannot be written down".into(),
            )),
            Err(error) => Err(unenforceable(format!(
                "the network policy of the sandbox cannot be written down: {error}"
            ))),
        }
    }

    /// Makes sure that the filter of a lease is installed and its resolver listens, if its sandbox was
    /// created with one. May be called as often as one likes.
    ///
    /// # Errors
    /// `EgressUnenforceable`, with the reason. Then the sandbox must not run.
    pub(crate) async fn ensure(
        &self,
        context: &Arc<Context>,
        record: &LeaseRecord,
    ) -> Result<(), RuntimeError> {
        let id = &record.id;
        let known = context.store.read_now(|view| view.lease_filter(id));
        if known.map_err(|error| of_store(&error))?.is_none() {
            return Ok(());
        }
        let filter = self.filter_of(context, record).await?;
        let mut state = filter.state.subscribe();
        let failed = matches!(&*state.borrow(), FilterState::Failed(_));
        if failed {
            self.retry(context, &filter).await;
        }
        let limit = Duration::from_millis(limits::FILTER_INSTALL_TIMEOUT_MS);
        let settled = state.wait_for(|state| *state != FilterState::Installing);
        match tokio::time::timeout(limit, settled).await {
            Ok(Ok(state)) => match &*state {
                FilterState::Serving => Ok(()),
                FilterState::Failed(reason) => Err(unenforceable(reason.clone())),
                FilterState::Installing => Err(unenforceable("the filter is being installed")),
            },
            Ok(Err(_)) => Err(unenforceable("the filter is gone")),
            Err(_) => Err(unenforceable(format!(
                "the filter was not installed within {} ms",
                limit.as_millis()
            ))),
        }
    }

    /// Tells operators that a sandbox was not made, since its runtime can have no filter.
    pub(crate) fn tell_refused(&self, record: &LeaseRecord, reason: &str) {
        let whose = Whose {
            lease: record.id.clone(),
            workspace: record.workspace.clone(),
            organization: record.organization.clone(),
        };
        let why = reason.to_owned();
        self.tell(&whose, Happened::NotInstalled { why });
    }

    async fn filter_of(
        &self,
        context: &Arc<Context>,
        record: &LeaseRecord,
    ) -> Result<Arc<Filter>, RuntimeError> {
        let (filter, is_new) = {
            let mut filters = lock(&self.filters);
            match filters.get(&record.id) {
                Some(filter) => (Arc::clone(filter), false),
                None => {
                    let filter = Arc::new(Filter::new(Whose {
                        lease: record.id.clone(),
                        workspace: record.workspace.clone(),
                        organization: record.organization.clone(),
                    }));
                    filters.insert(record.id.clone(), Arc::clone(&filter));
                    (filter, true)
                }
            }
        };
        if is_new {
            match context.crew.start_filter(context, &filter).await {
                Ok(()) | Err(AddError::Exists(_)) => {}
                Err(error) => {
                    lock(&self.filters).remove(&record.id);
                    let reason = format!("the filter's actor cannot be started: {error}");
                    filter
                        .state
                        .send_replace(FilterState::Failed(reason.clone()));
                    return Err(unenforceable(reason));
                }
            }
        }
        Ok(filter)
    }

    /// Tries a filter again that could not be installed.
    async fn retry(&self, context: &Arc<Context>, filter: &Filter) {
        filter.state.send_replace(FilterState::Installing);
        if filter.address.cast(FilterMsg::Install).is_err() {
            // Its actor was given up.
            context.crew.retry_filter(&filter.whose.lease).await;
        }
    }

    /// Removes the filter of a lease whose sandbox is gone.
    ///
    /// # Errors
    /// The packet filter cannot be changed.
    pub(crate) async fn remove(
        &self,
        context: &Arc<Context>,
        lease: &LeaseId,
    ) -> Result<(), RuntimeError> {
        let removal = async {
            // First whoever could install it again.
            context.crew.stop_filter(lease).await;
            for space in self.spaces.lock().await.iter() {
                space.remove(lease).await?;
            }
            Ok::<_, FirewallError>(())
        };
        let limit = Duration::from_millis(limits::FILTER_REMOVE_TIMEOUT_MS);
        let failed = |reason: String| RuntimeError::Failed {
            action: "remove the filter of the sandbox",
            reason,
        };
        match tokio::time::timeout(limit, removal).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(chain(&error))),
            Err(_) => {
                return Err(failed(format!(
                    "it took more than {} ms",
                    limit.as_millis()
                )));
            }
        }
        if lock(&self.filters).remove(lease).is_some() {
            self.journal.ended(lease);
            let context = Arc::clone(context);
            // Not given up halfway, as in `space`.
            let closing = tokio::spawn(async move {
                context.egress.close_unused(&context).await;
            });
            let _ = closing.await;
        }
        Ok(())
    }

    /// Lets go of namespaces without filters and of ways out that no lease has: nothing of ours stays in
    /// the host's own packet filter that nobody needs.
    async fn close_unused(&self, context: &Arc<Context>) {
        let mut spaces = self.spaces.lock().await;
        let (mut kept, mut closing) = (Vec::new(), Vec::new());
        for space in spaces.drain(..) {
            if space.shut_if_empty().await {
                closing.push(space);
            } else {
                kept.push(space);
            }
        }
        *spaces = kept;
        for space in closing {
            context.crew.stop_guard(space.number()).await;
            if let Err(error) = space.close().await {
                self.leftovers.store(true, Ordering::Release);
                tracing::warn!(error = chain(&error), "a table of the packet filter stays");
            }
        }
    }

    /// Takes over the filters of every lease that should have a sandbox. What cannot be taken over
    /// now is tried again, and when its lease needs it.
    pub(crate) async fn take_over(&self, context: &Arc<Context>, leases: &[LeaseRecord]) {
        let has_sandbox =
            |record: &&LeaseRecord| matches!(record.state, LeaseState::Running | LeaseState::Idle);
        let all = leases.iter().filter(has_sandbox).map(async |record| {
            if let Err(error) = self.ensure(context, record).await {
                tracing::warn!(lease = %record.id, %error, "the filter of a sandbox is not taken over yet");
            }
        });
        futures_util::future::join_all(all).await;
    }

    /// The space of a place for filters: opened, and made what all its leases need, if it is new.
    async fn space(
        &self,
        context: &Arc<Context>,
        runtime: &Arc<dyn Runtime>,
        place: &Place,
    ) -> Result<Arc<Space>, RuntimeError> {
        // Not given up halfway, whatever becomes of the one who asks: a guard that nobody knows of
        // would undo what others do.
        let (context, runtime, place) = (Arc::clone(context), Arc::clone(runtime), place.clone());
        let opening = tokio::spawn(async move {
            let egress = &context.egress;
            egress.open_space(&context, &*runtime, &place).await
        });
        opening.await.map_err(|error| {
            unenforceable(format!("the packet filter cannot be opened: {error}"))
        })?
    }

    async fn open_space(
        &self,
        context: &Arc<Context>,
        runtime: &dyn Runtime,
        place: &Place,
    ) -> Result<Arc<Space>, RuntimeError> {
        let mut spaces = self.spaces.lock().await;
        if let Some(space) = spaces.iter().find(|space| space.is_at(place)) {
            return Ok(Arc::clone(space));
        }
        let members = match place.has_filters() {
            true => prepare::members_of(context, runtime, place).await?,
            false => Vec::new(),
        };
        let opened = Space::open(
            &*self.host,
            &self.installation,
            place,
            members,
            Arc::clone(&self.journal),
        );
        let space = opened
            .await
            .map_err(|error| unenforceable(chain(&*error)))?;
        let space = Arc::new(space);
        // A way out that was laid anew: its table has changed hands, and so do its leases.
        let installation = &self.installation;
        let replaced: Vec<Arc<Space>> = spaces
            .extract_if(.., |old| old.is_replaced_by(place, installation))
            .collect();
        for old in replaced {
            context.crew.stop_guard(old.number()).await;
            space.take_users_of(&old).await;
        }
        let guarded = context.crew.start_guard(context, &space).await;
        guarded.map_err(|error| {
            unenforceable(format!("the packet filter cannot be watched: {error}"))
        })?;
        spaces.push(Arc::clone(&space));
        Ok(space)
    }

    /// Has somebody new speak with the kernel for a space.
    async fn reopen(&self, space: &Space) -> Result<(), RuntimeError> {
        let reopened = space.reopen(&*self.host).await;
        reopened.map_err(|error| unenforceable(chain(&error)))
    }

    /// Starts guards again that were given up: nobody else notices what others do.
    pub(crate) async fn retry_guards(&self, context: &Arc<Context>) {
        let spaces = self.spaces.lock().await;
        let numbers: Vec<u64> = spaces.iter().map(|space| space.number()).collect();
        drop(spaces);
        for number in numbers {
            context.crew.retry_guard(number).await;
        }
    }

    /// What is wrong, for `/readyz`; `None` while nothing is filtered.
    pub(crate) fn health(&self) -> Option<Result<(), String>> {
        let failed: Vec<String> = lock(&self.filters)
            .values()
            .filter_map(|filter| match &*filter.state.borrow() {
                FilterState::Failed(reason) => Some(format!("{}: {reason}", filter.whose.lease)),
                FilterState::Installing | FilterState::Serving => None,
            })
            .take(limits::MAX_NAMED_DIFFERENCES)
            .collect();
        if !failed.is_empty() {
            return Some(Err(failed.join("; ")));
        }
        if !self.network.filtered {
            return None;
        }
        Some(match &self.upstream {
            Ok(_) => Ok(()),
            Err(reason) => Err(reason.clone()),
        })
    }

    fn tell(&self, whose: &Whose, happened: Happened) {
        self.journal.record(whose, happened);
    }

    #[cfg(test)]
    pub(crate) fn filter_for_tests(&self, lease: &LeaseId) -> Option<Arc<Filter>> {
        lock(&self.filters).get(lease).cloned()
    }
}

/// An error and all its sources, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
