//! What of a configuration only the host can tell: files, sockets, programs.

use std::{
    fs::{self, File},
    io::{self, Read},
    net::TcpListener,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use hotcell_runtime_embedded::{ImageStore, RuntimeChoice};
use hotcell_store::StoreKey;

use super::{Config, EngineChoice, Finding, ImageChoice};
use crate::serve::{MAX_TOKEN_FILE_BYTES, MIN_TOKEN_CHARACTERS};

/// The permissions that nobody but the owner may have on a secret.
const OTHERS: u32 = 0o077;

/// All that does not fit this host. Changes nothing.
#[must_use]
pub fn of_host(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(store_key(config));
    findings.extend(operator_token(config));
    findings.extend(agent(config));
    findings.extend(engine(config));
    findings.extend(listen(config));
    for (key, dir) in [
        ("state_dir", &config.state_dir),
        ("run_dir", &config.run_dir),
    ] {
        if dir.exists() && !dir.is_dir() {
            let problem = format!("{} is no directory", dir.display());
            findings.push(Finding::error(
                key,
                problem,
                "name a directory, or remove what is there",
            ));
        }
    }
    findings
}

fn store_key(config: &Config) -> Option<Finding> {
    let (key, path) = ("store_key_file", &config.store_key_file);
    if !path.exists() {
        return if config.store_path().exists() {
            Some(Finding::error(
                key,
                format!(
                    "{} is missing, and there is a store that it belongs to",
                    path.display()
                ),
                "put the key back, from where it was kept beside the backups",
            ))
        } else {
            unwritable(key, path)
        };
    }
    if let Err(error) = StoreKey::read(path) {
        return Some(Finding::error(
            key,
            format!("{} cannot be used: {}", path.display(), chain(&error)),
            "it must hold 64 hexadecimal digits and be readable by the daemon's user",
        ));
    }
    too_open(key, path)
}

fn operator_token(config: &Config) -> Option<Finding> {
    let (key, path) = ("operator_token_file", &config.operator_token_file);
    if !path.exists() {
        return unwritable(key, path);
    }
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_TOKEN_FILE_BYTES).read_to_string(&mut text));
    if let Err(error) = read {
        let problem = format!("{} cannot be read: {error}", path.display());
        return Some(Finding::error(
            key,
            problem,
            "make it readable by the daemon's user",
        ));
    }
    if text.trim().chars().count() < MIN_TOKEN_CHARACTERS {
        return Some(Finding::error(
            key,
            format!(
                "{} holds fewer than {MIN_TOKEN_CHARACTERS} characters",
                path.display()
            ),
            "write a longer token, or remove the file: the daemon then makes one",
        ));
    }
    too_open(key, path)
}

/// A secret that is not there is made at the first start, if there is a place for it.
fn unwritable(key: &str, path: &Path) -> Option<Finding> {
    let parent = path.parent()?;
    if parent.is_dir() || key_is_in_own_directory(path) {
        return None;
    }
    Some(Finding::error(
        key,
        format!("{} is missing and so is its directory", path.display()),
        "make the directory, or name another file",
    ))
}

/// The state directory is made by the daemon.
fn key_is_in_own_directory(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name == "store.key" || name == "operator.token")
        && path
            .parent()
            .and_then(Path::parent)
            .is_some_and(Path::is_dir)
}

fn too_open(key: &str, path: &Path) -> Option<Finding> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    (mode & OTHERS != 0).then(|| {
        let problem = format!(
            "{} can be read by others (mode {:03o})",
            path.display(),
            mode & 0o777
        );
        Finding::warning(key, problem, format!("chmod 600 {}", path.display()))
    })
}

