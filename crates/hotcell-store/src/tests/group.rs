//! Changes that share a commit.

use std::sync::{Arc, Barrier};

use tokio::task::JoinSet;

use super::{Home, audit_row, organization};
use crate::{AuditPage, Store, StoreError};

/// A change that sits in the writer until it is let go, so that what is queued meanwhile shares a commit.
struct Held {
    change: tokio::task::JoinHandle<Result<(), StoreError>>,
    barrier: Arc<Barrier>,
}

impl Held {
    async fn new(store: &Store) -> Self {
        let barrier = Arc::new(Barrier::new(2));
        let inside = barrier.clone();
        let (entered, is_in) = tokio::sync::oneshot::channel();
        let store = store.clone();
        let change = tokio::spawn(async move {
            store
                .write(move |_| {
                    entered.send(()).unwrap();
                    inside.wait();
                    Ok(())
                })
                .await
        });
        is_in.await.unwrap();
        Self { change, barrier }
    }

    async fn let_go(self) {
        let barrier = self.barrier;
        tokio::task::spawn_blocking(move || barrier.wait())
            .await
            .unwrap();
        self.change.await.unwrap().unwrap();
    }
}

fn organization_ids(store: &Store) -> Vec<String> {
    let all = store.read_now(|s| s.organizations()).unwrap();
    all.iter().map(|o| o.id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_fails_or_panics_is_rolled_back_alone() {
    let home = Home::new();
    let store = home.open();
    let held = Held::new(&store).await;
    let mut changes = JoinSet::new();
    for number in 0..30_u32 {
        let store = store.clone();
        changes.spawn(async move {
            let result: Result<(), StoreError> = store
                .write(move |tx| {
                    tx.put_organization(&organization(&format!("o{number:02}")))?;
                    tx.audit(audit_row("organization.created"))?;
                    match number % 3 {
                        0 => Ok(()),
                        1 => Err(StoreError::Reopening),
                        _ => panic!("number {number}"),
                    }
                })
                .await;
            (number, result)
        });
    }
    // Nothing can tell that all are queued but the queue itself.
    tokio::time::timeout(std::time::Duration::from_secs(30), async {
        while store.waiting() < 30 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let commits = store.stats().commits;
    held.let_go().await;
    while let Some(done) = changes.join_next().await {
        let (number, result) = done.unwrap();
        match (number % 3, result) {
            (0, Ok(())) | (1, Err(StoreError::Reopening)) => {}
            (2, Err(StoreError::Panicked(said))) => assert_eq!(said, format!("number {number}")),
            (_, other) => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(store.stats().commits, commits + 1, "one commit for all");
    let wanted: Vec<String> = (0..30).step_by(3).map(|n| format!("o{n:02}")).collect();
    assert_eq!(organization_ids(&store), wanted);
    let page = AuditPage {
        before: None,
        limit: 100,
    };
    let audit = store.read_now(|s| s.audit(page)).unwrap();
    let numbers: Vec<u64> = audit.iter().map(|entry| entry.number).collect();
    assert_eq!(
        numbers,
        (1..=10).rev().collect::<Vec<_>>(),
        "numbers of changes that failed are used by the next"
    );
    store.close().await.unwrap();
    assert_eq!(organization_ids(&home.open()), wanted);
}

#[tokio::test]
async fn a_change_that_writes_nothing_needs_no_commit() {
    let home = Home::new();
    let store = home.open();
    let before = store.stats();
    let count = store
        .write(|tx| Ok::<_, StoreError>(tx.organizations()?.len()))
        .await;
    assert_eq!(count.unwrap(), 0);
    assert_eq!(store.stats().commits, before.commits);
    assert_eq!(store.stats().changes, before.changes + 1);
}

#[tokio::test]
async fn a_change_happens_even_when_its_caller_stops_waiting() {
    let home = Home::new();
    let store = home.open();
    let held = Held::new(&store).await;
    {
        let late = store.write(|tx| tx.put_organization(&organization("late")));
        tokio::pin!(late);
        // Polled once: it is queued.
        let is_pending = std::future::poll_fn(|context| {
            let poll: std::task::Poll<Result<(), StoreError>> = late.as_mut().poll(context);
            std::task::Poll::Ready(poll.is_pending())
        });
        assert!(is_pending.await);
    }
    held.let_go().await;
    let barrier: Result<(), StoreError> = store.write(|_| Ok(())).await;
    barrier.unwrap();
    assert_eq!(organization_ids(&store), ["late"]);
}

#[tokio::test]
async fn a_closed_store_says_so_through_every_handle() {
    let home = Home::new();
    let store = home.open();
    let other = store.clone();
    store
        .write(|tx| tx.put_organization(&organization("o1")))
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
    store.close().await.unwrap();
    let refused: Result<(), StoreError> = other.write(|_| Ok(())).await;
    assert!(matches!(refused, Err(StoreError::Closed)));
    let refused = other.read(|s| s.organizations()).await;
    assert!(matches!(refused, Err(StoreError::Closed)));
    other.close().await.unwrap();
    assert_eq!(organization_ids(&home.open()), ["o1"]);
}

#[tokio::test]
async fn a_backup_is_a_store_of_its_own() {
    let home = Home::new();
    let store = home.open();
    store
        .write(|tx| tx.put_organization(&organization("before")))
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
    let target = home.path().with_extension("backup");
    store.backup(target.clone()).await.unwrap();
    store
        .write(|tx| tx.put_organization(&organization("after")))
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
    let copy = super::open(&target).unwrap();
    assert_eq!(organization_ids(&copy), ["before"]);
    assert_eq!(copy.installation(), store.installation());
    assert_eq!(organization_ids(&store), ["after", "before"]);
    let nowhere = home.path().join("no-directory/copy");
    assert!(store.backup(nowhere).await.is_err());
}

#[tokio::test]
async fn a_read_that_panics_is_an_error() {
    let home = Home::new();
    let store = home.open();
    let read = store
        .read(|_| -> Result<(), StoreError> { panic!("reading") })
        .await;
    assert!(matches!(read, Err(StoreError::Panicked(said)) if said == "reading"));
}
