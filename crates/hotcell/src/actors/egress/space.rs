//! The packet filter of one network namespace: one table, and every lease's rules in it.
//!
//! ```text
//!   open    what all leases need  ──compared──►  as it is          adopted, nothing touched
//!                                       └─────►  different         replaced, what is open stays open
//!   admit   a lease's rules added, or found there and verified
//!   verify  compared; different ► cut off ► replaced ► open addresses again ► told
//! ```
//! Changes happen one after the other. Lookups that open addresses do not wait for them; what they
//! opened while a table was replaced is opened again.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    net::IpAddr,
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicU64, Ordering},
    },
};

use hotcell_egress::{
    dns::DnsFilter,
    firewall::{Firewall, FirewallError, OpenAddress},
    host::{self, Host, HostError},
    layout::{LeaseRules, Reach, Scope},
    report::{Difference, TableReport},
    ruleset::{ObjectName, Ruleset, SetKind},
};
use hotcell_types::{InstallationId, LeaseId};
use tokio::{sync::Mutex, time::Instant};

use super::{
    current::Current,
    place::{Kind, Place},
    prepare::DENIED_GROUP,
};
use crate::{
    actors::live::lock,
    egress::{Journal, Whose},
};

mod doubt;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

pub(super) struct Member {
    pub(super) rules: LeaseRules,
    /// How far it is let while something else is in doubt.
    pub(super) reach: Reach,
    /// Set once its filter answers.
    dns: Option<DnsFilter>,
}

impl Member {
    const fn new(rules: LeaseRules) -> Self {
        Self {
            rules,
            reach: Reach::Outside,
            dns: None,
        }
    }
}

/// What an earlier daemon left open, until the filters that it belongs to take it over.
struct Inherited {
    at: Instant,
    report: TableReport,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) members: BTreeMap<LeaseId, Member>,
    /// Of a way out: the leases whose packets take it, and where their rules are.
    pub(super) users: BTreeMap<LeaseId, Arc<Space>>,
    inherited: Option<Inherited>,
    /// Nobody comes in any more: the next one needs a space of its own.
    pub(super) shut: bool,
}

impl State {
    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.users.is_empty()
    }
}

/// Whose packets a label in the log means.
#[derive(Clone)]
struct Told {
    whose: Whose,
    dns: DnsFilter,
    gateways: Vec<IpAddr>,
}

/// How a lease came in.
pub(super) struct Admitted {
    /// The addresses that are open for it, with the time that each has left.
    pub(super) remaining_ms: Vec<(IpAddr, u64)>,
    /// Whether its rules were there already.
    pub(super) adopted: bool,
}

/// What a comparison found.
#[derive(Debug)]
pub(super) enum Verified {
    /// All is as it should be.
    Unchanged,
    /// It was not, and is again.
    Restored(Vec<Difference>),
    /// It was not, and could not be restored: its sandboxes are cut off as far as that goes.
    Broken(Vec<Difference>, FirewallError),
}

/// The packet filter of one namespace.
pub(crate) struct Space {
    number: u64,
    pub(super) place: Place,
    base: Ruleset,
    edge: StdMutex<Arc<dyn host::Space>>,
    pub(super) firewall: Arc<Current>,
    pub(super) state: Mutex<State>,
    told: StdMutex<HashMap<String, Told>>,
    journal: Arc<Journal>,
}

