//! DNS for one sandbox, on its gateway address.
//!
//! ```text
//!  question ─► rate, exactly one, class IN ─► SandboxFilter::rule_on ─► NXDOMAIN + "blocked"   never forwarded
//!                                                    │ permit
//!                                                    ▼
//!                              Upstream (shared cache) ─► records
//!                                                    ▼
//!               SandboxFilter::take_in: chain, inside addresses out ─► Firewall::open ─► answer leaves
//! ```
//! The order of the last two is the point: an address that the client can see is open in the kernel
//! before it sees it, from the cache, too. When the packet filter fails, the answer is SERVFAIL.
//!
//! An answer that was given and needs nothing of the packet filter is kept as it was sent, for this
//! sandbox alone; see `ready`.

mod at_once;
mod datagrams;
mod question;
mod rate;
mod ready;
mod reply;
mod server;
pub mod upstream;

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RData, Record, RecordType},
};
use hotcell_policy::{DomainName, Family, RuleIndex};
use hotcell_types::{
    UnixMillis,
    limits::{DEFAULT_DNS_RATE_PER_SECOND, MAX_DNS_IN_FLIGHT, MAX_DNS_TTL_SECONDS},
};
use tokio::{
    sync::{RwLock, Semaphore},
    time::Instant,
};

use crate::{
    filter::{
        AnswerData, AnswerRecord, Denial, Hidden, Permit, QuestionKind, Ruling, SandboxFilter,
        Sifted,
    },
    firewall::{Firewall, FirewallError, OpenAddress},
    ruleset::ObjectName,
};
use rate::Bucket;
use ready::ReadyAnswers;
pub use reply::{Extended, Reply};
pub use server::{DnsServer, Handler, serve};
use upstream::Upstream;

/// Something that the filter of a sandbox did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterEvent {
    /// A name was not looked up.
    NameDenied {
        /// The name, where it is one.
        name: Option<DomainName>,
        /// Why.
        denial: Denial,
    },
    /// A name was answered.
    NameAllowed {
        /// The name.
        name: DomainName,
        /// The rule that allowed it; none when the default did.
        by: Option<RuleIndex>,
        /// Addresses that were opened or renewed for it.
        opened: Vec<IpAddr>,
        /// Addresses that were taken out of the answer, with the reason.
        hidden: Vec<(IpAddr, Hidden)>,
        /// Addresses that had to make room.
        closed: Vec<IpAddr>,
    },
    /// A name was answered again, as it was when it was allowed; nothing had to be opened.
    NameAllowedAgain {
        /// The name.
        name: DomainName,
        /// The rule that allowed it; none when the default did.
        by: Option<RuleIndex>,
        /// How often, since the last event about this name.
        times: u32,
    },
    /// No upstream resolver answered.
    UpstreamFailed {
        /// The name that was asked for.
        name: DomainName,
        /// What went wrong.
        reason: String,
    },
    /// The packet filter did not open what it should. Nothing was answered; somebody must look.
    PacketFilterFailed {
        /// The name that was asked for.
        name: DomainName,
        /// What went wrong.
        reason: String,
    },
    /// More questions than the rate allows.
    RateExceeded,
}

/// Where events go. Called in the middle of a lookup: it must not block.
pub trait EventSink: Send + Sync {
    /// Takes an event.
    fn record(&self, event: FilterEvent);
}

/// Who knows the open connections of the sandbox. Asked only when its table of addresses is full.
pub trait Connections: Send + Sync {
    /// The addresses with an open connection.
    fn addresses(&self) -> HashSet<IpAddr>;
}

/// Everything that the DNS side of one sandbox needs.
pub struct DnsParts {
    /// The model: policy and learned addresses.
    pub filter: SandboxFilter,
    /// The packet filter.
    pub firewall: Arc<dyn Firewall>,
    /// Its table.
    pub table: ObjectName,
    /// The lease's timed sets by family; see [`learned_set`](crate::layout::learned_set).
    pub learned_sets: [(Family, ObjectName); 2],
    /// Where answers come from.
    pub upstream: Arc<dyn Upstream>,
    /// Who knows the open connections.
    pub connections: Arc<dyn Connections>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// Questions a second.
    pub rate_per_second: u32,
}

impl DnsParts {
    /// The usual rate.
    pub const USUAL_RATE_PER_SECOND: u32 = DEFAULT_DNS_RATE_PER_SECOND;
}

