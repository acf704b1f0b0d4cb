//! The OCI runtime binaries and how each is called.

use std::{
    env, fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use hotcell_runtime::{Isolation, RuntimeError};
use serde::{Deserialize, Serialize};

use crate::{
    config::{NetworkStack, OciKind, RuntimeChoice},
    layout::EngineDir,
};

/// An engine as it is driven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Engine {
    pub(crate) kind: OciKind,
    pub(crate) binary: PathBuf,
    pub(crate) version: String,
    /// Whether sandboxes have gVisor's network stack instead of the kernel's.
    pub(crate) own_stack: bool,
    /// Whether `/proc/sys/net` must look empty to it, lest it take a sandbox's network namespace
    /// for the host's (releases of gVisor on kernels from 6.15 on).
    pub(crate) hide_net_sysctls: bool,
}

impl Engine {
    /// What stands between user code and the host.
    pub(crate) fn isolation(&self) -> Isolation {
        match self.kind {
            OciKind::Runsc => Isolation::Gvisor,
            OciKind::Runc | OciKind::Crun => Isolation::SharedKernel,
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        match (self.kind, self.own_stack) {
            (OciKind::Runsc, true) => format!("{} (systrap, own network stack)", self.version),
            (OciKind::Runsc, false) => format!("{} (systrap, kernel network stack)", self.version),
            _ => self.version.clone(),
        }
    }

    /// The call that makes and starts a sandbox and leaves it alone.
    pub(crate) fn run(&self, dir: &EngineDir, name: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command
            // Naming the group that it has anyway makes it a `fork`: what glibc's `posix_spawn` starts
            // ignores signal 32 for ever, and so would every command of the sandbox.
            .gid(rustix::process::getgid().as_raw())
            // The daemon's own way to its service manager: an OCI runtime that sees it gives it to the sandbox.
            .env_remove("NOTIFY_SOCKET")
            .arg("--root")
            .arg(dir.root())
            .arg("--log")
            .arg(dir.log())
            .args(["--log-format", "json"]);
        if self.kind == OciKind::Runsc {
            command.args([
                "--platform=systrap",
                if self.own_stack {
                    "--network=sandbox"
                } else {
                    "--network=host"
                },
                // The root is read-only; what a sandbox writes has bounded places of its own.
                "--overlay2=none",
                // The image never changes, volumes may change at any time.
                "--file-access=exclusive",
                "--file-access-mounts=shared",
            ]);
        }
        command
            .args(["run", "--detach", "--bundle"])
            .arg(dir.bundle())
            .arg("--pid-file")
            .arg(dir.pid())
            .arg(name);
        command
    }

    /// The candidates of a choice, the best first. Nothing was run yet but `--version`.
    pub(crate) fn candidates(choice: &RuntimeChoice) -> Result<Vec<Self>, RuntimeError> {
        let engines = match choice {
            RuntimeChoice::Auto => [OciKind::Runsc, OciKind::Crun, OciKind::Runc]
                .into_iter()
                .filter_map(|kind| Some((kind, in_path(kind.binary())?)))
                .flat_map(|(kind, binary)| Self::variants(kind, &binary, NetworkStack::Auto))
                .collect::<Vec<_>>(),
            RuntimeChoice::Fixed {
                kind,
                path,
                network,
            } => match path.clone().or_else(|| in_path(kind.binary())) {
                Some(binary) if !is_executable(&binary) => {
                    return Err(RuntimeError::Unavailable(format!(
                        "{} is no program that can be run",
                        binary.display()
                    )));
                }
                Some(binary) => Self::variants(*kind, &binary, *network),
                None => Vec::new(),
            },
        };
        if engines.is_empty() {
            return Err(RuntimeError::Unavailable(match choice {
                RuntimeChoice::Auto => "neither runsc nor crun nor runc is installed".to_owned(),
                RuntimeChoice::Fixed { kind, .. } => {
                    format!("{} is not installed", kind.binary())
                }
            }));
        }
        Ok(engines)
    }

    fn variants(kind: OciKind, binary: &Path, network: NetworkStack) -> Vec<Self> {
        let engine = |own_stack, hide_net_sysctls| Self {
            kind,
            binary: binary.to_owned(),
            version: version(kind, binary),
            own_stack,
            hide_net_sysctls,
        };
        let own = || vec![engine(true, false), engine(true, true)];
        match (kind, network) {
            (OciKind::Runsc, NetworkStack::Own) => own(),
            (OciKind::Runsc, NetworkStack::Auto) => {
                let mut all = own();
                all.push(engine(false, false));
                all
            }
            _ => vec![engine(false, false)],
        }
    }

    /// Changes when the binary does.
    pub(crate) fn stamp(&self) -> String {
        stamp(&self.binary)
    }
}

/// Changes when a file does.
pub(crate) fn stamp(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(meta) => format!(
            "{}:{}:{}:{}.{}",
            path.display(),
            meta.ino(),
            meta.len(),
            meta.mtime(),
            meta.mtime_nsec()
        ),
        Err(error) => format!("{}:{error}", path.display()),
    }
}

/// Where `PATH` has a program.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| is_executable(path))
}

/// Whether a path is a program.
pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The first line of `--version`; the name alone when there is none.
fn version(kind: OciKind, binary: &Path) -> String {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    String::from_utf8_lossy(&output)
        .lines()
        .next()
        .map(|line| line.replace(" version ", " ").chars().take(80).collect())
        .filter(|line: &String| !line.is_empty())
        .unwrap_or_else(|| kind.binary().to_owned())
}
