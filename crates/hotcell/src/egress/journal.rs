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
mod tests {
    use hotcell_policy::RuleIndex;
    use hotcell_types::UnixMillis;

    use super::*;

    struct Standing(u64);

    impl Clock for Standing {
        fn now(&self) -> UnixMillis {
            UnixMillis(self.0)
        }
    }

    fn journal() -> Journal {
        Journal::new(Arc::new(Standing(1_000)))
    }

    fn whose(number: u128, workspace: &str) -> Whose {
        Whose {
            lease: LeaseId::from_bits(number),
            workspace: workspace.parse().unwrap(),
            organization: "o".parse().unwrap(),
        }
    }

    fn denied(name: &str) -> Happened {
        Happened::NameDenied {
            name: Some(name.to_owned()),
            rule: Some(RuleIndex(3)),
            why: "rule 3".to_owned(),
        }
    }

    fn allowed(name: &str) -> Happened {
        Happened::NameAllowed {
            name: name.to_owned(),
            rule: None,
            opened: 1,
        }
    }

    fn everything() -> EventQuery {
        EventQuery {
            limit: 1_000_000,
            ..EventQuery::default()
        }
    }

    #[tokio::test]
    async fn lookups_do_not_push_denials_out_and_nothing_grows() {
        let journal = journal();
        let whose = whose(1, "w");
        journal.record(&whose, denied("first.example"));
        for _ in 0..10_000 {
            journal.record(&whose, allowed("a.example"));
        }
        let page = journal.page(&everything());
        assert_eq!(page.events.len(), 1 + MAX_EGRESS_ALLOWED_PER_LEASE);
        assert_eq!(page.events[0].happened, denied("first.example"));
        assert_eq!(page.forgotten, 10_000 - MAX_EGRESS_ALLOWED_PER_LEASE as u64);
        for number in 0..10_000 {
            journal.record(&whose, denied(&format!("{number}.example")));
        }
        let denials = journal.page(&everything()).events;
        assert_eq!(
            denials.len(),
            MAX_EGRESS_DENIALS_PER_LEASE + MAX_EGRESS_ALLOWED_PER_LEASE
        );
        let counted = |kind| journal.counted().get_or_create(&OfKind { kind }).get();
        assert_eq!(counted("name_allowed"), 10_000);
        assert_eq!(counted("name_denied"), 10_001);
    }

    #[test]
    fn every_kind_is_counted_from_the_start() {
        for happened in [
            denied("a.example"),
            allowed("a.example"),
            Happened::RateExceeded,
        ] {
            assert!(Happened::KINDS.contains(&happened.kind()));
        }
        let kinds = Happened::KINDS.map(|kind| OfKind { kind });
        assert!(
            kinds
                .iter()
                .all(|kind| journal().counted().get(kind).is_some())
        );
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_sandbox_writes_few_lines_into_the_log_and_the_rest_is_counted() {
        let (journal, log) = (journal(), Log::default());
        let (noisy, quiet) = (whose(1, "w"), whose(2, "w"));
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        for number in 0..1_000 {
            journal.record(&noisy, denied(&format!("{number}.example")));
        }
        journal.record(&quiet, denied("quiet.example"));
        journal.ended(&noisy.lease);
        drop(guard);
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let limit = MAX_EGRESS_LOG_LINES as usize;
        assert_eq!(text.lines().count(), limit + 2, "{text}");
        assert!(text.contains("quiet.example"));
        assert!(text.contains(&format!("suppressed={}", 1_000 - limit)));
    }

    #[tokio::test]
    async fn the_lease_that_was_silent_longest_goes_first() {
        let journal = journal();
        for number in 0..MAX_EGRESS_EVENT_LEASES as u128 + 1 {
            journal.record(&whose(number + 1, "w"), denied("x.example"));
            journal.record(&whose(1, "w"), denied("y.example"));
        }
        let of = |number| {
            let query = EventQuery {
                lease: Some(LeaseId::from_bits(number)),
                ..everything()
            };
            journal.page(&query).events.len()
        };
        assert_eq!(of(2), 0);
        assert_eq!(of(3), 1);
        assert!(of(1) > 1);
        assert_eq!(journal.state().leases.len(), MAX_EGRESS_EVENT_LEASES);
    }

    #[tokio::test]
    async fn pages_follow_each_other_and_filters_hold() {
        let journal = journal();
        let before = journal.last();
        for number in 0..25_u128 {
            let workspace = if number % 2 == 0 { "even" } else { "odd" };
            journal.record(&whose(number + 1, workspace), denied("x.example"));
        }
        let mut seen = Vec::new();
        let mut after = Some(before);
        loop {
            let page = journal.page(&EventQuery {
                after,
                limit: 10,
                ..EventQuery::default()
            });
            seen.extend(page.events.iter().map(|event| event.number));
            after = seen.last().copied();
            if !page.more {
                break;
            }
        }
        let expected: Vec<u64> = (1..=25).map(|number| before + number).collect();
        assert_eq!(seen, expected);
        let odd = journal.page(&EventQuery {
            workspace: Some("odd".parse().unwrap()),
            ..everything()
        });
        assert_eq!(odd.events.len(), 12);
        // A daemon that starts a millisecond later counts from further on.
        let later = Journal::new(Arc::new(Standing(1_001)));
        assert!(later.last() > journal.last());
    }

    #[tokio::test]
    async fn notes_are_few_short_and_each_told_once() {
        let journal = journal();
        let whose = whose(1, "w");
        journal.record(&whose, denied("before.example"));
        let cursor = journal.last();
        for _ in 0..3 {
            journal.record(&whose, denied("registry.npmjs.org"));
            journal.record(&whose, allowed("a.example"));
        }
        assert_eq!(
            journal.notes(&whose.lease, cursor),
            ["blocked by network policy: registry.npmjs.org"]
        );
        for number in 0..100 {
            let name = format!("{number}.{}", "x".repeat(400));
            journal.record(&whose, denied(&name));
        }
        let notes = journal.notes(&whose.lease, cursor);
        assert_eq!(notes.len(), MAX_EGRESS_NOTES + 1);
        assert_eq!(
            notes.last().unwrap(),
            &format!(
                "and {} more notes about the network",
                101 - MAX_EGRESS_NOTES
            )
        );
        assert!(
            notes
                .iter()
                .all(|note| note.chars().count()
                    <= hotcell_types::limits::MAX_EGRESS_NOTE_CHARACTERS)
        );
        assert!(journal.notes(&LeaseId::from_bits(9), 0).is_empty());
    }
}
