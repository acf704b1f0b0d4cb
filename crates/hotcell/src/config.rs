//! The configuration: one TOML file, environment variables and flags over it.
//!
//! `docs/operating/configuration.md` lists every key. Unknown keys are refused with their place,
//! so that a misspelt limit is not silently the default.

mod declared;
mod findings;
mod host;
mod nearest;
mod network;
mod profile;
mod runtime;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use hotcell_core::{declared::Declarations, lease::LeaseLimits, profile::ProfileLimits};
use hotcell_types::limits;
use serde::Deserialize;

pub use self::findings::{Finding, Severity, known_keys, of_text};
pub use self::host::of_host;
pub use self::network::NetworkConfig;
pub use self::runtime::{EngineChoice, ImageChoice, RuntimeConfig};
use self::{
    declared::{OrganizationTable, WorkspaceTable},
    profile::ProfileTable,
    runtime::RuntimeTable,
};
use crate::switches::Switches;

/// The largest configuration file that is read, in bytes.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;
/// The shortest limit that a configuration may set, in milliseconds.
const MIN_TIMEOUT_MS: u64 = 100;
/// The longest limit that a configuration may set, in milliseconds: thirty days.
const MAX_TIMEOUT_MS: u64 = 30 * 24 * 3_600_000;
/// The smallest persistent volume that a configuration may set, in bytes.
const MIN_VOLUME_BYTES: u64 = 32 * 1024 * 1024;
/// The smallest `/workspace` that a configuration may set, in bytes.
const MIN_SCRATCH_BYTES: u64 = 16 * 1024 * 1024;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {path} cannot be read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no TOML, or has a key that is not known or has a value of the wrong kind.
    #[error("the configuration is not valid")]
    Parse(#[source] Box<toml::de::Error>),
    /// A value is out of its range.
    #[error("{key} {problem}")]
    Value {
        /// The key, with its table.
        key: Cow<'static, str>,
        /// What is wrong with it.
        problem: String,
    },
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Everything that can be configured, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where HTTP listens.
    pub listen: SocketAddr,
    /// What outlives a reboot.
    pub state_dir: PathBuf,
    /// What does not.
    pub run_dir: PathBuf,
    /// The key that secrets in the store are sealed with.
    pub store_key_file: PathBuf,
    /// The operator token.
    pub operator_token_file: PathBuf,
    /// The static agent; searched beside the daemon when absent.
    pub agent_binary: Option<PathBuf>,
    /// The engine of the profile `default`.
    pub runtime: RuntimeConfig,
    /// The times of a lease.
    pub lease: LeaseLimits,
    /// The size of `/workspace`, in bytes.
    pub scratch_bytes: u64,
    /// The size of a persistent volume, in bytes; `None` when volumes end where the disk ends.
    pub volume_bytes: Option<u64>,
    /// What the profile `default` allows besides these two; see [`Config::profile_limits`].
    pub profile: ProfileLimits,
    /// Sandboxes that run at once.
    pub max_sandboxes: usize,
    /// The log filter, such as `info` or `hotcell=debug,warn`.
    pub log_level: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Worker threads of the daemon.
    pub worker_threads: usize,
    /// What the environment forces.
    pub switches: Switches,
    /// The organizations, network policies and workspaces that are as this says.
    pub declared: Declarations,
    /// The file that it was read from; absent when there was none.
    pub file: Option<PathBuf>,
}

impl Config {
    /// The file that is read when none is named, if it is there.
    pub const DEFAULT_PATH: &'static str = "/etc/hotcell/hotcell.toml";

    /// Reads a file, then lays `overrides` over it.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Self, ConfigError> {
        let default = Path::new(Self::DEFAULT_PATH);
        let file = path.or_else(|| default.exists().then_some(default));
        Ok(Self {
            file: file.map(Path::to_owned),
            ..Self::parse(&Self::text(path)?, overrides)?
        })
    }

    /// The text of a file, or of the default one if that is there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn text(path: Option<&Path>) -> Result<String, ConfigError> {
        match path {
            Some(path) => read(path),
            None => match read(Path::new(Self::DEFAULT_PATH)) {
                Err(ConfigError::Read { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    Ok(String::new())
                }
                result => result,
            },
        }
    }

    /// The configuration that a text and the overrides make.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(text: &str, overrides: &Overrides) -> Result<Self, ConfigError> {
        let file: File =
            toml::from_str(text).map_err(|error| ConfigError::Parse(Box::new(error)))?;
        file.check(overrides)
    }

    /// Everything that the profile `default` limits.
    #[must_use]
    pub fn profile_limits(&self) -> ProfileLimits {
        ProfileLimits {
            lease: self.lease,
            scratch_bytes: self.scratch_bytes,
            ..self.profile.clone()
        }
    }

    /// The store's file.
    #[must_use]
    pub fn store_path(&self) -> PathBuf {
        self.state_dir.join("store.redb")
    }

    /// Where the unpacked images are.
    #[must_use]
    pub fn image_dir(&self) -> PathBuf {
        self.state_dir.join("images")
    }

    /// The local admin socket.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.run_dir.join("admin.sock")
    }

    /// The agent: as configured, else beside the daemon's own binary.
    #[must_use]
    pub fn agent_binary(&self) -> PathBuf {
        self.agent_binary.clone().unwrap_or_else(|| {
            let beside = std::env::current_exe()
                .ok()
                .and_then(|exe| Some(exe.parent()?.join("hotcell-agent")));
            beside.unwrap_or_else(|| PathBuf::from("hotcell-agent"))
        })
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_string(&mut text))
        .map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
    Ok(text)
}

