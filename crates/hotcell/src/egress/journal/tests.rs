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
            .all(|note| note.chars().count() <= hotcell_types::limits::MAX_EGRESS_NOTE_CHARACTERS)
    );
    assert!(journal.notes(&LeaseId::from_bits(9), 0).is_empty());
}
