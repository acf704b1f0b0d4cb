//! LC-05: use as renewal of a sandbox, at the moment of its idle limit, with clocks that step and daemons
//! that are killed between.
//!
//! Real time, made short: what is waited for is the timer of the daemon itself. `HOTCELL_TEST_RENEWALS` says
//! how often each sandbox is renewed; the suite is content with 200, a thousand take a minute.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicI64, AtomicUsize, Ordering},
};

use hotcell_core::model::LeaseState;
use hotcell_testkit::wait_for;
use hotcell_types::{IdSource, LeaseId};
use tokio::task::JoinSet;

use super::*;

const SANDBOXES: usize = 50;
/// How long all renewals of one life may take.
const PATIENCE: Duration = Duration::from_secs(600);
const LIVES: usize = 5;
/// The idle limit, in milliseconds; renewals come up to a tenth around it.
const LIMIT_MS: u64 = 40;
const HOUR_MS: i64 = 3_600_000;

const LIMITS: LeaseLimits = LeaseLimits {
    start_timeout_ms: 30_000,
    idle_timeout_ms: LIMIT_MS,
    // What is left of it after a step forward of an hour is still more than a test takes.
    hard_timeout_ms: 4 * 3_600_000,
};

/// The real time, and a step.
#[derive(Clone, Default)]
struct StepClock(Arc<AtomicI64>);

impl StepClock {
    fn step(&self, by_ms: i64) {
        self.0.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for StepClock {
    fn now(&self) -> UnixMillis {
        let step = self.0.load(Ordering::SeqCst);
        UnixMillis(SystemClock.now().0.saturating_add_signed(step))
    }
}

fn random() -> u64 {
    u64::try_from(SystemIds.bits() >> 64).unwrap()
}

fn threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Renewals of each sandbox in each life of the daemon.
fn renewals() -> usize {
    let all = std::env::var("HOTCELL_TEST_RENEWALS").map_or(200, |text| text.parse().unwrap());
    all / LIVES
}

/// What outlives each daemon: whose sandbox is which, and how often each was renewed.
type Known = Arc<std::sync::Mutex<HashMap<usize, LeaseId>>>;

/// Renews one sandbox until its share of this life is done.
async fn renew(
    sandboxes: crate::handles::Sandboxes,
    number: usize,
    rounds: usize,
    known: Known,
    done: Arc<AtomicUsize>,
) {
    for _ in 0..rounds {
        let caller = caller(&format!("c{number}"));
        let active = sandboxes.acquire(&caller).await.unwrap();
        let lease = active.lease.clone();
        drop(active);
        let first = known
            .lock()
            .unwrap()
            .entry(number)
            .or_insert_with(|| lease.clone())
            .clone();
        assert_eq!(first, lease, "a sandbox that was renewed has died");
        done.fetch_add(1, Ordering::SeqCst);
        let jitter = random() % (LIMIT_MS / 5 + 1);
        tokio::time::sleep(ms(LIMIT_MS * 9 / 10 + jitter)).await;
    }
}

async fn reopened(host: &mut Host) -> Life {
    wait_for("the store's lock", async || {
        let path = host.dir.path().join("store.redb");
        let key = StoreKey::new([7; 32]);
        let free = Store::open(&path, key, Arc::new(SystemClock), Arc::new(SystemIds));
        Some(free.ok()?.close().await)
    })
    .await
    .unwrap();
    host.boot_with(LIMITS, SANDBOXES + 1).await
}

#[test]
fn a_sandbox_in_use_survives_expiry_clock_steps_and_kills_and_ends_without_use() {
    let clock = StepClock::default();
    let mut host = Host::new();
    host.clock = Arc::new(clock.clone());
    let known = Known::default();
    let done = Arc::new(AtomicUsize::new(0));
    for life in 0..LIVES {
        let runtime = threads();
        runtime.block_on(async {
            let daemon = reopened(&mut host).await;
            let mut renewing = JoinSet::new();
            for number in 0..SANDBOXES {
                renewing.spawn(renew(
                    daemon.sandboxes.clone(),
                    number,
                    renewals(),
                    Arc::clone(&known),
                    Arc::clone(&done),
                ));
            }
            // One step there and one back while sandboxes are in use.
            let half = (life * 2 + 1) * SANDBOXES * renewals() / 2;
            let halfway = async {
                while done.load(Ordering::SeqCst) < half {
                    tokio::time::sleep(ms(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, halfway).await.unwrap();
            match life {
                1 => clock.step(HOUR_MS),
                3 => clock.step(-2 * HOUR_MS),
                _ => {}
            }
            while let Some(renewed) = renewing.join_next().await {
                renewed.unwrap();
            }
            // The kill comes at a moment of its own, with timers running.
            tokio::time::sleep(ms(random() % (2 * LIMIT_MS))).await;
        });
        runtime.shutdown_timeout(Duration::from_secs(5));
    }
    assert_eq!(done.load(Ordering::SeqCst), SANDBOXES * LIVES * renewals());
    let runtime = threads();
    runtime.block_on(async {
        // Nobody renews any more. The timers that a kill abandoned are nobody's; the records are read.
        let daemon = reopened(&mut host).await;
        let begun = tokio::time::Instant::now();
        wait_for("every sandbox to be stopped", async || {
            let idle = |n: usize| daemon.state(&format!("c{n}")) == Some(LeaseState::Idle);
            (daemon.fake.running() == 0 && (0..SANDBOXES).all(idle)).then_some(())
        })
        .await;
        // One limit after it was adopted; the rest is the machine's.
        assert!(
            begun.elapsed() < ms(LIMIT_MS + 20_000),
            "{:?}",
            begun.elapsed()
        );
        daemon.stop().await;
    });
}
