//! Files in and out through the sandbox itself.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use hotcell_agent_proto::{AgentErrorCode, FileKind};
use tokio::time::{Instant, timeout};

use super::{
    Fault,
    bench::{Bench, expect_refusal, own_memory_bytes, path, pieces, sha256},
    checks, ensure,
};

checks! {
    "files" "what is written is read, whole and exact" Anything round_trip;
    "files" "a write with the wrong hash leaves the old file" Anything wrong_hash;
    "files" "directories are listed in pages, in byte order" Anything listing;
    "files" "what is not there, or may not be touched, is named so" Anything refusals;
    "FA-03" "a FIFO and a directory are refused at once" Anything special_files;
    "FA-01" "a link that leads out of its directory is not found" Processes links;
    "FA-15" "pushed files are the sandbox user's own" Processes owner;
    "FA-22" "a sparse terabyte is read in bounds" Anything sparse;
    "files" "disk usage tells the truth about /workspace" Anything disk;
}

async fn round_trip(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let mut content = Vec::with_capacity(3_000_000);
    for number in 0_u32..750_000 {
        content.extend_from_slice(&number.wrapping_mul(2_654_435_761).to_le_bytes());
    }
    let at = "/workspace/new/deep/round.bin";
    for whole in [&content[..], b"", &content[..1000]] {
        let whole = Bytes::copy_from_slice(whole);
        let hash = sha256(&whole);
        let bytes = whole.len() as u64;
        let info = cell
            .sandbox
            .write_file(&path(at), 0o640, bytes, &hash, pieces(whole.clone()))
            .await?;
        let stat = cell.sandbox.stat(&path(at)).await?;
        for info in [info, stat] {
            ensure!(
                info.bytes == bytes && info.kind == FileKind::File && info.mode & 0o777 == 0o640,
                "{info:?}"
            );
            ensure!(info.name == "round.bin", "it is called {:?}", info.name);
        }
        ensure!(
            cell.get(at).await? == whole,
            "{bytes} bytes came back changed"
        );
    }
    let odd = "/workspace/new/a b&c=d#e?f%41\n;'~*(1)测é.txt";
    cell.put(odd, "odd").await?;
    ensure!(cell.get(odd).await? == b"odd", "an odd name is lost");
    cell.sandbox.remove_file(&path("/workspace/new")).await?;
    expect_refusal(
        "a removed directory",
        cell.sandbox.stat(&path("/workspace/new")).await,
        &[AgentErrorCode::NotFound],
    )
}

async fn wrong_hash(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let at = "/workspace/hash.txt";
    cell.put(at, "old").await?;
    let content = Bytes::from_static(b"new");
    let result = cell
        .sandbox
        .write_file(&path(at), 0o644, 3, &sha256(b"other"), pieces(content))
        .await;
    ensure!(result.is_err(), "content with another hash was taken");
    let content = Bytes::from_static(b"newer");
    let result = cell
        .sandbox
        .write_file(&path(at), 0o644, 9, &sha256(b"newer"), pieces(content))
        .await;
    ensure!(result.is_err(), "short content was taken");
    let kept = cell.get(at).await?;
    ensure!(kept == b"old", "the file holds {kept:?}");
    let listing = cell.sandbox.list(&path("/workspace"), None, 1_000).await?;
    let left: Vec<_> = listing
        .entries
        .iter()
        .filter(|entry| entry.name.contains("hash.txt") && entry.name != "hash.txt")
        .collect();
    ensure!(left.is_empty(), "leftovers: {left:?}");
    Ok(cell.sandbox.remove_file(&path(at)).await?)
}

