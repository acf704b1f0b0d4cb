//! Questions and answers.

use std::time::Duration;

use super::{Order, Stage, no_jitter, status_of, who};
use crate::{Address, CallError, Supervisor, call};

#[tokio::test(start_paused = true)]
async fn a_late_answer_fails_the_question_and_not_the_actor() {
    let stage = Stage::new();
    let (spec, address) = stage.puppet("child", &[]);
    let supervisor = Supervisor::start("root", vec![spec], no_jitter())
        .await
        .unwrap();
    let actor = address.wait(1_000).await.unwrap();
    let incarnation = who(&address).await;
    let late = call(&actor, |port| Order::AnswerAfter(500, port), 100).await;
    assert_eq!(late, Err(CallError::TimedOut { timeout_ms: 100 }));
    let in_time = call(&actor, |port| Order::AnswerAfter(50, port), 1_000).await;
    assert_eq!(in_time, Ok("here"));
    assert_eq!(who(&address).await, incarnation);
    let status = status_of(&supervisor, "child").await.unwrap();
    assert_eq!(status.restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_is_gone_or_does_not_answer_is_gone() {
    let stage = Stage::new();
    let (spec, address) = stage.puppet("child", &[]);
    let supervisor = Supervisor::start("root", vec![spec], no_jitter())
        .await
        .unwrap();
    let actor = address.wait(1_000).await.unwrap();
    assert_eq!(
        call(&actor, Order::DropPort, 1_000).await,
        Err(CallError::Gone)
    );
    supervisor.stop().await;
    assert_eq!(call(&actor, Order::Who, 1_000).await, Err(CallError::Gone));
    assert_eq!(address.call(Order::Who, 1_000).await, Err(CallError::Gone));
    assert_eq!(address.cast(Order::Stop), Err(CallError::Gone));
}

#[tokio::test(start_paused = true)]
async fn an_address_leads_to_the_present_incarnation() {
    let stage = Stage::new();
    let (spec, address) = stage.puppet("child", &[]);
    let _supervisor = Supervisor::start("root", vec![spec], no_jitter())
        .await
        .unwrap();
    let first = who(&address).await;
    address.cast(Order::Panic).unwrap();
    address.get().unwrap().wait(None).await.unwrap();
    assert!(address.get().is_none());
    assert_ne!(who(&address).await, first);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_actor_that_never_comes_ends() {
    let address = Address::<Order>::new();
    let waited = tokio::time::timeout(Duration::from_secs(60), address.wait(250)).await;
    assert_eq!(
        waited.unwrap().unwrap_err(),
        CallError::TimedOut { timeout_ms: 250 }
    );
}
