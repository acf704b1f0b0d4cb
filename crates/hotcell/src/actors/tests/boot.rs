//! What a new daemon makes of what the last one left.

use std::sync::atomic::{AtomicUsize, Ordering};

use hotcell_core::model::{EndReason, LeaseState};
use hotcell_runtime::{Labels, ObservedState, fake::Effect};
use hotcell_testkit::{wait_for, wait_until};
use hotcell_types::{InstallationId, LeaseId};

use super::*;
use crate::handles::{AcquireError, ProfileState};

#[tokio::test]
async fn running_sandboxes_are_adopted() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    let lease = life.sandboxes.acquire(&caller("c")).await.unwrap().lease;
    wait_until("the record", || {
        life.state("c") == Some(LeaseState::Running)
    })
    .await;
    life.stop().await;

    let life = host.boot(PATIENT).await;
    let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert_eq!(active.lease, lease);
    assert!(!active.fresh);
    assert_eq!(life.fake.count(Effect::Start), 1);
    drop(active);
    life.stop().await;
}

#[tokio::test]
async fn what_was_lost_meanwhile_ends_with_the_reason() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    life.sandboxes.acquire(&caller("stopped")).await.unwrap();
    life.sandboxes.acquire(&caller("gone")).await.unwrap();
    wait_until("the records", || {
        life.state("stopped") == Some(LeaseState::Running)
            && life.state("gone") == Some(LeaseState::Running)
    })
    .await;
    let gone = life.record("gone").unwrap().id;
    let fake = life.fake.clone();
    life.stop().await;
    fake.lose_all();
    fake.remove(&gone).await.unwrap();

    let life = host.boot(PATIENT).await;
    for chat in ["stopped", "gone"] {
        let record = life.record(chat).unwrap();
        assert_eq!(record.state, LeaseState::Ended);
        assert_eq!(record.end, Some(EndReason::RuntimeRestarted));
    }
    assert_eq!(fake.list().await.unwrap(), []);
    assert!(life.sandboxes.acquire(&caller("gone")).await.unwrap().fresh);
    life.stop().await;
}

#[tokio::test]
async fn a_lease_past_its_hard_limit_ends_at_once() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    life.sandboxes.acquire(&caller("c")).await.unwrap();
    life.stop().await;
    let short = LeaseLimits {
        hard_timeout_ms: 1,
        ..PATIENT
    };
    let life = host.boot(short).await;
    wait_until("the end", || life.state("c") == Some(LeaseState::Ended)).await;
    let end = life.record("c").unwrap().end;
    assert_eq!(end, Some(EndReason::HardTimeLimit));
    assert_eq!(life.fake.running(), 0);
    life.stop().await;
}

#[tokio::test]
async fn leftovers_of_ended_leases_go_and_strangers_stay() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    life.sandboxes.acquire(&caller("c")).await.unwrap();
    let ended = life.sandboxes.end(&caller("c")).await.unwrap().unwrap();
    let installation = life.store.installation();
    let fake = life.fake.clone();
    life.stop().await;
    let labels = |installation: &InstallationId, lease: &LeaseId| {
        Some(Labels {
            installation: installation.clone(),
            lease: lease.clone(),
            workspace: "w".parse().unwrap(),
            chat: "c".parse().unwrap(),
        })
    };
    let leftover = ended.record.id;
    let stranger = LeaseId::from_bits(99);
    fake.plant(
        leftover.clone(),
        labels(&installation, &leftover),
        ObservedState::Running,
    );
    fake.plant(
        stranger.clone(),
        labels(&installation, &stranger),
        ObservedState::Running,
    );

    // A store that does not know what runs may be an old one: nothing is removed at all.
    let life = host.boot(PATIENT).await;
    assert_eq!(fake.list().await.unwrap().len(), 2);
    assert_eq!(fake.running(), 2);
    let ready = life.sandboxes.ready().await;
    let profile = ready.iter().find(|it| it.name == "profile/default");
    let profile = profile.unwrap();
    assert!(profile.ok);
    let detail = profile.detail.clone().unwrap();
    assert!(detail.contains("does not know"), "{detail}");
    // Only what was asked for goes, and then what is known to be over.
    let profile = crate::actors::default_profile();
    let by = || {
        (
            hotcell_core::model::Actor::LocalOperator,
            RequestId::from_bits(6),
        )
    };
    let known = life
        .sandboxes
        .remove_unknown(&profile, vec![leftover], by())
        .await;
    assert!(known.is_err());
    assert_eq!(fake.list().await.unwrap().len(), 2);
    let removed = life
        .sandboxes
        .remove_unknown(&profile, vec![stranger], by())
        .await;
    removed.unwrap();
    assert_eq!(fake.list().await.unwrap(), []);
    let ready = life.sandboxes.ready().await;
    let profile = ready.iter().find(|it| it.name == "profile/default");
    assert_eq!(profile.unwrap().detail, None);
    life.stop().await;
}

