//! What filters did lately: bounded, in memory, for operators and for the member whose command it was.
//!
//! ```text
//!  record ─┬─► a ring of denials and alarms ─┐ per lease
//!          ├─► a ring of usual events        ┘ so that lookups do not push denials out
//!          └─► the log, a few lines in each window; what is left out is counted and told
//! ```
//! Everything in here is made by sandboxes, which are hostile: no lease can push out the events of
//! another, and nothing grows without a limit. What must outlive the daemon is in the audit trail.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hotcell_types::{
    Clock, LeaseId, WorkspaceId,
    limits::{
        EGRESS_LOG_WINDOW_MS, MAX_EGRESS_ALLOWED_PER_LEASE, MAX_EGRESS_DENIALS_PER_LEASE,
        MAX_EGRESS_EVENT_LEASES, MAX_EGRESS_LOG_LINES, MAX_EGRESS_NOTES,
    },
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use tokio::time::Instant;

use super::event::{EgressEvent, Happened, Whose};

/// Numbers of events begin with the time, so that those of a new daemon are greater: so many bits
/// are left for counting.
const COUNTING_BITS: u32 = 16;

/// Which events to read.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Only of this lease.
    pub lease: Option<LeaseId>,
    /// Only of this workspace.
    pub workspace: Option<WorkspaceId>,
    /// Only those after the one with this number.
    pub after: Option<u64>,
    /// How many at most.
    pub limit: usize,
}

/// Events, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// The events.
    pub events: Vec<EgressEvent>,
    /// Whether there are more after the last.
    pub more: bool,
    /// How many that would belong here were forgotten since the daemon started, to make room.
    pub forgotten: u64,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<EgressEvent>,
    forgotten: u64,
}

impl Ring {
    fn push(&mut self, event: EgressEvent, limit: usize) {
        if self.events.len() >= limit {
            self.events.pop_front();
            self.forgotten += 1;
        }
        self.events.push_back(event);
    }

    fn after(&self, number: u64) -> impl Iterator<Item = &EgressEvent> {
        let first = self.events.partition_point(|event| event.number <= number);
        self.events.range(first..)
    }
}

/// How much of a lease's events is in the log.
struct LogWindow {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

struct OfLease {
    whose: Whose,
    denials: Ring,
    usual: Ring,
    log: LogWindow,
    last: u64,
}

#[derive(Default)]
struct State {
    last: u64,
    leases: HashMap<LeaseId, OfLease>,
    /// Of leases that were forgotten altogether.
    forgotten: u64,
}

/// How often each kind of event happened since the daemon started, suppressed and forgotten ones too.
pub(crate) type Counted = Family<OfKind, Counter>;

/// A kind of event, see [`Happened::kind`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OfKind {
    kind: &'static str,
}

/// The journal. Shared by all filters.
pub struct Journal {
    clock: Arc<dyn Clock>,
    counted: Counted,
    state: Mutex<State>,
}