/// What flags and environment variables set.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Over `listen`.
    pub listen: Option<SocketAddr>,
    /// Over `state_dir`.
    pub state_dir: Option<PathBuf>,
    /// Over `run_dir`.
    pub run_dir: Option<PathBuf>,
    /// Over `agent_binary`.
    pub agent_binary: Option<PathBuf>,
    /// Over `store_key_file`.
    pub store_key_file: Option<PathBuf>,
    /// Over `operator_token_file`.
    pub operator_token_file: Option<PathBuf>,
    /// Over `log.level`.
    pub log_level: Option<String>,
    /// What the environment forces; there are no keys for it.
    pub switches: Switches,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: Option<SocketAddr>,
    state_dir: Option<PathBuf>,
    run_dir: Option<PathBuf>,
    store_key_file: Option<PathBuf>,
    operator_token_file: Option<PathBuf>,
    agent_binary: Option<PathBuf>,
    worker_threads: Option<usize>,
    runtime: RuntimeTable,
    limits: LimitsTable,
    profile: ProfileTable,
    log: LogTable,
    organizations: BTreeMap<String, OrganizationTable>,
    workspaces: BTreeMap<String, WorkspaceTable>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitsTable {
    start_timeout_ms: Option<u64>,
    idle_timeout_ms: Option<u64>,
    hard_timeout_ms: Option<u64>,
    scratch_bytes: Option<u64>,
    volume_bytes: Option<u64>,
    max_sandboxes: Option<usize>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LogTable {
    level: Option<String>,
    format: LogFormat,
}

impl File {
    fn check(self, over: &Overrides) -> Result<Config, ConfigError> {
        let state_dir = absolute(
            "state_dir",
            over.state_dir
                .clone()
                .or(self.state_dir)
                .unwrap_or_else(|| "/var/lib/hotcell".into()),
        )?;
        let run_dir = absolute(
            "run_dir",
            over.run_dir
                .clone()
                .or(self.run_dir)
                .unwrap_or_else(|| "/run/hotcell".into()),
        )?;
        let max_sandboxes = self
            .limits
            .max_sandboxes
            .unwrap_or(limits::DEFAULT_MAX_SANDBOXES);
        if max_sandboxes == 0 {
            return Err(value("limits.max_sandboxes", "must be at least 1"));
        }
        let scratch_bytes = self
            .limits
            .scratch_bytes
            .unwrap_or(limits::DEFAULT_SCRATCH_BYTES);
        if scratch_bytes < MIN_SCRATCH_BYTES {
            let problem = format!("must be at least {MIN_SCRATCH_BYTES}");
            return Err(value("limits.scratch_bytes", problem));
        }
        let volume_bytes = match self.limits.volume_bytes {
            None => Some(limits::DEFAULT_VOLUME_BYTES),
            Some(0) => None,
            Some(bytes) if bytes < MIN_VOLUME_BYTES => {
                let problem = format!("must be 0 (no size) or at least {MIN_VOLUME_BYTES}");
                return Err(value("limits.volume_bytes", problem));
            }
            some => some,
        };
        let worker_threads = self.worker_threads.unwrap_or(2);
        if !(1..=256).contains(&worker_threads) {
            return Err(value("worker_threads", "must be between 1 and 256"));
        }
        let runtime = self.runtime.check()?;
        let profile = self.profile.check()?;
        if profile.warm_pool > max_sandboxes {
            let problem = format!("must not be more than limits.max_sandboxes ({max_sandboxes})");
            return Err(value("profile.warm_pool", problem));
        }
        Ok(Config {
            listen: over
                .listen
                .or(self.listen)
                .unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8470))),
            store_key_file: match over.store_key_file.clone().or(self.store_key_file) {
                Some(path) => absolute("store_key_file", path)?,
                None => state_dir.join("store.key"),
            },
            operator_token_file: match over
                .operator_token_file
                .clone()
                .or(self.operator_token_file)
            {
                Some(path) => absolute("operator_token_file", path)?,
                None => state_dir.join("operator.token"),
            },
            agent_binary: match over.agent_binary.clone().or(self.agent_binary) {
                Some(path) => Some(absolute("agent_binary", path)?),
                None => None,
            },
            state_dir,
            run_dir,
            runtime,
            lease: LeaseLimits {
                start_timeout_ms: time(
                    "limits.start_timeout_ms",
                    self.limits.start_timeout_ms,
                    limits::DEFAULT_START_TIMEOUT_MS,
                )?,
                idle_timeout_ms: time(
                    "limits.idle_timeout_ms",
                    self.limits.idle_timeout_ms,
                    limits::DEFAULT_IDLE_TIMEOUT_MS,
                )?,
                hard_timeout_ms: time(
                    "limits.hard_timeout_ms",
                    self.limits.hard_timeout_ms,
                    limits::DEFAULT_HARD_TIMEOUT_MS,
                )?,
            },
            scratch_bytes,
            volume_bytes,
            profile,
            max_sandboxes,
            log_level: over
                .log_level
                .clone()
                .or(self.log.level)
                .unwrap_or_else(|| "info".into()),
            log_format: self.log.format,
            worker_threads,
            switches: over.switches,
            declared: declared::check(self.organizations, self.workspaces)?,
            file: None,
        })
    }
}

