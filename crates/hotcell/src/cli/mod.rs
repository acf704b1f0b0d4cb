//! The command line.

mod admin;
mod check;
mod commands;
mod exit;
mod image;
mod install;
mod local;
mod look;
mod pin;
mod policy;
mod sandbox;
mod serve;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{Config, ConfigError, Overrides},
    switches::Switches,
};

pub use exit::Exit;

/// Sandboxes for chat assistants: the daemon and its command line.
#[derive(Parser)]
#[command(
    name = "hotcell",
    version,
    arg_required_else_help = true,
    after_help = exit::HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Where the configuration is, and what is set over it.
#[derive(Args, Clone, Default)]
pub(crate) struct Settings {
    /// The configuration file [default: /etc/hotcell/hotcell.toml, if it is there]
    #[arg(long, value_name = "FILE", env = "HOTCELL_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// Where everything is kept that outlives a reboot [default: /var/lib/hotcell]
    #[arg(long, value_name = "DIR", env = "HOTCELL_STATE_DIR", global = true)]
    state_dir: Option<PathBuf>,
    /// Where the local socket is [default: /run/hotcell]
    #[arg(long, value_name = "DIR", env = "HOTCELL_RUN_DIR", global = true)]
    run_dir: Option<PathBuf>,
    /// The key that secrets in the store are sealed with [default: store.key in the state directory]
    #[arg(
        long,
        value_name = "FILE",
        env = "HOTCELL_STORE_KEY_FILE",
        global = true,
        hide_short_help = true
    )]
    store_key_file: Option<PathBuf>,
    /// The operator token [default: operator.token in the state directory]
    #[arg(
        long,
        value_name = "FILE",
        env = "HOTCELL_OPERATOR_TOKEN_FILE",
        global = true,
        hide_short_help = true
    )]
    operator_token_file: Option<PathBuf>,
    /// What is logged, such as `info` or `hotcell=debug,warn` [default: info]
    #[arg(long, value_name = "FILTER", env = "HOTCELL_LOG", global = true)]
    log_level: Option<String>,
}

impl Settings {
    pub(crate) fn load(
        &self,
        listen: Option<SocketAddr>,
        agent_binary: Option<PathBuf>,
    ) -> Result<Config, ConfigError> {
        Config::load(
            self.config.as_deref(),
            &self.overrides(listen, agent_binary)?,
        )
    }

    fn overrides(
        &self,
        listen: Option<SocketAddr>,
        agent_binary: Option<PathBuf>,
    ) -> Result<Overrides, ConfigError> {
        Ok(Overrides {
            listen,
            state_dir: self.state_dir.clone(),
            run_dir: self.run_dir.clone(),
            agent_binary,
            store_key_file: self.store_key_file.clone(),
            operator_token_file: self.operator_token_file.clone(),
            log_level: self.log_level.clone(),
            switches: Switches::from_env()?,
        })
    }
}

#[derive(Subcommand)]
enum Command {
    /// Runs the daemon until SIGTERM or SIGINT.
    ///
    /// At its first start it makes its store, the key that secrets in the store are sealed with,
    /// and an operator token; all switches are off until an operator turns them on. When it
    /// stops, sandboxes stay; the next start adopts them.
    Serve {
        #[command(flatten)]
        settings: Settings,
        /// Where HTTP listens [default: 127.0.0.1:8470]
        #[arg(long, value_name = "ADDR:PORT", env = "HOTCELL_LISTEN")]
        listen: Option<SocketAddr>,
        /// The static agent [default: hotcell-agent beside this binary]
        #[arg(long, value_name = "FILE", env = "HOTCELL_AGENT_BINARY")]
        agent_binary: Option<PathBuf>,
    },
    /// The images that sandboxes run. Needs no running daemon.
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Reads the configuration and says everything that is wrong with it, and what to do.
    CheckConfig(check::CheckConfig),
    /// Makes hotcell a service of this host: unit, kernel settings, credentials. Needs root.
    ///
    /// Says what it does; what is as it should be stays as it is. It starts nothing.
    InstallUnit(install::InstallUnit),
    /// Pins the network namespace that sandboxes' links end in; the unit runs it before the daemon.
    #[command(hide = true)]
    PinNamespace {
        #[command(flatten)]
        settings: Settings,
    },
    /// Prints the OpenAPI document of the HTTP API.
    Openapi,
    /// Asks the running daemon how it is.
    Status {
        #[command(flatten)]
        settings: Settings,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Lists the live leases of the running daemon.
    Leases(look::Leases),
    /// Lists what the gate refused lately.
    Denials(look::Denials),
    /// Reads the audit trail.
    Audit(look::Audit),
    /// The switch for the whole deployment.
    #[command(subcommand)]
    Deployment(commands::DeploymentCommand),
    /// The organizations.
    #[command(subcommand)]
    Organization(commands::OrganizationCommand),
    /// The workspaces.
    #[command(subcommand)]
    Workspace(commands::WorkspaceCommand),
    /// Sandboxes that the store has never heard of.
    #[command(subcommand)]
    Sandbox(sandbox::SandboxCommand),
    /// Network policies in files. Needs no running daemon.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// The credentials that chat backends sign with.
    #[command(subcommand)]
    Credential(commands::CredentialCommand),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve {
            settings,
            listen,
            agent_binary,
        } => serve::run(&settings, listen, agent_binary),
        Command::Image(command) => image::run(command),
        Command::CheckConfig(check) => check.run(),
        Command::InstallUnit(install) => install.run(),
        Command::PinNamespace { settings } => pin::run(&settings),
        Command::Openapi => openapi(),
        Command::Status { settings, json } => admin::status(&settings, json),
        Command::Leases(leases) => leases.run(),
        Command::Denials(denials) => denials.run(),
        Command::Audit(audit) => audit.run(),
        Command::Deployment(command) => command.run(),
        Command::Organization(command) => command.run(),
        Command::Workspace(command) => command.run(),
        Command::Sandbox(command) => command.run(),
        Command::Policy(command) => command.run(),
        Command::Credential(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.tell(),
    }
}

fn openapi() -> Result<(), Exit> {
    let document = crate::http::openapi();
    let text = document.to_pretty_json();
    exit::say(&text.map_err(|error| Exit::failed(&error))?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
