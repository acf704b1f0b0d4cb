//! The bytes of a day.

use std::sync::Arc;

use hotcell_core::gate::{DAY_MS, QuotaSettings};
use hotcell_types::UnixMillis;

use super::{
    Home, output,
    quota::{NOON, name, ready, set, write},
};
use crate::{
    StoreError,
    tables::{Span, Table},
};

#[tokio::test]
async fn bytes_count_for_the_day_that_the_clock_shows() {
    let home = Home::new();
    let store = ready(&home).await;
    set(
        &store,
        QuotaSettings {
            max_artifact_bytes_per_day: Some(100),
            ..QuotaSettings::default()
        },
    )
    .await;
    let store_bytes = |bytes, at| {
        write(&store, move |tx| {
            tx.admit_outputs(&"w1".parse().unwrap(), bytes, at)
        })
    };
    let full = Some("quota:max_artifact_bytes_per_day");
    let midnight = UnixMillis(20_001 * DAY_MS);
    let before = UnixMillis(midnight.0 - 1);
    store_bytes(60, before).await.unwrap();
    assert_eq!(name(&store_bytes(41, before).await), full);
    store_bytes(40, before).await.unwrap();
    assert_eq!(name(&store_bytes(1, before).await), full);
    // The next day begins at midnight, not a day after the first byte.
    store_bytes(100, midnight).await.unwrap();
    assert_eq!(name(&store_bytes(1, midnight).await), full);
    // Back over midnight and forth again: each day has its own.
    assert_eq!(name(&store_bytes(1, before).await), full);
    assert_eq!(name(&store_bytes(1, midnight).await), full);
    // A clock that is far off and comes back finds room, and leaves nothing behind.
    let far = UnixMillis(midnight.0 + 900 * DAY_MS);
    store_bytes(100, far).await.unwrap();
    let later = UnixMillis(midnight.0 + 2 * DAY_MS);
    store_bytes(100, later).await.unwrap();
    let days = store
        .read_now(|view| {
            view.scan(
                Table::OutputDays,
                &Span::below("w1"),
                crate::rows::Order::Ascending,
                usize::MAX,
            )
        })
        .unwrap();
    assert_eq!(days.len(), 1, "{days:?}");
}

/// Bytes and records share a transaction: refused or failed, neither is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_collections_never_pass_the_day() {
    let home = Home::new();
    let store = Arc::new(ready(&home).await);
    set(
        &store,
        QuotaSettings {
            max_artifact_bytes_per_day: Some(12 * 10),
            ..QuotaSettings::default()
        },
    )
    .await;
    let collect = |number: u128| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store
                .write(move |tx| {
                    let record = output(number, "w1", "c1", 1);
                    let admitted = tx.admit_outputs(&record.workspace, record.bytes, NOON)?;
                    if admitted.is_err() {
                        return Ok(false);
                    }
                    tx.put_output(&record)?;
                    Ok::<_, StoreError>(true)
                })
                .await
                .unwrap()
        })
    };
    let asked: Vec<_> = (1..=200).map(collect).collect();
    let mut stored = 0;
    for asked in asked {
        stored += usize::from(asked.await.unwrap());
    }
    assert_eq!(stored, 10);
    let (outputs, left) = store
        .read_now(|view| {
            let workspace = "w1".parse().unwrap();
            Ok((
                view.outputs_of_chat(&workspace, &"c1".parse().unwrap())?
                    .len(),
                view.output_bytes_left(&workspace, NOON)?,
            ))
        })
        .unwrap();
    assert_eq!((outputs, left), (10, 0));
}
