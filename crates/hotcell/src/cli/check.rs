//! `hotcell check-config`.

use std::path::PathBuf;

use clap::Args;
use hotcell_core::declared::DeclaredObject;
use http::Method;
use serde_json::Value;
use tracing_subscriber::EnvFilter;

use super::{Exit, Settings, exit::say, local::Local};
use crate::config::{Config, Finding, Severity, known_keys, of_host, of_text};

/// What to check, and how far.
#[derive(Args)]
pub(super) struct CheckConfig {
    /// The file, in place of --config.
    file: Option<PathBuf>,
    /// Only what the text can tell; for a file that is meant for another host.
    #[arg(long)]
    offline: bool,
    /// List the names of all keys instead.
    #[arg(long)]
    keys: bool,
    #[command(flatten)]
    settings: Settings,
}

impl CheckConfig {
    pub(super) fn run(self) -> Result<(), Exit> {
        if self.keys {
            return say(&known_keys().join("\n"));
        }
        let path = self.file.as_deref().or(self.settings.config.as_deref());
        let text = Config::text(path)?;
        let overrides = self.settings.overrides(None, None)?;
        let (mut findings, config) = of_text(&text, &overrides);
        if let Some(config) = &config {
            findings.extend(log_filter(config));
            if !self.offline {
                findings.extend(of_host(config));
                findings.extend(of_daemon(config));
            }
        }
        for finding in &findings {
            say(&finding.to_string())?;
        }
        let errors = findings
            .iter()
            .filter(|one| one.severity == Severity::Error)
            .count();
        match (errors, config) {
            (0, Some(config)) => say(&format!(
                "The configuration is valid. State in {}, HTTP on {}.",
                config.state_dir.display(),
                config.listen
            )),
            (1, _) => Err(Exit::configuration("the configuration has an error")),
            (count, _) => Err(Exit::configuration(format!(
                "the configuration has {count} errors"
            ))),
        }
    }
}

/// What is declared and contradicts what the daemon that runs has stored. Nothing when none runs: its
/// store is then looked at when it starts.
fn of_daemon(config: &Config) -> Vec<Finding> {
    if config.declared.workspaces.is_empty() {
        return Vec::new();
    }
    let Ok(daemon) = Local::at(config.admin_socket()) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for wanted in &config.declared.workspaces {
        let path = format!("/v1/admin/workspaces/{}", wanted.id);
        let Ok((status, stored)) = daemon.ask_any(Method::GET, &path, None) else {
            break;
        };
        let stored = stored.get("organization").and_then(Value::as_str);
        let Some(stored) = stored.filter(|_| status.is_success()) else {
            continue;
        };
        if stored == wanted.organization.as_str() {
            continue;
        }
        let key = DeclaredObject::Workspace(wanted.id.clone()).key();
        findings.push(Finding {
            severity: Severity::Error,
            key: format!("{key}.organization"),
            problem: format!(
                "is {}, and the workspace is there and belongs to {stored}",
                wanted.organization
            ),
            fix: format!(
                "a workspace never changes its organization: declare {stored}, or take another id"
            ),
        });
    }
    findings
}

fn log_filter(config: &Config) -> Option<Finding> {
    let error = EnvFilter::try_new(&config.log_level).err()?;
    Some(Finding {
        severity: Severity::Error,
        key: "log.level".into(),
        problem: error.to_string(),
        fix: "write a level such as info, or levels of modules such as hotcell=debug,warn".into(),
    })
}
