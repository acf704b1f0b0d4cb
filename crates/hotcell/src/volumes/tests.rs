//! Volumes with disks of their own. Needs root and loop devices, as the appliance does.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use hotcell_runtime::CheckStatus;
use hotcell_types::{UserId, WorkspaceId};

use super::*;

const MIB: u64 = 1024 * 1024;
const SIZE: u64 = 64 * MIB;

/// An installation; nothing stays mounted when a test ends.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self, bytes: Option<u64>) -> Volumes {
        Volumes::open_bounded(self.0.path(), bytes).unwrap()
    }

    fn volume(&self, of: &str) -> PathBuf {
        self.0.path().join("volumes/w").join(of)
    }

    /// Blocks of the host that everything in here takes.
    fn taken(&self) -> u64 {
        fn of(path: &Path) -> u64 {
            let found = fs::symlink_metadata(path).unwrap();
            let own = std::os::unix::fs::MetadataExt::blocks(&found) * 512;
            if found.is_dir() {
                own + fs::read_dir(path)
                    .unwrap()
                    .map(|entry| of(&entry.unwrap().path()))
                    .sum::<u64>()
            } else {
                own
            }
        }
        of(&self.0.path().join("volumes/w/disks"))
    }

    fn loops(&self) -> usize {
        let marker = self.0.path().to_str().unwrap().to_owned();
        let devices = fs::read_dir("/sys/block").unwrap();
        devices
            .filter_map(|it| fs::read_to_string(it.ok()?.path().join("loop/backing_file")).ok())
            .filter(|file| file.contains(&marker))
            .count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let root = self.0.path().join("volumes");
        for target in disk::mounted_beneath(&root).unwrap() {
            let _ = disk::detach(&target);
        }
    }
}

fn w() -> WorkspaceId {
    "w".parse().unwrap()
}

fn member(name: &str) -> UserId {
    name.parse().unwrap()
}

/// Writes until nothing more fits; how much did.
fn fill(path: &Path) -> u64 {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    let piece = vec![b'x'; 1 << 20];
    let mut written = 0;
    loop {
        match file.write(&piece) {
            Ok(bytes) => written += bytes as u64,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                return written;
            }
        }
        assert!(written <= 2 * SIZE, "there is no end");
    }
}

/// Waits for what the kernel does in its own time.
fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        });
    }
    panic!("{what} does not happen");
}

#[test]
fn a_volume_ends_at_its_size_alone_and_gives_back_what_is_removed() {
    let place = Place::new();
    let volumes = place.open(Some(SIZE));
    assert_eq!(
        volumes.check().status,
        CheckStatus::Pass,
        "{:?}",
        volumes.check()
    );
    let (full, other) = (place.volume("users/full"), place.volume("users/other"));
    drop(volumes.user_data_dir(&w(), &member("full")).unwrap());
    drop(volumes.user_data_dir(&w(), &member("other")).unwrap());
    drop(volumes.workspace_data_dir(&w()).unwrap());
    for volume in [&full, &other, &place.volume("workspace-data")] {
        let found = fs::metadata(volume).unwrap();
        let owner = std::os::unix::fs::MetadataExt::uid(&found);
        assert_eq!(owner, SANDBOX_UID);
        assert_eq!(fs::read_dir(volume).unwrap().count(), 0, "it begins empty");
    }
    let empty = place.taken();
    let written = fill(&full.join("big"));
    assert!((SIZE / 2..SIZE).contains(&written), "{written}");
    // The others have what they had.
    fs::write(other.join("file"), vec![1; 20 << 20]).unwrap();
    fs::write(place.volume("workspace-data/file"), b"x").unwrap();
    assert_eq!(fs::metadata(full.join("big")).unwrap().len(), written);
    // What is removed can be written again at once.
    fs::remove_file(full.join("big")).unwrap();
    assert!(fill(&full.join("again")) >= written - 2 * MIB);
    fs::remove_file(full.join("again")).unwrap();
    fs::remove_file(other.join("file")).unwrap();
    // And the host has it back, too.
    for volume in [&full, &other] {
        rustix::fs::syncfs(File::open(volume).unwrap()).unwrap();
    }
    until("the host's disk to be given back", || {
        place.taken() < empty + 24 * MIB
    });
    volumes.close().unwrap();
    until("the devices to go", || place.loops() == 0);
}

