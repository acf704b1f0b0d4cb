//! What operators change, over the local socket.

use clap::Subcommand;
use hotcell_types::{CredentialId, OrganizationId, UserId, WorkspaceId};
use http::Method;
use serde_json::{Map, Value, json};

use super::{Exit, Settings, exit::say, local::Local};

fn show(answer: &Value) -> Result<(), Exit> {
    let text = serde_json::to_string_pretty(answer);
    say(&text.map_err(|error| Exit::failed(&error))?)
}

#[derive(Subcommand)]
pub(super) enum DeploymentCommand {
    /// Shows the deployment.
    Show {
        #[command(flatten)]
        settings: Settings,
    },
    /// Lets sandboxes run, as far as organizations and workspaces do.
    Enable {
        #[command(flatten)]
        settings: Settings,
    },
    /// Lets no new call run, whatever organizations and workspaces say.
    Disable {
        #[command(flatten)]
        settings: Settings,
    },
}

impl DeploymentCommand {
    pub(super) fn run(self) -> Result<(), Exit> {
        let path = "/v1/admin/deployment";
        let (settings, enabled) = match self {
            Self::Show { settings } => {
                return show(&Local::new(&settings)?.ask(Method::GET, path, None)?);
            }
            Self::Enable { settings } => (settings, true),
            Self::Disable { settings } => (settings, false),
        };
        let body = json!({"enabled": enabled});
        show(&Local::new(&settings)?.ask(Method::PUT, path, Some(&body))?)
    }
}

/// The switch of an organization or a workspace.
#[derive(clap::Args)]
pub(super) struct Switch {
    /// What people call it.
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,
    /// Let it run code.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Let it run no code.
    #[arg(long)]
    disable: bool,
}

impl Switch {
    fn body(&self) -> Map<String, Value> {
        let mut body = Map::new();
        if let Some(name) = &self.display_name {
            body.insert("name".into(), name.clone().into());
        }
        if self.enable || self.disable {
            body.insert("enabled".into(), self.enable.into());
        }
        body
    }
}

#[derive(Subcommand)]
pub(super) enum OrganizationCommand {
    /// Lists the organizations.
    List {
        #[command(flatten)]
        settings: Settings,
    },
    /// Makes or changes one; what is not named stays.
    Put {
        /// Its id.
        id: OrganizationId,
        #[command(flatten)]
        switch: Switch,
        #[command(flatten)]
        settings: Settings,
    },
    /// Removes one that has no workspaces.
    Remove {
        /// Its id.
        id: OrganizationId,
        #[command(flatten)]
        settings: Settings,
    },
}

impl OrganizationCommand {
    pub(super) fn run(self) -> Result<(), Exit> {
        let root = "/v1/admin/organizations";
        match self {
            Self::List { settings } => {
                let path = format!("{root}?limit=1000");
                show(&Local::new(&settings)?.ask(Method::GET, &path, None)?)
            }
            Self::Put {
                id,
                switch,
                settings,
            } => {
                let body = Value::Object(switch.body());
                let path = format!("{root}/{id}");
                show(&Local::new(&settings)?.ask(Method::PUT, &path, Some(&body))?)
            }
            Self::Remove { id, settings } => {
                let path = format!("{root}/{id}");
                Local::new(&settings)?.ask(Method::DELETE, &path, None)?;
                Ok(())
            }
        }
    }
}

/// What `--quota` takes. Names and ranges are the daemon's to check.
fn quota(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("it must be NAME=VALUE, such as max_concurrent=5")?;
    let value = match value {
        "default" => Value::Null,
        value => value
            .parse::<u64>()
            .map_or_else(|_| value.to_ascii_uppercase().into(), Value::from),
    };
    Ok((name.to_owned(), value))
}

