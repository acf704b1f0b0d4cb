//! Puts the service onto a host without NixOS. What is as it should be stays as it is, so that it
//! may be called again at any time; credentials are never replaced.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use hotcell_store::StoreKey;
use hotcell_types::IdSource;

use super::Unit;

/// Where the service's parts are, as the service sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The daemon's binary.
    pub binary: PathBuf,
    /// The configuration.
    pub config: PathBuf,
    /// The directory of the credentials.
    pub credentials: PathBuf,
    /// The state directory of the unit.
    pub state: PathBuf,
}

impl Layout {
    /// The usual places.
    #[must_use]
    pub fn usual() -> Self {
        Self {
            binary: "/usr/local/bin/hotcell".into(),
            config: "/etc/hotcell/hotcell.toml".into(),
            credentials: "/etc/hotcell/credentials".into(),
            state: "/var/lib/hotcell".into(),
        }
    }
}

/// What was done about one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The file.
    pub path: PathBuf,
    /// What was done, such as `wrote`.
    pub what: &'static str,
}

/// Why it could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be written")]
pub struct InstallError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

const CONFIG: &str = "\
# docs/operating/configuration.md lists every key; `hotcell check-config` says what is wrong.
# Without a word here, everything is at its default.

# The unit hands these two over; they are named here for `hotcell check-config` and whoever looks for them.
store_key_file = \"/etc/hotcell/credentials/store.key\"
operator_token_file = \"/etc/hotcell/credentials/operator.token\"
";
const UNIT_PATH: &str = "etc/systemd/system/hotcell.service";
const SYSCTL_PATH: &str = "etc/sysctl.d/50-hotcell.conf";
/// For programs and for what everybody may read.
const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;

/// Writes what is missing beneath `prefix`, or only says what it would write.
///
/// # Errors
/// A file cannot be written. What was written before stays; the next call goes on.
pub fn install(
    prefix: &Path,
    layout: &Layout,
    with_egress: bool,
    is_dry: bool,
    ids: &dyn IdSource,
) -> Result<Vec<Done>, InstallError> {
    let unit = Unit::shared();
    let writer = Writer { is_dry };
    let at = |path: &Path| prefix.join(path.strip_prefix("/").unwrap_or(path));
    let mut done = Vec::new();
    done.push(writer.settle(&prefix.join(UNIT_PATH), &unit.render(layout), PUBLIC)?);
    let sysctl = prefix.join(SYSCTL_PATH);
    if with_egress {
        done.push(writer.settle(&sysctl, &unit.render_sysctl(), PUBLIC)?);
    } else if sysctl.exists() {
        done.push(writer.remove(&sysctl)?);
    }
    done.push(writer.once(&at(&layout.config), PUBLIC, || CONFIG.to_owned())?);
    let state = at(&layout.state);
    for (name, make) in [
        ("store.key", key as fn(&dyn IdSource) -> String),
        ("operator.token", token),
    ] {
        let path = at(&layout.credentials).join(name);
        // A host that ran without the unit has them beside the store, which they belong to.
        let former = fs::read_to_string(state.join(name)).ok();
        done.push(writer.once(&path, SECRET, || former.unwrap_or_else(|| make(ids)))?);
    }
    Ok(done)
}

fn key(ids: &dyn IdSource) -> String {
    format!("{}\n", *StoreKey::generate(ids).to_text())
}

fn token(ids: &dyn IdSource) -> String {
    format!("hot_{:032x}{:032x}\n", ids.bits(), ids.bits())
}

struct Writer {
    is_dry: bool,
}

impl Writer {
    /// Makes a file be this text.
    fn settle(&self, path: &Path, text: &str, mode: u32) -> Result<Done, InstallError> {
        let what = match fs::read_to_string(path) {
            Ok(found) if found == text => "left as it is",
            Ok(_) => self.write(path, text, mode).map(|()| "replaced")?,
            Err(_) => self.write(path, text, mode).map(|()| "wrote")?,
        };
        Ok(Done {
            path: path.to_owned(),
            what,
        })
    }