async fn listing(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let mut names: Vec<_> = (0..25).map(|n| format!("f{n}")).collect();
    names.extend([
        "F".into(),
        "f1.txt".into(),
        " lead".into(),
        "é".into(),
        "e\u{301}".into(),
    ]);
    for name in &names {
        cell.put(&format!("/workspace/listed/{name}"), name.clone())
            .await?;
    }
    cell.put("/workspace/listed/sub/inner.txt", "x").await?;
    names.push("sub".into());
    names.sort();
    let directory = path("/workspace/listed");
    for page in [1, 7, 1_000] {
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        loop {
            let listing = cell
                .sandbox
                .list(&directory, after.as_deref(), page)
                .await?;
            ensure!(listing.entries.len() <= page, "a page is too long");
            seen.extend(listing.entries.iter().map(|entry| entry.name.clone()));
            if !listing.more {
                break;
            }
            after = seen.last().cloned();
        }
        ensure!(seen == names, "by {page}: {seen:?}");
    }
    let listing = cell.sandbox.list(&directory, Some("stop"), 1_000).await?;
    let sub = listing.entries.first();
    ensure!(
        sub.is_some_and(|entry| entry.name == "sub" && entry.kind == FileKind::Directory),
        "after `stop` comes {sub:?}"
    );
    Ok(cell.sandbox.remove_file(&directory).await?)
}

async fn refusals(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let sandbox = &cell.sandbox;
    let missing = &[AgentErrorCode::NotFound];
    let nowhere = path("/workspace/nowhere/x");
    expect_refusal(
        "reading",
        sandbox.read_file(&nowhere).await.map(drop),
        missing,
    )?;
    expect_refusal("stat", sandbox.stat(&nowhere).await, missing)?;
    expect_refusal("listing", sandbox.list(&nowhere, None, 10).await, missing)?;
    expect_refusal("removing", sandbox.remove_file(&nowhere).await, missing)?;
    let denied = &[AgentErrorCode::PermissionDenied];
    for at in [
        "/etc/hotcell-was-here",
        "/mnt/skills/x",
        "/mnt/uploaded-files/x",
    ] {
        expect_refusal(at, cell.put(at, "x").await, denied)?;
    }
    Ok(())
}

async fn links(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    cell.put("/workspace/links/real.csv", "inside").await?;
    cell.sh(
        "cd /workspace/links; ln -s real.csv inside.csv; ln -s inside.csv twice.csv; \
        ln -s ../links/real.csv up.csv; ln -s /etc/passwd passwd.csv; ln -s /etc etc; \
        ln -s /mnt/workspace-data/f.csv volume.csv; ln -s loop.csv loop.csv; \
        ln -s /proc/uptime proc.csv; echo outside > /mnt/workspace-data/f.csv",
    )
    .await?
    .ok()?;
    for inside in ["inside.csv", "twice.csv", "up.csv"] {
        let at = format!("/workspace/links/{inside}");
        ensure!(
            cell.get(&at).await? == b"inside",
            "{inside} is not followed"
        );
    }
    for outside in [
        "passwd.csv",
        "etc/passwd",
        "volume.csv",
        "proc.csv",
        "none.csv",
    ] {
        let at = path(&format!("/workspace/links/{outside}"));
        let read = cell.sandbox.read_file(&at).await;
        expect_refusal(outside, read.map(drop), &[AgentErrorCode::NotFound])?;
    }
    let at = path("/workspace/links/loop.csv");
    let read = cell.sandbox.read_file(&at).await;
    ensure!(read.is_err(), "a loop was read");
    // As a control: it is there, by its own path.
    ensure!(
        cell.get("/mnt/workspace-data/f.csv").await? == b"outside\n",
        "the control"
    );
    Ok(())
}

