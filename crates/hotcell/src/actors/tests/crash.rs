//! Kill the daemon around its N-th engine call, for every N, and start another on the same
//! store and engine: everything converges.
//!
//! The record is written between any two engine calls, so a kill before a call is a kill after
//! that write.

use std::sync::atomic::{AtomicUsize, Ordering};

use hotcell_core::model::LeaseState;
use hotcell_runtime::{
    ObservedState,
    fake::{Effect, Hook, Moment},
};
use hotcell_testkit::{wait_for, wait_until};
use tokio::sync::Notify;

use super::{egress::Filtered, *};

const QUICK: LeaseLimits = LeaseLimits {
    idle_timeout_ms: 20,
    ..PATIENT
};

/// A whole life of a chat: started, idled, woken, ended.
async fn scenario(life: &Life, warm_pool: usize) {
    wait_for("the pool", async || {
        let profiles = life.sandboxes.profiles().await;
        (profiles[0].warm.ready == warm_pool).then_some(())
    })
    .await;
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    wait_until("idle", || life.state("c") == Some(LeaseState::Idle)).await;
    wait_until("the stop", || {
        life.fake.state(&life.record("c").unwrap().id) != Some(ObservedState::Running)
    })
    .await;
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    life.sandboxes.end(&caller("c")).await.unwrap();
    assert_eq!(life.state("c"), Some(LeaseState::Ended));
}

/// Lets `survived` hooks of effects on sandboxes pass; the next one and all after it never return.
fn kill_after(survived: usize, counter: &Arc<AtomicUsize>, dead: &Arc<Notify>) -> Hook {
    let (counter, dead) = (Arc::clone(counter), Arc::clone(dead));
    Arc::new(move |_: Moment, effect: Effect, lease| {
        let counts = lease.is_some() && effect != Effect::Read;
        let is_dead = counts && counter.fetch_add(1, Ordering::SeqCst) >= survived;
        let dead = Arc::clone(&dead);
        Box::pin(async move {
            if is_dead {
                dead.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(())
        })
    })
}

/// Runs the scenario until the kill. Whether it was killed before it was over.
fn live_until_killed(host: &mut Host, survived: usize, filtered: Option<&Filtered>) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let dead = Arc::new(Notify::new());
    let passed = Arc::default();
    let hook = kill_after(survived, &passed, &dead);
    if let Some(filtered) = filtered {
        filtered.kill_after(survived, &passed, &dead);
    }
    let killed = runtime.block_on(async {
        let life = host.boot(QUICK).await;
        life.fake.set_hook(Some(hook));
        tokio::select! {
            () = dead.notified() => true,
            () = scenario(&life, host.warm_pool) => {
                life.stop().await;
                false
            }
        }
    });
    // Nothing is told, nothing is awaited: every task goes at once.
    runtime.shutdown_timeout(Duration::from_secs(5));
    killed
}

/// No sandbox without a live lease, no live lease without its sandbox.
async fn assert_converged(life: &Life, survived: usize) {
    let live = life.store.read_now(|view| view.leases()).unwrap();
    let sandboxes = life.fake.list().await.unwrap();
    let of_engine: Vec<_> = sandboxes.iter().map(|it| it.lease.clone()).collect();
    for lease in &live {
        assert!(
            of_engine.contains(&lease.id),
            "killed after {survived}: {lease:?} has no sandbox"
        );
        assert!(
            matches!(lease.state, LeaseState::Running | LeaseState::Idle),
            "killed after {survived}: {lease:?}"
        );
    }
    assert_eq!(of_engine.len(), live.len(), "killed after {survived}");
    assert!(live.len() <= 1);
}

#[test]
fn a_kill_at_any_point_leaves_nothing_behind() {
    let kills = kill_at_every_point(None, 0);
    // create, start, ready, stop, start, ready, remove: each before and after.
    assert!(kills >= 14, "only {kills} kills");
}

/// With a filter there are the site and the changes of the packet filter to be killed at, too.
#[test]
fn a_kill_at_any_point_leaves_no_filter_behind_and_none_open() {
    let kills = kill_at_every_point(Some(&Filtered::new), 0);
    assert!(kills >= 18, "only {kills} kills");
}

/// With a warm pool there are also its filling, the claim and both of its steps.
#[test]
fn a_kill_at_any_point_leaves_no_warm_sandbox_behind() {
    let kills = kill_at_every_point(None, 1);
    // warm, ready, claim, attach, start, ready, stop, start, ready, remove: before and after.
    assert!(kills >= 18, "only {kills} kills");
}

#[test]
fn a_kill_at_any_point_leaves_no_warm_sandbox_and_no_filter_behind() {
    let kills = kill_at_every_point(Some(&Filtered::new), 1);
    assert!(kills >= 22, "only {kills} kills");
}

fn kill_at_every_point(filtered: Option<&dyn Fn() -> Filtered>, warm_pool: usize) -> usize {
    let mut kills = 0;
    for survived in 0.. {
        let mut host = Host::new();
        host.warm_pool = warm_pool;
        let filtered = filtered.map(|make| make());
        if let Some(filtered) = &filtered {
            host.egress = filtered.parts();
        }
        let killed = live_until_killed(&mut host, survived, filtered.as_ref());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let fake = host.fake.clone().unwrap();
            fake.set_hook(None);
            if let Some(filtered) = &filtered {
                filtered.firewall().set_hook(None);
            }
            let life = wait_for("the store's lock", async || {
                let free = Store::open(
                    &host.dir.path().join("store.redb"),
                    StoreKey::new([7; 32]),
                    Arc::new(SystemClock),
                    Arc::new(SystemIds),
                );
                Some(free.ok()?.close().await)
            })
            .await;
            life.unwrap();
            // The next daemon keeps none: what it finds is what the first one left.
            host.warm_pool = 0;
            let life = host.boot(PATIENT).await;
            wait_until("writes", || {
                let live = life.store.read_now(|view| view.leases()).unwrap();
                live.iter().all(|it| it.state != LeaseState::Starting)
            })
            .await;
            assert_converged(&life, survived).await;
            if let Some(filtered) = &filtered {
                filtered.assert_nobody_runs_open(&life).await;
            }
            // The chat is usable, and ends clean.
            drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
            life.sandboxes.end(&caller("c")).await.unwrap();
            assert_converged(&life, survived).await;
            assert_eq!(life.fake.list().await.unwrap(), []);
            if let Some(filtered) = &filtered {
                assert_eq!(
                    filtered.firewall().leases(),
                    [""; 0],
                    "killed after {survived}"
                );
            }
            life.stop().await;
        });
        if !killed {
            break;
        }
        kills += 1;
    }
    kills
}
