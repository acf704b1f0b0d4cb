//! The systemd unit, from the one description that the NixOS module reads too.
//!
//! ```text
//!  nixos/unit.json ──┬── nixos/module.nix ── the unit on NixOS
//!                    └── here ── `hotcell install-unit` ── the unit on other hosts
//! ```

mod install;

use std::fmt::Write;

use serde::Deserialize;

pub use self::install::{Done, InstallError, Layout, install};

/// What both are made of.
const SOURCE: &str = include_str!("../../../../nixos/unit.json");

/// The description of the unit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Unit {
    description: String,
    after: Vec<String>,
    wants: Vec<String>,
    start_limit_interval_sec: u32,
    start_limit_burst: u32,
    capabilities: Vec<Capability>,
    service: Vec<Line>,
    #[serde(rename = "left_out")]
    left_out: Vec<LeftOut>,
    sysctl: std::collections::BTreeMap<String, Sysctl>,
    credentials: Vec<Credential>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capability {
    name: String,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Title {
        title: String,
    },
    Set {
        key: String,
        value: Setting,
        why: Option<String>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Setting {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeftOut {
    key: String,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sysctl {
    value: i64,
    why: String,
}

/// A secret that the service manager hands to the daemon.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Credential {
    name: String,
    variable: String,
}

impl Unit {
    /// The one description.
    ///
    /// # Panics
    /// Never: a test reads it.
    #[must_use]
    pub fn shared() -> Self {
        serde_json::from_str(SOURCE).expect("unit.json is compiled in and read by a test")
    }

    /// The unit file.
    #[must_use]
    pub fn render(&self, layout: &Layout) -> String {
        let mut text = String::from(
            "# Written by `hotcell install-unit`. Changes belong into a drop-in: `systemctl edit hotcell`.\n[Unit]\n",
        );
        let place = |value: &str| {
            value
                .replace("@hotcell@", &layout.binary.display().to_string())
                .replace("@config@", &layout.config.display().to_string())
        };
        // Writing into a string cannot fail.
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(text, "{key}={}", place(value));
        };
        line("Description", &self.description);
        line("After", &self.after.join(" "));
        line("Wants", &self.wants.join(" "));
        line(
            "StartLimitIntervalSec",
            &self.start_limit_interval_sec.to_string(),
        );
        line("StartLimitBurst", &self.start_limit_burst.to_string());
        text.push_str("\n[Service]\n");
        for entry in &self.service {
            match entry {
                Line::Title { title } => {
                    let _ = writeln!(text, "\n### {title}");
                }
                Line::Set { key, value, why } => {
                    if let Some(why) = why {
                        let _ = writeln!(text, "# {why}");
                    }
                    let values = match value {
                        Setting::One(value) => std::slice::from_ref(value),
                        Setting::Many(values) => values,
                    };
                    for value in values {
                        let _ = writeln!(text, "{key}={}", place(value));
                    }
                }
            }
        }
        text.push_str("\n### Capabilities\n");
        for capability in &self.capabilities {
            let _ = writeln!(text, "# {}: {}", capability.name, capability.why);
        }
        let names: Vec<_> = self
            .capabilities
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        let _ = writeln!(text, "CapabilityBoundingSet={}", names.join(" "));
        text.push_str("\n### Credentials\n");
        for credential in &self.credentials {
            let source = layout.credentials.join(&credential.name);
            let _ = writeln!(
                text,
                "LoadCredential={}:{}",
                credential.name,
                source.display()
            );
            let _ = writeln!(
                text,
                "Environment={}=%d/{}",
                credential.variable, credential.name
            );
        }
        text.push_str("\n### Left out of systemd's list, and why\n");
        for one in &self.left_out {
            let _ = writeln!(text, "# {}: {}", one.key, one.why);
        }
        text.push_str("\n[Install]\nWantedBy=multi-user.target\n");
        text
    }

    /// The kernel settings for hosts whose sandboxes have a network.
    #[must_use]
    pub fn render_sysctl(&self) -> String {
        let mut text = String::from("# Written by `hotcell install-unit`.\n");
        for (name, setting) in &self.sysctl {
            let _ = writeln!(text, "# {}\n{name} = {}", setting.why, setting.value);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_and_every_omission_has_its_reason() {
        let unit = Unit::shared();
        assert!(
            unit.capabilities
                .iter()
                .all(|one| one.name.starts_with("CAP_") && one.why.len() > 5)
        );
        assert!(unit.left_out.iter().all(|one| one.why.len() > 5));
        let set: Vec<_> = unit
            .service
            .iter()
            .filter_map(|line| match line {
                Line::Set { key, .. } => Some(key.as_str()),
                Line::Title { .. } => None,
            })
            .collect();
        for one in &unit.left_out {
            assert!(
                !set.contains(&one.key.as_str()),
                "{} is set and left out",
                one.key
            );
        }
        let mut once = set.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), set.len(), "a key is set twice");
    }

    #[test]
    fn the_file_has_no_place_left_open_and_is_the_one_that_is_checked_in() {
        let text = Unit::shared().render(&Layout::usual());
        assert!(
            !text.contains('@')
                || text.matches('@').count()
                    == text.matches("modprobe@").count()
                        + text.matches(" @").count()
                        + text.matches("~@").count(),
            "{text}"
        );
        let checked_in = include_str!("../../../../nixos/hotcell.service");
        assert_eq!(
            text, checked_in,
            "run `hotcell install-unit --print > nixos/hotcell.service`"
        );
    }

    #[test]
    fn sandboxes_outlive_the_service() {
        let text = Unit::shared().render(&Layout::usual());
        for line in [
            "KillMode=mixed",
            "RuntimeDirectoryPreserve=yes",
            "ExecStartPre=+/usr/local/bin/hotcell pin-namespace --config /etc/hotcell/hotcell.toml",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is missing");
        }
    }
}