async fn special_files(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    cell.sh("mkfifo /workspace/pipe.pdf").await?.ok()?;
    let start = Instant::now();
    let regular = &[AgentErrorCode::NotARegularFile];
    for at in ["/workspace/pipe.pdf", "/workspace"] {
        let place = path(at);
        let read = cell.sandbox.read_file(&place);
        let read = timeout(Duration::from_secs(2), read).await?;
        expect_refusal(at, read.map(drop), regular)?;
    }
    ensure!(
        start.elapsed() < Duration::from_secs(1),
        "it took {:?}",
        start.elapsed()
    );
    let kind = cell.sandbox.stat(&path("/workspace/pipe.pdf")).await?.kind;
    ensure!(kind == FileKind::Other, "it is a {kind:?}");
    let listing = cell.sandbox.list(&path("/workspace"), None, 1_000).await?;
    ensure!(
        listing.entries.iter().any(|entry| entry.name == "pipe.pdf"),
        "it is not listed"
    );
    // Writing over it replaces it and never opens it.
    let write = cell.put("/workspace/pipe.pdf", "plain");
    timeout(Duration::from_secs(5), write).await??;
    ensure!(
        cell.get("/workspace/pipe.pdf").await? == b"plain",
        "it was not replaced"
    );
    Ok(cell
        .sandbox
        .remove_file(&path("/workspace/pipe.pdf"))
        .await?)
}

async fn owner(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    for root in ["/workspace/tree", "/mnt/user-data/tree"] {
        for name in ["a.txt", "d/b.sh", "d/e/c.txt"] {
            cell.put(&format!("{root}/{name}"), "echo ran\n").await?;
        }
        let text = format!(
            "set -e; cd {root}; stat -c '%u:%g %a' . a.txt d d/b.sh; echo more >> a.txt; \
             mv a.txt z.txt; chmod +x d/b.sh; d/b.sh; touch d/e/new; rm -r d/e; rm z.txt"
        );
        let done = cell.sh(text).await?;
        let want = "1000:1000 755\n1000:1000 644\n1000:1000 755\n1000:1000 644\nran\n";
        ensure!(
            done.ok()? == want,
            "{root}: {:?} {:?}",
            done.out(),
            done.err()
        );
    }
    Ok(())
}

async fn sparse(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let size = 1_u64 << 40;
    cell.sh(format!("truncate -s {size} /workspace/big.csv"))
        .await?
        .ok()?;
    let before = own_memory_bytes();
    let (info, mut content) = cell.sandbox.read_file(&path("/workspace/big.csv")).await?;
    ensure!(
        info.bytes == size,
        "it is said to have {} bytes",
        info.bytes
    );
    let mut seen = 0;
    while seen < 50 << 20 {
        match content.next().await {
            Some(piece) => seen += piece?.len(),
            None => return super::failed(format!("it ended after {seen} bytes")),
        }
    }
    drop(content);
    let grown = own_memory_bytes().saturating_sub(before);
    ensure!(grown < 64 << 20, "our memory grew by {} MiB", grown >> 20);
    cell.sh("echo ok").await?.ok()?;
    Ok(cell
        .sandbox
        .remove_file(&path("/workspace/big.csv"))
        .await?)
}

async fn disk(bench: &Bench) -> Result<(), Fault> {
    if !bench.facts.scratch_is_bounded {
        return Err(Fault::Refused("/workspace has no bound here".into()));
    }
    let cell = bench.shared().await?;
    let usage = async || -> Result<(u64, u64), Fault> {
        let usage = cell.sandbox.disk().await?;
        let mount = usage.mounts.iter().find(|mount| mount.path == "/workspace");
        match mount {
            Some(mount) => Ok((mount.total_bytes, mount.free_bytes)),
            None => super::failed(format!("/workspace is not in {usage:?}")),
        }
    };
    let (total, before) = usage().await?;
    let asked = cell.spec.scratch_bytes;
    ensure!(
        total <= asked + asked / 8 && total >= asked / 2,
        "{total} bytes where {asked} were asked for"
    );
    cell.put("/workspace/fill.bin", vec![7; 6 << 20]).await?;
    let (_, after) = usage().await?;
    ensure!(
        before.saturating_sub(after) >= 5 << 20,
        "6 MiB took {} bytes",
        before.saturating_sub(after)
    );
    Ok(cell
        .sandbox
        .remove_file(&path("/workspace/fill.bin"))
        .await?)
}