#[test]
fn what_outlives_a_daemon_is_the_same_file_system_again() {
    let place = Place::new();
    let volumes = place.open(Some(SIZE));
    drop(volumes.user_data_dir(&w(), &member("u")).unwrap());
    let at = place.volume("users/u");
    fs::write(at.join("before"), "1").unwrap();
    // Somebody keeps the file system, as a sandbox does, while a daemon goes and another comes.
    let kept = File::open(&at).unwrap();
    volumes.close().unwrap();
    assert!(
        fs::read_dir(&at).unwrap().next().is_none(),
        "it is unmounted"
    );
    assert_eq!(place.loops(), 1, "and still there");
    let next = place.open(Some(SIZE));
    drop(next.user_data_dir(&w(), &member("u")).unwrap());
    assert_eq!(place.loops(), 1, "one device for one disk");
    fs::write(at.join("after"), "2").unwrap();
    let seen = rustix::fs::openat(
        &kept,
        "after",
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    );
    assert!(seen.is_ok(), "both see the same");
    assert_eq!(fs::read_to_string(at.join("before")).unwrap(), "1");
    drop((kept, seen));
    // One that is killed leaves it mounted: that is used on.
    let after_kill = place.open(Some(SIZE));
    drop(after_kill.user_data_dir(&w(), &member("u")).unwrap());
    assert_eq!(place.loops(), 1);
    after_kill.close().unwrap();
    until("the device to go", || place.loops() == 0);
}

#[test]
fn a_volume_in_use_is_not_unmounted_and_another_is() {
    let place = Place::new();
    let volumes = place.open(Some(SIZE));
    let open = volumes.user_data_dir(&w(), &member("open")).unwrap();
    drop(volumes.user_data_dir(&w(), &member("leased")).unwrap());
    drop(volumes.user_data_dir(&w(), &member("idle")).unwrap());
    let in_use = || vec![(w(), member("leased"))];
    assert_eq!(volumes.release(in_use).unwrap(), 1);
    fs::write(place.volume("users/leased/f"), b"x").unwrap();
    drop(open);
    assert_eq!(volumes.release(in_use).unwrap(), 1);
    // What is not mounted can be written by nobody but the daemon.
    let point = fs::metadata(place.volume("users/idle")).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&point.permissions()) & 0o777,
        0o700
    );
    drop(volumes.user_data_dir(&w(), &member("idle")).unwrap());
    assert_eq!(volumes.release(Vec::new).unwrap(), 2);
}

#[test]
fn deletion_frees_at_once_also_while_a_file_is_being_read() {
    let place = Place::new();
    let tmp = place.0.path().join("tmp");
    fs::create_dir(&tmp).unwrap();
    let volumes = place.open(Some(SIZE));
    drop(volumes.user_data_dir(&w(), &member("u")).unwrap());
    drop(volumes.user_data_dir(&w(), &member("stays")).unwrap());
    fs::write(place.volume("users/u/f"), vec![1; 30 << 20]).unwrap();
    fs::write(place.volume("users/stays/f"), b"kept").unwrap();
    let reading = File::open(place.volume("users/u/f")).unwrap();
    let to = tmp.join("gone");
    assert!(volumes.move_user_away(&w(), &member("u"), &to).unwrap());
    fs::remove_dir_all(&to).unwrap();
    assert_eq!(
        reading.metadata().unwrap().len(),
        30 << 20,
        "who reads goes on"
    );
    drop(reading);
    until("the device to go", || place.loops() == 1);
    assert!(!volumes.move_user_away(&w(), &member("u"), &to).unwrap());
    assert!(!to.exists());
    // A new one of that name is empty.
    drop(volumes.user_data_dir(&w(), &member("u")).unwrap());
    assert_eq!(fs::read_dir(place.volume("users/u")).unwrap().count(), 0);
    assert_eq!(fs::read(place.volume("users/stays/f")).unwrap(), b"kept");
    assert!(volumes.move_workspace_away(&w(), &to).unwrap());
    fs::remove_dir_all(&to).unwrap();
    until("every device to go", || place.loops() == 0);
}

