//! Files that come from outside are the sandbox user's, and are there at once.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

mod common;

use std::{fs, os::unix::fs::MetadataExt};

use bytes::Bytes;
use common::Rig;
use hotcell_runtime::ByteStream;
use hotcell_types::VolumeKind;
use sha2::{Digest, Sha256};

on_every_engine!(
    pushed_files_are_the_sandbox_users,
    changes_from_outside_are_seen_at_once,
    two_sandboxes_share_a_volume,
);

/// FA-15.
async fn pushed_files_are_the_sandbox_users(rig: &Rig) {
    let cell = rig
        .start_with(|spec| spec.mounts = vec![rig.volume(VolumeKind::UserData)])
        .await;
    for dir in ["/workspace/tree/deep", "/mnt/user-data/tree"] {
        let path = format!("{dir}/run.sh").parse().unwrap();
        let text = b"#!/bin/sh\necho ran\n";
        let content: ByteStream =
            Box::pin(futures_util::stream::iter([Ok(Bytes::from_static(text))]));
        let digest = hex::encode(Sha256::digest(text));
        cell.sandbox
            .write_file(&path, 0o644, text.len() as u64, &digest, content)
            .await
            .unwrap();
        let said = cell
            .get(&format!(
                "cd {dir} && stat -c '%u %g %a' . run.sh && echo '#' >> run.sh && chmod +x run.sh && \
                 ./run.sh && mv run.sh b && rm b"
            ))
            .await;
        assert_eq!(said, "1000 1000 755\n1000 1000 644\nran", "{dir}");
    }
    let tree = rig.config.volume_root.join("UserData/tree");
    let meta = fs::metadata(tree).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (1000, 1000));
}

/// FA-17.
async fn changes_from_outside_are_seen_at_once(rig: &Rig) {
    let volumes = [VolumeKind::UploadedFiles, VolumeKind::UserData].map(|kind| rig.volume(kind));
    let cell = rig.start_with(|spec| spec.mounts = volumes.to_vec()).await;
    for volume in &volumes {
        let (inside, outside) = (volume.kind.mount_path(), &volume.host_path);
        assert_eq!(cell.get(&format!("ls {inside}")).await, "");
        fs::write(outside.join("a"), "first").unwrap();
        let look = format!("ls {inside}; cat {inside}/a; stat -c %s {inside}/a");
        assert_eq!(cell.get(&look).await, "a\nfirst5");
        for (content, said) in [
            ("other", "a\nother5"),
            ("something longer", "a\nsomething longer16"),
            ("x", "a\nx1"),
        ] {
            fs::write(outside.join("a"), content).unwrap();
            assert_eq!(cell.get(&look).await, said);
        }
        // Replaced by another file of the same name, as an upload does it.
        fs::write(outside.join("next"), "renamed").unwrap();
        fs::rename(outside.join("next"), outside.join("a")).unwrap();
        assert_eq!(cell.get(&look).await, "a\nrenamed7");
        fs::remove_file(outside.join("a")).unwrap();
        assert_eq!(cell.sh(&format!("cat {inside}/a")).await.code(), 1);
        for number in 0..1_000 {
            fs::write(outside.join(format!("f{number}")), number.to_string()).unwrap();
        }
        let count = cell
            .get(&format!("ls {inside} | wc -l; cat {inside}/f* | wc -c"))
            .await;
        assert_eq!(count, "1000\n2890");
    }
}

async fn two_sandboxes_share_a_volume(rig: &Rig) {
    let volume = rig.volume(VolumeKind::WorkspaceData);
    let start = || rig.start_with(|spec| spec.mounts = vec![volume.clone()]);
    let (one, other) = tokio::join!(start(), start());
    let mut want = String::new();
    for round in 0..10 {
        for cell in [&one, &other] {
            want += &format!("{round}\n");
            cell.get(&format!("echo {round} >> /mnt/workspace-data/log"))
                .await;
            let seen = if std::ptr::eq(cell, &one) {
                &other
            } else {
                &one
            };
            assert_eq!(seen.get("cat /mnt/workspace-data/log").await + "\n", want);
        }
    }
}
