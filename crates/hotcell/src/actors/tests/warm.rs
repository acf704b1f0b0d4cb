//! The warm pool on the fake engine.

use hotcell_core::gate::Denial;
use hotcell_runtime::{
    ObservedState, SandboxEnd,
    fake::{Effect, Moment},
};
use hotcell_testkit::{wait_for, wait_until};
use hotcell_types::LeaseId;

use super::*;
use crate::{actors::profile::ProfileMsg, handles::AcquireError};

async fn warm_host(warm_pool: usize, max_sandboxes: usize, limits: LeaseLimits) -> (Host, Life) {
    let mut host = Host::new();
    host.warm_pool = warm_pool;
    let life = host.boot_with(limits, max_sandboxes).await;
    (host, life)
}

async fn ready(life: &Life, wanted: usize) -> Vec<LeaseId> {
    wait_for("the pool", async || {
        let profiles = life.sandboxes.profiles().await;
        (profiles[0].warm.ready == wanted).then_some(())
    })
    .await;
    unclaimed(life).await
}

async fn unclaimed(life: &Life) -> Vec<LeaseId> {
    let all = life.fake.list().await.unwrap();
    let unclaimed = all.into_iter().filter(|seen| seen.unclaimed);
    unclaimed.map(|seen| seen.lease).collect()
}

/// The sandbox of a chat is whole: labelled, claimed or created, running.
async fn assert_whole(life: &Life, chat: &str) {
    let record = life.record(chat).unwrap();
    let all = life.fake.list().await.unwrap();
    let seen = all.iter().find(|seen| seen.lease == record.id).unwrap();
    let labels = seen.labels.as_ref().unwrap();
    assert_eq!(
        (labels.workspace.as_str(), labels.chat.as_str()),
        ("w", chat)
    );
    assert!(!seen.unclaimed);
    assert_eq!(seen.state, ObservedState::Running);
}

