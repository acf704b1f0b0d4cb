//! Denials and the audit trail on the real store.

use hotcell_core::{
    gate::DenialRecord,
    model::{Actor, AuditRow},
};
use hotcell_types::{Role, UnixMillis, limits};

use super::{Home, audit_row, quota::write};
use crate::{AuditFilter, DenialFilter, Store};

fn denial(number: u64, workspace: &str, name: &str) -> DenialRecord {
    DenialRecord {
        at: UnixMillis(number),
        organization: "o1".parse().unwrap(),
        workspace: workspace.parse().unwrap(),
        chat: "c1".parse().unwrap(),
        user: "u1".parse().unwrap(),
        role: Role::Viewer,
        name: name.to_owned(),
        limit: None,
        request: None,
    }
}

#[tokio::test]
async fn denials_are_a_ring_that_is_paged_and_filtered() {
    let home = Home::new();
    let store = home.open();
    let total = limits::MAX_DENIALS + 250;
    for start in (0..total).step_by(1_000) {
        let some: Vec<DenialRecord> = (start..(start + 1_000).min(total))
            .map(|number| {
                let of = if number % 10 == 0 { "w1" } else { "w2" };
                let name = if number % 4 == 0 { "role" } else { "workspace" };
                denial(number, of, name)
            })
            .collect();
        write(&store, move |tx| tx.put_denials(&some)).await;
    }
    let page = |filter: DenialFilter| store.read_now(|view| view.denials(&filter)).unwrap();
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let rows = page(DenialFilter {
            before,
            limit: 700,
            ..DenialFilter::default()
        });
        let Some(last) = rows.last() else { break };
        before = Some(last.number);
        seen.extend(rows.into_iter().map(|entry| entry.record.at.0));
    }
    assert_eq!(seen.len() as u64, limits::MAX_DENIALS);
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1] + 1));
    assert_eq!(seen[0], total - 1);
    let some = page(DenialFilter {
        workspace: Some("w1".parse().unwrap()),
        name: Some("role".to_owned()),
        before: None,
        limit: 5,
    });
    assert_eq!(some.len(), 5);
    assert!(some.iter().all(|entry| entry.record.at.0 % 20 == 0));
    // After a restart they are there, and numbers go on.
    store.close().await.unwrap();
    let store = home.open();
    let newest = |store: &Store| {
        let filter = DenialFilter {
            limit: 1,
            ..DenialFilter::default()
        };
        store.read_now(|view| view.denials(&filter)).unwrap()[0].number
    };
    let before = newest(&store);
    write(&store, |tx| tx.put_denials(&[denial(1, "w1", "role")])).await;
    assert_eq!(newest(&store), before + 1);
}

#[tokio::test]
async fn the_audit_trail_is_filtered_without_gap_or_overlap() {
    let home = Home::new();
    let store = home.open();
    write(&store, |tx| {
        for number in 0..2_500_u64 {
            tx.audit(AuditRow {
                at: UnixMillis(number),
                actor: if number % 3 == 0 {
                    Actor::Operator
                } else {
                    Actor::System
                },
                subject: format!("workspace/w{}", number % 2),
                ..audit_row(if number % 5 == 0 {
                    "workspace.updated"
                } else {
                    "lease.ended"
                })
            })?;
        }
        Ok(())
    })
    .await;
    let filter = AuditFilter {
        actor: Some(Actor::Operator),
        action_prefix: Some("workspace.".to_owned()),
        subject: Some("workspace/w0".to_owned()),
        since: Some(UnixMillis(300)),
        until: Some(UnixMillis(2_400)),
        before: None,
        limit: 7,
    };
    let wanted: Vec<u64> = (300..2_400).rev().filter(|n| n % 30 == 0).collect();
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let filter = AuditFilter {
            before,
            ..filter.clone()
        };
        let (rows, next) = store.read_now(|view| view.audit_page(&filter)).unwrap();
        assert!(rows.len() <= 7);
        seen.extend(rows.into_iter().map(|entry| entry.row.at.0));
        match next {
            Some(next) => before = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, wanted);
}
