//! Durable admissions per second: each is a lease, its indexes, its counter and its audit row, answered after
//! the commit is on disk. One line of JSON for each number of concurrent callers; then what reading a credential
//! costs, as every signed request does, and opening a store of that size.
//!
//! `HOTCELL_BENCH_DIR` sets where the store is made; the disk matters.

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod common;

use std::io::Write;

use hotcell_core::model::{
    Credential, CredentialSecret, LeaseRecord, LeaseState, Organization, Workspace,
};
use hotcell_store::StoreError;
use hotcell_types::{CredentialId, LeaseId, ResourceClass, UnixMillis};
use tokio::{task::JoinSet, time::Instant};

const OPERATIONS: u64 = 20_000;
const READS: u32 = 20_000;

fn admission(writer: u64, number: u64) -> LeaseRecord {
    LeaseRecord {
        id: LeaseId::from_bits(rand::random()),
        organization: "o1".parse().expect("an id"),
        workspace: "w1".parse().expect("an id"),
        chat: format!("chat-{writer}-{number}").parse().expect("an id"),
        user: "user".parse().expect("an id"),
        profile: "embedded".parse().expect("an id"),
        resource_class: ResourceClass::Small,
        state: LeaseState::Starting,
        created_at: UnixMillis(number),
        changed_at: UnixMillis(number),
        end: None,
    }
}

async fn measure(writers: u64) -> String {
    let root = std::env::var_os("HOTCELL_BENCH_DIR").unwrap_or_else(|| "target".into());
    std::fs::create_dir_all(&root).expect("a directory for the bench");
    let directory = tempfile::tempdir_in(&root).expect("a directory for the bench");
    let store = common::open(&directory.path().join("store.redb")).expect("a new store");
    let prepared: Result<(), StoreError> = store
        .write(|tx| {
            tx.put_organization(&Organization {
                id: "o1".parse().expect("an id"),
                name: "One".to_owned(),
                enabled: true,
                profile: None,
                created_at: UnixMillis(1),
            })?;
            tx.put_workspace(&Workspace {
                id: "w1".parse().expect("an id"),
                organization: "o1".parse().expect("an id"),
                name: "One".to_owned(),
                enabled: true,
                created_at: UnixMillis(1),
            })
        })
        .await;
    prepared.expect("a workspace");
    let before = store.stats();
    let each = if writers == 1 {
        OPERATIONS / 10
    } else {
        OPERATIONS
    } / writers;
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let store = store.clone();
        tasks.spawn(async move {
            let mut waits_us = Vec::new();
            for number in 0..each {
                let lease = admission(writer, number);
                let asked = Instant::now();
                let admitted: Result<u64, StoreError> = store
                    .write(move |tx| {
                        tx.put_lease(&lease)?;
                        tx.audit(common::row("lease.admitted".to_owned(), 30))
                    })
                    .await;
                admitted.expect("an admission");
                waits_us.push(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX));
            }
            waits_us
        });
    }
    let mut waits_us: Vec<u64> = tasks.join_all().await.into_iter().flatten().collect();
    let seconds = began.elapsed().as_secs_f64();
    waits_us.sort_unstable();
    let commits = store.stats().commits - before.commits;
    let operations = writers * each;
    let id = CredentialId::from_bits(1);
    let of_change = id.clone();
    let prepared: Result<(), StoreError> = store
        .write(move |tx| {
            tx.put_credential(&Credential {
                id: of_change,
                organization: "o1".parse().expect("an id"),
                secrets: vec![CredentialSecret {
                    text: "s".repeat(43),
                    issued_at: UnixMillis(1),
                }],
                created_at: UnixMillis(1),
            })
        })
        .await;
    prepared.expect("a credential");
    let asked = Instant::now();
    for _ in 0..READS {
        let found = store
            .read_now(|s| s.credential(&id))
            .expect("a readable store");
        assert!(found.is_some());
    }
    let read_us = asked.elapsed().as_secs_f64() * 1e6 / f64::from(READS);
    store.close().await.expect("a clean close");
    let path = directory.path().join("store.redb");
    let mib = std::fs::metadata(&path).map_or(0, |file| file.len()) >> 20;
    let asked = Instant::now();
    let store = common::open(&path).expect("the same store");
    let open_ms = asked.elapsed().as_millis();
    store.close().await.expect("a clean close");
    format!(
        r#"{{"writers":{writers},"admissions_per_s":{:.0},"per_commit":{:.1},"p50_us":{},"p99_us":{},"credential_read_us":{read_us:.1},"open_ms":{open_ms},"file_mib":{mib}}}"#,
        operations as f64 / seconds,
        operations as f64 / commits as f64,
        waits_us[waits_us.len() / 2],
        waits_us[waits_us.len() * 99 / 100],
    )
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut out = std::io::stdout().lock();
    for writers in [1, 8, 64, 512] {
        let line = runtime.block_on(measure(writers));
        writeln!(out, "{line}").expect("standard output");
    }
}
