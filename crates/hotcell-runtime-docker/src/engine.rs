//! One engine: what it says about itself, and everything in which the two engines differ.

use std::collections::BTreeMap;

use bollard::{API_DEFAULT_VERSION, Docker, errors::Error as BollardError};
use hotcell_runtime::RuntimeError;
use hotcell_types::{
    limits,
    volume::{SANDBOX_GID, SANDBOX_UID},
};
use semver::Version;
use serde::Deserialize;
use tokio::net::UnixStream;

use crate::{
    config::{DockerConfig, EngineKind, EngineSocket},
    fault, raw,
};

/// Who is at the other end of the engine's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The process that opened it.
    pub(crate) pid: u32,
    /// Its user.
    pub(crate) uid: u32,
    /// Its group.
    pub(crate) gid: u32,
}

/// The part of `GET /info` that is used. Both engines answer with at least this.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Info {
    pub(crate) server_version: String,
    pub(crate) driver: String,
    pub(crate) kernel_version: String,
    pub(crate) cgroup_version: String,
    pub(crate) runtimes: BTreeMap<String, OciRuntime>,
    pub(crate) default_runtime: String,
    security_options: Option<Vec<String>>,
    /// The host's processors, as far as the engine may use them.
    #[serde(rename = "NCPU")]
    processors: u32,
    /// Podman only.
    rootless: bool,
}

/// An OCI runtime as the engine knows it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OciRuntime {
    pub(crate) path: String,
}

impl Info {
    pub(crate) fn is_rootless(&self) -> bool {
        self.rootless
            || self
                .security_options
                .iter()
                .flatten()
                .any(|option| option.contains("name=rootless"))
    }

    pub(crate) fn has_seccomp(&self) -> bool {
        self.security_options
            .iter()
            .flatten()
            .any(|option| option.contains("name=seccomp") && !option.contains("unconfined"))
    }
}

/// Everything in which engines differ, as seen from the rest of this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quirks {
    /// The oldest release that works.
    pub(crate) minimum: Version,
    /// `HostConfig.UsernsMode`. A rootless Podman maps the sandbox's user to its own, so that
    /// files on volumes belong to a user that exists on this host.
    pub(crate) user_namespace: Option<String>,
    /// Whose files a sandbox's files are, on this host.
    pub(crate) owner: (u32, u32),
    /// `HostConfig.LogConfig`: a driver and options that bound what is kept.
    pub(crate) log: (&'static str, &'static [(&'static str, &'static str)]),
    /// A rootless engine cannot set limits in the old control groups; then we do.
    pub(crate) own_limits: bool,
    /// `HostConfig.Ulimits`. An engine that has fewer rights than usual cannot go beyond its own
    /// limits, and Podman tries to unless it is told otherwise.
    pub(crate) ulimits: Vec<(&'static str, u64)>,
    /// The most that `HostConfig.NanoCpus` may ask for, in thousandths of one core: Docker refuses
    /// more than the host has, where every other runtime takes it for no limit.
    pub(crate) most_cpu_millis: Option<u32>,
    /// Whether `HostConfig.Runtime` counts. Podman reads past it and takes the one that its
    /// service was started with.
    pub(crate) chooses_oci_runtime: bool,
    /// Whether a mount that `HostConfig.Mounts` asks for takes along what is mounted beneath it. Podman
    /// reads `NonRecursive: false` as the opposite; `HostConfig.Binds` says what it means.
    pub(crate) mounts_recursively: bool,
    /// Whether an engine that starts again ends the containers that still run.
    pub(crate) ends_containers: bool,
    /// What to say of an engine that cannot be used at all.
    pub(crate) refusal: Option<&'static str>,
}

impl Quirks {
    fn of(kind: EngineKind, info: &Info, peer: Peer, own: OwnLimits) -> Self {
        let rootless = info.is_rootless();
        let sandbox = (SANDBOX_UID, SANDBOX_GID);
        let open_files = own.open_files.min(limits::MAX_OPEN_FILES_PER_PROCESS);
        let mut ulimits = vec![("nofile", open_files), ("core", 0)];
        match kind {
            EngineKind::Docker => Self {
                minimum: Version::new(20, 10, 0),
                user_namespace: None,
                owner: sandbox,
                log: ("json-file", &[("max-size", "1m"), ("max-file", "1")]),
                own_limits: false,
                ulimits,
                most_cpu_millis: (info.processors > 0)
                    .then(|| info.processors.saturating_mul(1_000)),
                chooses_oci_runtime: true,
                mounts_recursively: true,
                ends_containers: true,
                refusal: rootless.then_some(
                    "a rootless Docker cannot map the sandbox's user to one of this host; \
                     use a rootless Podman",
                ),
            },
            EngineKind::Podman => Self {
                minimum: Version::new(4, 3, 0),
                user_namespace: rootless
                    .then(|| format!("keep-id:uid={SANDBOX_UID},gid={SANDBOX_GID}")),
                owner: if rootless {
                    (peer.uid, peer.gid)
                } else {
                    sandbox
                },
                log: ("k8s-file", &[("max-size", "1mb")]),
                own_limits: rootless && info.cgroup_version == "1",
                ulimits: {
                    // Counted over all sandboxes together, so only the engine's own is right; the
                    // control group bounds each.
                    ulimits.push(("nproc", own.processes));
                    ulimits
                },
                most_cpu_millis: None,
                chooses_oci_runtime: false,
                mounts_recursively: false,
                ends_containers: false,
                refusal: None,
            },
        }
    }
}

