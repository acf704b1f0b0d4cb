//! The network policy of an organization, and what filters did.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use hotcell_api::{
    ErrorCode, Problem,
    network::{EgressEvent, EgressEventPage, EgressEventQuery, NetworkPolicy},
    problem::FieldProblem,
};
use hotcell_core::network::NetworkPolicyRecord;
use hotcell_policy::{Policy, PolicyError, Surroundings};
use hotcell_types::{OrganizationId, limits::MAX_POLICY_BYTES};
use http::StatusCode;

use super::{AsOperator, declared, page_rows};
use crate::{
    config::NetworkConfig,
    egress::{self, EventQuery, Happened},
    http::{
        App, body,
        error::{ApiError, unknown_organization},
        json::{Query, is_json, ok},
    },
};

/// Said in every mode: no filter by address can tell hosts behind one address apart.
const SHARED_ADDRESSES: &str = "names that share an address cannot be told apart: whoever may reach one name of a CDN may reach every other name behind the same address";

/// Show the network policy of an organization
#[utoipa::path(
    get,
    path = "/v1/admin/organizations/{id}/network-policy",
    operation_id = "get_network_policy",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    responses(
        (status = 200, description = "The policy, or that there is none.", body = NetworkPolicy),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_network_policy(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id: OrganizationId = operator.params.get("id")?;
    let found = app.store.read_now(|snapshot| {
        let known = snapshot.organization(&id)?.is_some();
        let declared = snapshot.is_declared(&declared::network_policy(&id))?;
        Ok((known, snapshot.network_policy(&id)?, declared))
    })?;
    let (true, record, declared) = found else {
        return Err(unknown_organization());
    };
    let policy = match &record {
        Some(record) => Some(Policy::parse(&record.text).map_err(|error| {
            ApiError::internal("a stored network policy cannot be read", &Unreadable(error))
        })?),
        None => None,
    };
    Ok(ok(&NetworkPolicy {
        declared,
        ..shown(id, record, policy.as_ref(), app.sandboxes.network())
    }))
}

/// Give an organization a network policy
///
/// The body is the policy document itself; an empty one takes the policy away. It holds for sandboxes
/// that are made from now on: those that run keep the policy that they were made with.
#[utoipa::path(
    put,
    path = "/v1/admin/organizations/{id}/network-policy",
    operation_id = "put_network_policy",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    request_body(content = String, description = "The policy document.", content_type = "application/json"),
    responses(
        (status = 200, description = "Saved.", body = NetworkPolicy),
        (status = "4XX", description = "Refused; nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn put_network_policy(
    State(app): State<Arc<App>>,
    operator: AsOperator,
    request: Request,
) -> Result<Response, ApiError> {
    let id: OrganizationId = operator.params.get("id")?;
    declared::refuse(&app, &declared::network_policy(&id))?;
    let (parts, body) = request.into_parts();
    let bytes = body::read_all(&parts.headers, body, MAX_POLICY_BYTES, || {
        ApiError::new(
            ErrorCode::BodyTooLarge,
            format!("A policy has at most {MAX_POLICY_BYTES} bytes."),
        )
        .with_limit_bytes(MAX_POLICY_BYTES as u64)
    })
    .await?;
    if !bytes.is_empty() && !is_json(&parts.headers) {
        return Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "A policy must be JSON: send Content-Type: application/json.",
        ));
    }
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| {
        let problem = FieldProblem {
            path: "$".to_owned(),
            reason: "not UTF-8".to_owned(),
        };
        refused(vec![problem], 0)
    })?;
    let parse = move || Policy::parse_field(&text).map(|policy| (policy, text));
    let parsed = tokio::task::spawn_blocking(parse).await;
    let parsed =
        parsed.map_err(|error| ApiError::internal("a network policy was not parsed", &error))?;
    let (policy, text) = parsed.map_err(|error| refused(problems(&error), error.left_out()))?;
    let at = app.clock.now();
    let record = policy.is_some().then(|| NetworkPolicyRecord {
        organization: id.clone(),
        text,
        changed_at: at,
    });
    let (organization, stored) = (id.clone(), record.clone());
    app.store
        .write::<_, ApiError, _>(move |tx| {
            if tx.organization(&organization)?.is_none() {
                return Err(unknown_organization());
            }
            let action = match &stored {
                Some(record) => {
                    tx.put_network_policy(record)?;
                    "network_policy.saved"
                }
                None => {
                    tx.delete_network_policy(&organization)?;
                    "network_policy.deleted"
                }
            };
            let subject = format!("organization/{organization}");
            tx.audit(operator.audit(at, action, subject, &["network_policy"]))?;
            Ok(())
        })
        .await?;
    Ok(ok(&shown(
        id,
        record,
        policy.as_ref(),
        app.sandboxes.network(),
    )))
}

