//! Many leases on the engine in memory: what an admission, a lease, a gate decision and a restart cost. One
//! line of JSON a row; `cargo xtask bench scale` runs it.
//!
//! The directory for temporary files decides which disk the store is on.

#![allow(clippy::unwrap_used, reason = "a measurement that fails says where")]

use std::{io::Write, sync::Arc, time::Duration};

use hotcell::handles::Caller;
use hotcell_core::model::{Actor, AuditRow};
use hotcell_store::{GateAsk, NewLease, Store, StoreError};
use hotcell_testkit::{Options, TestDaemon};
use hotcell_types::{LeaseId, ProfileId, RequestId, ResourceClass, Role, UnixMillis, WorkspaceId};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

/// Workspaces over which the leases are spread.
const WORKSPACES: usize = 100;
/// Callers that wait for an admission at once.
const CALLERS: usize = 1_024;
/// Gate decisions that are timed.
const DECISIONS: usize = 50_000;

fn row(name: &str, value: f64, unit: &str, target: &str, met: Option<bool>, note: String) {
    let row: Value = json!({
        "name": name, "value": value, "unit": unit, "target": target, "met": met, "note": note,
    });
    let mut line = row.to_string();
    line.push('\n');
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.unwrap().split_whitespace().nth(1);
    words.unwrap().parse().unwrap()
}

fn workspace(number: usize) -> WorkspaceId {
    format!("w{}", number % WORKSPACES).parse().unwrap()
}

fn caller(number: usize) -> Caller {
    Caller {
        organization: hotcell_testkit::ORGANIZATION.parse().unwrap(),
        workspace: workspace(number),
        chat: format!("c{number}").parse().unwrap(),
        user: "u".parse().unwrap(),
        role: Role::Editor,
        actor: Actor::System,
        request: RequestId::from_bits(number as u128),
    }
}

async fn daemon(leases: usize) -> TestDaemon {
    let daemon = TestDaemon::start_with(Options {
        max_sandboxes: leases + 1,
        ..Options::default()
    })
    .await;
    daemon.client().await;
    let operator = daemon.operator();
    let quotas = json!({"max_concurrent": 100_000, "max_jobs_per_hour": 100_000});
    for number in 0..WORKSPACES {
        let body = json!({
            "organization": hotcell_testkit::ORGANIZATION, "enabled": true, "quotas": quotas,
        });
        let path = format!("/v1/admin/workspaces/{}", workspace(number));
        assert_eq!(operator.put(&path, &body).await.status, 201);
    }
    daemon
}

/// The transaction of an admission, as the daemon makes it: gate, quotas, lease, audit row.
async fn admissions(store: &Store, leases: usize) -> f64 {
    let places = Arc::new(Semaphore::new(CALLERS));
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for number in 0..leases {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let store = store.clone();
        tasks.spawn(async move {
            let caller = caller(number);
            let id = LeaseId::from_bits(number as u128);
            let admitted = store
                .write::<_, StoreError, _>(move |tx| {
                    let profiles: [ProfileId; 1] = ["default".parse().unwrap()];
                    let ask = GateAsk {
                        forced_off: false,
                        organization: &caller.organization,
                        workspace: &caller.workspace,
                        role: caller.role,
                        active_profiles: &profiles,
                    };
                    let new = NewLease {
                        id,
                        chat: caller.chat.clone(),
                        user: caller.user.clone(),
                        class: ResourceClass::Small,
                    };
                    let now = UnixMillis(1_800_000_000_000);
                    let admitted = tx.admit_lease(&ask, &new, now)?;
                    tx.audit(AuditRow {
                        at: now,
                        actor: Actor::System,
                        action: "lease.admitted".into(),
                        subject: format!("lease/{}", new.id),
                        fields: vec!["state".into()],
                        request: Some(caller.request.to_string()),
                    })?;
                    Ok(admitted.is_ok())
                })
                .await;
            assert!(admitted.unwrap());
            drop(place);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    leases as f64 / started.elapsed().as_secs_f64()
}

fn decisions(store: &Store) -> (f64, f64) {
    let profiles: [ProfileId; 1] = ["default".parse().unwrap()];
    let mut times: Vec<Duration> = (0..DECISIONS)
        .map(|number| {
            let caller = caller(number);
            let ask = GateAsk {
                forced_off: false,
                organization: &caller.organization,
                workspace: &caller.workspace,
                role: caller.role,
                active_profiles: &profiles,
            };
            let started = Instant::now();
            let passed = store.read_now(|view| view.pass_gate(&ask));
            let took = started.elapsed();
            assert!(passed.unwrap().is_ok());
            took
        })
        .collect();
    times.sort_unstable();
    let micros = |index: usize| times[index].as_secs_f64() * 1e6;
    (micros(DECISIONS / 2), micros(DECISIONS * 99 / 100))
}

async fn measure(leases: usize) {
    let label = |name: &str| {
        if leases == 1_000 {
            format!("scale.{name}")
        } else {
            format!("scale.{name}_{leases}")
        }
    };
    let spread = format!("{leases} leases in {WORKSPACES} workspaces, engine in memory");
    let of_store = daemon(leases).await;
    let rate = admissions(of_store.store(), leases).await;
    row(
        &label("admission_per_s"),
        rate,
        "/s",
        "≥ 5000",
        Some(rate >= 5_000.0),
        format!(
            "gate, quotas, lease and audit row in one durable transaction; {CALLERS} callers at once; {spread}"
        ),
    );
    let stopped = tokio::time::timeout(Duration::from_secs(600), of_store.shutdown()).await;
    assert!(stopped.is_ok());

    let daemon = daemon(leases).await;
    let before = resident_kib();
    let sandboxes = daemon.sandboxes();
    let places = Arc::new(Semaphore::new(CALLERS));
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for number in 0..leases {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let sandboxes = sandboxes.clone();
        tasks.spawn(async move {
            let caller = caller(number);
            let active = sandboxes.acquire(&caller).await;
            drop(active.unwrap());
            drop(place);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let rate = leases as f64 / started.elapsed().as_secs_f64();
    row(
        &label("acquire_per_s"),
        rate,
        "/s",
        "–",
        None,
        format!("from the call to a sandbox that answers, through all actors; {spread}"),
    );
    let kib = resident_kib().saturating_sub(before) as f64 / leases as f64;
    row(
        &label("lease_kib"),
        kib,
        "KiB",
        "≤ 32",
        Some(kib <= 32.0),
        format!("growth of resident memory over {spread}, which is in it"),
    );
    let (p50, p99) = decisions(daemon.store());
    row(
        &label("gate_p99_us"),
        p99,
        "µs",
        "–",
        None,
        format!("a decision on stored rows, as each call makes it; p50 {p50:.1} µs; {spread}"),
    );
    drop(sandboxes);
    let started = Instant::now();
    let daemon = daemon.restart().await;
    let restart = started.elapsed();
    assert_eq!(
        daemon
            .store()
            .read_now(|view| view.live_lease_count())
            .unwrap(),
        leases as u64
    );
    assert_eq!(daemon.fake().running(), leases);
    row(
        &label("recovery_ms"),
        restart.as_secs_f64() * 1e3,
        "ms",
        "–",
        None,
        format!("a clean stop, then a start until every lease is adopted; {spread}"),
    );
    daemon.shutdown().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for leases in [1_000, 10_000] {
            measure(leases).await;
        }
    });
}