/// An engine that answered.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) socket: EngineSocket,
    pub(crate) kind: EngineKind,
    pub(crate) client: Docker,
    pub(crate) info: Info,
    pub(crate) peer: Peer,
    pub(crate) quirks: Quirks,
    /// The name of the OCI runtime that sandboxes run under.
    pub(crate) oci_runtime: String,
}

impl Engine {
    /// Connects, agrees on a version, and reads what the engine says about itself.
    pub(crate) async fn open(config: &DockerConfig) -> Result<Self, RuntimeError> {
        let socket = config.socket.clone();
        let peer = peer_of(&socket).await?;
        let unavailable = |error: BollardError| {
            RuntimeError::Unavailable(format!("{socket}: {}", fault::chain(&error)))
        };
        let seconds = limits::ENGINE_WORK_TIMEOUT_MS / 1_000;
        let client = Docker::connect_with_unix(socket.as_str(), seconds, API_DEFAULT_VERSION)
            .map_err(unavailable)?
            .negotiate_version()
            .await
            .map_err(unavailable)?;
        let info = read_info(&socket).await?;
        let quirks = Quirks::of(config.engine, &info, peer, OwnLimits::of(peer.pid));
        let oci_runtime = match &config.oci_runtime {
            Some(name) => name.clone(),
            None => info.default_runtime.clone(),
        };
        Ok(Self {
            socket,
            kind: config.engine,
            client,
            info,
            peer,
            quirks,
            oci_runtime,
        })
    }

    /// Whether the chosen OCI runtime says that it is gVisor. Preflight runs it to be sure, and
    /// every start looks at the process that came of it.
    pub(crate) fn is_gvisor(&self) -> bool {
        let path = self
            .info
            .runtimes
            .get(&self.oci_runtime)
            .map_or("", |runtime| runtime.path.as_str());
        let file = path.rsplit('/').next().unwrap_or_default();
        self.oci_runtime.starts_with("runsc")
            || self.oci_runtime.contains("runsc.v1")
            || file.starts_with("runsc")
    }

    /// The release in words, such as `Podman 4.3.1 (rootless, runc, overlay)`.
    pub(crate) fn words(&self) -> String {
        let name = match self.kind {
            EngineKind::Docker => "Docker",
            EngineKind::Podman => "Podman",
        };
        let rootless = if self.info.is_rootless() {
            "rootless, "
        } else {
            ""
        };
        format!(
            "{name} {} ({rootless}{}, {})",
            self.info.server_version, self.oci_runtime, self.info.driver
        )
    }

    /// Why this engine cannot be used, if it cannot.
    pub(crate) fn refusal(&self) -> Option<RuntimeError> {
        let refuse = |what, reason: String| Some(RuntimeError::Unsupported { what, reason });
        if let Some(reason) = self.quirks.refusal {
            return refuse("a rootless engine", reason.into());
        }
        let minimum = &self.quirks.minimum;
        match release(&self.info.server_version) {
            Some(found) if found >= *minimum => {}
            _ => {
                return refuse(
                    "this release of the engine",
                    format!("{} is older than {minimum}", self.info.server_version),
                );
            }
        }
        if self.is_gvisor() && self.info.is_rootless() {
            return refuse(
                "gVisor under a rootless engine",
                "its control groups and network cannot be given to it from outside; \
                 use a rootful engine or the embedded runtime"
                    .into(),
            );
        }
        let default = &self.info.default_runtime;
        if !self.quirks.chooses_oci_runtime && self.oci_runtime != *default {
            return refuse(
                "the OCI runtime",
                format!(
                    "this Podman runs every container under {default}; its service must be \
                     started with --runtime {}",
                    self.oci_runtime
                ),
            );
        }
        if !self.info.runtimes.contains_key(&self.oci_runtime) && self.oci_runtime != *default {
            let known: Vec<&str> = self.info.runtimes.keys().map(String::as_str).collect();
            return refuse(
                "the OCI runtime",
                format!(
                    "the engine has no runtime {}, only: {}",
                    self.oci_runtime,
                    known.join(", ")
                ),
            );
        }
        None
    }
}

/// Reads what the engine says about itself.
pub(crate) async fn read_info(socket: &EngineSocket) -> Result<Info, RuntimeError> {
    raw::json::<Info>(socket, "ask the engine about itself", "/info")
        .await?
        .ok_or_else(|| RuntimeError::Unavailable(format!("{socket} is no engine's socket")))
}

