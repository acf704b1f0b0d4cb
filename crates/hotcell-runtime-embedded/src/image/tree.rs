//! What a tree must have to be run: mount points, a name for the sandbox user, `bash`.
//!
//! All of it is put in place once, at the import, so that a start needs no writable layer over
//! the image. The tree came out of a tar, so every step looks at what is there and follows no
//! link out of it.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink},
    },
    path::Path,
};

use hotcell_agent_proto::{AGENT_PATH, RUN_PATH};
use hotcell_types::{
    VolumeKind, limits,
    volume::{SANDBOX_GID, SANDBOX_UID, WORKSPACE_PATH},
};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use super::ImageError;
use crate::bundle::HOSTNAME;

/// The sandbox user's name.
const USER: &str = "sandbox";

/// Prepares a freshly unpacked tree.
pub(super) fn prepare(root: &Path) -> Result<(), ImageError> {
    check_bash(root)?;
    make_mount_points(root).map_err(ImageError::io("making mount points"))?;
    write_settings(root).map_err(ImageError::io("writing settings"))
}

/// Looks whether a tree still has what a start needs.
pub(super) fn check(root: &Path) -> Result<(), ImageError> {
    check_bash(root)?;
    let agent = root.join(AGENT_PATH.trim_start_matches('/'));
    if agent.is_file() {
        Ok(())
    } else {
        Err(ImageError::Bad("its mount points are gone".into()))
    }
}

/// Makes the directories and the file that sandboxes have mounts on.
pub(crate) fn make_mount_points(root: &Path) -> io::Result<()> {
    // Whatever the tar said, or that it said nothing: the sandbox user must get in.
    fs::set_permissions(root, Permissions::from_mode(0o755))?;
    let fixed = [
        "/proc",
        "/sys",
        "/dev",
        "/tmp",
        "/etc",
        "/var",
        RUN_PATH,
        WORKSPACE_PATH,
    ];
    for path in fixed
        .into_iter()
        .chain(VolumeKind::ALL.map(VolumeKind::mount_path))
    {
        make_dirs(root, path)?;
    }
    let (dir, name) = AGENT_PATH.rsplit_once('/').unwrap_or(("", AGENT_PATH));
    make_dirs(root, dir)?;
    replace_file(&root.join(dir.trim_start_matches('/')), name, b"")
}

/// Makes a directory in the tree; what stands in its way and is none is removed.
fn make_dirs(root: &Path, path: &str) -> io::Result<()> {
    let mut at = root.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                fs::remove_file(&at)?;
                make_dir(&at)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_dir(&at)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Puts a file of root's in place of whatever has its name.
fn replace_file(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path)?,
        Ok(_) => fs::remove_file(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&path)?;
    file.write_all(content)?;
    fs::set_permissions(&path, Permissions::from_mode(0o644))?;
    if rustix::process::geteuid().is_root() {
        lchown(&path, Some(0), Some(0))?;
    }
    Ok(())
}

fn write_settings(root: &Path) -> io::Result<()> {
    let etc = root.join("etc");
    let passwd = with_user(
        &read_inside(root, "etc/passwd")?,
        &format!("{USER}:x:{SANDBOX_UID}:{SANDBOX_GID}:{USER}:{WORKSPACE_PATH}:/bin/bash"),
        SANDBOX_UID,
    );
    let group = with_user(
        &read_inside(root, "etc/group")?,
        &format!("{USER}:x:{SANDBOX_GID}:"),
        SANDBOX_GID,
    );
    replace_file(&etc, "passwd", passwd.as_bytes())?;
    replace_file(&etc, "group", group.as_bytes())?;
    replace_file(&etc, "hostname", format!("{HOSTNAME}\n").as_bytes())?;
    replace_file(
        &etc,
        "hosts",
        format!("127.0.0.1 localhost {HOSTNAME}\n").as_bytes(),
    )?;
    // No server: lookups fail at once instead of waiting for an answer.
    replace_file(
        &etc,
        "resolv.conf",
        b"options ndots:1 timeout:1 attempts:1\n",
    )?;
    // The root is read-only, so what goes to /var/tmp goes where /tmp goes.
    let var_tmp = root.join("var/tmp");
    match fs::symlink_metadata(&var_tmp) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(&var_tmp)?,
        Ok(_) => fs::remove_file(&var_tmp)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    symlink("/tmp", &var_tmp)
}

/// A `passwd` or `group` in which the id has the sandbox user's line and nobody else's.
fn with_user(text: &str, line: &str, id: u32) -> String {
    let name = line.split(':').next().unwrap_or_default();
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|old| {
            let mut fields = old.split(':');
            let old_name = fields.next();
            let old_id = fields.nth(1).and_then(|field| field.parse::<u32>().ok());
            old_name != Some(name) && old_id != Some(id)
        })
        .collect();
    lines.push(line);
    lines.join("\n") + "\n"
}

/// A small text of the tree; empty when it is not there.
fn read_inside(root: &Path, path: &str) -> io::Result<String> {
    let file = match open_inside(root, path, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(file) => fs::File::from(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    file.take(limits::MAX_ENGINE_FILE_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a path as a process would whose root this is: links are followed, but never out.
fn open_inside(root: &Path, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, directory, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        root,
        path,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )?)
}

fn check_bash(root: &Path) -> Result<(), ImageError> {
    let runs = |path| {
        open_inside(root, path, OFlags::PATH)
            .and_then(|file| fs::File::from(file).metadata())
            .is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
    };
    if runs("bin/bash") || runs("usr/bin/bash") {
        Ok(())
    } else {
        Err(ImageError::Bad(
            "it has no bash in /bin or /usr/bin; install one into it".into(),
        ))
    }
}