/// The DNS side of one sandbox. Cheap to clone.
#[derive(Clone)]
pub struct DnsFilter(Arc<Shared>);

struct Shared {
    filter: Mutex<SandboxFilter>,
    firewall: Arc<dyn Firewall>,
    table: ObjectName,
    learned_sets: [(Family, ObjectName); 2],
    upstream: Arc<dyn Upstream>,
    connections: Arc<dyn Connections>,
    events: Arc<dyn EventSink>,
    bucket: Mutex<Bucket>,
    ready: Mutex<ReadyAnswers>,
    places: Semaphore,
    /// Answers that only open addresses go side by side; one that closes any goes alone, so that the packet
    /// filter does not hear of the closing after another answer's opening of the same address.
    order: RwLock<()>,
    started: Instant,
}

impl DnsFilter {
    /// The DNS side made of these parts.
    #[must_use]
    pub fn new(parts: DnsParts) -> Self {
        let now = Instant::now();
        Self(Arc::new(Shared {
            filter: Mutex::new(parts.filter),
            firewall: parts.firewall,
            table: parts.table,
            learned_sets: parts.learned_sets,
            upstream: parts.upstream,
            connections: parts.connections,
            events: parts.events,
            bucket: Mutex::new(Bucket::new(parts.rate_per_second, now)),
            ready: Mutex::default(),
            places: Semaphore::new(MAX_DNS_IN_FLIGHT),
            order: RwLock::default(),
            started: now,
        }))
    }

    /// Looks at the model, or changes it; for as short as possible, since lookups wait.
    pub fn with_filter<T>(&self, look: impl FnOnce(&mut SandboxFilter, UnixMillis) -> T) -> T {
        let now = self.now();
        look(&mut self.filter(), now)
    }

    /// What must be open now, for restoring a table.
    #[must_use]
    pub fn open_addresses(&self) -> Vec<OpenAddress> {
        let now = self.now();
        let filter = self.filter();
        let remaining = filter.learned().remaining(now);
        remaining
            .filter_map(|(address, left_ms)| self.opening(address, left_ms))
            .collect()
    }

