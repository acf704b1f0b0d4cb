//! Files that must be refused and left as they are.

use std::{io::Write, path::Path};

use super::{Home, audit_row, furnish, key, open};
use crate::{OpenError, StoreError, StoreKey};

/// A store with enough in it that its trees have several pages.
async fn filled(home: &Home) -> Vec<u8> {
    filled_and_killed(home).await;
    std::fs::read(home.path()).unwrap()
}

/// The same; what a kill would have left in its place. The store itself is closed.
async fn filled_and_killed(home: &Home) -> Vec<u8> {
    let store = home.open();
    furnish(&store).await;
    for _ in 0..20 {
        store
            .write(|tx| {
                for _ in 0..50 {
                    tx.audit(audit_row(&"x".repeat(300)))?;
                }
                Ok::<_, StoreError>(())
            })
            .await
            .unwrap();
    }
    let left = std::fs::read(home.path()).unwrap();
    store.close().await.unwrap();
    left
}

/// Opens, expects a refusal, and checks that nothing was written.
fn refused(path: &Path) -> OpenError {
    let before = std::fs::read(path).unwrap();
    let error = open(path).expect_err("it was opened");
    assert!(std::fs::read(path).unwrap() == before, "it was changed");
    error
}

#[tokio::test]
async fn a_file_cut_in_half_is_refused() {
    let home = Home::new();
    let bytes = filled(&home).await;
    for len in [bytes.len() / 2, bytes.len() - 4096, 4096, 512, 100, 1, 0] {
        std::fs::write(home.path(), &bytes[..len]).unwrap();
        let error = refused(&home.path());
        assert!(matches!(error, OpenError::Damaged { .. }), "{len}: {error}");
        assert!(error.to_string().contains("is damaged"), "{error}");
    }
}

#[tokio::test]
async fn a_zeroed_page_is_refused_or_was_not_in_use() {
    let home = Home::new();
    zero_each_page(&home, filled(&home).await).await;
}

#[tokio::test]
async fn a_zeroed_page_is_refused_also_after_a_kill() {
    let home = Home::new();
    zero_each_page(&home, filled_and_killed(&home).await).await;
}

async fn zero_each_page(home: &Home, bytes: Vec<u8>) {
    let mut damaged = 0;
    for page in 0..bytes.len() / 4096 {
        let mut broken = bytes.clone();
        broken[page * 4096..(page + 1) * 4096].fill(0);
        if broken == bytes {
            continue;
        }
        std::fs::write(home.path(), &broken).unwrap();
        match open(&home.path()) {
            Err(OpenError::Damaged { .. }) => {
                assert!(std::fs::read(home.path()).unwrap() == broken, "page {page}");
                damaged += 1;
            }
            Err(other) => panic!("page {page}: {other}"),
            // The page was a free one: then everything is still there.
            Ok(store) => {
                let page = crate::AuditPage {
                    before: None,
                    limit: 1_000,
                };
                assert_eq!(store.read_now(|s| s.audit(page)).unwrap().len(), 1_000);
                assert_eq!(store.read_now(|s| s.workspaces(None)).unwrap().len(), 1);
                store.close().await.unwrap();
            }
        }
    }
    // 1000 rows of 300 bytes are more than 70 pages.
    assert!(damaged > 70, "{damaged} pages");
}

#[tokio::test]
async fn flipped_bits_are_refused_or_harmless() {
    let home = Home::new();
    let bytes = filled(&home).await;
    let mut damaged = 0;
    for at in (0..bytes.len()).step_by(5_003) {
        let mut broken = bytes.clone();
        broken[at] ^= 0x10;
        std::fs::write(home.path(), &broken).unwrap();
        match open(&home.path()) {
            Err(_) => {
                assert!(std::fs::read(home.path()).unwrap() == broken, "byte {at}");
                damaged += 1;
            }
            Ok(store) => {
                let page = crate::AuditPage {
                    before: None,
                    limit: 1_000,
                };
                assert_eq!(store.read_now(|s| s.audit(page)).unwrap().len(), 1_000);
                store.close().await.unwrap();
            }
        }
    }
    assert!(damaged > 20, "{damaged} bytes");
}

