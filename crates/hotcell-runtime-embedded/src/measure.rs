//! How long a start takes, beside the engine alone on the same bundle. Run by hand:
//! `cargo test -p hotcell-runtime-embedded --release --lib -- --ignored --nocapture measure`
//! with the environment of the real tests.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails loudly and prints what it finds"
)]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use hotcell_agent_proto::ExecRequest;
use hotcell_runtime::{ExecEvent, Labels, NetworkMode, Runtime, SandboxSpec};
use hotcell_testkit::{RealClock, RealIds};
use hotcell_types::{AgentKey, CallId, IdSource, InstallationId, LeaseId, ResourceClass, limits};
use tokio::time::Instant;

use crate::{
    Embedded, EmbeddedConfig, NetworkStack, OciKind, RuntimeChoice, bundle::Bundle,
    record::write_new, scratch::make_tree,
};

const RUNS: usize = 15;

fn median(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "{:7.2} ms (least {:.2}, most {:.2})",
        ms(times[times.len() / 2]),
        ms(times[0]),
        ms(times[times.len() - 1])
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure() {
    for (kind, network) in [
        (OciKind::Runsc, NetworkStack::Own),
        (OciKind::Runsc, NetworkStack::Kernel),
        (OciKind::Runc, NetworkStack::Auto),
    ] {
        measure_one(RuntimeChoice::Fixed {
            kind,
            path: None,
            network,
        })
        .await;
    }
}

async fn measure_one(choice: RuntimeChoice) {
    let state = tempfile::tempdir_in("/var/tmp").unwrap();
    let run = tempfile::Builder::new()
        .prefix("hotcell-test-")
        .tempdir_in("/run")
        .unwrap();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/measure-images");
    let images = std::env::var_os("HOTCELL_TEST_IMAGES").map_or(images, Into::into);
    let installation = InstallationId::from_bits(RealIds.bits());
    let runtime = Embedded::open(EmbeddedConfig {
        state_dir: state.path().to_owned(),
        run_dir: run.path().to_owned(),
        image_dir: images,
        volume_root: state.path().to_owned(),
        agent_binary: std::env::var_os("HOTCELL_TEST_AGENT").unwrap().into(),
        installation: installation.clone(),
        oci_runtime: choice,
        max_sandboxes: 64,
        clock: Arc::new(RealClock),
        ids: Arc::new(RealIds),
    })
    .await
    .unwrap();
    let image = match runtime.images.list().unwrap().pop() {
        Some(image) => image,
        None => {
            let tar = std::env::var_os("HOTCELL_TEST_IMAGE_TAR").unwrap();
            runtime
                .images
                .import(Path::new(&tar), "measure", &mut |_| {})
                .unwrap()
        }
    }
    .image;
    println!("{}", runtime.engine.describe());
    let mut parts: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for _ in 0..RUNS {
        let key = AgentKey::new([1; 32]);
        let lease = LeaseId::from_bits(RealIds.bits());
        let spec = SandboxSpec {
            labels: Labels {
                installation: installation.clone(),
                lease: lease.clone(),
                workspace: "w".parse().unwrap(),
                chat: "c".parse().unwrap(),
            },
            image: image.clone(),
            resources: ResourceClass::Medium.resources(),
            scratch_bytes: limits::DEFAULT_SCRATCH_BYTES,
            mounts: Vec::new(),
            network: NetworkMode::None,
            agent_key: key.clone(),
        };
        let mut from = Instant::now();
        let begin = from;
        let mut part = |name, since: &mut Instant| {
            parts.entry(name).or_default().push(since.elapsed());
            *since = Instant::now();
        };
        runtime.create(&spec).await.unwrap();
        part("1 create", &mut from);
        runtime.start(&lease, &key).await.unwrap();
        part("2 start", &mut from);
        let sandbox = runtime.sandbox(&lease, &key).unwrap();
        sandbox.ready(10_000).await.unwrap();
        part("3 agent ready", &mut from);
        let mut events = sandbox
            .exec(ExecRequest {
                call: CallId::from_bits(RealIds.bits()),
                command: hotcell_agent_proto::Command::Shell("echo hi".into()),
                cwd: None,
                user: None,
                env: BTreeMap::new(),
                timeout_ms: 10_000,
                restart: false,
            })
            .await
            .unwrap();
        while let Some(event) = events.next().await {
            if let ExecEvent::Exit(exit) = event.unwrap() {
                assert_eq!(exit.exit_code, Some(0));
            }
        }
        part("4 first bash result", &mut from);
        let mut whole = begin;
        part("5 all until the first result", &mut whole);
        from = Instant::now();
        for _ in 0..20 {
            runtime.gateway.socket().await.unwrap();
        }
        parts
            .entry("6 twenty sockets of the gateway")
            .or_default()
            .push(from.elapsed());
        from = Instant::now();
        runtime.remove(&lease).await.unwrap();
        parts.entry("7 remove").or_default().push(from.elapsed());
        // In between, so that both see the same load of the host.
        let time = bare(&runtime, state.path(), run.path(), &image);
        parts.entry("8 the engine alone").or_default().push(time);
    }
    for (name, times) in parts {
        println!("  {name:32} {}", median(times));
    }
}

/// The same bundle with `bash -c 'echo hi'` in place of the agent, by the engine alone.
fn bare(
    runtime: &Embedded,
    state: &Path,
    run: &Path,
    image: &hotcell_runtime::ImageRef,
) -> Duration {
    let dir = runtime.layout.engine("bare");
    let scratch = state.join("bare-scratch");
    make_tree(&scratch).unwrap();
    let bundle = Bundle {
        lease: LeaseId::from_bits(1),
        key: AgentKey::new([1; 32]),
        slot: crate::net::Slot::PROBE,
        root: runtime.images.root(image).unwrap(),
        agent: runtime.config.agent_binary.clone(),
        scratch,
        volumes: Vec::new(),
        later: None,
        resolver: None,
        resources: ResourceClass::Medium.resources(),
        cgroup: runtime.cgroups.path_of("bare"),
    };
    let namespace = run.join("bare-net");
    fs::write(&namespace, "").unwrap();
    let made = Command::new("unshare")
        .arg(format!("--net={}", namespace.display()))
        .arg("true")
        .status();
    assert!(made.unwrap().success());
    let spec = bundle.spec(&runtime.engine, &namespace).unwrap();
    let mut spec = serde_json::to_value(spec).unwrap();
    spec["process"]["args"] = serde_json::json!(["bash", "-c", "echo hi"]);
    fs::create_dir_all(dir.bundle()).unwrap();
    fs::create_dir_all(dir.root()).unwrap();
    write_new(&dir.config(), &serde_json::to_vec(&spec).unwrap()).unwrap();
    let mut command = runtime.engine.run(&dir, "bare");
    let words: Vec<_> = command
        .get_args()
        .filter(|word| *word != "--detach")
        .map(ToOwned::to_owned)
        .collect();
    let program = command.get_program().to_owned();
    if runtime.engine.hide_net_sysctls {
        command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c"])
            .arg("mount -t tmpfs -o ro,size=4k none /proc/sys/net; exec \"$@\"")
            .arg("sh")
            .arg(program);
    } else {
        command = Command::new(program);
    }
    let begin = Instant::now();
    let output = command.args(words).stdin(Stdio::null()).output().unwrap();
    let time = begin.elapsed();
    assert_eq!(output.stdout, b"hi\n", "{output:?}");
    let unmounted = Command::new("umount").arg(&namespace).status();
    assert!(unmounted.unwrap().success());
    fs::remove_dir_all(dir.path()).unwrap();
    time
}
