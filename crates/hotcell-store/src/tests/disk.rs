//! Disks that fail, apart from being full (that is `tests/disk_full.rs`).

use std::sync::atomic::Ordering;

use super::{Home, organization};
use crate::{Store, StoreError};

fn names(store: &Store) -> Vec<String> {
    let all = store.read_now(|s| s.organizations()).unwrap();
    all.iter().map(|o| o.id.to_string()).collect()
}

async fn put(store: &Store, id: &str) -> Result<(), StoreError> {
    let row = organization(id);
    store.write(move |tx| tx.put_organization(&row)).await
}

#[tokio::test]
async fn the_answer_to_a_failed_sync_is_true() {
    let home = Home::new();
    let store = home.open();
    put(&store, "first").await.unwrap();
    let mut expected = vec!["first".to_owned()];
    let mut seen = (0, 0);
    for (round, failing) in [1, 2, 1, 2].into_iter().enumerate() {
        let id = format!("o{round}");
        store
            .faults()
            .failing_sync
            .store(failing, Ordering::Relaxed);
        match put(&store, &id).await.unwrap_err() {
            // It says that nothing was stored.
            StoreError::Io(_) => seen.0 += 1,
            // It says that it is visible.
            StoreError::Unconfirmed(_) => {
                seen.1 += 1;
                expected.push(id);
            }
            other => panic!("{other}"),
        }
        assert_eq!(store.faults().failing_sync.load(Ordering::Relaxed), 0);
        expected.sort();
        assert_eq!(names(&store), expected);
        // The same handle goes on.
        let id = format!("p{round}");
        put(&store, &id).await.unwrap();
        expected.push(id);
        expected.sort();
        assert_eq!(names(&store), expected);
    }
    assert_eq!(seen, (2, 2), "a commit syncs twice");
    assert_eq!(store.stats().failed_commits, 4);
    store.close().await.unwrap();
    assert_eq!(names(&home.open()), expected);
}

#[tokio::test]
async fn a_disk_that_takes_no_writes_is_still_read_and_used_again_when_it_does() {
    let home = Home::new();
    let store = home.open();
    put(&store, "first").await.unwrap();
    store.faults().failing_writes.store(true, Ordering::Relaxed);
    for _ in 0..5 {
        let failed = put(&store, "lost").await;
        assert!(matches!(&failed, Err(StoreError::Io(_))), "{failed:?}");
        assert!(failed.unwrap_err().is_transient());
        assert_eq!(names(&store), ["first"]);
    }
    store
        .faults()
        .failing_writes
        .store(false, Ordering::Relaxed);
    put(&store, "second").await.unwrap();
    assert_eq!(names(&store), ["first", "second"]);
    store.faults().failing_writes.store(true, Ordering::Relaxed);
    put(&store, "lost").await.unwrap_err();
    // Closing a store that cannot be written lets go of the file.
    store.close().await.unwrap();
    assert_eq!(names(&home.open()), ["first", "second"]);
}

#[tokio::test]
async fn a_change_that_failed_by_itself_keeps_its_own_error_when_the_commit_fails() {
    let home = Home::new();
    let store = home.open();
    store.faults().failing_writes.store(true, Ordering::Relaxed);
    let refused = store
        .write(|tx| {
            tx.put_organization(&organization("o1"))?;
            Err::<(), _>(StoreError::Closed)
        })
        .await;
    assert!(matches!(refused, Err(StoreError::Closed)));
}