/// How many starts of this kind are in the metrics.
fn starts(life: &Life, kind: &str) -> u64 {
    let metrics = &life.sandboxes.context_for_tests().metrics;
    let text = metrics.text(&Default::default()).unwrap();
    let name = format!("hotcell_start_duration_seconds_count{{kind=\"{kind}\"}} ");
    let count = text.lines().find_map(|line| line.strip_prefix(&name));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_first_call_claims_a_warm_one_and_the_pool_fills_again() {
    let (_host, life) = warm_host(2, 8, PATIENT).await;
    let before = ready(&life, 2).await;
    let active = life.sandboxes.acquire(&caller("c")).await.unwrap();
    assert!(before.contains(&life.record("c").unwrap().id));
    assert_whole(&life, "c").await;
    assert_eq!(life.fake.count(Effect::Create), 0);
    assert_eq!((starts(&life, "warm"), starts(&life, "cold")), (1, 0));
    let after = ready(&life, 2).await;
    assert_eq!(life.fake.running(), 3);
    assert!(after.iter().any(|lease| !before.contains(lease)));
    // Stopped and woken it is an ordinary one; ended it leaves nothing.
    drop(active);
    life.sandboxes.end(&caller("c")).await.unwrap();
    assert_eq!(life.fake.running(), 2);
    // A daemon that leaves takes its pool along.
    let fake = life.fake.clone();
    life.stop().await;
    assert_eq!(fake.list().await.unwrap(), []);
}

#[tokio::test]
async fn without_a_pool_nothing_is_made_ahead() {
    let (_host, life) = warm_host(0, 8, PATIENT).await;
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    assert_eq!(life.fake.count(Effect::Warm), 0);
    assert_eq!(life.fake.count(Effect::Claim), 0);
    life.stop().await;
}

#[tokio::test]
async fn a_claim_that_fails_is_a_cold_start() {
    let (_host, life) = warm_host(1, 8, PATIENT).await;
    ready(&life, 1).await;
    life.fake
        .script(|script| script.claim_failures.push_back(broken("no mount")));
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    assert_eq!(life.fake.count(Effect::Create), 1);
    assert_whole(&life, "c").await;
    // One that died in the pool is no better.
    let warm = ready(&life, 1).await;
    assert!(life.fake.kill(&warm[0], SandboxEnd::OutOfMemory));
    drop(life.sandboxes.acquire(&caller("d")).await.unwrap());
    assert_eq!(life.fake.count(Effect::Create), 2);
    assert_whole(&life, "d").await;
    // Nor is one whose claim does not come back.
    ready(&life, 1).await;
    life.fake.set_hook(Some(Arc::new(|moment, effect, _| {
        Box::pin(async move {
            if (moment, effect) == (Moment::Before, Effect::Attach) {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
    })));
    drop(life.sandboxes.acquire(&caller("e")).await.unwrap());
    assert_eq!(life.fake.count(Effect::Create), 3);
    assert_whole(&life, "e").await;
    // Those who waited for it waited for a cold start.
    assert_eq!((starts(&life, "warm"), starts(&life, "cold")), (0, 3));
    life.fake.set_hook(None);
    ready(&life, 1).await;
    assert_eq!(life.fake.running(), 4);
    life.stop().await;
}

#[tokio::test]
async fn a_refused_call_leaves_the_pool_as_it_was() {
    let (_host, life) = warm_host(1, 8, PATIENT).await;
    let before = ready(&life, 1).await;
    let refused = life
        .sandboxes
        .acquire(&caller_as("c", "u", Role::Viewer))
        .await;
    assert!(matches!(refused, Err(AcquireError::Denied(Denial::Role))));
    assert_eq!(ready(&life, 1).await, before);
    assert_eq!(life.fake.count(Effect::Claim), 0);
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    assert_eq!(before, [life.record("c").unwrap().id]);
    life.stop().await;
}

#[tokio::test]
async fn the_pool_keeps_no_call_out() {
    let quick = LeaseLimits {
        idle_timeout_ms: 20,
        ..PATIENT
    };
    let (_host, life) = warm_host(2, 2, quick).await;
    ready(&life, 2).await;
    let first = life.sandboxes.acquire(&caller("a")).await.unwrap();
    let second = life.sandboxes.acquire(&caller("b")).await.unwrap();
    // Both places are taken: there is none for the pool, nor for a third call.
    ready(&life, 0).await;
    let third = life.sandboxes.acquire(&caller("c")).await;
    assert!(matches!(third, Err(AcquireError::Busy { limit: 2 })));
    drop(second);
    wait_until("idle", || life.state("b") == Some(LeaseState::Idle)).await;
    ready(&life, 1).await;
    // The call that wakes it has the pool's place.
    let second = life.sandboxes.acquire(&caller("b")).await.unwrap();
    assert_whole(&life, "b").await;
    wait_until("removal", || life.fake.running() == 2).await;
    assert_eq!(unclaimed(&life).await, []);
    drop((first, second));
    life.stop().await;
}

#[tokio::test]
async fn what_cannot_be_made_is_said_and_removed() {
    let mut host = Host::new();
    host.warm_pool = 1;
    let installation = {
        let store = open_store(&host.dir);
        let installation = store.installation();
        store.close().await.unwrap();
        installation
    };
    let fake = FakeRuntime::new(installation);
    fake.script(|script| script.warm_failures.push_back(broken("no luck")));
    host.fake = Some(fake);
    let life = host.boot_with(PATIENT, 8).await;
    wait_for("the problem", async || {
        let warm = life.sandboxes.profiles().await[0].warm.clone();
        warm.problem.filter(|problem| problem.contains("no luck"))
    })
    .await;
    // Nobody waits for the pool.
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
    assert_eq!(life.fake.count(Effect::Create), 1);
    // The next try works.
    ready(&life, 1).await;
    assert_eq!(life.sandboxes.profiles().await[0].warm.problem, None);
    life.stop().await;
}

#[tokio::test]
async fn a_sweep_removes_strangers_that_nobody_claimed_and_no_others() {
    let (_host, life) = warm_host(1, 8, PATIENT).await;
    let of_pool = ready(&life, 1).await;
    // As an earlier daemon left it, beside one that a store of long ago knew.
    let stranger = LeaseId::from_bits(7);
    let spec = hotcell_runtime::WarmSpec {
        installation: life.store.installation(),
        lease: stranger.clone(),
        image: hotcell_runtime::fake::image(),
        resources: hotcell_types::ResourceClass::Small.resources(),
        scratch_bytes: 1 << 26,
        network: hotcell_runtime::NetworkMode::None,
        agent_key: hotcell_types::AgentKey::new([1; 32]),
    };
    life.fake.warm(&spec).await.unwrap();
    let unknown = LeaseId::from_bits(8);
    life.fake
        .plant(unknown.clone(), None, ObservedState::Running);
    let context = life.sandboxes.context();
    let question = |port| ProfileMsg::Sweep(Some(port));
    context.profile.actor.call(question, 10_000).await.unwrap();
    assert_eq!(unclaimed(&life).await, of_pool);
    assert_eq!(life.sandboxes.profiles().await[0].unknown, [unknown]);
    life.stop().await;
}
