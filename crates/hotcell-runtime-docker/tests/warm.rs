//! Sandboxes that are made ahead, on real engines: nobody's until they are claimed, and then like any other.
//! The conformance suite has what every runtime must do; here is what is special to engines.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it stands, and shows what it measured"
)]

mod common;

use std::{fs, os::unix::fs::chown};

use common::{Case, Cell, Rig};
use hotcell_runtime::{CheckStatus, ObservedState, Runtime, RuntimeError, SandboxSpec};
use hotcell_runtime_docker::{DockerRuntime, diagnose};
use tokio::time::Instant;

macro_rules! on_rootful_engines {
    ($($name:ident),* $(,)?) => {
        mod docker_runc { $crate::on_engine!(DockerRunc: $($name),*); }
        mod docker_runsc { $crate::on_engine!(DockerRunsc: $($name),*); }
        mod podman { $crate::on_engine!(Podman: $($name),*); }
        mod podman_runsc { $crate::on_engine!(PodmanRunsc: $($name),*); }
    };
}

on_rootful_engines!(
    a_claim_gives_it_its_volumes,
    a_daemon_that_died_in_the_claim_leaves_it_unclaimed,
    what_an_engine_finished_too_late_is_nobodys,
);

/// One that is nobody's, and what it will be claimed as: with all volumes, a file in each.
async fn warm(rig: &Rig) -> (SandboxSpec, Cell) {
    let (spec, lease, key) = rig.spec();
    for mount in &spec.mounts {
        let file = mount.host_path.join("hello");
        fs::write(&file, format!("{:?}\n", mount.kind)).unwrap();
        chown(&file, Some(1000), Some(1000)).unwrap();
    }
    rig.runtime.warm(&spec.ahead()).await.unwrap();
    let cell = rig.enter(spec.clone(), lease, key).await;
    (spec, cell)
}

async fn fails(cell: &Cell, text: &str) {
    let (out, exit) = cell.try_run(text).await.unwrap();
    assert_ne!(exit.exit_code, Some(0), "{text}: {out}");
}

/// What not even this host's root can do through a sandbox's own mounts.
async fn root_cannot_write(rig: &Rig, cell: &Cell, path: &str) {
    let pid = keeper(rig, cell).await;
    let at = format!("/proc/{pid}/root{path}");
    let tried = fs::write(&at, b"").map_err(|error| error.kind());
    assert_eq!(tried, Err(std::io::ErrorKind::ReadOnlyFilesystem), "{at}");
}

/// The process in whose root the sandbox's paths are: its first one, or gVisor's file server.
async fn keeper(rig: &Rig, cell: &Cell) -> String {
    let first = rig.pid(&cell.lease).await.as_raw_nonzero().to_string();
    if !rig.case.is_gvisor() {
        return first;
    }
    let groups = |pid: &str| fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let own = groups(&first);
    let processes = fs::read_dir("/proc").unwrap();
    let mut pids = processes.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_it = |pid: &String| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"runsc-gofer\0") && groups(pid) == own
    };
    pids.find(is_it).unwrap()
}

async fn assert_volumes(rig: &Rig, spec: &SandboxSpec, cell: &Cell) {
    for mount in &spec.mounts {
        let (path, text) = (mount.kind.mount_path(), format!("{:?}\n", mount.kind));
        assert_eq!(cell.run(&format!("cat {path}/hello")).await, text);
        let write = format!("echo new > {path}/new && : > {path}/hello");
        let (hello, new) = (mount.host_path.join("hello"), mount.host_path.join("new"));
        if mount.kind.read_only() {
            fails(cell, &write).await;
            for name in ["new", "hello"] {
                root_cannot_write(rig, cell, &format!("{path}/{name}")).await;
            }
            assert!(!new.exists());
            // gVisor would empty it before it refuses, if the host let it.
            assert_eq!(fs::read_to_string(&hello).unwrap(), text);
        } else {
            cell.run(&write).await;
            assert_eq!(fs::read_to_string(&new).unwrap(), "new\n");
            fs::remove_file(&new).unwrap();
            fs::write(&hello, &text).unwrap();
            let changed = format!("test ! -e {path}/new && cat {path}/hello");
            assert_eq!(cell.run(&changed).await, text);
        }
    }
    // What is between the volumes is nobody's to change, not even root's.
    for text in [
        "touch /mnt/x",
        "mv /mnt/user-data /mnt/y",
        "rmdir /mnt/skills",
    ] {
        fails(cell, text).await;
    }
    root_cannot_write(rig, cell, "/mnt/x").await;
    if !rig.case.is_gvisor() {
        let mounts = cell.run("grep ' /mnt/' /proc/self/mountinfo").await;
        assert_eq!(mounts.lines().count(), spec.mounts.len(), "{mounts}");
        for line in mounts.lines() {
            assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
            // It hears of its volumes, and the host hears nothing of it.
            assert!(
                line.contains(" master:") && !line.contains(" shared:"),
                "{line}"
            );
        }
    }
}

