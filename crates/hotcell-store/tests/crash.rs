//! A process that is killed loses nothing that it acknowledged.
//!
//! `HOTCELL_KILL_ROUNDS` sets how many times the writer is killed: 30 unless it is set, 300 for a
//! release.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use common::{actions, open, row};
use hotcell_core::model::Organization;
use hotcell_store::{OpenError, StoreError};
use hotcell_types::UnixMillis;
use rand::RngExt;

const PATH_VARIABLE: &str = "HOTCELL_TEST_CRASH_STORE";
const WRITERS: u32 = 8;

fn spawn(path: &Path, test: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            test,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PATH_VARIABLE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Writes until it is killed. Says `ack <action>` for what is durable.
#[test]
#[ignore = "the process that the other tests kill"]
fn writer() {
    let path = std::env::var_os(PATH_VARIABLE).expect("run by another test");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&path)).unwrap();
        let run: u64 = rand::random();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                for number in 0.. {
                    let action = format!("{run:x}-{writer}-{number}");
                    let (padding, panics) = {
                        let mut random = rand::rng();
                        (random.random_range(0..2_000), random.random_bool(0.02))
                    };
                    let of_change = action.clone();
                    let written = store
                        .write(move |tx| {
                            tx.audit(row(of_change.clone(), padding))?;
                            tx.put_organization(&Organization {
                                id: format!("o{}", number % 50).parse().unwrap(),
                                name: of_change,
                                enabled: true,
                                profile: None,
                                created_at: UnixMillis(1),
                            })?;
                            assert!(!panics, "on purpose");
                            Ok(())
                        })
                        .await;
                    match written {
                        Ok(()) => {
                            let mut out = std::io::stdout().lock();
                            writeln!(out, "ack {action}").unwrap();
                            out.flush().unwrap();
                        }
                        Err(StoreError::Panicked(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        writers.join_all().await;
    });
}

/// Takes the store and holds it, until its standard input ends.
#[test]
#[ignore = "the process that holds the store"]
fn holder() {
    let path = std::env::var_os(PATH_VARIABLE).expect("run by another test");
    let _store = open(Path::new(&path)).unwrap();
    println!("ack held");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn rounds() -> u32 {
    std::env::var("HOTCELL_KILL_ROUNDS")
        .ok()
        .map_or(30, |text| text.parse().expect("a number"))
}

/// What a line acknowledges. libtest writes its own words into the same stream.
fn acknowledged(line: &str) -> Option<&str> {
    line.rsplit_once("ack ").map(|(_, action)| action.trim())
}

#[test]
fn whatever_was_acknowledged_before_a_kill_is_there_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut total = 0;
    let mut killed_before_any = 0;
    let mut expected = BTreeSet::new();
    let mut path = directory.path().join("0.redb");
    for round in 0..rounds() {
        // A new file now and then, so that its making is killed as well.
        if round % 5 == 0 {
            path = directory.path().join(format!("{round}.redb"));
            expected.clear();
        }
        let mut child = spawn(&path, "writer");
        let wanted = match round % 5 {
            0 => 0,
            _ => rand::rng().random_range(1..400),
        };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        if wanted == 0 {
            // Somewhere in its first moments: as long as it takes this loop to spin.
            for _ in 0..rand::rng().random_range(0..3_000_000_u32) {
                std::hint::spin_loop();
            }
        } else {
            for _ in 0..wanted {
                let line = lines.next().expect("the writer ended by itself").unwrap();
                expected.extend(acknowledged(&line).map(str::to_owned));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said until it died counts as well; a torn last line was not said.
        for line in lines.map_while(Result::ok) {
            expected.extend(acknowledged(&line).map(str::to_owned));
        }
        killed_before_any += u32::from(expected.is_empty());

        let store = open(&path).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let found = actions(&store);
        let lost: Vec<_> = expected.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        total += expected.len();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        // The file that was left behind is as good as any.
        let write = store.write(|tx| tx.audit(row("afterwards".to_owned(), 0)));
        let written: Result<u64, StoreError> = runtime.block_on(write);
        written.unwrap();
        runtime.block_on(store.close()).unwrap();
    }
    println!(
        "{total} acknowledged changes were checked; {killed_before_any} kills came before the first one"
    );
    assert!(total > 0);
}

#[test]
fn a_second_process_is_told_that_the_store_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env(PATH_VARIABLE, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_held = |line: std::io::Result<String>| acknowledged(&line.unwrap()).is_some();
    assert!(lines.by_ref().any(is_held));
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenError::AlreadyInUse { .. }), "{error}");
    assert!(error.to_string().contains("already in use"), "{error}");
    // A killed holder holds nothing.
    child.kill().unwrap();
    child.wait().unwrap();
    open(&path).unwrap();
}

#[test]
fn a_store_that_is_dropped_without_closing_can_be_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    drop(open(&path).unwrap());
    // Its writer thread lets go of the file when it sees that no handle is left.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(30), async {
            while open(&path).is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
    });
}
