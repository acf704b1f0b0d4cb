use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tar::{Builder, EntryType, Header};

use super::*;

struct Tar(Builder<Vec<u8>>);

impl Tar {
    fn good() -> Self {
        let mut tar = Self(Builder::new(Vec::new()));
        tar.add(EntryType::Directory, "./bin", "", b"", 0o755);
        tar.add(EntryType::Regular, "./bin/bash", "", b"#!", 0o755);
        tar
    }

    /// Writes the raw names, as a hostile program would.
    fn add(&mut self, kind: EntryType, path: &str, target: &str, data: &[u8], mode: u32) {
        let mut header = Header::new_ustar();
        let raw = header.as_old_mut();
        raw.name[..path.len()].copy_from_slice(path.as_bytes());
        raw.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.0.append(&header, data).unwrap();
    }

    fn import(self, dir: &Path) -> (ImageStore, Result<ImageInfo, ImageError>) {
        let path = dir.join("image.tar");
        fs::write(&path, self.0.into_inner().unwrap()).unwrap();
        let store = ImageStore::open(&dir.join("store")).unwrap();
        let outcome = store.import(&path, "test", &mut |_| {});
        (store, outcome)
    }
}

#[test]
fn a_tree_is_unpacked_prepared_and_found_by_name_and_digest() {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = Tar::good();
    tar.add(EntryType::Directory, "./etc", "", b"", 0o755);
    let passwd = b"root:x:0:0::/root:/bin/bash\nold:x:1000:1000::/:/bin/sh\n";
    tar.add(EntryType::Regular, "./etc/passwd", "", passwd, 0o644);
    tar.add(
        EntryType::Symlink,
        "./etc/resolv.conf",
        "/run/x",
        b"",
        0o777,
    );
    tar.add(EntryType::Symlink, "./tmp", "/etc", b"", 0o777);
    tar.add(EntryType::Char, "./console", "", b"", 0o666);
    let (store, outcome) = tar.import(dir.path());
    let info = outcome.unwrap();
    assert_eq!(store.resolve("test").unwrap(), info);
    assert_eq!(store.resolve(info.image.as_str()).unwrap(), info);
    let root = store.root(&info.image).unwrap();
    assert!(!root.join("console").exists());
    assert!(fs::symlink_metadata(root.join("tmp")).unwrap().is_dir());
    for path in ["mnt/skills", "workspace", ".hotcell/agent", "run/hotcell"] {
        assert!(root.join(path).exists(), "{path}");
    }
    let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(passwd.contains("sandbox:x:1000:1000:"), "{passwd}");
    assert!(!passwd.contains("old:"), "{passwd}");
    let resolv = fs::symlink_metadata(root.join("etc/resolv.conf")).unwrap();
    assert!(resolv.is_file());
    assert_eq!(resolv.uid(), rustix::process::geteuid().as_raw());
    let bash = fs::metadata(root.join("bin/bash")).unwrap();
    assert_eq!(bash.permissions().mode() & 0o777, 0o755);
}

#[test]
fn a_tar_that_leads_outside_is_refused() {
    let cases: [(EntryType, &str, &str); 6] = [
        (EntryType::Regular, "../evil", ""),
        (EntryType::Regular, "/evil", ""),
        (EntryType::Regular, "a/../../evil", ""),
        (EntryType::Link, "link", "../../etc/passwd"),
        (EntryType::Link, "link", "/etc/passwd"),
        (EntryType::Directory, "../evil", ""),
    ];
    for (kind, path, target) in cases {
        let dir = tempfile::tempdir().unwrap();
        let mut tar = Tar::good();
        tar.add(kind, path, target, b"", 0o644);
        let (store, outcome) = tar.import(dir.path());
        assert!(matches!(outcome, Err(ImageError::Bad(_))), "{path}");
        assert_eq!(store.list().unwrap(), []);
        assert_eq!(fs::read_dir(dir.path().join("store")).unwrap().count(), 0);
        assert!(!dir.path().join("store/evil").exists());
    }
}

#[test]
fn nothing_is_written_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut tar = Tar::good();
    tar.add(
        EntryType::Symlink,
        "out",
        outside.to_str().unwrap(),
        b"",
        0o777,
    );
    tar.add(EntryType::Regular, "out/evil", "", b"x", 0o644);
    let (_, outcome) = tar.import(dir.path());
    assert!(matches!(outcome, Err(ImageError::Bad(_))), "{outcome:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn an_image_without_bash_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = Tar(Builder::new(Vec::new()));
    tar.add(EntryType::Directory, "./bin", "", b"", 0o755);
    // Points at the host's, which is not the image's.
    tar.add(EntryType::Symlink, "./bin/bash", "/nix/bash", b"", 0o777);
    let (_, outcome) = tar.import(dir.path());
    let reason = outcome.unwrap_err().to_string();
    assert!(reason.contains("bash"), "{reason}");
}

#[test]
fn what_is_compressed_or_no_tar_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("store")).unwrap();
    for (bytes, word) in [
        (&b"\x1f\x8b\x08\0\0\0\0"[..], "compressed"),
        (b"abc", "tar"),
    ] {
        let path = dir.path().join("x");
        fs::write(&path, bytes).unwrap();
        let error = store.import(&path, "x", &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_name_moves_to_the_newer_image_and_one_in_use_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (store, first) = Tar::good().import(dir.path());
    let first = first.unwrap();
    let mut tar = Tar::good();
    tar.add(EntryType::Regular, "new", "", b"x", 0o644);
    let (_, second) = tar.import(dir.path());
    let second = second.unwrap();
    assert_eq!(store.resolve("test").unwrap().image, second.image);
    let old = store.get(&first.image).unwrap();
    assert_eq!(old.name, format!("test@{}", &first.image.hex()[..12]));
    let in_use = BTreeSet::from([first.image.clone()]);
    assert!(matches!(
        store.remove(&first.image, &in_use),
        Err(ImageError::InUse(_))
    ));
    store.remove(&first.image, &BTreeSet::new()).unwrap();
    store.remove(&first.image, &BTreeSet::new()).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}