/// Take the network policy of an organization away
///
/// Sandboxes that are made from now on reach everything but what no sandbox ever reaches. To let
/// them reach nothing, save a policy without rules.
#[utoipa::path(
    delete,
    path = "/v1/admin/organizations/{id}/network-policy",
    operation_id = "delete_network_policy",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    responses(
        (status = 204, description = "There is none any more."),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_network_policy(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id: OrganizationId = operator.params.get("id")?;
    declared::refuse(&app, &declared::network_policy(&id))?;
    let at = app.clock.now();
    app.store
        .write::<_, ApiError, _>(move |tx| {
            if tx.organization(&id)?.is_none() {
                return Err(unknown_organization());
            }
            if tx.delete_network_policy(&id)? {
                let subject = format!("organization/{id}");
                let fields = &["network_policy"];
                tx.audit(operator.audit(at, "network_policy.deleted", subject, fields))?;
            }
            Ok(())
        })
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Read what filters did
///
/// What was decided about names and packets, and what happened to the filters themselves; kept in
/// memory, a bounded number for each sandbox.
#[utoipa::path(
    get,
    path = "/v1/admin/egress-events",
    operation_id = "list_egress_events",
    tag = "admin",
    security(("operator_token" = [])),
    params(EgressEventQuery),
    responses(
        (status = 200, description = "One page, oldest first.", body = EgressEventPage),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_egress_events(
    State(app): State<Arc<App>>,
    _operator: AsOperator,
    Query(query): Query<EgressEventQuery>,
) -> Result<Response, ApiError> {
    let after = query.after.as_deref().map(str::parse::<u64>).transpose();
    let after = after.map_err(|_| {
        ApiError::bad_request("In the query, after: it must be next of the page before.")
    })?;
    let page = app.sandboxes.egress_events(&EventQuery {
        lease: query.lease,
        workspace: query.workspace,
        after,
        limit: page_rows(query.limit)?,
    });
    let last = page.events.last().map(|event| event.number).or(after);
    Ok(ok(&EgressEventPage {
        next: last.map(|number| number.to_string()),
        more: page.more,
        forgotten: page.forgotten,
        events: page.events.into_iter().map(event).collect(),
    }))
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unreadable(PolicyError);

fn problems(error: &PolicyError) -> Vec<FieldProblem> {
    let problems = error.problems().iter();
    problems
        .map(|problem| FieldProblem {
            path: problem.path.clone(),
            reason: problem.reason.to_string(),
        })
        .collect()
}

fn refused(problems: Vec<FieldProblem>, left_out: usize) -> ApiError {
    let named: Vec<String> = problems
        .iter()
        .map(|problem| format!("{}: {}", problem.path, problem.reason))
        .collect();
    let more = match left_out {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let detail = format!(
        "The policy was not saved, since it has mistakes: {}{more}.",
        named.join("; ")
    );
    ApiError::new(ErrorCode::PolicyRefused, detail).with_problems(problems)
}

fn shown(
    organization: OrganizationId,
    record: Option<NetworkPolicyRecord>,
    policy: Option<&Policy>,
    network: &NetworkConfig,
) -> NetworkPolicy {
    let mut warnings = Vec::new();
    if !network.filtered {
        warnings.push(
            "the profile's sandboxes have no network (network = \"none\"): they reach nothing, whatever the policy says".to_owned(),
        );
    }
    match policy {
        Some(policy) => {
            let found = policy.warnings(network.mode, &Surroundings::default());
            warnings.extend(found.iter().map(ToString::to_string));
            if policy.rules().iter().any(|rule| !rule.target.is_range()) {
                warnings.push(SHARED_ADDRESSES.to_owned());
            }
        }
        None => warnings.push(
            "there is no policy: sandboxes reach everything but the host, the appliance, other sandboxes, metadata services and private ranges".to_owned(),
        ),
    }
    let (text, changed_at_ms) = match record {
        Some(record) => (Some(record.text), Some(record.changed_at)),
        None => (None, None),
    };
    NetworkPolicy {
        organization,
        text,
        canonical: policy.map(Policy::to_canonical_json),
        rules: policy.map_or(0, |policy| policy.rules().len()),
        default_action: policy
            .map_or(hotcell_policy::Action::Allow, Policy::default_action)
            .to_string(),
        enforced: if network.filtered {
            network.mode.to_string()
        } else {
            "none".to_owned()
        },
        warnings,
        changed_at_ms,
        declared: false,
    }
}

fn event(event: egress::EgressEvent) -> EgressEvent {
    let happened = &event.happened;
    let (name, address, port) = match happened {
        Happened::NameDenied { name, .. } | Happened::PacketFilterFailed { name, .. } => {
            (name.clone(), None, None)
        }
        Happened::NameAllowed { name, .. }
        | Happened::NameAllowedAgain { name, .. }
        | Happened::MoreAddressesHidden { name, .. }
        | Happened::CeilingReached { name, .. }
        | Happened::UpstreamFailed { name, .. } => (Some(name.clone()), None, None),
        Happened::AddressHidden { name, address, .. } => (Some(name.clone()), Some(*address), None),
        Happened::PacketDenied {
            destination, port, ..
        } => (None, Some(*destination), *port),
        Happened::RateExceeded
        | Happened::ForeignChange { .. }
        | Happened::Installed { .. }
        | Happened::NotInstalled { .. } => (None, None, None),
    };
    EgressEvent {
        number: event.number.to_string(),
        at_ms: event.at,
        kind: happened.kind().to_owned(),
        layer: happened.layer().as_str().to_owned(),
        rule: happened.rule().map(|rule| rule.0),
        name,
        address,
        port,
        detail: happened.to_string(),
        organization: event.whose.organization,
        workspace: event.whose.workspace,
        lease: event.whose.lease,
    }
}