    /// The filter's own clock: time since it was made, which no change of the date moves.
    fn now(&self) -> UnixMillis {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> UnixMillis {
        let passed = now.duration_since(self.0.started).as_millis();
        UnixMillis(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    fn filter(&self) -> MutexGuard<'_, SandboxFilter> {
        // Nothing in the model panics halfway through a change.
        self.0.filter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opening(&self, address: IpAddr, for_ms: u64) -> Option<OpenAddress> {
        let set = self.set_of(address)?;
        Some(OpenAddress {
            set: set.clone(),
            address,
            for_ms,
        })
    }

    fn set_of(&self, address: IpAddr) -> Option<&ObjectName> {
        let (family, _) = Family::of(address);
        let set = self.0.learned_sets.iter().find(|(of, _)| *of == family);
        set.map(|(_, name)| name)
    }

    /// Answers one question.
    pub async fn answer(&self, name: &Name, kind: RecordType) -> Reply {
        if !self.may_ask(Instant::now()) {
            self.0.events.record(FilterEvent::RateExceeded);
            return Reply::of(ResponseCode::Refused);
        }
        let Ok(_place) = self.0.places.try_acquire() else {
            return Reply::of(ResponseCode::ServFail);
        };
        let asked = DomainName::from_labels(name.iter());
        let named = asked.as_ref().ok().cloned();
        let ruling = self.filter().rule_on(asked, question_kind(kind));
        match ruling {
            Ruling::Ask(permit) => self.ask(name, kind, &permit).await,
            Ruling::Empty => {
                if let Some(named) = named {
                    self.keep_empty(name, kind, named);
                }
                Reply::of(ResponseCode::NoError)
            }
            Ruling::Refuse => Reply::of(ResponseCode::Refused),
            Ruling::Deny(denial) => {
                self.0.events.record(FilterEvent::NameDenied {
                    name: named,
                    denial,
                });
                Reply::blocked()
            }
        }
    }

    fn may_ask(&self, now: Instant) -> bool {
        let mut bucket = self.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(now)
    }

    async fn ask(&self, name: &Name, kind: RecordType, permit: &Permit) -> Reply {
        let answer = match self.0.upstream.lookup(name.clone(), kind).await {
            Ok(answer) => answer,
            Err(error) => {
                self.0.events.record(FilterEvent::UpstreamFailed {
                    name: permit.name().clone(),
                    reason: chain(&error),
                });
                return Reply::unreachable();
            }
        };
        let records: Vec<AnswerRecord> = answer.answers.iter().map(read_record).collect();
        let (then, sifted) = match self.take_in(permit, &records).await {
            Ok(taken) => taken,
            Err(error) => {
                self.0.events.record(FilterEvent::PacketFilterFailed {
                    name: permit.name().clone(),
                    reason: chain(&error),
                });
                return Reply::of(ResponseCode::ServFail);
            }
        };
        let mut answers: Vec<Record> = Vec::with_capacity(sifted.keep.len());
        for place in &sifted.keep {
            if let Some(record) = answer.answers.get(*place) {
                answers.push(reply::fit(record));
            }
        }
        if sifted.stripped.is_empty() && answer.code == ResponseCode::NoError {
            self.keep(name, kind, permit, then, &answer, &sifted, &answers);
        }
        self.0.events.record(FilterEvent::NameAllowed {
            name: permit.name().clone(),
            by: permit.by(),
            opened: sifted
                .changes
                .open
                .iter()
                .map(|(address, _)| *address)
                .collect(),
            hidden: sifted.stripped,
            closed: sifted.changes.close,
        });
        Reply {
            code: answer.code,
            answers,
            soa: answer.soa,
            extended: None,
        }
    }

    /// Sifts an answer, and has the packet filter do what it needs, in the order of [`Shared::order`].
    async fn take_in(
        &self,
        permit: &Permit,
        records: &[AnswerRecord],
    ) -> Result<(UnixMillis, Sifted), FirewallError> {
        let take = |filter: &mut SandboxFilter| {
            let then = self.now();
            let connected = || self.0.connections.addresses();
            (then, filter.take_in(then, permit, records, connected))
        };
        {
            let _side_by_side = self.0.order.read().await;
            let taken = {
                let mut filter = self.filter();
                let has_room = filter.learned().has_room_for(records.len());
                has_room.then(|| take(&mut filter))
            };
            if let Some((then, sifted)) = taken {
                self.make_way(then, &sifted).await?;
                return Ok((then, sifted));
            }
        }
        let _alone = self.0.order.write().await;
        let (then, sifted) = take(&mut self.filter());
        self.make_way(then, &sifted).await?;
        Ok((then, sifted))
    }

    /// Has the packet filter do what the answer needs.
    async fn make_way(&self, then: UnixMillis, sifted: &Sifted) -> Result<(), FirewallError> {
        let (firewall, table) = (&self.0.firewall, &self.0.table);
        let changes = &sifted.changes;
        if !changes.close.is_empty() {
            let close: Vec<_> = changes
                .close
                .iter()
                .filter_map(|address| Some((self.set_of(*address)?.clone(), *address)))
                .collect();
            firewall.close(table, &close).await?;
        }
        if !changes.open.is_empty() {
            let open: Vec<OpenAddress> = changes
                .open
                .iter()
                .filter_map(|(address, for_ms)| self.opening(*address, *for_ms))
                .collect();
            firewall.open(table, &open).await?;
            self.filter().confirm(then, changes);
        }
        Ok(())
    }
}

fn question_kind(kind: RecordType) -> QuestionKind {
    match kind {
        RecordType::A => QuestionKind::A,
        RecordType::AAAA => QuestionKind::Aaaa,
        RecordType::HTTPS | RecordType::SVCB => QuestionKind::Service,
        RecordType::ANY | RecordType::AXFR | RecordType::IXFR => QuestionKind::Refused,
        _ => QuestionKind::Other,
    }
}

fn read_record(record: &Record) -> AnswerRecord {
    let name = |name: &Name| DomainName::from_labels(name.iter()).ok();
    let data = match &record.data {
        RData::A(address) => AnswerData::Address(IpAddr::V4(address.0)),
        RData::AAAA(address) => AnswerData::Address(IpAddr::V6(address.0)),
        RData::CNAME(target) => match name(&target.0) {
            Some(target) => AnswerData::Alias(target),
            None => AnswerData::Other,
        },
        _ => AnswerData::Other,
    };
    AnswerRecord {
        owner: name(&record.name),
        data,
        ttl_seconds: record.ttl.min(MAX_DNS_TTL_SECONDS),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