async fn a_claim_gives_it_its_volumes(rig: &Rig) {
    let (spec, cell) = warm(rig).await;
    let observed = rig.observed(&cell.lease).await.unwrap();
    assert!(observed.unclaimed && observed.labels.is_none());
    assert_eq!(observed.state, ObservedState::Running);
    for mount in &spec.mounts {
        let path = mount.kind.mount_path();
        assert_eq!(cell.run(&format!("ls -A {path}")).await, "");
        fails(&cell, &format!("touch {path}/x")).await;
        root_cannot_write(rig, &cell, &format!("{path}/x")).await;
    }
    let started = rig.runtime.start(&cell.lease, &cell.key).await;
    assert!(matches!(started, Err(RuntimeError::Failed { .. })));

    let pid = rig.pid(&cell.lease).await;
    let begin = Instant::now();
    rig.runtime.claim(&spec).await.unwrap();
    println!("{}: a claim takes {:.1?}", rig.case.name(), begin.elapsed());
    let observed = rig.observed(&cell.lease).await.unwrap();
    assert_eq!(observed.labels.as_ref(), Some(&spec.labels));
    assert!(!observed.unclaimed);
    // Create and start are done already, and it is nobody's no more.
    rig.runtime.create(&spec).await.unwrap();
    rig.runtime.start(&cell.lease, &cell.key).await.unwrap();
    rig.runtime.remove_unclaimed(&cell.lease).await.unwrap();
    assert!(rig.runtime.claim(&spec).await.is_err());
    assert_eq!(rig.pid(&cell.lease).await, pid);
    assert_volumes(rig, &spec, &cell).await;

    // A stopped one keeps none of its volumes in use; started again it has them.
    cell.run("echo kept > /workspace/kept").await;
    rig.runtime.stop(&cell.lease).await.unwrap();
    let base = format!("{}/mnt/", cell.lease);
    for table in rig.mount_tables() {
        assert!(!table.contains(&base), "{table}");
    }
    let again = rig.start_again(spec.clone(), cell.lease, cell.key).await;
    assert_eq!(again.run("cat /workspace/kept").await, "kept\n");
    assert_volumes(rig, &spec, &again).await;
    // Also when the engine lost the container.
    rig.runtime.stop(&again.lease).await.unwrap();
    let name = format!("hotcell-{}", again.lease);
    let none = None::<bollard::query_parameters::RemoveContainerOptions>;
    rig.docker().remove_container(&name, none).await.unwrap();
    let again = rig.start_again(spec.clone(), again.lease, again.key).await;
    assert_volumes(rig, &spec, &again).await;
    rig.runtime.remove(&again.lease).await.unwrap();
    for mount in &spec.mounts {
        assert!(mount.host_path.join("hello").exists());
    }
}

