//! The order of starts and stops.

use std::time::Duration;

use super::{Order, Stage, no_jitter};
use crate::{CallError, Supervisor};

#[tokio::test(start_paused = true)]
async fn children_start_in_order_and_stop_in_reverse_each_awaited() {
    let stage = Stage::new();
    let (store, _) = stage.slow_puppet("store", &[], 300);
    let (egress, _) = stage.slow_puppet("egress", &[], 200);
    let (leases, _) = stage.slow_puppet("leases", &[], 100);
    let root = Supervisor::start("root", vec![store, egress, leases], no_jitter())
        .await
        .unwrap();
    root.started(1_000).await.unwrap();
    root.stop().await;
    let wanted = [
        (0, "store starts"),
        (0, "egress starts"),
        (0, "leases starts"),
        (0, "leases stopping"),
        (100, "leases stopped"),
        (100, "egress stopping"),
        (300, "egress stopped"),
        (300, "store stopping"),
        (600, "store stopped"),
    ]
    .map(|(at, what)| (at, what.to_owned()));
    assert_eq!(stage.journal.all(), wanted);
    assert_eq!(root.status().await, Err(CallError::Gone));
    // Stopping what is stopped is nothing.
    root.stop().await;
}

#[tokio::test(start_paused = true)]
async fn supervisors_nest_and_the_next_sibling_waits_for_the_whole_branch() {
    let stage = Stage::new();
    let (a1, _) = stage.slow_puppet("a1", &[], 100);
    let (a2, _) = stage.slow_puppet("a2", &[], 100);
    let (b1, _) = stage.slow_puppet("b1", &[], 100);
    let (a, a_handle) = Supervisor::child("a", vec![a1, a2], no_jitter());
    let (b, b_handle) = Supervisor::child("b", vec![b1], no_jitter());
    let root = Supervisor::start("root", vec![a, b], no_jitter())
        .await
        .unwrap();
    root.started(1_000).await.unwrap();
    assert_eq!(a_handle.status().await.unwrap().len(), 2);
    let (dynamic, _) = stage.slow_puppet("b2", &[], 100);
    b_handle.add(dynamic).await.unwrap();
    root.stop().await;
    assert_eq!(
        stage.journal.names(),
        [
            "a1 starts",
            "a2 starts",
            "b1 starts",
            "b2 starts",
            "b2 stopping",
            "b2 stopped",
            "b1 stopping",
            "b1 stopped",
            "a2 stopping",
            "a2 stopped",
            "a1 stopping",
            "a1 stopped",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_child_that_does_not_stop_is_killed_and_the_others_still_stop_in_order() {
    let stage = Stage::new();
    let (first, _) = stage.puppet("first", &[]);
    let (stuck, stuck_address) = stage.puppet("stuck", &[]);
    let root = Supervisor::start(
        "root",
        vec![first, stuck.stop_timeout_ms(2_000)],
        no_jitter(),
    )
    .await
    .unwrap();
    root.started(1_000).await.unwrap();
    let stuck = stuck_address.get().unwrap();
    stuck.send_message(Order::Hang).unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    root.stop().await;
    assert_eq!(
        stage.journal.times_of("first stopped"),
        [2_001],
        "the stuck one was given its two seconds"
    );
    assert!(stage.journal.times_of("stuck stopping").is_empty());
    assert!(stuck_address.get().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_branch_that_loses_its_supervisor_is_built_anew() {
    let stage = Stage::new();
    let (leaf, address) = stage.puppet("leaf", &[]);
    let (branch, handle) = Supervisor::child("branch", vec![leaf], no_jitter());
    let root = Supervisor::start("root", vec![branch], no_jitter())
        .await
        .unwrap();
    root.started(1_000).await.unwrap();
    let before = super::who(&address).await;
    let branch_actor = address.get().unwrap().try_get_supervisor().unwrap();
    branch_actor.kill_and_wait(None).await.unwrap();
    handle.started(10_000).await.unwrap();
    assert_ne!(super::who(&address).await, before);
    assert_eq!(handle.status().await.unwrap().len(), 1);
}
