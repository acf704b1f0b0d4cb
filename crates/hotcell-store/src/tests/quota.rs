//! Quotas on the real store.

use std::sync::Arc;

use hotcell_core::{
    gate::{DAY_MS, Denial, HOUR_MS, Quota, QuotaSettings},
    model::{Deployment, LeaseRecord, LeaseState},
};
use hotcell_types::{LeaseId, ProfileId, ResourceClass, Role, UnixMillis};

use super::{Home, furnish, organization, workspace};
use crate::{
    GateAsk, NewLease, Snapshot, Store, StoreError, Tx,
    tables::{Span, Table},
};

/// A time in the middle of a day.
pub(super) const NOON: UnixMillis = UnixMillis(20_000 * DAY_MS + DAY_MS / 2);

pub(super) async fn write<T: Send + 'static>(
    store: &Store,
    change: impl FnOnce(&mut Tx<'_>) -> Result<T, StoreError> + Send + 'static,
) -> T {
    store.write(change).await.unwrap()
}

/// A store with the workspace `w1` and everything switched on.
pub(super) async fn ready(home: &Home) -> Store {
    let store = home.open();
    furnish(&store).await;
    write(&store, |tx| {
        tx.put_deployment(&Deployment {
            enabled: true,
            default_profile: Some("default".parse().unwrap()),
        })
    })
    .await;
    store
}

pub(super) async fn set(store: &Store, settings: QuotaSettings) {
    write(store, move |tx| {
        tx.put_quotas(&"w1".parse().unwrap(), &settings)
    })
    .await;
}

pub(super) fn admit_in(
    tx: &mut Tx<'_>,
    number: u128,
    chat: &str,
    class: ResourceClass,
    now: UnixMillis,
) -> Result<Result<LeaseRecord, Denial>, StoreError> {
    let profiles: Vec<ProfileId> = vec!["default".parse().unwrap()];
    let (organization, workspace) = ("o1".parse().unwrap(), "w1".parse().unwrap());
    let ask = GateAsk {
        forced_off: false,
        organization: &organization,
        workspace: &workspace,
        role: Role::Editor,
        active_profiles: &profiles,
    };
    let new = NewLease {
        id: LeaseId::from_bits(number),
        chat: chat.parse().unwrap(),
        user: "u1".parse().unwrap(),
        class,
    };
    tx.admit_lease(&ask, &new, now)
}

async fn admit(store: &Store, number: u128, now: UnixMillis) -> Result<LeaseRecord, Denial> {
    write(store, move |tx| {
        admit_in(tx, number, &format!("c{number}"), ResourceClass::Small, now)
    })
    .await
}

pub(super) async fn end(store: &Store, lease: LeaseRecord) {
    write(store, move |tx| {
        tx.put_lease(&LeaseRecord {
            state: LeaseState::Ended,
            ..lease
        })
    })
    .await;
}

pub(super) fn name<T>(result: &Result<T, Denial>) -> Option<&'static str> {
    result.as_ref().err().map(|denial| denial.name())
}

pub(super) fn live(view: &Snapshot<'_>) -> Result<(u64, usize), StoreError> {
    let rows = view.scan(
        Table::LiveLeases,
        &Span::below("w1"),
        crate::rows::Order::Ascending,
        usize::MAX,
    )?;
    Ok((view.live_leases_of(&"w1".parse().unwrap())?, rows.len()))
}

/// LC-01: the limit holds to the number, however many ask at once, and what was refused left nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hundreds_at_once_never_pass_the_limit() {
    let home = Home::new();
    let store = Arc::new(ready(&home).await);
    for limit in [0_u64, 1, 2, 17] {
        let settings = QuotaSettings {
            max_concurrent: Some(limit),
            max_jobs_per_hour: Some(1_000),
            ..QuotaSettings::default()
        };
        set(&store, settings).await;
        let base = u128::from(limit) * 1_000 + 1;
        let asked = (0..400).map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { admit(&store, base + number, NOON).await })
        });
        let asked: Vec<_> = asked.collect();
        let mut admitted = Vec::new();
        for asked in asked {
            match asked.await.unwrap() {
                Ok(lease) => admitted.push(lease),
                Err(denial) => assert_eq!(denial.name(), "quota:max_concurrent"),
            }
        }
        assert_eq!(admitted.len() as u64, limit);
        let (counted, rows) = store.read_now(live).unwrap();
        assert_eq!((counted, rows as u64), (limit, limit));
        for lease in admitted {
            end(&store, lease).await;
        }
        assert_eq!(store.read_now(live).unwrap(), (0, 0));
    }
}

