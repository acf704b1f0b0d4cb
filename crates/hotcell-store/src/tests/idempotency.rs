//! Idempotency keys on the real store.

use std::sync::Arc;

use hotcell_types::{UnixMillis, WorkspaceId, limits};

use super::{Home, furnish};
use crate::{
    IdempotencyBegin, IdempotencyState, NewIdempotencyKey, Store, StoreError, Tx,
    tables::{Span, Table, counter},
};

fn workspace() -> WorkspaceId {
    "w1".parse().unwrap()
}

fn request(key: &str, fingerprint: &str, by: &str, at: u64) -> NewIdempotencyKey {
    NewIdempotencyKey {
        workspace: workspace(),
        key: key.to_owned(),
        fingerprint: fingerprint.to_owned(),
        by: by.to_owned(),
        at: UnixMillis(at),
    }
}

async fn write<T: Send + 'static>(
    store: &Store,
    change: impl FnOnce(&mut Tx<'_>) -> Result<T, StoreError> + Send + 'static,
) -> T {
    store.write(change).await.unwrap()
}

async fn begin(store: &Store, new: NewIdempotencyKey) -> IdempotencyBegin {
    write(store, move |tx| tx.begin_idempotent(&new)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_begins() {
    let home = Home::new();
    let store = Arc::new(home.open());
    furnish(&store).await;
    let asked: Vec<_> = (0..100)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { begin(&store, request("k", "f", "b", 1)).await })
        })
        .collect();
    let mut fresh = 0;
    for asked in asked {
        match asked.await.unwrap() {
            IdempotencyBegin::Fresh => fresh += 1,
            other => assert_eq!(other, IdempotencyBegin::InProgress),
        }
    }
    assert_eq!(fresh, 1);
}

#[tokio::test]
async fn each_state_says_what_a_repeat_gets() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let again = |by| begin(&store, request("k", "f", by, 2));
    assert_eq!(again("b1").await, IdempotencyBegin::Fresh);
    let other = begin(&store, request("k", "other", "b1", 2)).await;
    assert_eq!(other, IdempotencyBegin::OtherRequest);
    // The start that began it is over, and it had done nothing.
    assert_eq!(again("b2").await, IdempotencyBegin::Fresh);
    write(&store, |tx| tx.act_idempotent(&workspace(), "k", "b2")).await;
    assert_eq!(again("b2").await, IdempotencyBegin::InProgress);
    // That start is over too, and nobody knows what it had done.
    assert_eq!(again("b3").await, IdempotencyBegin::CutOff);
    let state = store
        .read_now(|view| view.idempotency_state(&workspace(), "k"))
        .unwrap();
    assert_eq!(state, Some(IdempotencyState::Acting { by: "b2".into() }));
    write(&store, |tx| {
        tx.finish_idempotent(&workspace(), "k", "{}".to_owned())
    })
    .await;
    let done = IdempotencyBegin::Done {
        answer: Some("{}".to_owned()),
    };
    assert_eq!(again("b3").await, done);
    let other = begin(&store, request("k", "other", "b3", 2)).await;
    assert_eq!(other, IdempotencyBegin::OtherRequest);
    // What was released is as good as new, with another request too.
    assert_eq!(
        begin(&store, request("l", "f", "b3", 2)).await,
        IdempotencyBegin::Fresh
    );
    write(&store, |tx| tx.release_idempotent(&workspace(), "l")).await;
    assert_eq!(
        begin(&store, request("l", "g", "b3", 2)).await,
        IdempotencyBegin::Fresh
    );
    // An answer that is too long is not kept, but the end is.
    write(&store, |tx| {
        let long = "x".repeat(limits::MAX_IDEMPOTENT_ANSWER_BYTES + 1);
        tx.finish_idempotent(&workspace(), "l", long)
    })
    .await;
    assert_eq!(
        begin(&store, request("l", "g", "b3", 2)).await,
        IdempotencyBegin::Done { answer: None }
    );
}

#[tokio::test]
async fn keys_are_forgotten_by_time_and_bounded_in_number() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let retention = limits::IDEMPOTENCY_RETENTION_MS;
    let limit = limits::MAX_IDEMPOTENCY_KEYS_PER_WORKSPACE;
    write(&store, move |tx| {
        for number in 0..limit {
            tx.begin_idempotent(&request(&format!("k{number}"), "f", "b", 1_000))?;
        }
        Ok(())
    })
    .await;
    let full = store
        .write(|tx| tx.begin_idempotent(&request("more", "f", "b", 1_001)))
        .await;
    assert!(matches!(full, Err(StoreError::LimitReached { .. })));
    // Remembered to the last millisecond.
    let known = begin(&store, request("k5", "f", "b", 1_000 + retention - 1)).await;
    assert_eq!(known, IdempotencyBegin::InProgress);
    // Over, each new one forgets a few, so there is room.
    let fresh = begin(&store, request("k5", "other", "b", 1_000 + retention)).await;
    assert_eq!(fresh, IdempotencyBegin::Fresh);
    let later = UnixMillis(1_000 + retention);
    loop {
        let forgotten = write(&store, move |tx| tx.forget_idempotency(later, 1_000)).await;
        if forgotten == 0 {
            break;
        }
    }
    let (rows, ages, count) = store
        .read_now(|view| {
            let all = |table| {
                let order = crate::rows::Order::Ascending;
                view.scan(table, &Span::all(), order, usize::MAX)
            };
            Ok((
                all(Table::IdempotencyKeys)?.len(),
                all(Table::IdempotencyAges)?.len(),
                view.count(&counter::idempotency_keys(&workspace()))?,
            ))
        })
        .unwrap();
    assert_eq!((rows, ages, count), (1, 1, 1));
    write(&store, |tx| tx.delete_workspace(&workspace())).await;
    let left = store
        .read_now(|view| view.count(&counter::idempotency_keys(&workspace())))
        .unwrap();
    assert_eq!(left, 0);
}