fn agent(config: &Config) -> Option<Finding> {
    let path = config.agent_binary();
    let is_program = fs::metadata(&path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    (!is_program).then(|| {
        Finding::error(
            "agent_binary",
            format!("{} is no program", path.display()),
            "install hotcell-agent there, or name where it is",
        )
    })
}

fn engine(config: &Config) -> Vec<Finding> {
    match &config.runtime.engine {
        EngineChoice::Embedded(choice) => {
            let mut findings = Vec::new();
            findings.extend(oci_runtime(choice));
            findings.extend(image(config));
            findings
        }
        EngineChoice::Containers { kind, socket, .. } => {
            let path = Path::new(socket.as_str());
            let Err(error) = UnixStream::connect(path) else {
                return Vec::new();
            };
            let problem = format!("nothing answers on {}: {error}", path.display());
            let fix = format!(
                "start {}, or name the socket that it listens on",
                kind.name()
            );
            vec![Finding::error("runtime.socket", problem, fix)]
        }
    }
}

fn oci_runtime(choice: &RuntimeChoice) -> Option<Finding> {
    let names: Vec<&str> = match choice {
        RuntimeChoice::Auto => vec!["runsc", "crun", "runc"],
        RuntimeChoice::Fixed {
            path: Some(path), ..
        } => {
            return (!path.is_file()).then(|| {
                let problem = format!("{} is not there", path.display());
                Finding::error(
                    "runtime.oci_runtime",
                    problem,
                    "install it, or name where it is",
                )
            });
        }
        RuntimeChoice::Fixed { kind, .. } => vec![kind.binary()],
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    (!names.iter().any(is_there)).then(|| {
        Finding::error(
            "runtime.oci_runtime",
            format!("{} not found in PATH", names.join(", ")),
            "install gVisor (runsc), or name its absolute path",
        )
    })
}

fn image(config: &Config) -> Option<Finding> {
    let ImageChoice::Named(name) = &config.runtime.image else {
        return None;
    };
    // Opening would make the directory.
    let is_there = config.image_dir().is_dir()
        && ImageStore::open(&config.image_dir()).is_ok_and(|images| images.resolve(name).is_ok());
    (!is_there).then(|| {
        Finding::warning(
            "runtime.image",
            format!("there is no image {name} yet"),
            format!("hotcell image import FILE.tar --name {name}"),
        )
    })
}

fn listen(config: &Config) -> Option<Finding> {
    let error = TcpListener::bind(config.listen).err()?;
    // A daemon that runs is no fault of its configuration.
    if error.kind() == io::ErrorKind::AddrInUse {
        return None;
    }
    Some(Finding::error(
        "listen",
        format!("{} cannot be listened on: {error}", config.listen),
        "name an address of this host and a port that its user may use",
    ))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, Severity, findings};

    /// A configuration that is whole, in a directory of its own.
    fn whole(dir: &Path) -> String {
        let agent = dir.join("hotcell-agent");
        fs::write(&agent, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
        let runc = dir.join("runc");
        fs::write(&runc, "").unwrap();
        format!(
            "listen = '127.0.0.1:0'\nstate_dir = '{d}/state'\nrun_dir = '{d}/run'\n\
             agent_binary = '{d}/hotcell-agent'\n[runtime]\noci_runtime = '{d}/runc'\n",
            d = dir.display()
        )
    }

    fn of(text: &str) -> Vec<Finding> {
        let (found, config) = findings::of_text(text, &Overrides::default());
        assert!(found.is_empty(), "{found:?}");
        of_host(&config.unwrap())
    }

    fn write_secret(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_whole_host_has_only_the_missing_image_to_say() {
        let dir = tempfile::tempdir().unwrap();
        let found = of(&whole(dir.path()));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].severity, found[0].key.as_str()),
            (Severity::Warning, "runtime.image")
        );
        assert!(
            !dir.path().join("state").exists(),
            "it made the state directory"
        );
    }

    #[test]
    fn each_fault_names_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let d = dir.path();
        let base = whole(d);
        write_secret(&d.join("short"), "abc", 0o600);
        write_secret(&d.join("open"), &"7".repeat(64), 0o644);
        fs::write(d.join("file"), "").unwrap();
        let d = d.display();
        for (text, key, word) in [
            (
                format!("store_key_file = '{d}/short'\n{base}"),
                "store_key_file",
                "cannot be used",
            ),
            (
                format!("store_key_file = '{d}/none/k'\n{base}"),
                "store_key_file",
                "directory",
            ),
            (
                format!("store_key_file = '{d}/open'\n{base}"),
                "store_key_file",
                "others",
            ),
            (
                format!("operator_token_file = '{d}/short'\n{base}"),
                "operator_token_file",
                "fewer",
            ),
            (
                format!("operator_token_file = '{d}'\n{base}"),
                "operator_token_file",
                "cannot be read",
            ),
            (
                base.replace("/hotcell-agent", "/absent"),
                "agent_binary",
                "no program",
            ),
            (
                base.replace("/runc'", "/crun'"),
                "runtime.oci_runtime",
                "not there",
            ),
            (base.replace("/state", "/file"), "state_dir", "no directory"),
            (
                base.replace("127.0.0.1:0", "192.0.2.1:1"),
                "listen",
                "192.0.2.1:1",
            ),
            (
                format!(
                    "agent_binary = '{d}/hotcell-agent'\nlisten = '127.0.0.1:0'\nstate_dir = '{d}/s'\n\
                     [runtime]\nkind = 'docker'\nsocket = '{d}/no.sock'\nimage = 'sha256:{}'",
                    "a".repeat(64)
                ),
                "runtime.socket",
                "no.sock",
            ),
        ] {
            let found = of(&text);
            let hit = found.iter().find(|one| one.key == key);
            let hit = hit.unwrap_or_else(|| panic!("{key} not in {found:?}"));
            assert!(hit.problem.contains(word) && !hit.fix.is_empty(), "{hit}");
        }
    }

    #[test]
    fn a_store_without_its_key_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let text = whole(dir.path());
        fs::create_dir(dir.path().join("state")).unwrap();
        fs::write(dir.path().join("state/store.redb"), "x").unwrap();
        let found = of(&text);
        assert!(
            found
                .iter()
                .any(|one| one.key == "store_key_file" && one.fix.contains("back")),
            "{found:?}"
        );
    }
}
