//! Admission, sharing, idling, ends and failures.

use hotcell_agent_proto::{Command, JobRequest};
use hotcell_core::{
    gate::Denial,
    model::{EndReason, LeaseState},
};
use hotcell_runtime::{SandboxEnd, fake::Effect};
use hotcell_testkit::{wait_for, wait_until};
use hotcell_types::{JobId, LeaseId};
use tokio::{task::JoinSet, time::Instant};

use super::*;
use crate::{actors::lease::LeaseMsg, actors::workspace::WorkspaceMsg, handles::AcquireError};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_first_calls_share_one_lease() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    life.fake.script(|script| script.start_delay = ms(50));
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let sandboxes = life.sandboxes.clone();
        calls.spawn(async move {
            let active = sandboxes.acquire(&caller("c")).await.unwrap();
            assert!(active.fresh);
            active.lease.clone()
        });
    }
    let leases: std::collections::HashSet<LeaseId> = calls.join_all().await.into_iter().collect();
    assert_eq!(leases.len(), 1);
    assert_eq!(life.fake.count(Effect::Create), 1);
    assert_eq!(life.fake.count(Effect::Start), 1);
    let again = life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert!(!again.fresh);
    wait_until("the record", || {
        life.state("c") == Some(LeaseState::Running)
    })
    .await;
    drop(again);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_never_more_sandboxes_than_allowed_and_a_failed_start_frees_its_place() {
    let mut host = Host::new();
    let life = host.boot_with(PATIENT, 2).await;
    life.fake.script(|script| script.start_delay = ms(1_500));
    let mut calls = JoinSet::new();
    for chat in 0..50 {
        let sandboxes = life.sandboxes.clone();
        calls.spawn(async move {
            let caller = caller(&format!("c{chat}"));
            let begun = Instant::now();
            let result = sandboxes.acquire(&caller).await;
            (result.map(|_| caller), begun.elapsed())
        });
    }
    let (mut got, mut busy) = (Vec::new(), 0);
    for (result, took) in calls.join_all().await {
        match result {
            Ok(caller) => got.push(caller),
            Err(AcquireError::Busy { limit: 2 }) => {
                assert!(took < ms(1_000), "a refusal waited for {took:?}");
                busy += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((got.len(), busy), (2, 48));
    assert_eq!(life.fake.count(Effect::Create), 2);

    life.sandboxes.end(&got[0]).await.unwrap();
    life.fake.fail_next_start(broken("no"));
    let failed = life.sandboxes.acquire(&caller("x")).await.unwrap_err();
    assert!(matches!(failed, AcquireError::StartFailed(_)), "{failed}");
    let begun = Instant::now();
    wait_for("the place", async || {
        life.sandboxes.acquire(&caller("y")).await.ok()
    })
    .await;
    assert!(begun.elapsed() < ms(2_000));
    wait_until("the end", || life.state("x") == Some(LeaseState::Ended)).await;
    let end = life.record("x").unwrap().end;
    assert!(matches!(end, Some(EndReason::StartFailed(words)) if words.contains("no")));
    // The chat is free again.
    assert!(matches!(
        life.sandboxes.acquire(&caller("x")).await,
        Err(AcquireError::Busy { .. })
    ));
    life.stop().await;
}

#[tokio::test]
async fn the_gate_is_passed_by_every_call() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    let viewer = caller_as("c", "u", Role::Viewer);
    let denied = life.sandboxes.acquire(&viewer).await.unwrap_err();
    assert!(matches!(denied, AcquireError::Denied(Denial::Role)));
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    let switch = |enabled| {
        life.store.write::<(), StoreError, _>(move |tx| {
            let id = "w".parse().unwrap();
            let mut workspace = tx.workspace(&id)?.unwrap();
            workspace.enabled = enabled;
            tx.put_workspace(&workspace)
        })
    };
    switch(false).await.unwrap();
    let denied = life.sandboxes.acquire(&caller("c")).await.unwrap_err();
    assert!(matches!(denied, AcquireError::Denied(Denial::Workspace)));
    // What runs can still be ended.
    let view = life.sandboxes.end(&caller("c")).await.unwrap().unwrap();
    assert_eq!(view.record.state, LeaseState::Ended);
    switch(true).await.unwrap();
    let mut other = caller("c");
    other.organization = "elsewhere".parse().unwrap();
    let denied = life.sandboxes.acquire(&other).await.unwrap_err();
    assert!(matches!(denied, AcquireError::Denied(Denial::Organization)));
    life.stop().await;
}

#[tokio::test]
async fn a_lease_is_its_users_until_it_ends() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    let first = life.sandboxes.acquire(&caller("c")).await.unwrap().lease;
    let other = caller_as("c", "v", Role::Owner);
    let refused = life.sandboxes.acquire(&other).await.unwrap_err();
    assert!(matches!(refused, AcquireError::LeaseOfAnotherUser));
    life.sandboxes.end(&other).await.unwrap();
    let second = life.sandboxes.acquire(&other).await.unwrap();
    assert!(second.fresh && second.lease != first);
    assert_eq!(life.fake.running(), 1);
    drop(second);
    life.stop().await;
}

#[tokio::test]
async fn an_unused_sandbox_is_stopped_and_woken_with_its_files() {
    let mut host = Host::new();
    let life = host
        .boot(LeaseLimits {
            idle_timeout_ms: 200,
            ..PATIENT
        })
        .await;
    let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
    let lease = active.lease.clone();
    // Held for longer than the limit: not idle.
    tokio::time::sleep(ms(500)).await;
    assert_eq!(life.fake.running(), 1);
    let released = Instant::now();
    drop(active);
    wait_until("the stop", || life.fake.running() == 0).await;
    assert!(released.elapsed() >= ms(190), "{:?}", released.elapsed());
    assert_eq!(life.state("c"), Some(LeaseState::Idle));
    let woken = life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert!(woken.fresh);
    assert_eq!(woken.lease, lease);
    assert_eq!(life.fake.count(Effect::Create), 1);
    drop(woken);
    life.stop().await;
}

#[tokio::test]
async fn a_running_job_is_no_idleness() {
    let mut host = Host::new();
    let life = host
        .boot(LeaseLimits {
            idle_timeout_ms: 100,
            ..PATIENT
        })
        .await;
    let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
    let job = JobRequest {
        job: JobId::from_bits(1),
        command: Command::Shell("sleep 600".into()),
        cwd: None,
        env: std::collections::BTreeMap::new(),
        timeout_ms: 10_000,
    };
    active.sandbox.start_job(job).await.unwrap();
    let begun = Instant::now();
    drop(active);
    wait_until("the stop", || life.fake.running() == 0).await;
    assert!(begun.elapsed() >= ms(600), "{:?}", begun.elapsed());
    life.stop().await;
}

#[tokio::test]
async fn the_hard_limit_ends_even_what_is_in_use() {
    let mut host = Host::new();
    let life = host
        .boot(LeaseLimits {
            hard_timeout_ms: 300,
            ..PATIENT
        })
        .await;
    let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert_eq!(active.why_lost().await, Some(EndReason::HardTimeLimit));
    wait_until("the end", || life.state("c") == Some(LeaseState::Ended)).await;
    assert_eq!(life.fake.running(), 0);
    life.stop().await;
}

#[tokio::test]
async fn a_lost_sandbox_says_why_and_the_next_call_gets_a_new_one() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    for (end, reason) in [
        (SandboxEnd::OutOfMemory, EndReason::OutOfMemory),
        (SandboxEnd::Exited, EndReason::SandboxLost),
        (SandboxEnd::Lost, EndReason::RuntimeRestarted),
    ] {
        let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
        assert!(active.fresh);
        assert!(life.fake.kill(&active.lease, end));
        assert_eq!(active.why_lost().await, Some(reason.clone()));
        let next = life.sandboxes.acquire(&caller("c")).await.unwrap();
        assert!(next.fresh && next.lease != active.lease);
        let ended = life.store.read_now(|view| view.lease(&active.lease));
        assert_eq!(ended.unwrap().unwrap().end, Some(reason));
        life.sandboxes.end(&caller("c")).await.unwrap();
    }
    life.stop().await;
}