#[derive(Subcommand)]
pub(super) enum WorkspaceCommand {
    /// Lists the workspaces.
    List {
        #[command(flatten)]
        settings: Settings,
    },
    /// Makes or changes one; what is not named stays.
    Put {
        /// Its id.
        id: WorkspaceId,
        /// Its organization; needed at first.
        #[arg(long)]
        organization: Option<OrganizationId>,
        #[command(flatten)]
        switch: Switch,
        /// A quota, such as max_concurrent=5 or max_resource_class=MEDIUM; NAME=default resets it.
        #[arg(long = "quota", value_name = "NAME=VALUE", value_parser = quota)]
        quotas: Vec<(String, Value)>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Shows what one uses of its quotas.
    Usage {
        /// Its id.
        id: WorkspaceId,
        #[command(flatten)]
        settings: Settings,
    },
    /// Removes one with its sandboxes, volumes, uploads, collected files and jobs. There is no way back.
    Remove {
        /// Its id.
        id: WorkspaceId,
        #[command(flatten)]
        settings: Settings,
    },
    /// Removes what a member has in one: their sandboxes, their volume, files collected for them,
    /// their jobs. There is no way back.
    RemoveMember {
        /// Its id.
        id: WorkspaceId,
        /// The member, as the backend names them.
        user: UserId,
        #[command(flatten)]
        settings: Settings,
    },
}

/// Says so when a deletion takes longer than its request.
fn tell_deletion(answer: &Value) -> Result<(), Exit> {
    if answer.is_null() {
        return Ok(());
    }
    say("it is being deleted; `hotcell workspace list` shows it until that is done")
}

impl WorkspaceCommand {
    pub(super) fn run(self) -> Result<(), Exit> {
        let root = "/v1/admin/workspaces";
        match self {
            Self::List { settings } => {
                let path = format!("{root}?limit=1000");
                show(&Local::new(&settings)?.ask(Method::GET, &path, None)?)
            }
            Self::Put {
                id,
                organization,
                switch,
                quotas,
                settings,
            } => {
                let mut body = switch.body();
                if !quotas.is_empty() {
                    body.insert("quotas".into(), Map::from_iter(quotas).into());
                }
                if let Some(organization) = organization {
                    body.insert("organization".into(), organization.as_str().into());
                }
                let body = Value::Object(body);
                let path = format!("{root}/{id}");
                show(&Local::new(&settings)?.ask(Method::PUT, &path, Some(&body))?)
            }
            Self::Usage { id, settings } => {
                let path = format!("{root}/{id}/usage");
                show(&Local::new(&settings)?.ask(Method::GET, &path, None)?)
            }
            Self::Remove { id, settings } => {
                let path = format!("{root}/{id}");
                tell_deletion(&Local::new(&settings)?.ask(Method::DELETE, &path, None)?)
            }
            Self::RemoveMember { id, user, settings } => {
                let path = format!("{root}/{id}/users/{user}");
                tell_deletion(&Local::new(&settings)?.ask(Method::DELETE, &path, None)?)
            }
        }
    }
}

#[derive(Subcommand)]
pub(super) enum CredentialCommand {
    /// Makes a credential and prints its key and secret. The secret is never shown again.
    Create {
        /// Whose workspaces it may act for.
        #[arg(long)]
        organization: OrganizationId,
        #[command(flatten)]
        settings: Settings,
    },
    /// Lists the credentials of an organization, without secrets.
    List {
        /// Whose.
        #[arg(long)]
        organization: OrganizationId,
        #[command(flatten)]
        settings: Settings,
    },
    /// Gives a credential a second secret and prints it; both are good until the rotation is finished.
    Rotate {
        /// Its key.
        key: CredentialId,
        /// Whose.
        #[arg(long)]
        organization: OrganizationId,
        #[command(flatten)]
        settings: Settings,
    },
    /// Ends a rotation: the older secret is good no more.
    FinishRotation {
        /// Its key.
        key: CredentialId,
        /// Whose.
        #[arg(long)]
        organization: OrganizationId,
        #[command(flatten)]
        settings: Settings,
    },
    /// Removes a credential: requests signed with it are refused from now on.
    Remove {
        /// Its key.
        key: CredentialId,
        /// Whose.
        #[arg(long)]
        organization: OrganizationId,
        #[command(flatten)]
        settings: Settings,
    },
}

impl CredentialCommand {
    pub(super) fn run(self) -> Result<(), Exit> {
        let root = |organization: &OrganizationId| {
            format!("/v1/admin/organizations/{organization}/credentials")
        };
        match self {
            Self::Create {
                organization,
                settings,
            } => {
                let body = json!({});
                let path = root(&organization);
                show(&Local::new(&settings)?.ask(Method::POST, &path, Some(&body))?)
            }
            Self::List {
                organization,
                settings,
            } => show(&Local::new(&settings)?.ask(Method::GET, &root(&organization), None)?),
            Self::Rotate {
                key,
                organization,
                settings,
            } => {
                let path = format!("{}/{key}/rotate", root(&organization));
                show(&Local::new(&settings)?.ask(Method::POST, &path, Some(&json!({})))?)
            }
            Self::FinishRotation {
                key,
                organization,
                settings,
            } => {
                let path = format!("{}/{key}/finish-rotation", root(&organization));
                show(&Local::new(&settings)?.ask(Method::POST, &path, Some(&json!({})))?)
            }
            Self::Remove {
                key,
                organization,
                settings,
            } => {
                let path = format!("{}/{key}", root(&organization));
                Local::new(&settings)?.ask(Method::DELETE, &path, None)?;
                Ok(())
            }
        }
    }
}