/// The release in an engine's version, which may carry a distribution's suffix.
pub(crate) fn release(text: &str) -> Option<Version> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let mut numbers = text[..end]
        .split('.')
        .map(|number| number.parse::<u64>().ok());
    let major = numbers.next()??;
    let minor = numbers.next().flatten().unwrap_or(0);
    let patch = numbers.next().flatten().unwrap_or(0);
    Some(Version::new(major, minor, patch))
}

/// What the engine may raise its own limits to; [`u64::MAX`] is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OwnLimits {
    open_files: u64,
    processes: u64,
}

impl OwnLimits {
    fn of(pid: u32) -> Self {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default())
    }

    fn parse(table: &str) -> Self {
        let hard = |name: &str| {
            let line = table.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().nth(1)?.parse().ok()
        };
        Self {
            open_files: hard("Max open files").unwrap_or(u64::MAX),
            processes: hard("Max processes").unwrap_or(u64::MAX),
        }
    }
}

/// Who listens on a socket.
pub(crate) async fn peer_of(socket: &EngineSocket) -> Result<Peer, RuntimeError> {
    let unavailable =
        |error: std::io::Error| RuntimeError::Unavailable(format!("{socket}: {error}"));
    let stream = UnixStream::connect(socket.as_str())
        .await
        .map_err(unavailable)?;
    let peer = stream.peer_cred().map_err(unavailable)?;
    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
    match pid {
        Some(pid) if pid != 0 => Ok(Peer {
            pid,
            uid: peer.uid(),
            gid: peer.gid(),
        }),
        _ => Err(RuntimeError::Unsupported {
            what: "an engine elsewhere",
            reason: format!("whoever listens on {socket} has no process on this host"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer {
        pid: 7,
        uid: 1234,
        gid: 1235,
    };

    const OWN: OwnLimits = OwnLimits {
        open_files: 20_000,
        processes: 30_000,
    };

    fn info(text: &str) -> Info {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn releases_carry_suffixes() {
        for (text, want) in [
            ("20.10.24+dfsg1", Some((20, 10, 24))),
            ("4.3.1", Some((4, 3, 1))),
            ("5.0.0-dev", Some((5, 0, 0))),
            ("27.0", Some((27, 0, 0))),
            ("4.3.1rc1", Some((4, 3, 1))),
            ("", None),
            ("dev", None),
        ] {
            let want = want.map(|(a, b, c)| Version::new(a, b, c));
            assert_eq!(release(text), want, "{text}");
        }
    }

    #[test]
    fn the_engines_own_limits_are_read() {
        let table = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 20000                files\n";
        let found = OwnLimits::parse(table);
        assert_eq!((found.open_files, found.processes), (20_000, u64::MAX));
        let none = OwnLimits::parse("Max open files  unlimited unlimited files");
        assert_eq!((none.open_files, none.processes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn rootless_is_told_in_two_ways() {
        let docker =
            info(r#"{"SecurityOptions":["name=seccomp,profile=default","name=rootless"]}"#);
        assert!(docker.is_rootless() && docker.has_seccomp());
        assert!(info(r#"{"Rootless":true,"SecurityOptions":null}"#).is_rootless());
        assert!(!info(r#"{"SecurityOptions":[],"Swarm":{"x":1}}"#).is_rootless());
    }

    #[test]
    fn a_rootless_podman_maps_the_sandboxs_user_to_its_own() {
        let old = info(r#"{"Rootless":true,"CgroupVersion":"1"}"#);
        let quirks = Quirks::of(EngineKind::Podman, &old, PEER, OWN);
        assert_eq!(quirks.owner, (1234, 1235));
        assert_eq!(
            quirks.user_namespace.as_deref(),
            Some("keep-id:uid=1000,gid=1000")
        );
        assert!(quirks.own_limits);
        let new = info(r#"{"Rootless":true,"CgroupVersion":"2"}"#);
        assert!(!Quirks::of(EngineKind::Podman, &new, PEER, OWN).own_limits);
        let rootful = Quirks::of(EngineKind::Podman, &info("{}"), PEER, OWN);
        assert_eq!(
            (rootful.owner, rootful.user_namespace),
            ((1000, 1000), None)
        );
    }

    #[test]
    fn docker_is_not_asked_for_more_processors_than_there_are() {
        let two = info(r#"{"NCPU":2}"#);
        let most = |kind, info: &Info| Quirks::of(kind, info, PEER, OWN).most_cpu_millis;
        assert_eq!(most(EngineKind::Docker, &two), Some(2_000));
        assert_eq!(most(EngineKind::Docker, &info("{}")), None);
        assert_eq!(most(EngineKind::Podman, &two), None);
    }

    #[test]
    fn a_rootless_docker_is_refused_with_a_reason() {
        let rootless = info(r#"{"SecurityOptions":["name=rootless"]}"#);
        assert!(
            Quirks::of(EngineKind::Docker, &rootless, PEER, OWN)
                .refusal
                .is_some()
        );
        assert!(
            Quirks::of(EngineKind::Docker, &info("{}"), PEER, OWN)
                .refusal
                .is_none()
        );
    }
}