#[tokio::test]
async fn a_start_that_hangs_is_given_up_and_the_chat_is_free() {
    let mut host = Host::new();
    let life = host
        .boot(LeaseLimits {
            start_timeout_ms: 2_000,
            ..PATIENT
        })
        .await;
    life.fake.script(|script| script.ready_delay = ms(60_000));
    let begun = Instant::now();
    let failed = life.sandboxes.acquire(&caller("c")).await.unwrap_err();
    assert!(
        matches!(
            failed,
            AcquireError::StartTimedOut { timeout_ms: 2_000 } | AcquireError::StartFailed(_)
        ),
        "{failed}"
    );
    assert!(begun.elapsed() < ms(10_000));
    life.fake.script(|script| script.ready_delay = ms(0));
    life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert_eq!(life.fake.running(), 1);
    life.stop().await;
}

#[tokio::test]
async fn a_removal_that_fails_is_repeated() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    life.sandboxes.acquire(&caller("c")).await.unwrap();
    life.fake.script(|script| {
        script.remove_failures.push_back(broken("busy"));
        script.remove_failures.push_back(broken("busy"));
    });
    let view = life.sandboxes.end(&caller("c")).await.unwrap().unwrap();
    assert_eq!(view.record.state, LeaseState::Ended);
    assert_eq!(life.fake.count(Effect::Remove), 3);
    assert_eq!(
        life.fake.list().await.unwrap(),
        [],
        "the engine holds nothing"
    );
    // Again: nothing changes.
    let again = life.sandboxes.end(&caller("c")).await.unwrap().unwrap();
    assert_eq!(again.record, view.record);
    life.stop().await;
}

