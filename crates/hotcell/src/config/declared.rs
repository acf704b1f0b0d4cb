//! The tables `[organizations.ID]` and `[workspaces.ID]`: what is declared.
//!
//! An id is there once, since a table is; a workspace names an organization that is declared beside
//! it, so that the file stands on its own.

use std::{collections::BTreeMap, fmt, str::FromStr};

use hotcell_core::{
    declared::{Declarations, DeclaredOrganization, DeclaredWorkspace},
    gate::QuotaSettings,
};
use hotcell_policy::Policy;
use hotcell_types::{
    OrganizationId, ProfileId, ResourceClass, WorkspaceId,
    limits::{self, MAX_DECLARED_OBJECTS, MAX_DISPLAY_NAME_CHARACTERS},
};
use serde::Deserialize;
use toml::Value;

use super::{ConfigError, findings::quoted, value};
use crate::actors::default_profile;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OrganizationTable {
    name: Option<String>,
    enabled: bool,
    profile: Option<String>,
    network_policy: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WorkspaceTable {
    organization: Option<String>,
    name: Option<String>,
    enabled: bool,
    quotas: QuotasTable,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct QuotasTable {
    max_concurrent: Option<u64>,
    max_resource_class: Option<ResourceClass>,
    max_job_seconds: Option<u64>,
    max_artifact_bytes_per_day: Option<u64>,
    max_jobs_per_hour: Option<u64>,
}

/// What the two tables declare together.
pub(super) fn check(
    organizations: BTreeMap<String, OrganizationTable>,
    workspaces: BTreeMap<String, WorkspaceTable>,
) -> Result<Declarations, ConfigError> {
    let organizations: Vec<_> = organizations
        .into_iter()
        .map(|(id, table)| organization(&id, table))
        .collect::<Result<_, _>>()?;
    let workspaces = workspaces
        .into_iter()
        .map(|(id, table)| workspace(&id, table, &organizations))
        .collect::<Result<_, _>>()?;
    let declarations = Declarations {
        organizations,
        workspaces,
    };
    if declarations.count() > MAX_DECLARED_OBJECTS {
        let problem = format!(
            "and workspaces declare {} objects; {MAX_DECLARED_OBJECTS} may be declared, make the others by the API",
            declarations.count()
        );
        return Err(value("organizations", problem));
    }
    Ok(declarations)
}

fn organization(id: &str, table: OrganizationTable) -> Result<DeclaredOrganization, ConfigError> {
    let key = format!("organizations.{}", quoted(id));
    let id: OrganizationId = parsed(&key, id)?;
    let profile: Option<ProfileId> = table
        .profile
        .map(|profile| parsed(&format!("{key}.profile"), &profile))
        .transpose()?;
    if let Some(profile) = &profile
        && *profile != default_profile()
    {
        let problem = format!(
            "is {profile}, and there is no such profile: the configuration makes the profile {}",
            default_profile()
        );
        return Err(value(format!("{key}.profile"), problem));
    }
    Ok(DeclaredOrganization {
        name: name(&key, table.name, id.as_str())?,
        enabled: table.enabled,
        profile,
        network_policy: table
            .network_policy
            .map(|policy| network_policy(&format!("{key}.network_policy"), policy))
            .transpose()?,
        id,
    })
}

fn workspace(
    id: &str,
    table: WorkspaceTable,
    organizations: &[DeclaredOrganization],
) -> Result<DeclaredWorkspace, ConfigError> {
    let key = format!("workspaces.{}", quoted(id));
    let id: WorkspaceId = parsed(&key, id)?;
    let of = format!("{key}.organization");
    let Some(organization) = table.organization else {
        return Err(value(
            of,
            "is missing: a workspace belongs to an organization",
        ));
    };
    let organization: OrganizationId = parsed(&of, &organization)?;
    if !organizations.iter().any(|one| one.id == organization) {
        let problem = format!(
            "is {organization}, which is not declared: write [organizations.{}] too",
            quoted(organization.as_str())
        );
        return Err(value(of, problem));
    }
    Ok(DeclaredWorkspace {
        name: name(&key, table.name, id.as_str())?,
        enabled: table.enabled,
        quotas: quotas(&format!("{key}.quotas"), &table.quotas)?,
        organization,
        id,
    })
}

fn parsed<T: FromStr<Err: fmt::Display>>(key: &str, text: &str) -> Result<T, ConfigError> {
    text.parse()
        .map_err(|error: T::Err| value(key.to_owned(), format!("is {error}")))
}

fn name(key: &str, set: Option<String>, id: &str) -> Result<String, ConfigError> {
    let Some(name) = set else {
        return Ok(id.to_owned());
    };
    let is_good = (1..=MAX_DISPLAY_NAME_CHARACTERS).contains(&name.chars().count())
        && name.trim() == name
        && !name.chars().any(char::is_control);
    if is_good {
        Ok(name)
    } else {
        let problem = format!(
            "must have 1 to {MAX_DISPLAY_NAME_CHARACTERS} characters, no control characters, no spaces at the ends"
        );
        Err(value(format!("{key}.name"), problem))
    }
}

/// The document: as a text it stays as it is, as a table it is written as JSON, keys in their order.
fn network_policy(key: &str, policy: Value) -> Result<String, ConfigError> {
    let bad = |problem: String| value(key.to_owned(), problem);
    let text = match policy {
        Value::String(text) => text,
        Value::Table(table) => serde_json::to_string_pretty(&table)
            .map_err(|error| bad(format!("cannot be written as JSON: {error}")))?,
        _ => {
            let problem = "must be the policy document: a table, or a text that holds its JSON";
            return Err(bad(problem.to_owned()));
        }
    };
    match Policy::parse_field(&text) {
        Ok(Some(_)) => Ok(text),
        Ok(None) => Err(bad(
            "is empty: leave it out, or write {} to let sandboxes reach nothing".to_owned(),
        )),
        Err(error) => Err(bad(format!("has mistakes: {error}"))),
    }
}

fn quotas(key: &str, table: &QuotasTable) -> Result<QuotaSettings, ConfigError> {
    let within = |name: &str, number: Option<u64>, most: u64| match number {
        Some(number) if number > most => {
            let problem = format!("must be between 0 and {most}");
            Err(value(format!("{key}.{name}"), problem))
        }
        number => Ok(number),
    };
    Ok(QuotaSettings {
        max_concurrent: within(
            "max_concurrent",
            table.max_concurrent,
            limits::MAX_QUOTA_SANDBOXES,
        )?,
        max_resource_class: table.max_resource_class,
        max_job_seconds: within(
            "max_job_seconds",
            table.max_job_seconds,
            limits::MAX_QUOTA_JOB_SECONDS,
        )?,
        max_artifact_bytes_per_day: within(
            "max_artifact_bytes_per_day",
            table.max_artifact_bytes_per_day,
            limits::MAX_QUOTA_BYTES,
        )?,
        max_jobs_per_hour: within(
            "max_jobs_per_hour",
            table.max_jobs_per_hour,
            limits::MAX_QUOTA_SANDBOXES,
        )?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Finding, Overrides, findings::of_text};

    fn findings(text: &str) -> Vec<Finding> {
        of_text(text, &Overrides::default()).0
    }

    const WHOLE: &str = r#"
        [organizations.acme]
        name = "Acme & Co."
        enabled = true
        profile = "default"
        network_policy = { egress = [{ action = "allow", target = "*.example.com" }] }
        [organizations."b.eu"]
        network_policy = '{"defaultAction": "allow"}'
        [workspaces.w1]
        organization = "acme"
        enabled = true
        quotas = { max_concurrent = 5, max_resource_class = "LARGE" }
        [workspaces.w2]
        organization = "b.eu"
    "#;

    #[test]
    fn what_is_declared_is_whole_and_what_is_left_out_is_the_default() {
        let declared = Config::parse(WHOLE, &Overrides::default())
            .unwrap()
            .declared;
        assert_eq!(declared.count(), 6);
        let [acme, other] = &declared.organizations[..] else {
            panic!("{declared:?}")
        };
        assert_eq!((acme.name.as_str(), acme.enabled), ("Acme & Co.", true));
        let policy: serde_json::Value =
            serde_json::from_str(acme.network_policy.as_deref().unwrap()).unwrap();
        let rule = serde_json::json!({"action": "allow", "target": "*.example.com"});
        assert_eq!(policy, serde_json::json!({"egress": [rule]}));
        assert_eq!((other.name.as_str(), other.enabled), ("b.eu", false));
        assert_eq!(
            other.network_policy.as_deref(),
            Some(r#"{"defaultAction": "allow"}"#)
        );
        let [first, second] = &declared.workspaces[..] else {
            panic!("{declared:?}")
        };
        assert_eq!(first.quotas.max_concurrent, Some(5));
        assert_eq!(first.quotas.max_resource_class, Some(ResourceClass::Large));
        assert_eq!(second.quotas, QuotaSettings::default());
        assert_eq!(second.organization.as_str(), "b.eu");
        assert_eq!(
            Config::parse("", &Overrides::default()).unwrap().declared,
            Declarations::default()
        );
    }

    #[test]
    fn every_fault_has_its_key_and_a_fix() {
        for (text, key, word) in [
            ("[organizations.'a b']", "organizations.\"a b\"", "letters"),
            (
                "[organizations.a]\nnam = 'x'",
                "organizations.a.nam",
                "`organizations.ID.name`",
            ),
            (
                "[organizations.a]\nname = ' x'",
                "organizations.a.name",
                "spaces",
            ),
            (
                "[organizations.a]\nprofile = 'gpu'",
                "organizations.a.profile",
                "default",
            ),
            (
                "[organizations.a]\nenabled = 'yes'",
                "organizations.a.enabled",
                "boolean",
            ),
            (
                "[organizations.a]\nnetwork_policy = '{\"egress\": [{\"action\": \"allow\", \"target\": \"*\"}], \"x\": 1}'",
                "organizations.a.network_policy",
                "$.",
            ),
            (
                "[organizations.\"a.b\".network_policy]\negres = []",
                "organizations.\"a.b\".network_policy",
                "egres",
            ),
            (
                "[organizations.a]\nnetwork_policy = ''",
                "organizations.a.network_policy",
                "empty",
            ),
            (
                "[organizations.a]\nnetwork_policy = []",
                "organizations.a.network_policy",
                "JSON",
            ),
            ("[workspaces.w]", "workspaces.w.organization", "missing"),
            (
                "[workspaces.w]\norganization = 'o'",
                "workspaces.w.organization",
                "[organizations.o]",
            ),
            (
                "[organizations.o]\n[workspaces.w]\norganization = 'o'\n[workspaces.w.quotas]\nmax_concurrent = 100001",
                "workspaces.w.quotas.max_concurrent",
                "100000",
            ),
            (
                "[organizations.o]\n[workspaces.w]\norganization = 'o'\n[workspaces.w.quotas]\nmax_concurent = 1",
                "workspaces.w.quotas.max_concurent",
                "`workspaces.ID.quotas.max_concurrent`",
            ),
        ] {
            let found = findings(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            let words = found[0].to_string();
            assert_eq!(found[0].key, key, "{text}");
            assert!(words.contains(word) && !found[0].fix.is_empty(), "{words}");
        }
        // An id that is declared twice is no TOML.
        let twice =
            findings("[workspaces.w]\norganization = 'a'\n[workspaces.w]\norganization = 'b'");
        assert!(twice[0].problem.contains("line 3"), "{twice:?}");
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let found = findings(
            "[organizations.a]\nprofile = 'gpu'\nname = ''\n[organizations.\"b.c\"]\nnetwork_policy = 1\n\
             [workspaces.v]\n[workspaces.w]\norganization = 'none'\n[workspaces.w.quotas]\nmax_concurent = 1",
        );
        let keys: Vec<_> = found.iter().map(|one| one.key.as_str()).collect();
        for key in [
            "organizations.a.profile",
            "organizations.a.name",
            "organizations.\"b.c\".network_policy",
            "workspaces.v.organization",
            "workspaces.w.organization",
            "workspaces.w.quotas.max_concurent",
        ] {
            assert!(keys.contains(&key), "{key} is not in {keys:?}");
        }
    }

    #[test]
    fn there_is_a_most() {
        let mut text = String::new();
        for number in 0..=MAX_DECLARED_OBJECTS {
            text.push_str(&format!("[organizations.o{number}]\n"));
        }
        let found = findings(&text);
        assert_eq!(found[0].key, "organizations", "{found:?}");
    }
}
