//! Sandboxes that are made ahead: nobody's until they are claimed, and then like any other.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
};

use hotcell_types::{
    LeaseId,
    volume::{SANDBOX_GID, SANDBOX_UID},
};

use super::{
    Fault,
    bench::{Bench, Cell},
    checks, ensure, failed,
};
use crate::{Observed, ObservedState, RuntimeError, SandboxSpec};

checks! {
    "warm" "one made ahead is nobody's, and cannot be started" Anything nobodys;
    "warm" "one made ahead sees no volume" Processes sees_nothing;
    "warm" "a claimed one is its lease's, with its volumes, and nobody else's" Processes claimed;
    "warm" "read-only volumes of a claimed one are read-only" Processes read_only;
    "warm" "a claimed one that stops and starts has its volumes and its files" Processes stop_and_start;
    "warm" "a claim that does not fit leaves it nobody's, and creating makes another" Anything does_not_fit;
    "warm" "what is nobody's can be removed, what is claimed is not" Anything removal;
}

/// Makes one ahead, with a file in each volume that it may get; a runtime that cannot says why.
async fn warm(bench: &Bench) -> Result<Cell, Fault> {
    let spec = bench.spec()?;
    for mount in &spec.mounts {
        let file = mount.host_path.join("hello");
        fs::write(&file, mount.kind.mount_path())?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        if bench.env.real {
            chown(&file, Some(SANDBOX_UID), Some(SANDBOX_GID))?;
        }
    }
    match bench.runtime.warm(&spec.ahead()).await {
        Ok(()) => {}
        Err(RuntimeError::Unsupported { what, reason }) => {
            return Err(Fault::Refused(format!("{what}: {reason}")));
        }
        Err(error) => return Err(error.into()),
    }
    bench.enter(spec.clone(), spec.agent_key).await
}

async fn seen(bench: &Bench, lease: &LeaseId) -> Result<Observed, Fault> {
    let all = bench.runtime.list().await?;
    let found = all.into_iter().find(|observed| observed.lease == *lease);
    found.ok_or_else(|| Fault::Failed("it is not listed".into()))
}

async fn is_nobodys(bench: &Bench, lease: &LeaseId) -> Result<(), Fault> {
    let seen = seen(bench, lease).await?;
    ensure!(seen.unclaimed, "it is listed as somebody's: {seen:?}");
    Ok(())
}

async fn is_of(bench: &Bench, spec: &SandboxSpec) -> Result<(), Fault> {
    let seen = seen(bench, &spec.labels.lease).await?;
    ensure!(!seen.unclaimed, "it is listed as nobody's");
    ensure!(
        seen.labels.as_ref() == Some(&spec.labels),
        "its labels are {:?}",
        seen.labels
    );
    Ok(())
}

async fn has_volumes(cell: &Cell) -> Result<(), Fault> {
    for mount in &cell.spec.mounts {
        let path = mount.kind.mount_path();
        let said = cell.sh(format!("cat {path}/hello")).await?.ok()?;
        ensure!(said == path, "{path} shows {said:?}");
        if !mount.kind.read_only() {
            let write = format!("echo inside > {path}/new");
            cell.sh(write).await?.ok()?;
            let on_host = fs::read_to_string(mount.host_path.join("new"))?;
            ensure!(on_host == "inside\n", "the host sees {on_host:?}");
        }
        // What the host does later is seen, too.
        fs::write(mount.host_path.join("later"), "later")?;
        let said = cell.sh(format!("cat {path}/later")).await?.ok()?;
        ensure!(said == "later", "{path}/later shows {said:?}");
        fs::remove_file(mount.host_path.join("later"))?;
        let gone = cell.sh(format!("test -e {path}/later")).await?;
        ensure!(
            gone.exit.exit_code == Some(1),
            "{path}/later is still there"
        );
    }
    Ok(())
}

async fn nobodys(bench: &Bench) -> Result<(), Fault> {
    let cell = warm(bench).await?;
    let seen = seen(bench, &cell.lease).await?;
    ensure!(
        seen.unclaimed && seen.labels.is_none() && seen.state == ObservedState::Running,
        "it is listed as {seen:?}"
    );
    if let Ok(()) = bench.runtime.start(&cell.lease, &cell.key).await {
        return failed("it was started");
    }
    if let Ok(()) = bench.runtime.warm(&cell.spec.ahead()).await {
        return failed("it was made ahead a second time");
    }
    is_nobodys(bench, &cell.lease).await
}

async fn sees_nothing(bench: &Bench) -> Result<(), Fault> {
    let cell = warm(bench).await?;
    for mount in &cell.spec.mounts {
        let path = mount.kind.mount_path();
        let said = cell.sh(format!("ls -A {path}")).await?.ok()?;
        ensure!(said.is_empty(), "{path} shows {said:?}");
        let tried = cell.sh(format!("touch {path}/x")).await?;
        ensure!(tried.exit.exit_code != Some(0), "{path} can be written to");
    }
    // One that has looked there before sees the volumes all the same.
    bench.runtime.claim(&cell.spec).await?;
    has_volumes(&cell).await
}