impl Space {
    /// Opens it, and makes its table what `members` need unless it is that already.
    pub(super) async fn open(
        host: &dyn Host,
        installation: &InstallationId,
        place: &Place,
        members: Vec<(LeaseId, LeaseRules)>,
        journal: Arc<Journal>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let edge = host.space(place.namespace.clone()).await?;
        let space = Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            base: place.base(installation),
            place: place.clone(),
            firewall: Arc::new(Current::new(edge.firewall())),
            edge: StdMutex::new(edge),
            state: Mutex::default(),
            told: StdMutex::default(),
            journal,
        };
        {
            let mut state = space.state.lock().await;
            for (lease, rules) in members {
                state.members.insert(lease, Member::new(rules));
            }
            space.take_over(&mut state).await?;
        }
        Ok(space)
    }

    async fn take_over(&self, state: &mut State) -> Result<(), FirewallError> {
        let wanted = self.wanted(state);
        let report = self.firewall.report(&wanted.table).await?;
        let differences = self.firewall.differences(&wanted).await?;
        state.inherited = report.map(|report| Inherited {
            at: Instant::now(),
            report,
        });
        if differences.is_empty() {
            return Ok(());
        }
        if !matches!(differences[..], [Difference::TableMissing]) {
            let words = crate::egress::of_differences(&differences);
            tracing::warn!(
                table = wanted.table.as_str(),
                differences = words.join(", "),
                "the packet filter is not what the sandboxes need, and is replaced"
            );
        }
        let open = self.open_addresses(state);
        self.firewall.replace(&wanted, &open).await
    }

    /// Tells spaces apart.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn is_at(&self, place: &Place) -> bool {
        self.place.identity == place.identity && self.place.kind == place.kind
    }

    pub(super) fn has_filters(&self) -> bool {
        self.place.has_filters()
    }

    /// Whether a new one at `place` has this one's table.
    pub(super) fn is_replaced_by(&self, place: &Place, installation: &InstallationId) -> bool {
        !self.has_filters()
            && !place.has_filters()
            && *self.table() == place.base(installation).table
    }

    /// Lets nobody in any more, if nobody is in. Whether that is so.
    pub(super) async fn shut_if_empty(&self) -> bool {
        let mut state = self.state.lock().await;
        state.shut |= state.is_empty();
        state.shut
    }

    /// Removes the table, where others would have to live with it. In a namespace of sandboxes it
    /// stays: without it nothing is dropped.
    pub(super) async fn close(&self) -> Result<(), FirewallError> {
        match self.place.kind {
            Kind::Filters(Scope::Gateway { .. }) => Ok(()),
            Kind::Filters(Scope::Host) | Kind::WayOut { .. } => {
                self.firewall.remove(self.table()).await
            }
        }
    }

    pub(super) fn table(&self) -> &ObjectName {
        &self.base.table
    }

    pub(super) fn firewall(&self) -> Arc<dyn Firewall> {
        let current: Arc<Current> = Arc::clone(&self.firewall);
        current
    }

    pub(super) fn edge(&self) -> Arc<dyn host::Space> {
        Arc::clone(&lock(&self.edge))
    }

    /// Has somebody new speak with the kernel. The table is to be verified afterwards.
    ///
    /// # Errors
    /// Nobody new can; it is as it was.
    pub(super) async fn reopen(&self, host: &dyn Host) -> Result<(), HostError> {
        // Nobody changes anything meanwhile.
        let _state = self.state.lock().await;
        let edge = host.space(self.place.namespace.clone()).await?;
        self.firewall.set(edge.firewall());
        *lock(&self.edge) = edge;
        Ok(())
    }

    /// Starts to read dropped packets, where filters tell of them.
    pub(super) async fn denied(&self) -> Result<Option<Box<dyn host::Denied>>, HostError> {
        if !self.has_filters() {
            return Ok(None);
        }
        self.edge().denied(DENIED_GROUP).await.map(Some)
    }

    /// The whole table.
    pub(super) fn wanted(&self, state: &State) -> Ruleset {
        let mut wanted = self.base.clone();
        for member in state.members.values() {
            member.rules.join(&mut wanted, member.reach);
        }
        wanted
    }

    /// What must be open: as the filters that answer know it, and for the others as it was found.
    fn open_addresses(&self, state: &State) -> Vec<OpenAddress> {
        let mut open = Vec::new();
        for member in state.members.values() {
            match &member.dns {
                Some(dns) => open.extend(dns.open_addresses()),
                None => {
                    let remaining = state.inherited.as_ref().map(|it| it.of(&member.rules));
                    open.extend(remaining.unwrap_or_default());
                }
            }
        }
        open
    }

    /// Puts a lease's rules into the table, or verifies those that are there. `Gone` when the space was
    /// shut meanwhile; there will be another.
    pub(super) async fn admit(
        &self,
        lease: &LeaseId,
        rules: LeaseRules,
    ) -> Result<Admitted, FirewallError> {
        let mut state = self.state.lock().await;
        if state.shut {
            return Err(FirewallError::Gone);
        }
        let known = state.members.get(lease).map(|member| member.rules == rules);
        let Some(is_same) = known else {
            state
                .members
                .insert(lease.clone(), Member::new(rules.clone()));
            let added = self.firewall.add_lease(self.table(), &rules).await;
            if let Err(error) = added {
                tracing::warn!(%lease, %error, "the rules of a sandbox cannot be added, so the whole table is made anew");
                let replaced = self.replace(&state).await;
                if let Err(error) = replaced {
                    state.members.remove(lease);
                    // The first error may have left them there; a table without them is wanted.
                    let _ = self.firewall.remove_lease(self.table(), &rules).await;
                    return Err(error);
                }
            }
            return Ok(Admitted {
                remaining_ms: Vec::new(),
                adopted: false,
            });
        };
        // Somebody of an earlier life opened addresses: the kernel knows which.
        let inherited = match state.inherited.take() {
            Some(inherited) => inherited,
            None => Inherited {
                at: Instant::now(),
                report: self
                    .firewall
                    .report(self.table())
                    .await?
                    .unwrap_or_default(),
            },
        };
        let open = inherited.of(&rules);
        state.members.insert(lease.clone(), Member::new(rules));
        state.inherited = Some(inherited);
        let changed = match is_same {
            true => {
                let wanted = self.wanted(&state);
                !self.firewall.differences(&wanted).await?.is_empty()
            }
            false => true,
        };
        if changed {
            self.replace(&state).await?;
        }
        if state.members.values().all(|member| member.dns.is_some()) {
            state.inherited = None;
        }
        Ok(Admitted {
            remaining_ms: open.into_iter().map(|it| (it.address, it.for_ms)).collect(),
            adopted: !changed,
        })
    }

    /// Its filter answers from now on, and knows what is open.
    pub(super) async fn serves(&self, whose: &Whose, dns: &DnsFilter, gateways: Vec<IpAddr>) {
        let mut state = self.state.lock().await;
        if let Some(member) = state.members.get_mut(&whose.lease) {
            member.dns = Some(dns.clone());
        }
        if state.members.values().all(|member| member.dns.is_some()) {
            state.inherited = None;
        }
        let told = Told {
            whose: whose.clone(),
            dns: dns.clone(),
            gateways,
        };
        lock(&self.told).insert(whose.lease.short().to_owned(), told);
    }

    /// Takes a lease's rules out of the table. What is not there is no error.
    pub(super) async fn remove(&self, lease: &LeaseId) -> Result<(), FirewallError> {
        let mut state = self.state.lock().await;
        state.users.remove(lease);
        let Some(member) = state.members.get(lease) else {
            return Ok(());
        };
        self.firewall
            .remove_lease(self.table(), &member.rules)
            .await?;
        state.members.remove(lease);
        lock(&self.told).remove(lease.short());
        Ok(())
    }

    /// Makes the table anew. Lookups go on meanwhile, so what they opened is opened again.
    async fn replace(&self, state: &State) -> Result<(), FirewallError> {
        let wanted = self.wanted(state);
        self.firewall
            .replace(&wanted, &self.open_addresses(state))
            .await?;
        for dns in state.members.values().filter_map(|it| it.dns.as_ref()) {
            dns.with_filter(|filter, _| filter.doubt());
            let open = dns.open_addresses();
            if !open.is_empty() {
                self.firewall.open(self.table(), &open).await?;
            }
        }
        Ok(())
    }
}

fn learned<'a>(
    rules: &'a LeaseRules,
    report: &'a TableReport,
) -> impl Iterator<Item = OpenAddress> + 'a {
    let timed = rules.sets.iter().filter(|set| set.kind == SetKind::Timed);
    timed.flat_map(move |set| {
        let reported = report.sets.get(set.name.as_str());
        let remaining = reported.into_iter().flat_map(|it| &it.remaining_ms);
        remaining.map(|(address, left_ms)| OpenAddress {
            set: set.name.clone(),
            address: *address,
            for_ms: *left_ms,
        })
    })
}

impl Inherited {
    /// What is still open of a lease's.
    fn of(&self, rules: &LeaseRules) -> Vec<OpenAddress> {
        let passed = u64::try_from(self.at.elapsed().as_millis()).unwrap_or(u64::MAX);
        learned(rules, &self.report)
            .filter_map(|open| {
                let for_ms = open.for_ms.saturating_sub(passed);
                (for_ms > 0).then_some(OpenAddress { for_ms, ..open })
            })
            .collect()
    }
}