/// The steps of a claim are the record, the volumes one after the other, and the mark: what a kill between
/// them leaves is made here, and the next daemon has to make an end of it.
async fn a_daemon_that_died_in_the_claim_leaves_it_unclaimed(rig: &Rig) {
    for step in 0..4 {
        let (spec, cell) = warm(rig).await;
        let dir = rig
            .config
            .volume_root
            .join(".scratch")
            .join(cell.lease.as_str());
        let before = fs::read(dir.join("record.json")).unwrap();
        rig.runtime.claim(&spec).await.unwrap();
        // Back to before the mark went.
        fs::write(dir.join("warm"), b"").unwrap();
        if step > 0 {
            rustix::mount::unmount(
                dir.join("mnt/workspace-data"),
                rustix::mount::UnmountFlags::DETACH,
            )
            .unwrap();
        }
        if step > 1 {
            fs::write(dir.join("record.json"), before).unwrap();
        }
        if step > 2 {
            // A record that names nobody is word enough.
            fs::remove_file(dir.join("warm")).unwrap();
        }
        let next = DockerRuntime::open(rig.config.clone()).await.unwrap();
        let all = next.list().await.unwrap();
        assert!(all.len() == 1 && all[0].unclaimed, "{step}: {all:?}");
        assert!(next.start(&cell.lease, &cell.key).await.is_err());
        if step == 1 {
            // The lease's own turn comes first: it is made anew, with what belongs to it.
            next.create(&spec).await.unwrap();
            let observed = next.list().await.unwrap();
            assert!(!observed[0].unclaimed && observed[0].labels.as_ref() == Some(&spec.labels));
            next.remove_unclaimed(&cell.lease).await.unwrap();
            let again = rig.start_again(spec.clone(), cell.lease, cell.key).await;
            let own = again.run("cat /mnt/workspace-data/hello").await;
            assert_eq!(own, "WorkspaceData\n");
            next.remove(&again.lease).await.unwrap();
        } else {
            next.remove_unclaimed(&cell.lease).await.unwrap();
        }
        assert_eq!(next.list().await.unwrap(), []);
        rig.assert_nothing_left().await;
        for mount in &spec.mounts {
            assert!(mount.host_path.join("hello").exists(), "{step}");
        }
    }
}

/// A daemon died while the engine made a container, and the next one removed the directory before the engine
/// was done: the container is no sandbox that nobody knows.
async fn what_an_engine_finished_too_late_is_nobodys(rig: &Rig) {
    // The control: one that is somebody's is not removed as nobody's.
    let other = rig.start().await;
    let docker = rig.docker().negotiate_version().await.unwrap();
    for (role, end) in [("sandbox", ""), ("holder", "-net")] {
        let (_, lease, _) = rig.spec();
        let labels = [
            ("io.hotcell.installation", rig.config.installation.as_str()),
            ("io.hotcell.lease", lease.as_str()),
            ("io.hotcell.role", role),
            ("io.hotcell.ahead", "true"),
        ];
        let config = bollard::models::ContainerCreateBody {
            image: Some(rig.image.to_string()),
            cmd: Some(vec!["true".into()]),
            labels: Some(
                labels
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
            ),
            ..Default::default()
        };
        let options = bollard::query_parameters::CreateContainerOptionsBuilder::default()
            .name(&format!("hotcell-{lease}{end}"))
            .build();
        docker
            .create_container(Some(options), config)
            .await
            .unwrap();
        let observed = rig.observed(&lease).await.unwrap();
        assert!(observed.unclaimed, "{role}: {observed:?}");
        for lease in [&lease, &other.lease] {
            rig.runtime.remove_unclaimed(lease).await.unwrap();
        }
        assert!(rig.observed(&lease).await.is_none(), "{role}");
        assert!(rig.observed(&other.lease).await.is_some());
    }
    rig.runtime.remove(&other.lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn podman_rootless_says_why_not() {
    let rig = Rig::open(Case::PodmanRootless).await;
    let (spec, lease, _) = rig.spec();
    let refused = rig.runtime.warm(&spec.ahead()).await;
    assert!(
        matches!(&refused, Err(RuntimeError::Unsupported { what, .. }) if what.contains("rootless")),
        "{refused:?}"
    );
    assert!(rig.observed(&lease).await.is_none());
    // Where one is asked for, nothing is opened, and the check tells.
    let mut config = rig.config.clone();
    config.warm_pool = true;
    let opened = DockerRuntime::open(config.clone()).await.err();
    assert!(
        matches!(&opened, Some(RuntimeError::Unsupported { what, .. }) if what.contains("rootless")),
        "{opened:?}"
    );
    let checks = diagnose(config).await;
    let told = checks
        .iter()
        .find(|check| check.id == "engine.rootless")
        .unwrap();
    assert_eq!(told.status, CheckStatus::Fail, "{told:?}");
    assert!(told.fix.contains("warm_pool"), "{told:?}");
    rig.end().await;
}