fn value(key: impl Into<Cow<'static, str>>, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        key: key.into(),
        problem: problem.into(),
    }
}

fn absolute(key: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(value(key, "must be an absolute path"))
    }
}

fn time(key: &'static str, set: Option<u64>, default_ms: u64) -> Result<u64, ConfigError> {
    let millis = set.unwrap_or(default_ms);
    if (MIN_TIMEOUT_MS..=MAX_TIMEOUT_MS).contains(&millis) {
        Ok(millis)
    } else {
        let problem = format!("must be between {MIN_TIMEOUT_MS} and {MAX_TIMEOUT_MS}");
        Err(value(key, problem))
    }
}

#[cfg(test)]
mod tests {
    use hotcell_runtime_embedded::RuntimeChoice;

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, &Overrides::default())
    }

    #[test]
    fn an_empty_file_is_the_default_and_flags_win() {
        let config = parse("").unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8470");
        assert_eq!(
            config.store_key_file,
            Path::new("/var/lib/hotcell/store.key")
        );
        assert_eq!(
            config.runtime.engine,
            EngineChoice::Embedded(RuntimeChoice::Auto)
        );
        assert_eq!(config.runtime.image, ImageChoice::Named("base".into()));
        assert_eq!(config.lease.start_timeout_ms, 90_000);
        let over = Overrides {
            state_dir: Some("/other".into()),
            ..Overrides::default()
        };
        let config = Config::parse("state_dir = '/srv/x'", &over).unwrap();
        assert_eq!(
            config.operator_token_file,
            Path::new("/other/operator.token")
        );
    }

    #[test]
    fn what_is_not_known_or_not_possible_is_refused_with_its_place() {
        for (text, place) in [
            ("listne = '1.2.3.4:5'", "listne"),
            ("[limits]\nidle_timeout = 5", "idle_timeout"),
            ("[limits]\nidle_timeout_ms = 0", "limits.idle_timeout_ms"),
            ("[limits]\nmax_sandboxes = 0", "limits.max_sandboxes"),
            ("[limits]\nscratch_bytes = 1", "limits.scratch_bytes"),
            ("[limits]\nvolume_bytes = 1", "limits.volume_bytes"),
            ("state_dir = 'relative'", "state_dir"),
            ("[runtime]\nkind = 'kata'", "kata"),
            ("[runtime]\nkind = 'docker'", "runtime.image"),
            ("[runtime]\nsocket = '/x'", "runtime.socket"),
            ("[runtime]\noci_runtime = 'kata'", "runtime.oci_runtime"),
            ("[runtime]\noci_runtime = 'bin/runc'", "runtime.oci_runtime"),
            ("[runtime]\nrunsc_network = 'host'", "runtime.runsc_network"),
            ("[runtime]\nimage = 'sha256:12'", "runtime.image"),
            ("[runtime]\nimage = '../x'", "runtime.image"),
            (
                "[profile]\nwarm_pool = 2\n[limits]\nmax_sandboxes = 1",
                "warm_pool",
            ),
            ("listen = 'here'", "listen"),
        ] {
            let error = parse(text).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string);
            let words = format!("{error} {}", source.unwrap_or_default());
            assert!(words.contains(place), "{text}: {words}");
        }
    }
}