#[tokio::test]
async fn a_wrong_format_is_refused() {
    let home = Home::new();
    let bytes = filled(&home).await;
    // The format version of the first commit slot of the header, and the magic number.
    for at in [0, 64, 192] {
        let mut broken = bytes.clone();
        broken[at] = 99;
        std::fs::write(home.path(), &broken).unwrap();
        let error = refused(&home.path());
        assert!(matches!(error, OpenError::Damaged { .. }), "{at}: {error}");
    }
    for foreign in [
        b"SQLite format 3\0".to_vec(),
        vec![0; 100_000],
        vec![b'x'; 8_192],
    ] {
        std::fs::write(home.path(), foreign).unwrap();
        assert!(matches!(refused(&home.path()), OpenError::Damaged { .. }));
    }
}

#[tokio::test]
async fn another_database_is_refused() {
    let home = Home::new();
    let database = redb::Database::create(home.path()).unwrap();
    let table: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("things");
    let write = database.begin_write().unwrap();
    write.open_table(table).unwrap().insert("a", 1).unwrap();
    write.commit().unwrap();
    database.close().unwrap();
    let error = refused(&home.path());
    assert!(
        error.to_string().contains("not a store of hotcell"),
        "{error}"
    );
}

#[tokio::test]
async fn another_key_is_refused() {
    let home = Home::new();
    filled(&home).await;
    let before = std::fs::read(home.path()).unwrap();
    let error = crate::Store::open(
        &home.path(),
        StoreKey::new([8; 32]),
        std::sync::Arc::new(super::StandingClock),
        std::sync::Arc::new(super::CountedIds::default()),
    )
    .unwrap_err();
    assert!(matches!(error, OpenError::WrongKey { .. }), "{error}");
    assert!(error.to_string().contains("another key"));
    assert!(std::fs::read(home.path()).unwrap() == before);
    home.open().close().await.unwrap();
}

#[tokio::test]
async fn a_second_handle_is_refused_until_the_first_is_closed() {
    let home = Home::new();
    let store = home.open();
    let error = open(&home.path()).unwrap_err();
    assert!(matches!(error, OpenError::AlreadyInUse { .. }), "{error}");
    assert!(error.to_string().contains("already in use"));
    let other = store.clone();
    store.close().await.unwrap();
    home.open().close().await.unwrap();
    drop(other);
}

#[tokio::test]
async fn what_a_killed_first_start_left_is_no_obstacle() {
    let home = Home::new();
    let mut left = home.path().into_os_string();
    left.push(".new");
    std::fs::File::create(&left)
        .unwrap()
        .write_all(&[1; 10_000])
        .unwrap();
    home.open().close().await.unwrap();
    assert_eq!(home.names(), ["store.redb"]);
}

#[tokio::test]
async fn of_many_first_starts_exactly_one_wins() {
    for _ in 0..10 {
        let home = Home::new();
        let path = home.path();
        let threads: Vec<_> = (0..6)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || open(&path))
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let mut stores = Vec::new();
        for result in results {
            match result {
                Ok(store) => stores.push(store),
                Err(OpenError::AlreadyInUse { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(stores.len(), 1);
        assert_eq!(home.names(), ["store.redb"]);
    }
}

#[test]
fn keys_are_parsed_and_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    std::fs::write(&path, format!("{}\n", key().to_text().as_str())).unwrap();
    let read = StoreKey::read(&path).unwrap();
    assert_eq!(*read.to_text(), *key().to_text());
    assert_eq!(format!("{read:?}"), "StoreKey(…)");
    for bad in ["", "07", &"g".repeat(64), &"07".repeat(33)] {
        assert!(StoreKey::parse(bad).is_err(), "{bad}");
    }
    assert!(StoreKey::read(&directory.path().join("none")).is_err());
}
