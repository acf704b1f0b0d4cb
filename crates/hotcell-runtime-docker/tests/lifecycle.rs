//! What is special to containers of an engine; the conformance suite has the rest.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it stands, and shows what it measured"
)]

mod common;

use std::{fs, path::PathBuf, time::Duration};

use common::Rig;
use futures_util::StreamExt;
use hotcell_runtime::{
    CheckStatus, Isolation, ObservedState, Runtime, RuntimeError, SandboxEnd, VolumeMount,
};
use hotcell_runtime_docker::CHECKS;
use hotcell_types::{Resources, VolumeKind};
use tokio::time::{Instant, timeout};

on_every_engine!(
    another_daemon_adopts_it,
    the_engine_has_no_network_of_ours,
    limits_are_the_kernels,
    only_allowed_images_and_our_volumes,
    preflight_knows_every_check,
    a_call_beats_the_engines_exec,
    ids_of_files_stay_over_a_restart,
);

async fn another_daemon_adopts_it(rig: &Rig) {
    let cell = rig.start().await;
    let other = hotcell_runtime_docker::DockerRuntime::open(rig.config.clone())
        .await
        .unwrap();
    let all = other.list().await.unwrap();
    let found = all.iter().find(|found| found.lease == cell.lease).unwrap();
    assert_eq!(found.state, ObservedState::Running);
    assert_eq!(found.labels.as_ref(), Some(&cell.spec.labels));
    let sandbox = other.sandbox(&cell.lease, &cell.key).unwrap();
    sandbox.ready(5_000).await.unwrap();
    other.start(&cell.lease, &cell.key).await.unwrap();
    let (waited, stopped) = tokio::join!(
        timeout(Duration::from_secs(10), other.wait(&cell.lease)),
        other.stop(&cell.lease)
    );
    stopped.unwrap();
    assert_eq!(waited.unwrap().unwrap(), SandboxEnd::Stopped);
    other.remove(&cell.lease).await.unwrap();
    // Somebody else's installation sees none of it.
    let mut config = rig.config.clone();
    config.installation = hotcell_types::InstallationId::from_bits(77);
    let stranger = hotcell_runtime_docker::DockerRuntime::open(config)
        .await
        .unwrap();
    let cell = rig.start().await;
    assert_eq!(stranger.list().await.unwrap(), []);
    rig.runtime.remove(&cell.lease).await.unwrap();
}

/// EG-36 and EG-39 as far as there is a network: one name service, ours, and no search list.
async fn the_engine_has_no_network_of_ours(rig: &Rig) {
    let cell = rig.start().await;
    let text = cell.run("cat /etc/resolv.conf").await;
    let servers: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("nameserver"))
        .collect();
    assert_eq!(servers, ["nameserver 127.0.0.1"]);
    assert!(
        !text.contains("127.0.0.11") && !text.contains("search"),
        "{text}"
    );
    let networks = rig
        .docker()
        .list_networks(None::<bollard::query_parameters::ListNetworksOptions>)
        .await
        .unwrap();
    for network in networks {
        let name = network.name.unwrap();
        assert!(!name.contains("hotcell"), "{name}");
    }
    let routes = cell
        .run("cat /proc/net/route | tail -n +2 | awk '$3 != \"00000000\"' | wc -l")
        .await;
    assert_eq!(routes.trim(), "0");
}

async fn limits_are_the_kernels(rig: &Rig) {
    let (mut spec, lease, key) = rig.spec();
    spec.resources = Resources {
        memory_bytes: 512 << 20,
        cpu_millis: 500,
        pids: 200,
    };
    rig.runtime.create(&spec).await.unwrap();
    let cell = rig.start_again(spec, lease, key).await;
    let pid = rig.pid(&cell.lease).await.as_raw_nonzero();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let read = |controller: &str, old: &str, new: &str| {
        let line = groups.lines().find(|line| {
            line.split(':')
                .nth(1)
                .unwrap()
                .split(',')
                .any(|name| name == controller)
        });
        let path = match line {
            Some(line) => PathBuf::from(format!(
                "/sys/fs/cgroup/{controller}{}/{old}",
                line.rsplit(':').next().unwrap()
            )),
            None => {
                let line = groups.lines().find(|line| line.starts_with("0::")).unwrap();
                PathBuf::from(format!("/sys/fs/cgroup{}/{new}", &line[3..]))
            }
        };
        fs::read_to_string(&path).unwrap().trim().to_owned()
    };
    assert_eq!(
        read("memory", "memory.limit_in_bytes", "memory.max"),
        (512 << 20).to_string()
    );
    assert_eq!(read("pids", "pids.max", "pids.max"), "200");
    let stats = rig.runtime.stats(&cell.lease).await.unwrap();
    assert!(
        stats.pids > 0 && stats.memory_bytes > 0 && stats.memory_bytes < 512 << 20,
        "{stats:?}"
    );
}

