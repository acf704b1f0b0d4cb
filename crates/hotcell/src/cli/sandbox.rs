//! `hotcell sandbox`: sandboxes that the store has never heard of.

use clap::Subcommand;
use hotcell_types::LeaseId;
use http::Method;
use serde_json::{Value, json};

use super::{Exit, Settings, exit::say, local::Local};

#[derive(Subcommand)]
pub(super) enum SandboxCommand {
    /// Lists the sandboxes that the engine has and the store has never heard of, as after the
    /// store was restored from a backup. While there are any, nothing is swept.
    Unknown {
        #[command(flatten)]
        settings: Settings,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Removes some of them, with all that is in their /workspace. There is no way back.
    RemoveUnknown {
        /// Which; `--all` in place of ids takes all that are listed now.
        #[arg(required_unless_present = "all")]
        leases: Vec<LeaseId>,
        /// All of them.
        #[arg(long, conflicts_with = "leases")]
        all: bool,
        #[command(flatten)]
        settings: Settings,
    },
}

/// Profile and sandbox of each unknown one.
fn unknown(local: &Local) -> Result<Vec<(String, String)>, Exit> {
    let answer = local.ask(Method::GET, "/v1/admin/profiles", None)?;
    let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for profile in rows(&answer["profiles"]) {
        let id = profile["id"].as_str().unwrap_or_default().to_owned();
        for lease in rows(&profile["unknown_sandboxes"]) {
            let lease = lease.as_str().unwrap_or_default().to_owned();
            all.push((id.clone(), lease));
        }
    }
    Ok(all)
}

impl SandboxCommand {
    pub(super) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Unknown { settings, json } => {
                let all = unknown(&Local::new(&settings)?)?;
                if json {
                    let all: Vec<Value> = all
                        .iter()
                        .map(|(profile, lease)| json!({"profile": profile, "lease": lease}))
                        .collect();
                    return say(&Value::Array(all).to_string());
                }
                if all.is_empty() {
                    return say("the store knows every sandbox");
                }
                for (profile, lease) in all {
                    say(&format!("{lease}  profile {profile}"))?;
                }
                Ok(())
            }
            Self::RemoveUnknown {
                leases,
                all,
                settings,
            } => {
                let local = Local::new(&settings)?;
                let mut of_profile: std::collections::BTreeMap<String, Vec<String>> =
                    std::collections::BTreeMap::new();
                for (profile, lease) in unknown(&local)? {
                    if all || leases.iter().any(|it| it.as_str() == lease) {
                        of_profile.entry(profile).or_default().push(lease);
                    }
                }
                let found: usize = of_profile.values().map(Vec::len).sum();
                if !all && found < leases.len() {
                    let words = "one of them is no unknown sandbox; `hotcell sandbox unknown` lists those that are";
                    return Err(Exit::words(words));
                }
                for (profile, leases) in of_profile {
                    let path = format!("/v1/admin/profiles/{profile}/unknown-sandboxes/remove");
                    let body = json!({"leases": leases});
                    local.ask(Method::POST, &path, Some(&body))?;
                }
                say(&format!("removed {found}"))
            }
        }
    }
}