#[tokio::test]
async fn a_crashed_lease_actor_comes_back_and_calls_go_on() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
    let context = life.sandboxes.context_for_tests();
    let live = context
        .live
        .get(&"w".parse().unwrap(), &"c".parse().unwrap())
        .unwrap();
    let before = live.address.get().unwrap().get_id();
    live.address.cast(LeaseMsg::Crash).unwrap();
    wait_until("the successor", || {
        live.address.get().is_some_and(|it| it.get_id() != before)
    })
    .await;
    // The call that runs is not disturbed, the next one finds the same sandbox.
    active.sandbox.ready(1_000).await.unwrap();
    let next = life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert_eq!(next.lease, active.lease);
    // Its successor still looks after it.
    assert!(life.fake.kill(&active.lease, SandboxEnd::Exited));
    assert_eq!(active.why_lost().await, Some(EndReason::SandboxLost));
    life.stop().await;
}

#[tokio::test]
async fn a_lease_actor_that_keeps_crashing_is_shown_as_faulted_and_can_still_be_ended() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    let context = life.sandboxes.context_for_tests();
    let live = context
        .live
        .get(&"w".parse().unwrap(), &"c".parse().unwrap())
        .unwrap();
    wait_until("the fault", || {
        // Gone while it waits for its restart.
        let _ = live.address.cast(LeaseMsg::Crash);
        live.fault().is_some()
    })
    .await;
    let ready = life.sandboxes.ready().await;
    let actors = ready.iter().find(|it| it.name == "actors").unwrap();
    assert!(!actors.ok);
    let detail = actors.detail.clone().unwrap();
    assert!(detail.contains(live.id.as_str()), "{detail}");
    // Its sandbox runs all the same, and its neighbours are not touched.
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    drop(life.sandboxes.acquire(&caller("d")).await.unwrap());
    let view = life.sandboxes.end(&caller("c")).await.unwrap().unwrap();
    assert_eq!(view.record.state, LeaseState::Ended);
    let ready = life.sandboxes.ready().await;
    assert!(ready.iter().all(|it| it.ok), "{ready:?}");
    life.stop().await;
}

#[tokio::test]
async fn a_lease_actor_that_crashes_while_it_starts_does_not_lose_its_calls() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    life.fake.script(|script| script.create_delay = ms(300));
    let sandboxes = life.sandboxes.clone();
    let call = tokio::spawn(async move { sandboxes.acquire(&caller("c")).await });
    let context = life.sandboxes.context_for_tests();
    let (workspace, chat) = ("w".parse().unwrap(), "c".parse().unwrap());
    let live = wait_for("the lease", async || context.live.get(&workspace, &chat)).await;
    wait_until("its actor", || live.address.cast(LeaseMsg::Crash).is_ok()).await;
    let active = call.await.unwrap().unwrap();
    assert_eq!(active.lease, live.id);
    assert_eq!(life.fake.running(), 1);
    life.stop().await;
}

#[tokio::test]
async fn a_crashed_workspace_actor_loses_no_call() {
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    let context = life.sandboxes.context_for_tests();
    for round in 0..20 {
        let chat = format!("c{round}");
        let sandboxes = life.sandboxes.clone();
        let of = caller(&chat);
        let call = tokio::spawn(async move { sandboxes.acquire(&of).await });
        let address = context
            .crew
            .workspace(&context, &"w".parse().unwrap())
            .await
            .unwrap();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        let _ = address.cast(WorkspaceMsg::Crash);
        call.await.unwrap().unwrap();
        life.sandboxes.end(&caller(&chat)).await.unwrap();
    }
    assert_eq!(life.fake.running(), 0);
    life.stop().await;
}

#[tokio::test]
async fn what_vanishes_behind_our_back_is_found_by_the_sweep() {
    let mut host = Host::new();
    let life = host
        .boot(LeaseLimits {
            idle_timeout_ms: 50,
            ..PATIENT
        })
        .await;
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    wait_until("idle", || life.state("c") == Some(LeaseState::Idle)).await;
    wait_until("the stop", || life.fake.running() == 0).await;
    life.fake.forget_all();
    let context = life.sandboxes.context_for_tests();
    wait_for("the end", async || {
        let question = |port| crate::actors::profile::ProfileMsg::Sweep(Some(port));
        context.profile.actor.call(question, 5_000).await.unwrap();
        (life.state("c") == Some(LeaseState::Ended)).then_some(())
    })
    .await;
    assert_eq!(life.record("c").unwrap().end, Some(EndReason::SandboxLost));
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquiring_a_running_sandbox_is_quick() {
    const ROUNDS: u32 = 2_000;
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    let caller = caller("c");
    drop(life.sandboxes.acquire(&caller).await.unwrap());
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        drop(life.sandboxes.acquire(&caller).await.unwrap());
    }
    let each = begun.elapsed() / ROUNDS;
    println!("acquire of a running sandbox: {each:?}");
    // Without optimization and beside other tests; a release build is some ten times faster.
    assert!(each < ms(5), "{each:?}");
    life.stop().await;
}