async fn only_allowed_images_and_our_volumes(rig: &Rig) {
    let (mut spec, lease, _) = rig.spec();
    spec.image = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    let refused = rig.runtime.create(&spec).await;
    assert!(
        matches!(refused, Err(RuntimeError::NoSuchImage(_))),
        "{refused:?}"
    );
    for path in ["/etc", "/var/run/docker.sock", "/"] {
        let (mut spec, _, _) = rig.spec();
        spec.mounts = vec![VolumeMount {
            kind: VolumeKind::UserData,
            host_path: path.into(),
        }];
        let refused = rig.runtime.create(&spec).await;
        assert!(
            matches!(refused, Err(RuntimeError::Unsupported { .. })),
            "{refused:?}"
        );
    }
    assert!(rig.observed(&lease).await.is_none());
    let images = rig.runtime.images().await.unwrap();
    assert_eq!(images.len(), 1);
    assert_eq!(images[0].image, rig.image);
    assert!(
        images[0].bytes > 0 && images[0].name.contains("hotcell-test"),
        "{images:?}"
    );
}

async fn preflight_knows_every_check(rig: &Rig) {
    let checks = rig.runtime.preflight().await;
    let mut ids: Vec<&str> = checks.iter().map(|check| check.id.as_str()).collect();
    assert_eq!(ids.len(), CHECKS.len());
    ids.sort_unstable();
    let mut documented: Vec<&str> = CHECKS.iter().map(|(id, _)| *id).collect();
    documented.sort_unstable();
    assert_eq!(ids, documented);
    for check in checks {
        assert_ne!(check.status, CheckStatus::Fail, "{check:?}");
        if check.id == "runtime.gvisor" {
            let gvisor = rig.runtime.facts().isolation == Isolation::Gvisor;
            assert_eq!(gvisor, rig.case.is_gvisor());
            assert_eq!(check.status == CheckStatus::Pass, gvisor, "{check:?}");
        }
    }
}

/// Commands go through the agent. Both ways do the same: run `true` and tell its end.
async fn a_call_beats_the_engines_exec(rig: &Rig) {
    const RUNS: usize = 15;
    let begin = Instant::now();
    let cell = rig.start().await;
    let started = begin.elapsed();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let docker = rig.docker().negotiate_version().await.unwrap();
    let name = format!("hotcell-{}", cell.lease);
    for _ in 0..RUNS {
        let begin = Instant::now();
        cell.run("true").await;
        ours.push(begin.elapsed());
        let begin = Instant::now();
        let config = bollard::models::ExecConfig {
            cmd: Some(vec!["bash".into(), "-c".into(), "true".into()]),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..Default::default()
        };
        let exec = docker.create_exec(&name, config).await.unwrap();
        let attached = docker.start_exec(&exec.id, None).await.unwrap();
        if let bollard::exec::StartExecResults::Attached { mut output, .. } = attached {
            while output.next().await.is_some() {}
        }
        docker.inspect_exec(&exec.id).await.unwrap();
        theirs.push(begin.elapsed());
    }
    ours.sort();
    theirs.sort();
    let (ours, theirs) = (ours[RUNS / 2], theirs[RUNS / 2]);
    println!(
        "{}: create to ready {started:.1?}, bash call {ours:.2?}, engine's exec {theirs:.2?}, ratio {:.1}",
        rig.case.name(),
        theirs.as_secs_f64() / ours.as_secs_f64()
    );
    assert!(
        ours < theirs,
        "a call takes {ours:?}, the engine's exec {theirs:?}"
    );
}

/// FA-16: what a sandbox leaves is there for the next one, under the same ids, and can be removed
/// from outside.
async fn ids_of_files_stay_over_a_restart(rig: &Rig) {
    use std::os::unix::fs::MetadataExt;
    let cell = rig.start().await;
    cell.run("mkdir -p /mnt/user-data/d && echo one > /mnt/user-data/d/f && chmod 600 /mnt/user-data/d/f")
        .await;
    let volume = rig.volume(VolumeKind::UserData).host_path;
    let owner = |path: &str| fs::metadata(volume.join(path)).unwrap().uid();
    let first = owner("d/f");
    rig.runtime.stop(&cell.lease).await.unwrap();
    let again = rig.start_again(cell.spec, cell.lease, cell.key).await;
    assert_eq!(
        again
            .run("cat /mnt/user-data/d/f && echo two >> /mnt/user-data/d/f")
            .await,
        "one\n"
    );
    assert_eq!(owner("d/f"), first);
    let next = rig.start().await;
    assert_eq!(
        next.run("cat /mnt/user-data/d/f; stat -c %u /mnt/user-data/d/f")
            .await,
        "one\ntwo\n1000\n"
    );
    fs::remove_dir_all(volume.join("d")).unwrap();
    assert_eq!(next.run("ls /mnt/user-data").await, "");
}