#[test]
fn a_disk_grows_with_its_setting_and_stays_when_there_is_none() {
    let place = Place::new();
    let volumes = place.open(Some(SIZE));
    drop(volumes.user_data_dir(&w(), &member("u")).unwrap());
    let at = place.volume("users/u");
    fs::write(at.join("f"), b"kept").unwrap();
    let room = |at: &Path| {
        let found = rustix::fs::statvfs(at).unwrap();
        found.f_blocks * found.f_frsize
    };
    let before = room(&at);
    volumes.close().unwrap();
    until("the device to go", || place.loops() == 0);
    let larger = place.open(Some(2 * SIZE));
    drop(larger.user_data_dir(&w(), &member("u")).unwrap());
    assert!(
        room(&at) > before + SIZE / 2,
        "{} after {before}",
        room(&at)
    );
    assert_eq!(fs::read(at.join("f")).unwrap(), b"kept");
    larger.close().unwrap();
    until("the device to go", || place.loops() == 0);
    // Without a size new ones have no disk; this one keeps its own, and its files.
    let off = place.open(None);
    assert_eq!(off.check().status, CheckStatus::Warn);
    drop(off.user_data_dir(&w(), &member("u")).unwrap());
    drop(off.user_data_dir(&w(), &member("plain")).unwrap());
    assert_eq!(place.loops(), 1);
    assert_eq!(fs::read(at.join("f")).unwrap(), b"kept");
    fs::write(place.volume("users/plain/f"), b"mine").unwrap();
    off.close().unwrap();
    until("the device to go", || place.loops() == 0);
    // What was filled without a size is not hidden by a disk, and the operator is told.
    let on = place.open(Some(SIZE));
    drop(on.user_data_dir(&w(), &member("plain")).unwrap());
    assert_eq!(fs::read(place.volume("users/plain/f")).unwrap(), b"mine");
    let check = on.check();
    assert_eq!(check.status, CheckStatus::Warn);
    assert!(check.message.starts_with("1 volumes"), "{}", check.message);
}

#[test]
fn a_damaged_disk_is_one_members_trouble_and_is_left_as_it_is() {
    let place = Place::new();
    let volumes = place.open(Some(SIZE));
    drop(volumes.user_data_dir(&w(), &member("u")).unwrap());
    volumes.close().unwrap();
    until("the device to go", || place.loops() == 0);
    let image = place.volume("disks/users/u/disk.img");
    let junk = vec![0xa5; 8 << 20];
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &junk, 0).unwrap();
    let refused = volumes.user_data_dir(&w(), &member("u")).unwrap_err();
    assert!(refused.to_string().contains("e2fsck"), "{refused}");
    let mut head = vec![0; 8 << 20];
    let file = File::open(&image).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut head, 0).unwrap();
    assert!(
        head == junk,
        "nothing was written over what may yet be mended"
    );
    assert_eq!(fs::read_dir(place.volume("users/u")).unwrap().count(), 0);
    drop(volumes.user_data_dir(&w(), &member("other")).unwrap());
    fs::write(place.volume("users/other/f"), b"x").unwrap();
}

#[test]
fn a_journal_that_a_power_cut_left_is_replayed() {
    let place = Place::new();
    let volumes = place.open(Some(SIZE));
    drop(volumes.user_data_dir(&w(), &member("u")).unwrap());
    let at = place.volume("users/u");
    fs::write(at.join("synced"), b"kept").unwrap();
    File::open(at.join("synced")).unwrap().sync_all().unwrap();
    File::open(&at).unwrap().sync_all().unwrap();
    // The disk as it is at this moment, in use: what a power cut leaves.
    let image = place.volume("disks/users/u/disk.img");
    let cut = place.0.path().join("cut.img");
    hotcell_runtime::disk::copy_sparse(&image, &cut).unwrap();
    volumes.close().unwrap();
    until("the device to go", || place.loops() == 0);
    fs::rename(&cut, &image).unwrap();
    drop(volumes.user_data_dir(&w(), &member("u")).unwrap());
    assert_eq!(fs::read(at.join("synced")).unwrap(), b"kept");
    fs::write(at.join("more"), b"x").unwrap();
}