async fn claimed(bench: &Bench) -> Result<(), Fault> {
    let cell = warm(bench).await?;
    cell.sh("echo before > /workspace/f").await?.ok()?;
    bench.runtime.claim(&cell.spec).await?;
    is_of(bench, &cell.spec).await?;
    // It is made and started, so that both change nothing.
    bench.runtime.create(&cell.spec).await?;
    bench.runtime.start(&cell.lease, &cell.key).await?;
    let kept = cell.sh("cat /workspace/f").await?.ok()?;
    ensure!(kept == "before\n", "it is another one: {kept:?}");
    has_volumes(&cell).await?;
    if let Ok(()) = bench.runtime.claim(&cell.spec).await {
        return failed("it was claimed twice");
    }
    Ok(())
}

async fn read_only(bench: &Bench) -> Result<(), Fault> {
    let cell = warm(bench).await?;
    bench.runtime.claim(&cell.spec).await?;
    for mount in cell.spec.mounts.iter().filter(|it| it.kind.read_only()) {
        let path = mount.kind.mount_path();
        for text in [
            "echo x > hello",
            ": > hello",
            "truncate -s 0 hello",
            "touch new",
            "rm -f hello",
            "ln hello /workspace/hard",
            "mount -o remount,rw . 2>&1",
            "exec 3< hello; echo x > /proc/self/fd/3",
        ] {
            let done = cell.sh(format!("cd {path} && {{ {text}\n}}")).await?;
            ensure!(done.exit.exit_code != Some(0), "{text} worked in {path}");
            let on_host = fs::read_to_string(mount.host_path.join("hello"))?;
            ensure!(on_host == path, "{text} in {path} left {on_host:?}");
        }
        // Under gVisor this says that it worked; what counts is that nothing has changed.
        cell.sh(format!("chmod 777 {path}/hello {path}")).await?;
        for (at, mode) in [("hello", 0o644), ("", 0o755)] {
            let found = fs::metadata(mount.host_path.join(at))?.permissions().mode();
            ensure!(found & 0o7777 == mode, "{path}/{at} has mode {found:o}");
        }
        let new = mount.host_path.join("new");
        ensure!(!new.exists(), "{} was made", new.display());
    }
    // And so is what is between the volumes.
    for text in [
        "touch /mnt/x",
        "mv /mnt/user-data /mnt/y",
        "rmdir /mnt/skills",
    ] {
        let done = cell.sh(text).await?;
        ensure!(done.exit.exit_code != Some(0), "{text} worked");
    }
    Ok(())
}

async fn stop_and_start(bench: &Bench) -> Result<(), Fault> {
    let cell = warm(bench).await?;
    bench.runtime.claim(&cell.spec).await?;
    cell.put("/workspace/kept.txt", "kept").await?;
    bench.runtime.stop(&cell.lease).await?;
    let seen = seen(bench, &cell.lease).await?;
    ensure!(seen.state == ObservedState::Stopped, "it is {seen:?}");
    let again = bench.start(cell.spec.clone(), bench.key()).await?;
    let kept = again.get("/workspace/kept.txt").await?;
    ensure!(kept == b"kept", "the file holds {kept:?}");
    has_volumes(&again).await?;
    is_of(bench, &again.spec).await
}

async fn does_not_fit(bench: &Bench) -> Result<(), Fault> {
    let cell = warm(bench).await?;
    let mut larger = cell.spec.clone();
    larger.resources.memory_bytes *= 2;
    if let Ok(()) = bench.runtime.claim(&larger).await {
        return failed("a claim of a larger one worked");
    }
    is_nobodys(bench, &cell.lease).await?;
    bench.runtime.create(&larger).await?;
    let observed = seen(bench, &cell.lease).await?;
    ensure!(
        !observed.unclaimed && observed.state == ObservedState::Created,
        "it is {observed:?} when it was created"
    );
    is_of(bench, &larger).await?;
    let again = bench.start(larger, cell.key.clone()).await?;
    again.sh("echo up").await?.ok()?;
    bench.runtime.remove(&again.lease).await?;
    // One that has ended cannot be claimed.
    let cell = warm(bench).await?;
    bench.runtime.stop(&cell.lease).await?;
    if let Ok(()) = bench.runtime.claim(&cell.spec).await {
        return failed("one that does not run was claimed");
    }
    is_nobodys(bench, &cell.lease).await
}

async fn removal(bench: &Bench) -> Result<(), Fault> {
    let (one, other) = (warm(bench).await?, warm(bench).await?);
    bench.runtime.claim(&other.spec).await?;
    for cell in [&one, &other] {
        bench.runtime.remove_unclaimed(&cell.lease).await?;
    }
    let state = bench.observed(&one.lease).await?;
    ensure!(state.is_none(), "what is nobody's is still {state:?}");
    is_of(bench, &other.spec).await?;
    other.sh("echo alive").await?.ok()?;
    bench.runtime.remove(&other.lease).await?;
    for cell in [&one, &other] {
        for mount in &cell.spec.mounts {
            let kept = mount.host_path.join("hello").exists();
            ensure!(kept, "{:?} has lost its file", mount.kind);
        }
    }
    Ok(())
}
