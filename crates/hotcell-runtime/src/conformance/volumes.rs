//! Directories of the host as the sandbox sees them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use hotcell_types::{
    VolumeKind,
    volume::{SANDBOX_GID, SANDBOX_UID},
};

use super::{
    Fault,
    bench::{Bench, Cell, start_of},
    checks, ensure,
};

checks! {
    "FA-17" "what the host changes is seen at once" Anything host_changes;
    "FA-17" "a thousand files of the host are seen at once" Processes many_files;
    "FA-17" "two sandboxes see each other's writes to a shared volume" Processes shared_volume;
    "FA-19" "read-only volumes are read-only" Processes read_only;
    "vol" "files that a sandbox makes belong to the sandbox user on the host" Processes owner_on_host;
}

/// Writes a file as the appliance does: by rename, as the sandbox user.
fn host_write(bench: &Bench, at: &Path, content: &str) -> std::io::Result<()> {
    let new = at.with_extension("new");
    fs::write(&new, content)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
    if bench.env.real {
        chown(&new, Some(SANDBOX_UID), Some(SANDBOX_GID))?;
    }
    fs::rename(new, at)
}

async fn sees(cell: &Cell, at: &str, content: Option<&str>) -> Result<(), Fault> {
    let done = cell.sh(format!("cat {at}")).await?;
    match content {
        Some(content) => {
            ensure!(
                done.exit.exit_code == Some(0) && done.out() == content,
                "{at} shows {:?} {:?} {:?}, not {:?}",
                start_of(&done.out()),
                done.err(),
                done.exit,
                start_of(content)
            );
            let through = cell.get(at).await?;
            ensure!(through == content.as_bytes(), "{at} is read differently");
        }
        None => ensure!(done.exit.exit_code != Some(0), "{at} is still there"),
    }
    Ok(())
}

async fn host_changes(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    for kind in VolumeKind::ALL {
        let host = cell.volume(kind)?.join("seen.txt");
        let inside = format!("{}/seen.txt", kind.mount_path());
        sees(&cell, &inside, None).await?;
        for content in ["first", "other", "much longer than before", "short"] {
            host_write(bench, &host, content)?;
            sees(&cell, &inside, Some(content)).await?;
        }
        // In place, too: other content of the same size.
        fs::write(&host, "trohs")?;
        sees(&cell, &inside, Some("trohs")).await?;
        fs::remove_file(&host)?;
        sees(&cell, &inside, None).await?;
    }
    Ok(())
}

async fn many_files(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let at = cell.volume(VolumeKind::UploadedFiles)?;
    cell.sh("ls /mnt/uploaded-files").await?.ok()?;
    for number in 0..1_000 {
        host_write(
            bench,
            &at.join(format!("n{number}.txt")),
            &number.to_string(),
        )?;
    }
    let done = cell
        .sh("cd /mnt/uploaded-files; ls | wc -l; cat n*.txt | wc -c; cat n777.txt")
        .await?;
    ensure!(done.ok()? == "1000\n2890\n777", "{:?}", done.out());
    for number in 0..1_000 {
        fs::remove_file(at.join(format!("n{number}.txt")))?;
    }
    let done = cell.sh("ls /mnt/uploaded-files | wc -l").await?;
    ensure!(done.ok()? == "0\n", "{:?} are still there", done.out());
    Ok(())
}

async fn shared_volume(bench: &Bench) -> Result<(), Fault> {
    let one = bench.fresh().await?;
    let mut spec = bench.spec()?;
    for mount in &mut spec.mounts {
        if mount.kind == VolumeKind::WorkspaceData {
            one.volume(VolumeKind::WorkspaceData)?
                .clone_into(&mut mount.host_path);
        }
    }
    let two = bench.make(spec).await?;
    let mut want = String::new();
    for turn in 0..10 {
        let writer = if turn % 2 == 0 { &one } else { &two };
        writer
            .sh(format!("echo {turn} >> /mnt/workspace-data/log.txt"))
            .await?
            .ok()?;
        want.push_str(&format!("{turn}\n"));
        for reader in [&one, &two] {
            sees(reader, "/mnt/workspace-data/log.txt", Some(&want)).await?;
        }
    }
    let own = one.volume(VolumeKind::WorkspaceData)?.join("log.txt");
    ensure!(fs::read_to_string(own)? == want, "the host sees another");
    Ok(())
}

async fn read_only(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    ensure!(
        cell.health.writable_read_only_mounts.is_empty(),
        "the agent could write to {:?}",
        cell.health.writable_read_only_mounts
    );
    for kind in [VolumeKind::Skills, VolumeKind::UploadedFiles] {
        let host = cell.volume(kind)?.join("fixed.txt");
        host_write(bench, &host, "fixed")?;
        let root = kind.mount_path();
        for text in [
            "echo x > fixed.txt",
            "echo x >> fixed.txt",
            "touch new.txt",
            "mkdir new",
            "rm -f fixed.txt",
            "mv fixed.txt moved.txt",
            "chmod 777 fixed.txt",
            "chmod 777 .",
            "ln -s /etc/passwd link",
            "ln fixed.txt hard.txt",
            "ln fixed.txt /workspace/hard.txt",
            "mount -o remount,rw . 2>&1",
            "exec 3< fixed.txt; echo x > /proc/self/fd/3",
            "python3 -c 'open(\"fixed.txt\", \"r+b\")'",
            "truncate -s 0 fixed.txt",
        ] {
            let done = cell.sh(format!("cd {root} && {{ {text}\n}}")).await?;
            ensure!(done.exit.exit_code != Some(0), "{text} worked in {root}");
            let on_host = fs::read_to_string(&host)?;
            ensure!(
                on_host == "fixed",
                "{text} in {root} left {on_host:?} on the host"
            );
            sees(&cell, &format!("{root}/fixed.txt"), Some("fixed"))
                .await
                .map_err(|fault| fault.after(text))?;
        }
        let names: Vec<_> = fs::read_dir(cell.volume(kind)?)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<_, _>>()?;
        ensure!(names == ["fixed.txt"], "{root} now holds {names:?}");
        fs::remove_file(host)?;
    }
    Ok(())
}

async fn owner_on_host(bench: &Bench) -> Result<(), Fault> {
    use std::os::unix::fs::MetadataExt;

    let cell = bench.shared().await?;
    cell.sh("mkdir -p /mnt/user-data/made; echo x > /mnt/user-data/made/f")
        .await?
        .ok()?;
    let made = cell.volume(VolumeKind::UserData)?.join("made");
    for at in [made.clone(), made.join("f")] {
        let meta = fs::metadata(&at)?;
        ensure!(
            meta.uid() == SANDBOX_UID && meta.gid() == SANDBOX_GID,
            "{} belongs to {}:{}",
            at.display(),
            meta.uid(),
            meta.gid()
        );
    }
    // And the host can remove them.
    Ok(fs::remove_dir_all(made)?)
}
