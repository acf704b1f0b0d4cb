//! LC-06: the daemon is killed at any moment, and the next one finds and removes everything.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use common::{Engine, Rig};
use hotcell_runtime::{ObservedState, Runtime};
use hotcell_runtime_embedded::Embedded;
use hotcell_types::VolumeKind;

/// Tells the victim where to work; without it the victim is no test.
const VICTIM: &str = "HOTCELL_TEST_VICTIM";

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_in_a_start_leaves_nothing_for_good() {
    killed_at(Engine::Runc, &[0, 3, 8, 12, 16, 20, 25, 30, 40, 60]).await;
    killed_at(
        Engine::RunscOwn,
        &[2, 10, 20, 40, 60, 80, 100, 130, 160, 200],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_in_a_claim_leaves_a_whole_sandbox_or_nobodys() {
    for engine in [Engine::Runc, Engine::RunscOwn] {
        let mut rig = Rig::open(engine).await;
        for delay_us in [0, 200, 400, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 20_000] {
            rig = in_between(rig, Act::Claim, Duration::from_micros(delay_us)).await;
            let all = rig.runtime.list().await.unwrap();
            let [observed] = &all[..] else {
                panic!("{all:?}");
            };
            println!(
                "{engine:?} after {delay_us} us: unclaimed {}, labelled {}",
                observed.unclaimed,
                observed.labels.is_some()
            );
            assert_eq!(observed.state, ObservedState::Running);
            let lease = &observed.lease;
            if observed.unclaimed {
                let started = rig.runtime.start(lease, &victims_key()).await;
                assert!(started.is_err(), "nobody may use it");
                rig.runtime.remove_unclaimed(lease).await.unwrap();
            } else {
                assert!(observed.labels.is_some());
                rig.runtime.remove_unclaimed(lease).await.unwrap();
                let cell = rig.cell(lease, &victims_key()).await;
                for kind in VolumeKind::ALL {
                    let owner = format!("stat -c %u {}", kind.mount_path());
                    assert_eq!(cell.get(&owner).await, "1000");
                }
                drop(cell);
                rig.runtime.remove(lease).await.unwrap();
            }
            rig.assert_nothing_left();
        }
        rig.end().await;
    }
}

/// What the victim is killed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Start,
    Claim,
}

async fn killed_at(engine: Engine, delays_ms: &[u64]) {
    let mut rig = Rig::open(engine).await;
    for delay_ms in delays_ms {
        // The victim needs the directories to itself.
        rig = in_between(rig, Act::Start, Duration::from_millis(*delay_ms)).await;
        let all = rig.runtime.list().await.unwrap();
        for observed in &all {
            println!("{engine:?} after {delay_ms} ms: {:?}", observed.state);
            if observed.state == ObservedState::Running {
                // Whole enough to be used, with the key that it was started with.
                let cell = rig.cell(&observed.lease, &victims_key()).await;
                cell.get("true").await;
            }
            rig.runtime.remove(&observed.lease).await.unwrap();
        }
        rig.assert_nothing_left();
    }
    rig.end().await;
}

async fn in_between(rig: Rig, act: Act, delay: Duration) -> Rig {
    let told = Told {
        act,
        engine: rig.engine,
        state: rig.config.state_dir.parent().unwrap().to_owned(),
        run: rig.config.run_dir.clone(),
        images: rig.config.image_dir.clone(),
        installation: rig.config.installation.to_string(),
        image: rig.image.to_string(),
    };
    rig.reopen_after(async || {
        let mut victim = spawn_victim(&told);
        // It says when it begins to make its sandbox.
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("NOW") {}
        tokio::time::sleep(delay).await;
        victim.kill().unwrap();
        victim.wait().unwrap();
    })
    .await
}

struct Told {
    act: Act,
    engine: Engine,
    state: PathBuf,
    run: PathBuf,
    images: PathBuf,
    installation: String,
    image: String,
}

fn spawn_victim(told: &Told) -> Child {
    let words = [
        format!("{:?}", told.engine),
        told.state.display().to_string(),
        told.run.display().to_string(),
        told.images.display().to_string(),
        told.installation.clone(),
        told.image.clone(),
        format!("{:?}", told.act),
    ];
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_victim", "--nocapture"])
        .env(VICTIM, words.join("\n"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn victims_key() -> hotcell_types::AgentKey {
    hotcell_types::AgentKey::new([7; 32])
}

/// No test by itself: the daemon that is killed by the test above.
#[tokio::test(flavor = "multi_thread")]
async fn the_victim() {
    let Ok(words) = env::var(VICTIM) else {
        return;
    };
    let words: Vec<&str> = words.lines().collect();
    let engine = if words[0] == "Runc" {
        Engine::Runc
    } else {
        Engine::RunscOwn
    };
    let config = common::config(
        engine,
        (words[1].as_ref(), words[2].as_ref(), words[3].as_ref()),
        common::given("HOTCELL_TEST_AGENT"),
        words[4].parse().unwrap(),
    );
    let runtime = Embedded::open(config.clone()).await.unwrap();
    let mut spec = common::spec(&config, &words[5].parse().unwrap(), victims_key());
    if words[6] == "Claim" {
        spec.mounts = VolumeKind::ALL
            .map(|kind| common::volume(&config, kind))
            .to_vec();
        runtime.warm(&spec.ahead()).await.unwrap();
        let sandbox = runtime.sandbox(&spec.labels.lease, &spec.agent_key);
        sandbox.unwrap().ready(30_000).await.unwrap();
        println!("NOW");
        std::io::stdout().flush().unwrap();
        runtime.claim(&spec).await.unwrap();
        std::future::pending::<()>().await;
    }
    println!("NOW");
    std::io::stdout().flush().unwrap();
    runtime.create(&spec).await.unwrap();
    runtime
        .start(&spec.labels.lease, &spec.agent_key)
        .await
        .unwrap();
    println!("DONE");
    // Until it is killed.
    std::future::pending::<()>().await;
}
