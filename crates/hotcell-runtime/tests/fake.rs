//! The fake keeps the rules of the seam, and its knobs do what they say.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::join_all};
use hotcell_agent_proto::{Command, ExecExit, ExecRequest};
use hotcell_runtime::{
    ExecEvent, Labels, NetworkMode, ObservedState, OutputStream, Runtime, RuntimeError, Sandbox,
    SandboxEnd, SandboxError, SandboxSpec,
    conformance::{self, ConformanceEnv},
    fake::{self, Effect, FakeRuntime, Moment},
};
use hotcell_types::{AgentKey, CallId, IdSource, InstallationId, LeaseId, ResourceClass, limits};
use tokio::time::{Instant, timeout};

/// Ids one after the other.
#[derive(Default)]
struct Counter(AtomicU64);

impl IdSource for Counter {
    fn bits(&self) -> u128 {
        u128::from(self.0.fetch_add(1, Ordering::Relaxed)) + 1
    }
}

fn installation() -> InstallationId {
    InstallationId::from_bits(7)
}

fn key() -> AgentKey {
    AgentKey::new([3; 32])
}

fn spec(number: u128) -> SandboxSpec {
    SandboxSpec {
        labels: Labels {
            installation: installation(),
            lease: LeaseId::from_bits(number),
            workspace: "w".parse().unwrap(),
            chat: "c".parse().unwrap(),
        },
        image: fake::image(),
        resources: ResourceClass::Small.resources(),
        scratch_bytes: 1 << 20,
        mounts: Vec::new(),
        network: NetworkMode::None,
        agent_key: key(),
    }
}

fn request(text: &str) -> ExecRequest {
    ExecRequest {
        call: CallId::from_bits(1),
        command: Command::Shell(text.into()),
        cwd: None,
        user: None,
        env: Default::default(),
        timeout_ms: 10_000,
        restart: false,
    }
}

async fn started(runtime: &FakeRuntime, number: u128) -> Arc<dyn Sandbox> {
    let spec = spec(number);
    runtime.create(&spec).await.unwrap();
    runtime.start(&spec.labels.lease, &key()).await.unwrap();
    runtime.sandbox(&spec.labels.lease, &key()).unwrap()
}

async fn run(sandbox: &Arc<dyn Sandbox>, text: &str) -> Result<(String, ExecExit), SandboxError> {
    let mut stream = sandbox.exec(request(text)).await?;
    let mut out = Vec::new();
    while let Some(event) = stream.next().await {
        match event? {
            ExecEvent::Output(OutputStream::Stdout, bytes) => out.extend_from_slice(&bytes),
            ExecEvent::Exit(exit) => return Ok((String::from_utf8(out).unwrap(), exit)),
            _ => {}
        }
    }
    panic!("a stream without an exit");
}