/// LC-01: 70 at once at the edge of the hour; the window rolls and is exact to the millisecond.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_hour_rolls_and_is_exact() {
    let home = Home::new();
    let store = Arc::new(ready(&home).await);
    set(
        &store,
        QuotaSettings {
            max_concurrent: Some(1_000),
            ..QuotaSettings::default()
        },
    )
    .await;
    // Ten, one a minute; then seventy at once.
    for minute in 0..10 {
        let at = NOON.plus_millis(minute * 60_000);
        admit(&store, u128::from(minute) + 1, at).await.unwrap();
    }
    let at = NOON.plus_millis(10 * 60_000);
    let asked = (0..70).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { admit(&store, 100 + number, at).await })
    });
    let asked: Vec<_> = asked.collect();
    let mut refused = 0;
    for asked in asked {
        if let Err(denial) = asked.await.unwrap() {
            assert_eq!(denial.name(), "quota:max_jobs_per_hour");
            // The oldest leaves the hour first.
            let frees_at = denial.exceeded().unwrap().frees_at;
            assert_eq!(frees_at, Some(NOON.plus_millis(HOUR_MS)));
            refused += 1;
        }
    }
    assert_eq!(refused, 20);
    // One place frees as each of the ten leaves, to the millisecond.
    for minute in 0..10 {
        let frees_at = NOON.plus_millis(HOUR_MS + minute * 60_000);
        let number = 1_000 + u128::from(minute) * 10;
        let early = admit(&store, number, UnixMillis(frees_at.0 - 1)).await;
        assert_eq!(name(&early), Some("quota:max_jobs_per_hour"));
        admit(&store, number + 1, frees_at).await.unwrap();
        let second = admit(&store, number + 2, frees_at).await;
        assert_eq!(name(&second), Some("quota:max_jobs_per_hour"));
    }
    // Then all fifty of one moment.
    let usage = store
        .read_now(|view| {
            view.quota_usage(&"w1".parse().unwrap(), NOON.plus_millis(HOUR_MS + 599_999))
        })
        .unwrap();
    assert_eq!(usage.admitted_in_hour, 60);
    let usage = store
        .read_now(|view| {
            view.quota_usage(&"w1".parse().unwrap(), NOON.plus_millis(HOUR_MS + 600_000))
        })
        .unwrap();
    assert_eq!(usage.admitted_in_hour, 10);
}

/// A lease that ends frees its place in the same transaction; the hour still counts it.
#[tokio::test]
async fn ending_frees_at_once_and_the_hour_does_not_forget() {
    let home = Home::new();
    let store = ready(&home).await;
    for round in 0..30 {
        let first = admit(&store, round * 10 + 1, NOON).await.unwrap();
        let second = admit(&store, round * 10 + 2, NOON).await.unwrap();
        let third = admit(&store, round * 10 + 3, NOON).await;
        // The sixtieth was the last of the hour, but two live already: the first level names it.
        assert_eq!(name(&third), Some("quota:max_concurrent"));
        end(&store, first).await;
        end(&store, second).await;
    }
    assert_eq!(
        name(&admit(&store, 900, NOON).await),
        Some("quota:max_jobs_per_hour")
    );
    // Ending twice gives nothing back twice.
    let lease = store
        .read_now(|view| view.lease(&LeaseId::from_bits(1)))
        .unwrap()
        .unwrap();
    end(&store, lease).await;
    assert_eq!(store.read_now(live).unwrap(), (0, 0));
}

