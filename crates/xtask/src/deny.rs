//! Licences, banned crates and advisories of everything that `Cargo.lock` names.
//!
//! `.deny.toml` keeps the form of cargo-deny, so that tool can read it too. Advisories need a
//! checkout of the RustSec database; without one the check says that it did not look.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context, Result, bail};
use semver::{Version, VersionReq};
use serde::Deserialize;

use crate::{
    graph,
    shell::{self, step},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    advisories: Advisories,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisories {
    ignore: BTreeSet<String>,
}

#[derive(Deserialize)]
struct AdvisoryFile {
    advisory: Advisory,
    #[serde(default)]
    versions: AdvisoryVersions,
}

#[derive(Deserialize)]
struct Advisory {
    id: String,
    package: String,
    #[serde(default)]
    withdrawn: Option<String>,
}

#[derive(Deserialize, Default)]
struct AdvisoryVersions {
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

/// Checks; fails with every finding.
pub(crate) fn run(advisory_db: Option<&Path>) -> Result<()> {
    step("checking licences, bans and advisories of dependencies");
    let text = std::fs::read_to_string(shell::root().join(".deny.toml")).context(".deny.toml")?;
    let rules: Rules = toml::from_str(&text).context(".deny.toml")?;
    let metadata = graph::metadata(true)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let mut findings = Vec::new();
    let mut versions: BTreeMap<&str, Vec<Version>> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let version = package["version"].as_str().unwrap_or_default();
        if package["source"].is_null() {
            continue;
        }
        versions.entry(name).or_default().push(version.parse()?);
        let license = package["license"].as_str().unwrap_or_default();
        if !license_is_allowed(license, &rules.licenses.allow) {
            findings.push(format!(
                "{name} {version}: licence {license:?} is not allowed"
            ));
        }
        for ban in rules.bans.deny.iter().filter(|ban| ban.name == name) {
            findings.push(format!("{name} {version} is banned: {}", ban.reason));
        }
    }
    match advisory_db {
        Some(database) => {
            findings.extend(advisories(database, &versions, &rules.advisories.ignore)?)
        }
        None => println!("advisories: not checked, no database was given (--advisory-db DIR)"),
    }
    if findings.is_empty() {
        println!(
            "{} dependencies are in order",
            versions.values().map(Vec::len).sum::<usize>()
        );
        return Ok(());
    }
    bail!("{}", findings.join("\n"))
}

/// An SPDX expression is allowed when, of every `AND` part, one `OR` choice is.
fn license_is_allowed(expression: &str, allow: &BTreeSet<String>) -> bool {
    let expression = expression.replace('/', " OR ");
    !expression.trim().is_empty()
        && expression.split(" AND ").all(|part| {
            part.split(" OR ").any(|choice| {
                allow.contains(choice.trim().trim_matches(|c| c == '(' || c == ')').trim())
            })
        })
}

fn advisories(
    database: &Path,
    versions: &BTreeMap<&str, Vec<Version>>,
    ignore: &BTreeSet<String>,
) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let mut read = 0usize;
    for (name, used) in versions {
        let Ok(entries) = std::fs::read_dir(database.join("crates").join(name)) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            let front = text
                .split("```toml")
                .nth(1)
                .and_then(|rest| rest.split("```").next())
                .with_context(|| format!("{} has no front matter", path.display()))?;
            let file: AdvisoryFile =
                toml::from_str(front).with_context(|| path.display().to_string())?;
            read += 1;
            if file.advisory.withdrawn.is_some() || ignore.contains(&file.advisory.id) {
                continue;
            }
            for version in used {
                if !is_safe(version, &file.versions)? {
                    findings.push(format!(
                        "{} {version}: {}",
                        file.advisory.package, file.advisory.id
                    ));
                }
            }
        }
    }
    println!("advisories: {read} about crates that are used");
    Ok(findings)
}

fn is_safe(version: &Version, versions: &AdvisoryVersions) -> Result<bool> {
    for requirement in versions.patched.iter().chain(&versions.unaffected) {
        if VersionReq::parse(requirement)?.matches(version) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_need_one_choice_of_every_part() {
        let allow = ["MIT", "Apache-2.0", "Unicode-3.0"]
            .map(String::from)
            .into();
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(license_is_allowed(good, &allow), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0"] {
            assert!(!license_is_allowed(bad, &allow), "{bad}");
        }
    }

    #[test]
    fn a_version_is_safe_when_patched_or_unaffected() {
        let versions = AdvisoryVersions {
            patched: vec![">= 1.2.3".into()],
            unaffected: vec!["< 1.0.0".into()],
        };
        let safe = |text: &str| is_safe(&text.parse().unwrap(), &versions).unwrap();
        assert!(safe("1.2.3") && safe("0.9.0"));
        assert!(!safe("1.2.2"));
    }
}
