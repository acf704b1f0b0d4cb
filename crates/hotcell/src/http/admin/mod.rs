//! `/v1/admin`: what operators read and change. The same routes behind the token and on the
//! local socket.

mod credentials;
mod declared;
mod deletions;
mod denials;
mod deployment;
mod lists;
mod lock;
mod network;
mod organizations;
mod unknown;
mod usage;
mod workspaces;

use std::sync::Arc;

use axum::extract::FromRequestParts;
use hotcell_api::ErrorCode;
use hotcell_core::model::{Actor, AuditRow};
use hotcell_types::{
    ProfileId, RequestId, UnixMillis,
    limits::{DEFAULT_PAGE_ROWS, MAX_DISPLAY_NAME_CHARACTERS, MAX_PAGE_ROWS},
};
use http::request::Parts;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use lock::refuse_when_locked;

use super::{App, error::ApiError, json::Params};

/// The routes with their documentation.
pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(
            deployment::get_deployment,
            deployment::put_deployment
        ))
        .routes(routes!(organizations::list_organizations))
        .routes(routes!(
            organizations::get_organization,
            organizations::put_organization,
            organizations::delete_organization
        ))
        .routes(routes!(workspaces::list_workspaces))
        .routes(routes!(
            workspaces::get_workspace,
            workspaces::put_workspace,
            deletions::delete_workspace
        ))
        .routes(routes!(deletions::delete_member))
        .routes(routes!(deletions::list_deletions))
        .routes(routes!(
            credentials::list_credentials,
            credentials::issue_credential
        ))
        .routes(routes!(credentials::delete_credential))
        .routes(routes!(credentials::rotate_credential))
        .routes(routes!(credentials::finish_rotation))
        .routes(routes!(usage::get_workspace_usage))
        .routes(routes!(denials::list_denials))
        .routes(routes!(
            network::get_network_policy,
            network::put_network_policy,
            network::delete_network_policy
        ))
        .routes(routes!(network::list_egress_events))
        .routes(routes!(lists::list_audit))
        .routes(routes!(lists::list_leases))
        .routes(routes!(lists::list_profiles))
        .routes(routes!(unknown::remove_unknown_sandboxes))
}

/// The operator who asks, and the path's parameters.
struct AsOperator {
    actor: Actor,
    request: RequestId,
    params: Params,
}

impl FromRequestParts<Arc<App>> for AsOperator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, ApiError> {
        let refused = || {
            // A route without the layer that it needs: refused, never let through.
            ApiError::new(
                ErrorCode::OperatorTokenRequired,
                "This route takes requests of operators only.",
            )
        };
        let actor = parts.extensions.get::<Actor>().cloned();
        let request = parts.extensions.get::<RequestId>().cloned();
        Ok(Self {
            actor: actor.ok_or_else(refused)?,
            request: request.ok_or_else(refused)?,
            params: Params::of(parts).await?,
        })
    }
}

impl AsOperator {
    fn audit(&self, at: UnixMillis, action: &str, subject: String, fields: &[&str]) -> AuditRow {
        AuditRow {
            at,
            actor: self.actor.clone(),
            action: action.to_owned(),
            subject,
            fields: fields.iter().map(|&field| field.to_owned()).collect(),
            request: Some(self.request.to_string()),
        }
    }
}

/// The number that `after` names, of what is numbered.
fn number(after: Option<&str>) -> Result<Option<u64>, ApiError> {
    after
        .map(|text| text.parse::<u64>())
        .transpose()
        .map_err(|_| {
            ApiError::bad_request("In the query, after: it must be next of the page before.")
        })
}

/// Sets a field, and takes note of its name when that changes it.
fn set<T: PartialEq>(
    field: &mut T,
    wanted: Option<T>,
    name: &'static str,
    changed: &mut Vec<&'static str>,
) {
    if let Some(wanted) = wanted
        && *field != wanted
    {
        *field = wanted;
        changed.push(name);
    }
}

/// How many rows a page has.
fn page_rows(asked: Option<usize>) -> Result<usize, ApiError> {
    let rows = asked.unwrap_or(DEFAULT_PAGE_ROWS);
    if (1..=MAX_PAGE_ROWS).contains(&rows) {
        Ok(rows)
    } else {
        Err(ApiError::bad_request(format!(
            "In the query, limit: it must be 1 to {MAX_PAGE_ROWS}."
        )))
    }
}

/// One page of what is sorted by id: the rows after `after`, and what to give as `after` next.
fn page<T>(
    all: Vec<T>,
    id: impl Fn(&T) -> &str,
    after: Option<&str>,
    rows: usize,
) -> (Vec<T>, Option<String>) {
    let mut left: Vec<T> = all
        .into_iter()
        .filter(|row| after.is_none_or(|after| id(row) > after))
        .take(rows + 1)
        .collect();
    let more = left.len() > rows;
    left.truncate(rows);
    let next = left.last().filter(|_| more).map(|row| id(row).to_owned());
    (left, next)
}

/// A name that people see.
fn display_name(name: String) -> Result<String, ApiError> {
    let characters = name.chars().count();
    if (1..=MAX_DISPLAY_NAME_CHARACTERS).contains(&characters)
        && name.trim() == name
        && !name.chars().any(char::is_control)
    {
        Ok(name)
    } else {
        Err(ApiError::bad_request(format!(
            "In the field name: 1 to {MAX_DISPLAY_NAME_CHARACTERS} characters, no control characters, no spaces at the ends."
        )))
    }
}

/// Refuses a profile that this daemon does not have.
async fn known_profile(app: &App, profile: Option<&ProfileId>) -> Result<(), ApiError> {
    let Some(profile) = profile else {
        return Ok(());
    };
    let profiles = app.sandboxes.profiles().await;
    if profiles.iter().any(|known| known.name == *profile) {
        Ok(())
    } else {
        Err(ApiError::new(
            ErrorCode::UnknownProfile,
            "There is no such runtime profile; GET /v1/admin/profiles lists those that are.",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_without_gap_or_overlap() {
        let all: Vec<String> = (0..25).map(|n| format!("id{n:02}")).collect();
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let (rows, next) = page(all.clone(), |row| row, after.as_deref(), 10);
            seen.extend(rows);
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, all);
        assert_eq!(page(all.clone(), |row| row, Some("id14"), 10).1, None);
    }

    #[test]
    fn display_names() {
        assert!(display_name("Ärzte & Co.".into()).is_ok());
        for bad in ["", " x", "x ", "a\nb", &"x".repeat(201)] {
            assert!(display_name(bad.into()).is_err(), "{bad:?}");
        }
    }
}
