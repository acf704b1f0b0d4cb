//! A full disk: nothing that was acknowledged is lost, reads go on, and writes work again
//! without a restart as soon as there is space.
//!
//! The disk is a small tmpfs in a mount namespace of its own, so nothing outside sees it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::{
    collections::BTreeSet,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use common::{actions, open, row};
use hotcell_store::{Store, StoreError};

const DISK_VARIABLE: &str = "HOTCELL_TEST_DISK";
const DISK_BYTES: usize = 3 << 20;

/// Runs a test of this file again, in a namespace in which it may mount.
fn in_namespace(test: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let output = command
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(DISK_VARIABLE, directory.path())
        .output()
        .expect("unshare (util-linux) is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.contains("1 passed"), "{said}\n{complained}");
}

fn mount_disk() -> PathBuf {
    let disk = PathBuf::from(std::env::var_os(DISK_VARIABLE).expect("run by another test"));
    let options = std::ffi::CString::new(format!("size={DISK_BYTES}")).unwrap();
    rustix::mount::mount(
        "none",
        &disk,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .unwrap();
    disk
}

/// Takes all the space that is left.
fn fill(disk: &Path) {
    let mut filler = File::create(disk.join("filler")).unwrap();
    let block = [1; 4096];
    while filler.write_all(&block).is_ok() {}
}

async fn write(store: &Store, action: String, padding: usize) -> Result<u64, StoreError> {
    store.write(move |tx| tx.audit(row(action, padding))).await
}

/// Writes until the disk is full. What was acknowledged.
async fn write_until_full(store: &Store, name: &str) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for number in 0..100_000 {
        let action = format!("{name}-{number}");
        match write(store, action.clone(), 3_000).await {
            Ok(_) => {
                acknowledged.insert(action);
            }
            Err(StoreError::DiskFull) => return acknowledged,
            Err(other) => panic!("{other}: {other:?}"),
        }
    }
    panic!("the disk is never full");
}

#[test]
fn the_live_store_survives_a_full_disk() {
    in_namespace("full_and_freed");
}

#[test]
#[ignore = "mounts; run by the_live_store_survives_a_full_disk"]
fn full_and_freed() {
    let disk = mount_disk();
    let path = disk.join("store.redb");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(&path).unwrap();
        let mut expected = BTreeSet::new();
        for round in 0..5 {
            fill(&disk);
            expected.extend(write_until_full(&store, &format!("round-{round}")).await);
            // Reads go on, and see exactly what was acknowledged.
            assert_eq!(actions(&store), expected);
            // Larger ones keep failing, through handles old and new, and nothing of them is kept.
            for attempt in 0..3 {
                let failed = write(&store.clone(), format!("lost-{attempt}"), 100_000).await;
                assert!(matches!(failed, Err(StoreError::DiskFull)), "{failed:?}");
            }
            // Many at once: each is told.
            let many = (0..20).map(|n| write(&store, format!("lost-{n}"), 100_000));
            for failed in futures_util::future::join_all(many).await {
                assert!(matches!(failed, Err(StoreError::DiskFull)), "{failed:?}");
            }
            assert_eq!(actions(&store), expected);
            std::fs::remove_file(disk.join("filler")).unwrap();
            let action = format!("freed-{round}");
            write(&store, action.clone(), 3_000).await.unwrap();
            expected.insert(action);
            assert_eq!(actions(&store), expected);
            // Room for the next round.
            let forgotten: Result<usize, StoreError> = store
                .write(|tx| tx.forget_audit(hotcell_types::UnixMillis(0), 1))
                .await;
            assert_eq!(forgotten.unwrap(), 0);
        }
        assert!(store.stats().failed_commits > 0);
        store.close().await.unwrap();
        let store = open(&path).unwrap();
        assert_eq!(actions(&store), expected);
        store.close().await.unwrap();
    });
}

#[test]
fn a_killed_store_on_a_full_disk_opens_when_there_is_space() {
    in_namespace("full_killed_and_freed");
}

#[test]
#[ignore = "mounts; run by a_killed_store_on_a_full_disk_opens_when_there_is_space"]
fn full_killed_and_freed() {
    let disk = mount_disk();
    let path = disk.join("store.redb");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(&path).unwrap();
        write(&store, "first".to_owned(), 0).await.unwrap();
        fill(&disk);
        let mut expected = write_until_full(&store, "before").await;
        expected.insert("first".to_owned());
        // The bytes that a kill would leave: nothing is closed, nothing written any more.
        let left = std::fs::read(&path).unwrap();
        let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
        let copy = elsewhere.path().join("store.redb");
        std::fs::write(&copy, &left).unwrap();
        let reopened = open(&copy).unwrap();
        assert_eq!(actions(&reopened), expected);
        write(&reopened, "after".to_owned(), 3_000).await.unwrap();
        reopened.close().await.unwrap();

        // On the full disk itself: it opens, or it says why not; either way nothing is lost.
        store.close().await.unwrap();
        match open(&path) {
            Ok(store) => {
                assert_eq!(actions(&store), expected);
                store.close().await.unwrap();
            }
            Err(error) => assert!(error.to_string().contains("could not be opened"), "{error}"),
        }
        std::fs::remove_file(disk.join("filler")).unwrap();
        let store = open(&path).unwrap();
        assert_eq!(actions(&store), expected);
        write(&store, "after".to_owned(), 3_000).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn a_first_start_on_a_full_disk_leaves_nothing_behind() {
    in_namespace("first_start_full");
}

#[test]
#[ignore = "mounts; run by a_first_start_on_a_full_disk_leaves_nothing_behind"]
fn first_start_full() {
    let disk = mount_disk();
    let path = disk.join("store.redb");
    fill(&disk);
    let error = open(&path).unwrap_err();
    assert!(error.to_string().contains("could not be opened"), "{error}");
    assert!(!path.exists());
    std::fs::remove_file(disk.join("filler")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(&path).unwrap();
        write(&store, "first".to_owned(), 0).await.unwrap();
        store.close().await.unwrap();
    });
}