#[tokio::test]
async fn the_fake_conforms() {
    let root = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(installation());
    let killed = runtime.clone();
    let env = ConformanceEnv {
        real: false,
        kill: Some(Arc::new(move |lease| {
            killed.kill(&lease, SandboxEnd::Exited);
            async { Ok(()) }.boxed()
        })),
        ..ConformanceEnv::new(
            fake::image(),
            root.path().to_owned(),
            installation(),
            Arc::new(Counter::default()),
        )
    };
    let report = conformance::run(Arc::new(runtime.clone()), env).await;
    println!("{report}");
    report.leave("fake").unwrap();
    report.assert_all_passed();
    assert!(
        report.refused().all(|row| matches!(
            &row.outcome,
            conformance::Outcome::Refused(why) if why == "needs real processes"
        )),
        "{report}"
    );
    assert!(
        runtime.list().await.unwrap().is_empty(),
        "the suite left sandboxes behind"
    );
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn delays_and_failures_come_as_scripted() {
    let runtime = FakeRuntime::new(installation());
    runtime.script(|script| {
        script.start_delay = Duration::from_secs(3);
        script.ready_delay = Duration::from_secs(2);
    });
    runtime.fail_next_create(RuntimeError::DiskFull("test".into()));
    runtime.fail_next_start(RuntimeError::StartFailed("test".into()));
    let spec = spec(1);
    let lease = &spec.labels.lease;
    assert!(matches!(
        runtime.create(&spec).await,
        Err(RuntimeError::DiskFull(_))
    ));
    assert!(runtime.list().await.unwrap().is_empty());
    runtime.create(&spec).await.unwrap();
    assert!(matches!(
        runtime.start(lease, &key()).await,
        Err(RuntimeError::StartFailed(_))
    ));
    let start = Instant::now();
    runtime.start(lease, &key()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    let sandbox = runtime.sandbox(lease, &key()).unwrap();
    assert!(matches!(
        sandbox.ready(1_000).await,
        Err(SandboxError::Timeout(1_000))
    ));
    sandbox.ready(90_000).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    runtime.script(|script| script.unavailable = Some("gone".into()));
    assert!(matches!(
        runtime.list().await,
        Err(RuntimeError::Unavailable(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_killed_sandbox_breaks_its_calls_and_tells_its_waiters() {
    let runtime = FakeRuntime::new(installation());
    let sandbox = started(&runtime, 1).await;
    let lease = LeaseId::from_bits(1);
    let call = {
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move { run(&sandbox, "echo a; hang").await })
    };
    let waiting = runtime.clone();
    let waited = lease.clone();
    let wait = tokio::spawn(async move { waiting.wait(&waited).await });
    tokio::task::yield_now().await;
    assert!(runtime.kill(&lease, SandboxEnd::OutOfMemory));
    assert!(!runtime.kill(&lease, SandboxEnd::Exited));
    assert_eq!(wait.await.unwrap().unwrap(), SandboxEnd::OutOfMemory);
    assert!(matches!(call.await.unwrap(), Err(SandboxError::Lost(_))));
    assert!(matches!(
        run(&sandbox, "echo b").await,
        Err(SandboxError::Lost(_))
    ));
    let sandbox = started(&runtime, 1).await;
    assert_eq!(run(&sandbox, "echo c").await.unwrap().0, "c\n");
    assert_eq!(runtime.lose_all(), 1);
    assert_eq!(runtime.wait(&lease).await.unwrap(), SandboxEnd::Lost);
    assert_eq!(runtime.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_sees_both_sides_of_every_effect_and_may_crash_there() {
    let runtime = FakeRuntime::new(installation());
    // A crash is a task that is aborted while its effect is held.
    for (crash_at, leaves) in [
        (Moment::Before, None),
        (Moment::After, Some(ObservedState::Created)),
    ] {
        let number = 10 + crash_at as u128;
        let (reached, seen) = tokio::sync::watch::channel(false);
        let reached = Arc::new(reached);
        runtime.set_hook(Some(Arc::new(move |moment, effect, _| {
            let reached = Arc::clone(&reached);
            async move {
                if moment == crash_at && effect == Effect::Create {
                    reached.send_replace(true);
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
            .boxed()
        })));
        let creating = runtime.clone();
        let task = tokio::spawn(async move { creating.create(&spec(number)).await });
        seen.clone().wait_for(|seen| *seen).await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        runtime.set_hook(None);
        let state = runtime
            .list()
            .await
            .unwrap()
            .into_iter()
            .find(|observed| observed.lease == LeaseId::from_bits(number))
            .map(|observed| observed.state);
        assert_eq!(state, leaves, "{crash_at:?}");
    }
    // An error after the effect is a lost reply.
    runtime.set_hook(Some(Arc::new(|moment, effect, _| {
        async move {
            match (moment, effect) {
                (Moment::After, Effect::Create) => Err(RuntimeError::Failed {
                    action: "answer",
                    reason: "the reply was lost".into(),
                }),
                _ => Ok(()),
            }
        }
        .boxed()
    })));
    assert!(runtime.create(&spec(20)).await.is_err());
    runtime.set_hook(None);
    assert_eq!(runtime.count(Effect::Create), 2);
    runtime.create(&spec(20)).await.unwrap();
    assert_eq!(runtime.calls().last().unwrap().effect, Effect::Create);
}

#[tokio::test]
async fn leftovers_are_listed_with_and_without_labels() {
    let runtime = FakeRuntime::new(installation());
    let labels = spec(1).labels;
    runtime.plant(LeaseId::from_bits(1), Some(labels), ObservedState::Running);
    runtime.plant(LeaseId::from_bits(2), None, ObservedState::Stopped);
    let all = runtime.list().await.unwrap();
    let states: Vec<_> = all
        .iter()
        .map(|observed| (observed.labels.is_some(), observed.state))
        .collect();
    assert_eq!(
        states,
        [
            (true, ObservedState::Running),
            (false, ObservedState::Stopped)
        ]
    );
    runtime.remove(&LeaseId::from_bits(2)).await.unwrap();
    assert_eq!(runtime.list().await.unwrap().len(), 1);
    runtime.forget_all();
    assert!(runtime.list().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_little_language_does_what_it_says() {
    let runtime = FakeRuntime::new(installation());
    let sandbox = started(&runtime, 1).await;
    let cases = [
        ("echo a b\nprintf c", "a b\nc", Some(0)),
        ("exit 300", "", Some(44)),
        ("echo a; exit 3; echo b", "a\n", Some(3)),
        ("nosuch", "", Some(127)),
        ("false", "", Some(1)),
        ("signal SIGSEGV 11", "", Some(139)),
        ("write f hello; cat f; rm f", "hello\n", Some(0)),
        ("cat f", "", Some(1)),
        ("cd /tmp; export A=b", "", Some(0)),
        ("pwd; printenv A", "/tmp\nb\n", Some(0)),
        ("sleep 11000; echo late", "", None),
    ];
    for (text, out, code) in cases {
        let (is, exit) = run(&sandbox, text).await.unwrap();
        assert_eq!((is.as_str(), exit.exit_code), (out, code), "{text}");
        assert_eq!(exit.timed_out, code.is_none(), "{text}");
    }
    let (_, exit) = run(&sandbox, "background 60000").await.unwrap();
    assert_eq!(exit.still_running, 1);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let (_, exit) = run(&sandbox, "true").await.unwrap();
    assert_eq!(exit.still_running, 0);
    assert!(matches!(
        run(&sandbox, "fail-lost").await,
        Err(SandboxError::Lost(_))
    ));
    assert!(matches!(
        run(&sandbox, "fail-agent").await,
        Err(SandboxError::Agent(_))
    ));
    let (out, exit) = run(&sandbox, "big 5000000").await.unwrap();
    let kept = limits::OUTPUT_HEAD_BYTES + limits::OUTPUT_TAIL_BYTES;
    assert_eq!(out.len(), kept);
    assert_eq!(exit.stdout_dropped_bytes, 5_000_000 - kept as u64);
    assert!(matches!(
        run(&sandbox, "die oom").await,
        Err(SandboxError::Lost(_))
    ));
    let lease = LeaseId::from_bits(1);
    assert_eq!(runtime.wait(&lease).await.unwrap(), SandboxEnd::OutOfMemory);
}

#[tokio::test]
async fn a_full_disk_is_said_to_be_full() {
    let runtime = FakeRuntime::new(installation());
    let sandbox = started(&runtime, 1).await;
    let (_, exit) = run(&sandbox, &format!("write f {}", "x".repeat(900_000)))
        .await
        .unwrap();
    assert_eq!(exit.exit_code, Some(0));
    let (_, exit) = run(&sandbox, &format!("write g {}", "x".repeat(900_000)))
        .await
        .unwrap();
    assert_eq!(exit.exit_code, Some(1));
    let disk = sandbox.disk().await.unwrap();
    assert!(disk.mounts[0].free_bytes < 200_000);
}

#[tokio::test]
async fn a_thousand_sandboxes_are_cheap() {
    let resident = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    };
    let runtime = FakeRuntime::new(installation());
    started(&runtime, 1_000_000).await;
    let before_kib = resident();
    let sandboxes = join_all((0..1_000).map(|number| started(&runtime, number))).await;
    let calls = join_all(sandboxes.iter().map(|sandbox| run(sandbox, "echo x"))).await;
    assert!(calls.into_iter().all(|call| call.unwrap().0 == "x\n"));
    let grown_kib = resident().saturating_sub(before_kib);
    assert!(grown_kib < 8_000, "1,000 sandboxes take {grown_kib} KiB");
    assert_eq!(runtime.running(), 1_001);
    let all = join_all(sandboxes.iter().map(|sandbox| sandbox.ready(1_000))).await;
    assert!(all.into_iter().all(|health| health.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_ends_it() {
    let runtime = FakeRuntime::new(installation());
    let sandbox = started(&runtime, 1).await;
    let mut stream = sandbox.exec(request("echo a; hang")).await.unwrap();
    assert!(matches!(
        stream.next().await,
        Some(Ok(ExecEvent::Output(..)))
    ));
    assert_eq!(sandbox.ready(1_000).await.unwrap().calls, 1);
    drop(stream);
    assert_eq!(sandbox.ready(1_000).await.unwrap().calls, 0);
    // A held one reports that it lives.
    let mut stream = sandbox.exec(request("sleep 9000")).await.unwrap();
    let event = timeout(Duration::from_secs(6), stream.next())
        .await
        .unwrap();
    assert!(matches!(event, Some(Ok(ExecEvent::Progress(_)))));
}