impl Journal {
    /// An empty one.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let last = clock.now().0 << COUNTING_BITS;
        let counted = Counted::default();
        // All kinds are there from the start, so that a rate over them is never without a base.
        for kind in Happened::KINDS {
            drop(counted.get_or_create(&OfKind { kind }));
        }
        Self {
            clock,
            counted,
            state: Mutex::new(State {
                last,
                ..State::default()
            }),
        }
    }

    /// The counters, for whoever shows them.
    pub(crate) fn counted(&self) -> Counted {
        self.counted.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in. Never waits for anything but memory.
    pub fn record(&self, whose: &Whose, happened: Happened) {
        let at = self.clock.now();
        let kind = happened.kind();
        let times = happened.times().into();
        self.counted.get_or_create(&OfKind { kind }).inc_by(times);
        let mut state = self.state();
        state.last += 1;
        let number = state.last;
        state.make_room_for(&whose.lease);
        let of_lease = state
            .leases
            .entry(whose.lease.clone())
            .or_insert_with(|| OfLease {
                whose: whose.clone(),
                denials: Ring::default(),
                usual: Ring::default(),
                log: LogWindow {
                    since: Instant::now(),
                    lines: 0,
                    suppressed: 0,
                },
                last: number,
            });
        of_lease.last = number;
        of_lease.log.write(whose, &happened);
        let (ring, limit) = if happened.is_usual() {
            (&mut of_lease.usual, MAX_EGRESS_ALLOWED_PER_LEASE)
        } else {
            (&mut of_lease.denials, MAX_EGRESS_DENIALS_PER_LEASE)
        };
        let event = EgressEvent {
            number,
            at,
            whose: whose.clone(),
            happened,
        };
        ring.push(event, limit);
    }

    /// The filter of a lease is gone: what the log still owes is told. Its events stay.
    pub fn ended(&self, lease: &LeaseId) {
        if let Some(of_lease) = self.state().leases.get_mut(lease) {
            of_lease.log.tell_suppressed(&of_lease.whose);
        }
    }

    /// The number of the last event: what comes from now on is after it.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.state().last
    }

    /// Events, the oldest first.
    #[must_use]
    pub fn page(&self, query: &EventQuery) -> EventPage {
        let state = self.state();
        let after = query.after.unwrap_or_default();
        let mut found = Vec::new();
        let mut forgotten = 0;
        if query.lease.is_none() && query.workspace.is_none() {
            forgotten += state.forgotten;
        }
        let wanted = state.leases.values().filter(|of| {
            query.lease.as_ref().is_none_or(|id| of.whose.lease == *id)
                && query
                    .workspace
                    .as_ref()
                    .is_none_or(|id| of.whose.workspace == *id)
        });
        for of_lease in wanted {
            for ring in [&of_lease.denials, &of_lease.usual] {
                forgotten += ring.forgotten;
                found.extend(ring.after(after).take(query.limit + 1));
            }
        }
        found.sort_unstable_by_key(|event| event.number);
        let more = found.len() > query.limit;
        found.truncate(query.limit);
        EventPage {
            events: found.into_iter().cloned().collect(),
            more,
            forgotten,
        }
    }

    /// What a member should know about denials of their lease after the event with this number:
    /// each once, and not too many.
    #[must_use]
    pub fn notes(&self, lease: &LeaseId, after: u64) -> Vec<String> {
        let state = self.state();
        let Some(of_lease) = state.leases.get(lease) else {
            return Vec::new();
        };
        let mut notes: Vec<String> = Vec::new();
        let mut more = 0_usize;
        let mut left_out = std::collections::HashSet::new();
        for event in of_lease.denials.after(after) {
            let Some(note) = event.happened.note() else {
                continue;
            };
            if notes.contains(&note) {
                continue;
            }
            if notes.len() < MAX_EGRESS_NOTES {
                notes.push(note);
            } else if left_out.insert(note) {
                more += 1;
            }
        }
        if more > 0 {
            notes.push(format!("and {more} more notes about the network"));
        }
        notes
    }
}

impl State {
    /// When there are as many leases as may be, the one that was silent longest goes.
    fn make_room_for(&mut self, lease: &LeaseId) {
        if self.leases.contains_key(lease) || self.leases.len() < MAX_EGRESS_EVENT_LEASES {
            return;
        }
        let silent = self.leases.iter().min_by_key(|(_, of)| of.last);
        let Some(silent) = silent.map(|(id, _)| id.clone()) else {
            return;
        };
        if let Some(of_lease) = self.leases.remove(&silent) {
            for ring in [of_lease.denials, of_lease.usual] {
                self.forgotten += ring.forgotten + ring.events.len() as u64;
            }
        }
    }
}

impl LogWindow {
    fn write(&mut self, whose: &Whose, happened: &Happened) {
        if happened.is_alarming() {
            // Made by hotcell or by somebody with power over the host, and rare.
            tracing::error!(
                lease = %whose.lease,
                workspace = %whose.workspace,
                kind = happened.kind(),
                "{happened}"
            );
            return;
        }
        if happened.is_usual() {
            tracing::debug!(lease = %whose.lease, kind = happened.kind(), "{happened}");
            return;
        }
        let now = Instant::now();
        if now.duration_since(self.since) >= Duration::from_millis(EGRESS_LOG_WINDOW_MS) {
            self.tell_suppressed(whose);
            self.since = now;
            self.lines = 0;
        }
        if self.lines >= MAX_EGRESS_LOG_LINES {
            self.suppressed += 1;
            return;
        }
        self.lines += 1;
        tracing::info!(
            lease = %whose.lease,
            workspace = %whose.workspace,
            kind = happened.kind(),
            layer = happened.layer().as_str(),
            rule = happened.rule().map(|rule| rule.0),
            "{happened}"
        );
    }

    fn tell_suppressed(&mut self, whose: &Whose) {
        if self.suppressed > 0 {
            tracing::info!(
                lease = %whose.lease,
                suppressed = self.suppressed,
                "further events of this sandbox's filter were not logged"
            );
            self.suppressed = 0;
        }
    }
}

#[cfg(test)]
mod tests;
