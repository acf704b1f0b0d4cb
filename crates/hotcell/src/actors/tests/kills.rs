//! More lives that are cut short at every point: the hard limit, jobs, deletions.
//!
//! A point is the moment before or after an engine call that changes something, or a reading of
//! the clock: nothing is written down without one just before it.

use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures_util::future::LocalBoxFuture;
use hotcell_core::{deletion::DeletionRecord, job::JobState, model::LeaseState};
use hotcell_runtime::fake::{Effect, Hook, Moment};
use hotcell_testkit::{wait_for, wait_until};
use tokio::sync::Notify;

use super::*;
use crate::{erase::Eraser, http::OutputStore};

/// Counts points, and says when there were enough.
#[derive(Clone)]
struct Fuse(Arc<FuseState>);

struct FuseState {
    survived: usize,
    passed: AtomicUsize,
    armed: AtomicBool,
    burnt: Notify,
    clock_counts: bool,
}

impl Fuse {
    fn new(survived: usize, clock_counts: bool) -> Self {
        Self(Arc::new(FuseState {
            survived,
            passed: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            burnt: Notify::new(),
            clock_counts,
        }))
    }

    /// Whether this point is at or past the end.
    fn pass(&self) -> bool {
        let state = &self.0;
        if !state.armed.load(Ordering::SeqCst) {
            return false;
        }
        let dead = state.passed.fetch_add(1, Ordering::SeqCst) >= state.survived;
        if dead {
            state.burnt.notify_one();
        }
        dead
    }

    fn hook(&self) -> Hook {
        let fuse = self.clone();
        Arc::new(move |_: Moment, effect: Effect, lease| {
            let dead = lease.is_some() && effect != Effect::Read && fuse.pass();
            Box::pin(async move {
                if dead {
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        })
    }
}

impl Clock for Fuse {
    fn now(&self) -> UnixMillis {
        if self.0.clock_counts {
            self.pass();
        }
        SystemClock.now()
    }
}

type Scenario = fn(Arc<Life>, Arc<Path>) -> LocalBoxFuture<'static, ()>;

fn threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Whether it was killed before it was over.
fn live(host: &mut Host, fuse: &Fuse, limits: LeaseLimits, scenario: Scenario) -> bool {
    let runtime = threads();
    host.clock = Arc::new(fuse.clone());
    let killed = runtime.block_on(async {
        let life = Arc::new(host.boot(limits).await);
        life.fake.set_hook(Some(fuse.hook()));
        fuse.0.armed.store(true, Ordering::SeqCst);
        let dir: Arc<Path> = host.dir.path().into();
        tokio::select! {
            () = fuse.0.burnt.notified() => true,
            () = scenario(Arc::clone(&life), dir) => {
                fuse.0.armed.store(false, Ordering::SeqCst);
                life.appliance.stop().await;
                life.store.clone().close().await.unwrap();
                false
            }
        }
    });
    // Nothing is told, nothing is awaited: every task goes at once.
    runtime.shutdown_timeout(Duration::from_secs(5));
    killed
}

/// Kills `scenario` at every point in turn; `after` sees the next daemon, which must converge.
fn at_every_point(
    clock_counts: bool,
    limits: LeaseLimits,
    scenario: Scenario,
    after: Scenario,
) -> usize {
    for survived in 0.. {
        let mut host = Host::new();
        let fuse = Fuse::new(survived, clock_counts);
        let killed = live(&mut host, &fuse, limits, scenario);
        host.clock = Arc::new(SystemClock);
        let runtime = threads();
        runtime.block_on(async {
            host.fake.clone().unwrap().set_hook(None);
            let freed = wait_for("the store's lock", async || {
                let path = host.dir.path().join("store.redb");
                let key = StoreKey::new([7; 32]);
                let free = Store::open(&path, key, Arc::new(SystemClock), Arc::new(SystemIds));
                Some(free.ok()?.close().await)
            })
            .await;
            freed.unwrap();
            // The switches are those that the killed daemon left.
            let store = open_store(&host.dir);
            let fake = host.fake.clone().unwrap();
            let engine = fake.clone();
            let open: OpenRuntime = Arc::new(move || {
                let engine: Arc<dyn Runtime> = Arc::new(engine.clone());
                Box::pin(async move { Ok(engine) })
            });
            let life = Arc::new(host.start(store, fake, PATIENT, 8, open).await);
            after(Arc::clone(&life), host.dir.path().into()).await;
            life.appliance.stop().await;
            life.store.clone().close().await.unwrap();
        });
        if !killed {
            return survived;
        }
    }
    unreachable!("the numbers do not end")
}

/// Every live lease has its sandbox, every sandbox its live lease, and no job of a lease that is
/// over says that it runs.
async fn assert_converged(life: &Life) {
    wait_until("the writes", || {
        let live = life.store.read_now(|view| view.leases()).unwrap();
        let settled = |state| matches!(state, LeaseState::Running | LeaseState::Idle);
        live.iter().all(|it| settled(it.state))
    })
    .await;
    let live = life.store.read_now(|view| view.leases()).unwrap();
    let mut of_store: Vec<_> = live.iter().map(|it| it.id.clone()).collect();
    let sandboxes = life.fake.list().await.unwrap();
    let mut of_engine: Vec<_> = sandboxes.iter().map(|it| it.lease.clone()).collect();
    of_store.sort_unstable();
    of_engine.sort_unstable();
    assert_eq!(of_store, of_engine);
    let workspace = "w".parse().unwrap();
    for job in life
        .store
        .read_now(|view| view.jobs_of(&workspace, None))
        .unwrap()
    {
        let has_lease = of_store.contains(&job.lease);
        assert!(job.state.has_ended() || has_lease, "{job:?}");
    }
}

fn hard_limit(life: Arc<Life>, _: Arc<Path>) -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
        wait_until("the end", || life.state("c") == Some(LeaseState::Ended)).await;
    })
}