#[tokio::test]
async fn an_engine_that_does_not_open_is_tried_again_and_refuses_with_the_reason() {
    let host = Host::new();
    let store = open_store(&host.dir);
    switch_on(&store).await;
    let fake = FakeRuntime::new(store.installation());
    let tries = Arc::new(AtomicUsize::new(0));
    let (engine, counted) = (fake.clone(), Arc::clone(&tries));
    let open: OpenRuntime = Arc::new(move || {
        let tries = counted.fetch_add(1, Ordering::Relaxed);
        let engine: Arc<dyn Runtime> = Arc::new(engine.clone());
        Box::pin(async move {
            match tries {
                0 => Err(RuntimeError::Unavailable("no runsc in PATH".into())),
                1 => panic!("an engine may do that too"),
                _ => Ok(engine),
            }
        })
    });
    let life = host.start(store, fake, PATIENT, 8, open).await;
    let refused = life.sandboxes.acquire(&caller("c")).await.unwrap_err();
    assert!(
        matches!(&refused, AcquireError::RuntimeUnavailable(why) if why.contains("runsc")),
        "{refused}"
    );
    let ready = life.sandboxes.ready().await;
    assert!(
        ready
            .iter()
            .any(|it| it.name == "profile/default" && !it.ok)
    );
    let active = wait_for("the engine", async || {
        life.sandboxes.acquire(&caller("c")).await.ok()
    })
    .await;
    assert!(active.fresh);
    assert_eq!(tries.load(Ordering::Relaxed), 3);
    let profile = life
        .sandboxes
        .check_profile(&"default".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(profile.state, ProfileState::Active);
    assert!(profile.checked_at.is_some());
    let checks: Vec<&str> = profile.checks.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(checks, ["runtime.fake", "disk.volumes", "auth.clock_skew"]);
    drop(active);
    life.stop().await;
}

#[tokio::test]
async fn an_engine_that_is_down_at_boot_loses_no_lease() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    let lease = life.sandboxes.acquire(&caller("c")).await.unwrap().lease;
    wait_until("the record", || {
        life.state("c") == Some(LeaseState::Running)
    })
    .await;
    let fake = life.fake.clone();
    life.stop().await;
    fake.script(|script| script.unavailable = Some("the engine is down".into()));
    // Up again once it was asked in vain a few times.
    fake.script(|script| {
        let engine = fake.clone();
        let mut asked = 0;
        let count = std::sync::Mutex::new(move || {
            asked += 1;
            asked
        });
        script.hook = Some(Arc::new(move |_, effect, _| {
            if effect == Effect::List {
                let asked = crate::actors::live::lock(&count)();
                if asked == 3 {
                    engine.script(|script| script.unavailable = None);
                }
            }
            Box::pin(async { Ok(()) })
        }));
    });
    let life = host.boot(PATIENT).await;
    let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert_eq!(active.lease, lease);
    assert!(!active.fresh);
    drop(active);
    life.stop().await;
}