    /// Makes a file unless there is one.
    fn once(
        &self,
        path: &Path,
        mode: u32,
        text: impl FnOnce() -> String,
    ) -> Result<Done, InstallError> {
        let what = if fs::symlink_metadata(path).is_ok() {
            "left as it is"
        } else {
            self.write(path, &text(), mode)?;
            "wrote"
        };
        Ok(Done {
            path: path.to_owned(),
            what,
        })
    }

    fn remove(&self, path: &Path) -> Result<Done, InstallError> {
        if !self.is_dry {
            fs::remove_file(path).map_err(|source| InstallError {
                path: path.to_owned(),
                source,
            })?;
        }
        Ok(Done {
            path: path.to_owned(),
            what: "removed",
        })
    }

    /// Whole or not at all.
    fn write(&self, path: &Path, text: &str, mode: u32) -> Result<(), InstallError> {
        if self.is_dry {
            return Ok(());
        }
        let write = || {
            let parent = path.parent().unwrap_or(Path::new("/"));
            let directory_mode = if mode == SECRET { 0o700 } else { 0o755 };
            fs::DirBuilder::new()
                .recursive(true)
                .mode(directory_mode)
                .create(parent)?;
            let mut next = path.as_os_str().to_owned();
            next.push(".new");
            let next = PathBuf::from(next);
            match fs::remove_file(&next) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&next)?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&next, path)?;
            fs::File::open(parent)?.sync_all()
        };
        write().map_err(|source| InstallError {
            path: path.to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemIds;

    fn run(prefix: &Path, with_egress: bool, is_dry: bool) -> Vec<Done> {
        install(prefix, &Layout::usual(), with_egress, is_dry, &SystemIds).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_dry_run_says_all_and_does_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dry = run(dir.path(), true, true);
        assert!(
            dry.len() == 5 && dry.iter().all(|one| one.what == "wrote"),
            "{dry:?}"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_second_time_changes_nothing_and_secrets_are_secret() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), true, false);
        let credentials = dir.path().join("etc/hotcell/credentials");
        let key = credentials.join("store.key");
        let before = fs::read_to_string(&key).unwrap();
        assert_eq!((mode(&credentials), mode(&key)), (0o700, 0o600));
        assert!(StoreKey::read(&key).is_ok());
        let again = run(dir.path(), true, false);
        assert!(
            again.iter().all(|one| one.what == "left as it is"),
            "{again:?}"
        );
        assert_eq!(fs::read_to_string(&key).unwrap(), before);
    }

    #[test]
    fn a_changed_unit_is_replaced_and_a_changed_configuration_is_not() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), false, false);
        let unit = dir.path().join(UNIT_PATH);
        let config = dir.path().join("etc/hotcell/hotcell.toml");
        for path in [&unit, &config] {
            fs::write(path, "worker_threads = 3\n").unwrap();
        }
        let done = run(dir.path(), false, false);
        let what = |path: &Path| done.iter().find(|one| one.path == path).unwrap().what;
        assert_eq!((what(&unit), what(&config)), ("replaced", "left as it is"));
        assert!(fs::read_to_string(&unit).unwrap().contains("[Service]"));
    }

    #[test]
    fn forwarding_goes_when_it_is_not_wanted_any_more() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), true, false);
        let sysctl = dir.path().join(SYSCTL_PATH);
        assert!(
            fs::read_to_string(&sysctl)
                .unwrap()
                .contains("net.ipv4.ip_forward = 1")
        );
        run(dir.path(), false, false);
        assert!(!sysctl.exists());
    }

    #[test]
    fn the_keys_of_a_store_that_is_there_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("var/lib/hotcell");
        fs::create_dir_all(&state).unwrap();
        let key = format!("{}\n", "5a".repeat(32));
        fs::write(state.join("store.key"), &key).unwrap();
        run(dir.path(), false, false);
        let installed = dir.path().join("etc/hotcell/credentials/store.key");
        assert_eq!(fs::read_to_string(installed).unwrap(), key);
    }
}
