//! Schema versions: forward with a backup, never backward.

use redb::{ReadableTable, WriteTransaction};

use super::{CountedIds, Home, StandingClock, furnish, key};
use crate::{
    OpenError, Store, StoreError,
    migrate::{CURRENT, Migration, Schema},
    tables::Table,
};

/// Renames every organization, so that it can be seen that the step ran, and in which order.
fn append(transaction: &WriteTransaction, mark: &str) -> Result<(), StoreError> {
    let mut table = transaction
        .open_table(Table::Organizations.definition())
        .map_err(StoreError::io)?;
    let rows: Vec<(Vec<u8>, Vec<u8>)> = table
        .iter()
        .map_err(StoreError::io)?
        .map(|row| {
            let (key, value) = row.unwrap();
            (key.value().to_vec(), value.value().to_vec())
        })
        .collect();
    for (key, value) in rows {
        let text = String::from_utf8(value).unwrap();
        let text = text.replace("Organization o1", &format!("Organization o1{mark}"));
        table
            .insert(key.as_slice(), text.as_bytes())
            .map_err(StoreError::io)?;
    }
    Ok(())
}

fn second(transaction: &WriteTransaction) -> Result<(), StoreError> {
    append(transaction, " two")
}

fn third(transaction: &WriteTransaction) -> Result<(), StoreError> {
    append(transaction, " three")
}

fn failing(transaction: &WriteTransaction) -> Result<(), StoreError> {
    append(transaction, " lost")?;
    Err(StoreError::NotFound {
        what: "thing",
        id: "t1".to_owned(),
    })
}

fn panicking(_: &WriteTransaction) -> Result<(), StoreError> {
    panic!("a step panics")
}

const FUTURE: Schema = Schema {
    version: CURRENT.version + 2,
    migrations: &[
        Migration {
            to: CURRENT.version + 1,
            run: second,
        },
        Migration {
            to: CURRENT.version + 2,
            run: third,
        },
    ],
};

fn open_schema(home: &Home, schema: Schema) -> Result<Store, OpenError> {
    Store::open_schema(
        &home.path(),
        &key(),
        &StandingClock,
        std::sync::Arc::new(CountedIds::default()),
        schema,
    )
}

fn name(store: &Store) -> String {
    let found = store.read_now(|s| s.organization(&"o1".parse().unwrap()));
    found.unwrap().unwrap().name
}

#[tokio::test]
async fn all_pending_steps_run_in_order_after_a_backup() {
    let home = Home::new();
    let store = home.open();
    let installation = store.installation();
    furnish(&store).await;
    store.close().await.unwrap();
    let before = std::fs::read(home.path()).unwrap();

    let store = open_schema(&home, FUTURE).unwrap();
    assert_eq!(name(&store), "Organization o1 three two");
    assert_eq!(store.installation(), installation);
    store.close().await.unwrap();
    let backup = format!(
        "store.redb.before-schema-{}-to-{}",
        CURRENT.version, FUTURE.version
    );
    assert_eq!(home.names(), ["store.redb", backup.as_str()]);
    let backup = home.path().with_file_name(&backup);
    assert!(std::fs::read(&backup).unwrap() == before);

    // Once is enough.
    let store = open_schema(&home, FUTURE).unwrap();
    assert_eq!(name(&store), "Organization o1 three two");
    store.close().await.unwrap();

    // The older release refuses the newer file, and takes the backup.
    let newer = std::fs::read(home.path()).unwrap();
    let error = open_schema(&home, CURRENT).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::NewerSchema {
                found,
                known,
                ..
            } if (found, known) == (FUTURE.version, CURRENT.version)
        ),
        "{error}"
    );
    assert!(std::fs::read(home.path()).unwrap() == newer);
    std::fs::rename(backup, home.path()).unwrap();
    let store = open_schema(&home, CURRENT).unwrap();
    assert_eq!(name(&store), "Organization o1");
}

#[tokio::test]
async fn a_step_that_fails_leaves_everything_as_it_was() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    store.close().await.unwrap();
    let before = std::fs::read(home.path()).unwrap();
    let failing = Schema {
        version: CURRENT.version + 2,
        migrations: &[
            Migration {
                to: CURRENT.version + 1,
                run: second,
            },
            Migration {
                to: CURRENT.version + 2,
                run: failing,
            },
        ],
    };
    let error = open_schema(&home, failing).unwrap_err();
    assert!(
        matches!(error, OpenError::Migration { from, .. } if from == CURRENT.version),
        "{error}"
    );
    let panicking = Schema {
        version: CURRENT.version + 1,
        migrations: &[Migration {
            to: CURRENT.version + 1,
            run: panicking,
        }],
    };
    assert!(open_schema(&home, panicking).is_err());
    assert!(std::fs::read(home.path()).unwrap() == before);
    assert_eq!(
        home.names(),
        ["store.redb"],
        "no backup of what was not changed"
    );
    assert_eq!(name(&home.open()), "Organization o1");
}

#[test]
fn the_steps_of_this_release_are_complete() {
    let steps: Vec<u32> = CURRENT.migrations.iter().map(|step| step.to).collect();
    let wanted: Vec<u32> = (1..CURRENT.version).map(|from| from + 1).collect();
    assert_eq!(steps, wanted);
}

#[tokio::test]
async fn a_new_file_has_the_newest_schema() {
    let home = Home::new();
    let store = open_schema(&home, FUTURE).unwrap();
    furnish(&store).await;
    assert_eq!(name(&store), "Organization o1");
    store.close().await.unwrap();
    assert!(matches!(
        open_schema(&home, CURRENT),
        Err(OpenError::NewerSchema { .. })
    ));
}
