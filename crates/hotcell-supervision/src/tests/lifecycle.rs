//! How children come and go.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use ractor::SpawnErr;

use super::{Order, Stage, Start, no_jitter, status_of, until, who};
use crate::{AddError, ChildSpec, ChildState, Restart, Supervisor};

fn is_running(state: &ChildState) -> bool {
    matches!(state, ChildState::Running { .. })
}

fn is_faulted(state: &ChildState) -> bool {
    matches!(state, ChildState::Faulted { .. })
}

#[tokio::test(start_paused = true)]
async fn a_failing_child_backs_off_and_is_faulted_and_its_sibling_notices_nothing() {
    let stage = Stage::new();
    let (bad, bad_address) = stage.puppet("bad", &[]);
    let (good, good_address) = stage.puppet("good", &[]);
    let faults = Arc::new(AtomicU32::new(0));
    let count = faults.clone();
    let bad = bad.on_fault(move |reason| {
        assert_eq!(reason, "as told");
        count.fetch_add(1, Ordering::Relaxed);
    });
    let supervisor = Supervisor::start("root", vec![bad, good], no_jitter())
        .await
        .unwrap();
    supervisor.started(1_000).await.unwrap();
    let sibling = who(&good_address).await;

    for _ in 0..6 {
        let child = bad_address.wait(10_000).await.unwrap();
        child.send_message(Order::Panic).unwrap();
        until(&supervisor, "bad", |state| !is_running(state)).await;
    }
    let status = until(&supervisor, "bad", is_faulted).await;
    assert_eq!(status.fault(), Some("as told"));
    assert_eq!(status.restarts, 5);
    assert_eq!(faults.load(Ordering::Relaxed), 1);

    // Each start came as long after the one before as the backoff says; the test itself takes a millisecond or two
    // of paused time to notice each exit.
    let starts = stage.journal.times_of("bad starts");
    let gaps: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, nominal) in gaps.iter().zip([100, 200, 400, 800, 1_000]) {
        assert!((nominal..nominal + 10).contains(gap), "{gaps:?}");
    }
    assert_eq!(gaps.len(), 5);

    assert_eq!(who(&good_address).await, sibling);
    let good = status_of(&supervisor, "good").await.unwrap();
    assert_eq!((good.restarts, good.last_failure), (0, None));

    // Nothing more happens until somebody retries it.
    tokio::time::sleep(std::time::Duration::from_secs(3_600)).await;
    assert_eq!(stage.journal.times_of("bad starts").len(), 6);
    assert!(supervisor.retry("bad").await.unwrap());
    until(&supervisor, "bad", is_running).await;
    assert!(!supervisor.retry("bad").await.unwrap());
    assert!(!supervisor.retry("nobody").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn errors_and_kills_count_as_failures_too() {
    let stage = Stage::new();
    let (spec, address) = stage.puppet("child", &[]);
    let spec = spec.restart(Restart::Transient);
    let supervisor = Supervisor::start("root", vec![spec], no_jitter())
        .await
        .unwrap();
    let first = who(&address).await;
    address.cast(Order::Fail).unwrap();
    until(&supervisor, "child", |state| !is_running(state)).await;
    let second = who(&address).await;
    assert_ne!(first, second);
    let status = status_of(&supervisor, "child").await.unwrap();
    assert_eq!(status.last_failure.as_deref(), Some("an error as told"));
    address.get().unwrap().kill();
    until(&supervisor, "child", |state| !is_running(state)).await;
    assert_ne!(who(&address).await, second);
    let status = status_of(&supervisor, "child").await.unwrap();
    assert_eq!(status.last_failure.as_deref(), Some("killed"));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_panics_or_hangs_is_a_failure_like_any_other() {
    let stage = Stage::new();
    let (spec, address) = stage.puppet("child", &[Start::Fail, Start::Panic, Start::Hang]);
    let spec = spec.start_timeout_ms(500);
    let (sibling, sibling_address) = stage.puppet("sibling", &[]);
    let supervisor = Supervisor::start("root", vec![spec, sibling], no_jitter())
        .await
        .unwrap();
    supervisor.started(10_000).await.unwrap();
    let status = status_of(&supervisor, "child").await.unwrap();
    assert_eq!(status.state, ChildState::BackingOff { delay_ms: 100 });
    assert_eq!(
        status.last_failure.as_deref(),
        Some("it did not start: no luck")
    );
    let sibling = who(&sibling_address).await;
    who(&address).await;
    assert_eq!(
        stage.journal.times_of("child starts"),
        [0, 100, 300, 300 + 500 + 400]
    );
    let status = status_of(&supervisor, "child").await.unwrap();
    assert!(is_running(&status.state));
    assert_eq!(status.restarts, 3);
    assert_eq!(
        status.last_failure.as_deref(),
        Some("it did not start within 500 ms")
    );
    assert_eq!(who(&sibling_address).await, sibling);
}

#[tokio::test(start_paused = true)]
async fn a_start_function_that_panics_does_not_harm_the_supervisor() {
    let spec = ChildSpec::new("child", |_| -> std::future::Ready<Result<_, SpawnErr>> {
        panic!("no future at all")
    })
    .restart(Restart::Temporary);
    let supervisor = Supervisor::start("root", vec![spec], no_jitter())
        .await
        .unwrap();
    let status = until(&supervisor, "child", is_faulted).await;
    assert_eq!(
        status.fault(),
        Some("it did not start: starting it panicked")
    );
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_linked_but_never_reported_is_killed() {
    let stage = Stage::new();
    let began = stage.began;
    let journal = stage.journal.clone();
    let lost = Arc::new(std::sync::Mutex::new(None));
    let found = lost.clone();
    let spec = ChildSpec::new("child", move |parent| {
        let puppet = super::Puppet {
            name: "child".to_owned(),
            began,
            journal: journal.clone(),
            stop_takes_ms: 0,
        };
        let found = found.clone();
        async move {
            let (actor, _) = ractor::Actor::spawn_linked(None, puppet, Start::Well, parent).await?;
            *found.lock().unwrap() = Some(actor);
            std::future::pending().await
        }
    })
    .restart(Restart::Temporary)
    .start_timeout_ms(100);
    let supervisor = Supervisor::start("root", vec![spec], no_jitter())
        .await
        .unwrap();
    until(&supervisor, "child", is_faulted).await;
    let stray: ractor::ActorRef<Order> = lost.lock().unwrap().clone().unwrap();
    stray.wait(None).await.unwrap();
    assert!(is_faulted(
        &status_of(&supervisor, "child").await.unwrap().state
    ));
}

#[tokio::test(start_paused = true)]
async fn a_normal_stop_restarts_only_permanent_children() {
    let stage = Stage::new();
    let (permanent, permanent_address) = stage.puppet("permanent", &[]);
    let (transient, transient_address) = stage.puppet("transient", &[]);
    let (temporary, temporary_address) = stage.puppet("temporary", &[]);
    let children = vec![
        permanent,
        transient.restart(Restart::Transient),
        temporary.restart(Restart::Temporary),
    ];
    let supervisor = Supervisor::start("root", children, no_jitter())
        .await
        .unwrap();
    supervisor.started(1_000).await.unwrap();
    for address in [&permanent_address, &transient_address, &temporary_address] {
        address.cast(Order::Stop).unwrap();
    }
    let is_over = |state: &ChildState| *state == ChildState::Finished;
    until(&supervisor, "transient", is_over).await;
    until(&supervisor, "temporary", is_over).await;
    who(&permanent_address).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(stage.journal.times_of("permanent starts").len(), 2);
    assert_eq!(stage.journal.times_of("transient starts").len(), 1);
    assert!(transient_address.get().is_none());
}

#[tokio::test(start_paused = true)]
async fn dynamic_children_are_added_removed_and_forgotten() {
    let stage = Stage::new();
    let supervisor = Supervisor::start("root", vec![], no_jitter())
        .await
        .unwrap();
    let (spec, address) = stage.slow_puppet("lease", &[], 700);
    let spec = spec.restart(Restart::Transient);
    supervisor.add(spec.clone()).await.unwrap();
    assert_eq!(
        supervisor.add(spec.clone()).await,
        Err(AddError::Exists("lease".to_owned()))
    );
    who(&address).await;

    // Removing waits for its post_stop.
    let before = stage.began.elapsed();
    assert!(supervisor.remove("lease").await.unwrap());
    assert!((stage.began.elapsed() - before).as_millis() >= 700);
    assert!(address.get().is_none());
    assert!(!supervisor.remove("lease").await.unwrap());

    // One that ends by itself is forgotten.
    supervisor.add(spec.clone()).await.unwrap();
    address.wait(1_000).await.unwrap();
    address.cast(Order::Stop).unwrap();
    address.get().unwrap().wait(None).await.unwrap();
    assert_eq!(supervisor.status().await.unwrap(), []);

    // One that is removed while it backs off does not come back, and its timer does not start a successor early.
    supervisor.add(spec.clone()).await.unwrap();
    address.wait(1_000).await.unwrap();
    address.cast(Order::Panic).unwrap();
    until(&supervisor, "lease", |state| !is_running(state)).await;
    assert!(supervisor.remove("lease").await.unwrap());
    let (slow, _) = stage.puppet("lease", &[Start::Fail]);
    let slow = slow.backoff(crate::Backoff {
        min_ms: 5_000,
        max_ms: 5_000,
        factor: 1,
    });
    let added_at = u64::try_from(stage.began.elapsed().as_millis()).unwrap();
    supervisor.add(slow).await.unwrap();
    until(&supervisor, "lease", is_running).await;
    let starts = stage.journal.times_of("lease starts");
    assert_eq!(starts[starts.len() - 2..], [added_at, added_at + 5_000]);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_ran_calmly_begins_with_a_full_budget() {
    let stage = Stage::new();
    let (spec, address) = stage.puppet("child", &[]);
    let supervisor = Supervisor::start("root", vec![spec], no_jitter())
        .await
        .unwrap();
    for round in 0..3 {
        for _ in 0..5 {
            let child = address.wait(10_000).await.unwrap();
            child.send_message(Order::Panic).unwrap();
            until(&supervisor, "child", |state| !is_running(state)).await;
        }
        until(&supervisor, "child", is_running).await;
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(
            is_running(&status_of(&supervisor, "child").await.unwrap().state),
            "round {round}"
        );
    }
}
