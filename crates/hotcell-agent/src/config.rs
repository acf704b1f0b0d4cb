//! What the agent is told by its environment.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use hotcell_agent_proto::{
    AGENT_PORT, KEY_VARIABLE, LEASE_VARIABLE, LISTEN_VARIABLE, RUN_PATH, RUN_VARIABLE,
    WORKSPACE_VARIABLE,
};
use hotcell_types::{LeaseId, volume::WORKSPACE_PATH};

/// Why the agent cannot start.
#[derive(Debug)]
pub(crate) struct ConfigError(pub(crate) String);

/// Everything but the key.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) lease: LeaseId,
    pub(crate) listen: SocketAddr,
    pub(crate) workspace: PathBuf,
    pub(crate) run: PathBuf,
    /// The environment that the image and the runtime set, without what was meant for the agent.
    pub(crate) inherited: Vec<(OsString, OsString)>,
}

impl Config {
    /// Reads the process environment.
    pub(crate) fn from_env() -> Result<Self, ConfigError> {
        let lease = text(LEASE_VARIABLE)?
            .ok_or_else(|| ConfigError(format!("{LEASE_VARIABLE} is not set")))?
            .parse()
            .map_err(|error| ConfigError(format!("{LEASE_VARIABLE}: {error}")))?;
        let listen = match text(LISTEN_VARIABLE)? {
            None => SocketAddr::from(([0, 0, 0, 0], AGENT_PORT)),
            Some(listen) => listen
                .parse()
                .map_err(|error| ConfigError(format!("{LISTEN_VARIABLE}: {error}")))?,
        };
        let path = |variable: &str, default: &str| {
            std::env::var_os(variable).map_or_else(|| PathBuf::from(default), PathBuf::from)
        };
        let own = [
            KEY_VARIABLE,
            LEASE_VARIABLE,
            LISTEN_VARIABLE,
            WORKSPACE_VARIABLE,
            RUN_VARIABLE,
        ];
        Ok(Self {
            lease,
            listen,
            workspace: path(WORKSPACE_VARIABLE, WORKSPACE_PATH),
            run: path(RUN_VARIABLE, RUN_PATH),
            inherited: std::env::vars_os()
                .filter(|(name, _)| !own.iter().any(|own| name == own))
                .collect(),
        })
    }
}

fn text(variable: &str) -> Result<Option<String>, ConfigError> {
    match std::env::var(variable) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(ConfigError(format!("{variable} is no UTF-8")))
        }
    }
}
