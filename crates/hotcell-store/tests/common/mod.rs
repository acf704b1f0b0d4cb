//! What the tests with other processes share.

use std::{path::Path, sync::Arc};

use hotcell_core::model::{Actor, AuditRow};
use hotcell_store::{OpenError, Store, StoreKey};
use hotcell_types::{Clock, IdSource, UnixMillis};

pub(crate) struct StandingClock;

impl Clock for StandingClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(1_700_000_000_000)
    }
}

pub(crate) struct RandomIds;

impl IdSource for RandomIds {
    fn bits(&self) -> u128 {
        rand::random()
    }
}

pub(crate) fn open(path: &Path) -> Result<Store, OpenError> {
    Store::open(
        path,
        StoreKey::new([7; 32]),
        Arc::new(StandingClock),
        Arc::new(RandomIds),
    )
}

/// A row that can be told from every other by its action.
pub(crate) fn row(action: String, padding: usize) -> AuditRow {
    AuditRow {
        at: UnixMillis(1),
        actor: Actor::System,
        action,
        subject: "x".repeat(padding),
        fields: Vec::new(),
        request: None,
    }
}

/// The actions of all rows, checking that the numbers have no gap.
pub(crate) fn actions(store: &Store) -> std::collections::BTreeSet<String> {
    let mut found = std::collections::BTreeSet::new();
    let mut before = None;
    loop {
        let page = hotcell_store::AuditPage {
            before,
            limit: 1_000,
        };
        let entries = store.read_now(|s| s.audit(page)).expect("a readable store");
        let Some(last) = entries.last() else {
            break;
        };
        for pair in entries.windows(2) {
            assert_eq!(pair[0].number, pair[1].number + 1, "a gap");
        }
        before = Some(last.number);
        found.extend(entries.into_iter().map(|entry| entry.row.action));
    }
    assert!(
        before.is_none_or(|oldest| oldest == 1),
        "the oldest rows are missing"
    );
    found
}