#[test]
fn a_kill_around_the_hard_limit_leaves_nothing_behind() {
    const SHORT: LeaseLimits = LeaseLimits {
        hard_timeout_ms: 60,
        ..PATIENT
    };
    let kills = at_every_point(false, SHORT, hard_limit, |life, _| {
        Box::pin(async move {
            assert_converged(&life).await;
            drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
            life.sandboxes.end(&caller("c")).await.unwrap();
            assert_eq!(life.fake.list().await.unwrap(), []);
        })
    });
    // create, start, ready, remove: each before and after.
    assert!(kills >= 8, "only {kills} kills");
}

/// What the killed daemon had acknowledged of its jobs.
static STARTED: Mutex<Vec<hotcell_types::JobId>> = Mutex::new(Vec::new());

fn jobs(life: Arc<Life>, _: Arc<Path>) -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        STARTED.lock().unwrap().clear();
        let jobs = life.sandboxes.jobs();
        let (w, c) = ("w".parse().unwrap(), "c".parse().unwrap());
        let start = async |command: &str| {
            let job = jobs
                .start(&caller("c"), command.into(), None)
                .await
                .unwrap();
            STARTED.lock().unwrap().push(job.id.clone());
            job.id
        };
        let short = start("echo done; exit 3").await;
        wait_for("its end", async || {
            let job = jobs.get(&w, &c, &short).await.unwrap();
            (job.state == JobState::Exited && job.exit_code == Some(3)).then_some(())
        })
        .await;
        let stopped = start("hang").await;
        let by = (Actor::System, RequestId::from_bits(1));
        let stopped = jobs.stop(&w, &c, &stopped, by).await.unwrap();
        assert_eq!(stopped.state, JobState::Stopped);
        let lost = start("hang").await;
        life.sandboxes.end(&caller("c")).await.unwrap();
        let lost = jobs.get(&w, &c, &lost).await.unwrap();
        assert_eq!(lost.state, JobState::Lost);
    })
}

#[test]
fn a_kill_around_jobs_loses_none_that_was_acknowledged() {
    let kills = at_every_point(true, PATIENT, jobs, |life, _| {
        Box::pin(async move {
            assert_converged(&life).await;
            let (w, c) = ("w".parse().unwrap(), "c".parse().unwrap());
            let known = life.sandboxes.jobs().list(&w, &c).await.unwrap();
            for job in STARTED.lock().unwrap().iter() {
                assert!(known.iter().any(|it| it.id == *job), "{job} is forgotten");
            }
            // An intent that nobody carried out does not stay one.
            wait_for("no half-started job", async || {
                let known = life.sandboxes.jobs().list(&w, &c).await.unwrap();
                let open = known.iter().any(|job| job.state == JobState::Starting);
                (!open).then_some(())
            })
            .await;
            life.sandboxes.end(&caller("c")).await.unwrap();
            for job in life.sandboxes.jobs().list(&w, &c).await.unwrap() {
                assert!(job.state.has_ended(), "{job:?}");
            }
            assert_eq!(life.fake.list().await.unwrap(), []);
        })
    });
    assert!(kills >= 20, "only {kills} kills");
}

fn eraser(life: &Life, dir: &Path) -> Eraser {
    let tmp = dir.join("tmp");
    let _ = std::fs::remove_dir_all(&tmp);
    std::fs::create_dir(&tmp).unwrap();
    let outputs = OutputStore::open(dir, &tmp).unwrap();
    let volumes = Volumes::open(dir).unwrap();
    Eraser::new(&life.sandboxes, outputs, volumes, &tmp)
}

fn deletion(life: Arc<Life>, dir: Arc<Path>) -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
        let mine = dir.join("volumes/w/users/u/f");
        std::fs::write(&mine, "x").unwrap();
        let jobs = life.sandboxes.jobs();
        jobs.start(&caller("c"), "hang".into(), None).await.unwrap();
        let eraser = eraser(&life, &dir);
        let record = DeletionRecord {
            workspace: "w".parse().unwrap(),
            user: None,
            actor: Actor::System,
            requested_at: UnixMillis(7),
            request: None,
        };
        assert!(eraser.delete(record).await.unwrap());
        eraser.stop().await;
    })
}

#[test]
fn a_kill_around_a_deletion_deletes_all_or_keeps_all() {
    let kills = at_every_point(true, PATIENT, deletion, |life, dir| {
        Box::pin(async move {
            let workspace = "w".parse().unwrap();
            let there = life
                .store
                .read_now(|view| view.workspace(&workspace))
                .unwrap();
            let begun = !life
                .store
                .read_now(|view| view.deletions())
                .unwrap()
                .is_empty();
            let eraser = eraser(&life, &dir);
            eraser.resume().await.unwrap();
            if there.is_some() && !begun {
                // Nothing was asked for that anybody heard of: all of it is there.
                assert_converged(&life).await;
                eraser.stop().await;
                return;
            }
            wait_for("the end of the deletion", async || {
                let gone = life
                    .store
                    .read_now(|view| view.workspace(&workspace))
                    .unwrap();
                gone.is_none().then_some(())
            })
            .await;
            wait_until("the volumes to go", || !dir.join("volumes/w").exists()).await;
            assert_converged(&life).await;
            assert_eq!(life.fake.list().await.unwrap(), []);
            let left = life
                .store
                .read_now(|view| view.jobs_of(&workspace, None))
                .unwrap();
            assert_eq!(left, []);
            assert_eq!(life.store.read_now(|view| view.deletions()).unwrap(), []);
            eraser.stop().await;
        })
    });
    assert!(kills >= 12, "only {kills} kills");
}