#[tokio::test]
async fn what_was_taken_outlives_a_restart_and_what_failed_was_never_taken() {
    let home = Home::new();
    let store = ready(&home).await;
    admit(&store, 1, NOON).await.unwrap();
    admit(&store, 2, NOON).await.unwrap();
    // An admission whose transaction fails afterwards.
    let failed = store
        .write(|tx| {
            let lease = tx.lease(&LeaseId::from_bits(2))?.unwrap();
            tx.put_lease(&LeaseRecord {
                state: LeaseState::Ended,
                ..lease
            })?;
            admit_in(tx, 3, "c3", ResourceClass::Small, NOON)?.unwrap();
            Err::<(), _>(StoreError::Closed)
        })
        .await;
    assert!(failed.is_err());
    store.close().await.unwrap();
    let store = home.open();
    assert_eq!(store.read_now(live).unwrap(), (2, 2));
    assert_eq!(
        name(&admit(&store, 4, NOON).await),
        Some("quota:max_concurrent")
    );
    let usage = store
        .read_now(|view| view.quota_usage(&"w1".parse().unwrap(), NOON))
        .unwrap();
    assert_eq!(usage.admitted_in_hour, 2);
}

/// Whoever crashed between the admission and the start is found again, also at the limit.
#[tokio::test]
async fn a_chats_own_lease_is_told_before_any_quota() {
    let home = Home::new();
    let store = ready(&home).await;
    set(
        &store,
        QuotaSettings {
            max_concurrent: Some(1),
            max_jobs_per_hour: Some(1),
            ..QuotaSettings::default()
        },
    )
    .await;
    let first = admit(&store, 1, NOON).await.unwrap();
    let again = store
        .write(|tx| admit_in(tx, 2, "c1", ResourceClass::Small, NOON))
        .await;
    match again {
        Err(StoreError::ChatHasLiveLease(id)) => assert_eq!(id, first.id),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_changed_limit_binds_the_next_one_and_nothing_that_runs() {
    let home = Home::new();
    let store = ready(&home).await;
    let first = admit(&store, 1, NOON).await.unwrap();
    admit(&store, 2, NOON).await.unwrap();
    let lower = QuotaSettings {
        max_concurrent: Some(1),
        ..QuotaSettings::default()
    };
    set(&store, lower).await;
    assert_eq!(store.read_now(live).unwrap(), (2, 2));
    end(&store, first).await;
    assert_eq!(
        name(&admit(&store, 3, NOON).await),
        Some("quota:max_concurrent")
    );
    // What a lease that lives writes of itself is never refused.
    let lease = store
        .read_now(|view| view.lease(&LeaseId::from_bits(2)))
        .unwrap()
        .unwrap();
    write(&store, move |tx| {
        tx.put_lease(&LeaseRecord {
            state: LeaseState::Idle,
            ..lease
        })
    })
    .await;
    set(&store, QuotaSettings::default()).await;
    admit(&store, 4, NOON).await.unwrap();
    // A larger class than allowed; allowed then.
    set(
        &store,
        QuotaSettings {
            max_concurrent: Some(9),
            ..QuotaSettings::default()
        },
    )
    .await;
    let large = |number| {
        write(&store, move |tx| {
            admit_in(tx, number, "c-large", ResourceClass::Large, NOON)
        })
    };
    assert_eq!(name(&large(5).await), Some("quota:max_resource_class"));
    set(
        &store,
        QuotaSettings {
            max_concurrent: Some(9),
            max_resource_class: Some(ResourceClass::Large),
            ..QuotaSettings::default()
        },
    )
    .await;
    assert_eq!(large(6).await.unwrap().resource_class, ResourceClass::Large);
}

#[tokio::test]
async fn a_clock_that_goes_back_neither_opens_the_hour_nor_closes_it_for_long() {
    let home = Home::new();
    let store = ready(&home).await;
    let settings = QuotaSettings {
        max_concurrent: Some(1_000),
        max_jobs_per_hour: Some(3),
        ..QuotaSettings::default()
    };
    set(&store, settings).await;
    let full = Some("quota:max_jobs_per_hour");
    // A moment back: racing calls read the clock in another order than they are written.
    for (number, back) in [(1, 0), (2, 40), (3, 900)] {
        let at = UnixMillis(NOON.0 - back);
        admit(&store, number, at).await.unwrap();
    }
    assert_eq!(name(&admit(&store, 4, NOON).await), full);
    let early = UnixMillis(NOON.0 + HOUR_MS - 1);
    assert_eq!(name(&admit(&store, 5, early).await), full);
    admit(&store, 6, NOON.plus_millis(HOUR_MS)).await.unwrap();
    admit(&store, 7, NOON.plus_millis(HOUR_MS)).await.unwrap();
    admit(&store, 8, NOON.plus_millis(HOUR_MS)).await.unwrap();
    // The clock was a year ahead: found out by a call that is refused.
    let year = 365 * DAY_MS;
    let corrected = UnixMillis(NOON.0 + HOUR_MS + 5 - year);
    assert_eq!(name(&admit(&store, 9, corrected).await), full);
    let within = UnixMillis(corrected.0 + HOUR_MS - 1);
    assert_eq!(name(&admit(&store, 10, within).await), full);
    admit(&store, 11, UnixMillis(corrected.0 + HOUR_MS))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_deleted_workspace_takes_its_quotas_along() {
    let home = Home::new();
    let store = ready(&home).await;
    set(
        &store,
        QuotaSettings {
            max_concurrent: Some(5),
            ..QuotaSettings::default()
        },
    )
    .await;
    let lease = admit(&store, 1, NOON).await.unwrap();
    end(&store, lease).await;
    write(&store, |tx| {
        tx.admit_outputs(&"w1".parse().unwrap(), 5, NOON)
    })
    .await
    .unwrap();
    write(&store, |tx| tx.delete_workspace(&"w1".parse().unwrap())).await;
    write(&store, |tx| tx.put_workspace(&workspace("w1", "o1"))).await;
    let usage = store
        .read_now(|view| view.quota_usage(&"w1".parse().unwrap(), NOON))
        .unwrap();
    assert_eq!(
        (
            usage.quotas.max_concurrent,
            usage.admitted_in_hour,
            usage.stored_bytes_today
        ),
        (2, 0, 0)
    );
    assert_eq!(usage.set, []);
    let unknown = store
        .write(|tx| tx.put_quotas(&"nobody".parse().unwrap(), &QuotaSettings::default()))
        .await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn settings_come_back_as_they_were_put() {
    let home = Home::new();
    let store = ready(&home).await;
    let all = QuotaSettings {
        max_concurrent: Some(7),
        max_resource_class: Some(ResourceClass::Medium),
        max_job_seconds: Some(8),
        max_artifact_bytes_per_day: Some(9),
        max_jobs_per_hour: Some(10),
    };
    set(&store, all).await;
    let read = |store: &Store| {
        store
            .read_now(|view| view.quota_settings(&"w1".parse().unwrap()))
            .unwrap()
    };
    assert_eq!(read(&store), all);
    assert_eq!(all.set(), Quota::ALL);
    set(&store, QuotaSettings::default()).await;
    assert_eq!(read(&store), QuotaSettings::default());
}

#[tokio::test]
async fn a_job_passes_the_same_gate() {
    let home = Home::new();
    let store = ready(&home).await;
    let ask = |role, seconds, forced_off| {
        let profiles: Vec<ProfileId> = vec!["default".parse().unwrap()];
        let (organization, workspace) = (organization("o1").id, workspace("w1", "o1").id);
        store
            .read_now(|view| {
                let ask = GateAsk {
                    forced_off,
                    organization: &organization,
                    workspace: &workspace,
                    role,
                    active_profiles: &profiles,
                };
                view.admit_job(&ask, seconds)
            })
            .unwrap()
    };
    assert!(ask(Role::Editor, 3_600, false).is_ok());
    assert_eq!(
        name(&ask(Role::Editor, 3_601, false)),
        Some("quota:max_job_seconds")
    );
    assert_eq!(name(&ask(Role::Viewer, 1, false)), Some("role"));
    assert_eq!(name(&ask(Role::Editor, 1, true)), Some("deployment"));
}
