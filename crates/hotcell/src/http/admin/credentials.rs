//! Credentials of chat backends. A secret is in exactly one answer: the one that made it.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use hotcell_api::{
    ErrorCode, Problem,
    admin::{Credential, CredentialList, IssuedCredential},
};
use hotcell_core::model;
use hotcell_store::Tx;
use hotcell_types::{
    CredentialId, IdSource, OrganizationId, UnixMillis, limits::MAX_SECRETS_PER_CREDENTIAL,
};
use http::StatusCode;

use super::AsOperator;
use crate::http::{
    App,
    error::{ApiError, unknown_organization},
    json::{json, ok},
    view,
};

/// 256 random bits as text. The prefix lets secret scanners find one that leaked.
fn new_secret(ids: &dyn IdSource, at: UnixMillis) -> model::CredentialSecret {
    model::CredentialSecret {
        text: format!("hotcell_sk_{:032x}{:032x}", ids.bits(), ids.bits()),
        issued_at: at,
    }
}

fn issued(credential: &model::Credential, secret: String) -> IssuedCredential {
    IssuedCredential {
        credential: view::credential(credential),
        secret,
    }
}

fn find(
    tx: &Tx<'_>,
    organization: &OrganizationId,
    key: &CredentialId,
) -> Result<model::Credential, ApiError> {
    tx.credential(key)?
        .filter(|credential| credential.organization == *organization)
        .ok_or_else(|| {
            ApiError::new(
                ErrorCode::UnknownCredential,
                "There is no such credential in this organization.",
            )
        })
}

fn ids(operator: &AsOperator) -> Result<(OrganizationId, CredentialId), ApiError> {
    Ok((operator.params.get("id")?, operator.params.get("key")?))
}

/// List the credentials of an organization
#[utoipa::path(
    get,
    path = "/v1/admin/organizations/{id}/credentials",
    operation_id = "list_credentials",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    responses(
        (status = 200, description = "Without their secrets.", body = CredentialList),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_credentials(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let id: OrganizationId = operator.params.get("id")?;
    let found = app.store.read_now(|snapshot| {
        let known = snapshot.organization(&id)?.is_some();
        Ok(known.then_some(snapshot.credentials(&id)?))
    })?;
    let credentials = found.ok_or_else(unknown_organization)?;
    Ok(ok(&CredentialList {
        credentials: credentials.iter().map(view::credential).collect(),
    }))
}

/// Issue a credential
///
/// The answer is the only one that ever shows the secret.
#[utoipa::path(
    post,
    path = "/v1/admin/organizations/{id}/credentials",
    operation_id = "issue_credential",
    tag = "admin",
    security(("operator_token" = [])),
    params(("id" = String, Path, description = "The organization.")),
    responses(
        (status = 201, description = "The key and its secret.", body = IssuedCredential),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn issue_credential(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let organization: OrganizationId = operator.params.get("id")?;
    let at = app.clock.now();
    let secret = new_secret(&*app.ids, at);
    let text = secret.text.clone();
    let credential = model::Credential {
        id: CredentialId::from_bits(app.ids.bits()),
        organization,
        secrets: vec![secret],
        created_at: at,
    };
    let stored = credential.clone();
    app.store
        .write::<_, ApiError, _>(move |tx| {
            tx.put_credential(&stored)?;
            let subject = format!(
                "organization/{}/credential/{}",
                stored.organization, stored.id
            );
            tx.audit(operator.audit(at, "credential.issued", subject, &["secrets"]))?;
            Ok(())
        })
        .await?;
    Ok(json(StatusCode::CREATED, &issued(&credential, text)))
}

/// Delete a credential
///
/// What is signed with it is refused from now on.
#[utoipa::path(
    delete,
    path = "/v1/admin/organizations/{id}/credentials/{key}",
    operation_id = "delete_credential",
    tag = "admin",
    security(("operator_token" = [])),
    params(
        ("id" = String, Path, description = "The organization."),
        ("key" = String, Path, description = "The credential's key."),
    ),
    responses(
        (status = 204, description = "Deleted."),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_credential(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let (organization, key) = ids(&operator)?;
    let at = app.clock.now();
    app.store
        .write::<_, ApiError, _>(move |tx| {
            find(tx, &organization, &key)?;
            tx.delete_credential(&key)?;
            let subject = format!("organization/{organization}/credential/{key}");
            tx.audit(operator.audit(at, "credential.deleted", subject, &[]))?;
            Ok(())
        })
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Begin a rotation
///
/// Issues a second secret; both are good until the rotation is finished. The answer is the only one that ever shows it.
#[utoipa::path(
    post,
    path = "/v1/admin/organizations/{id}/credentials/{key}/rotate",
    operation_id = "rotate_credential",
    tag = "admin",
    security(("operator_token" = [])),
    params(
        ("id" = String, Path, description = "The organization."),
        ("key" = String, Path, description = "The credential's key."),
    ),
    responses(
        (status = 200, description = "The key and its new secret.", body = IssuedCredential),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn rotate_credential(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let (organization, key) = ids(&operator)?;
    let at = app.clock.now();
    let secret = new_secret(&*app.ids, at);
    let text = secret.text.clone();
    let credential = app
        .store
        .write::<_, ApiError, _>(move |tx| {
            let mut credential = find(tx, &organization, &key)?;
            if credential.secrets.len() >= MAX_SECRETS_PER_CREDENTIAL {
                return Err(ApiError::new(
                    ErrorCode::RotationInProgress,
                    "This credential has two secrets already. Finish the rotation first.",
                ));
            }
            credential.secrets.insert(0, secret);
            tx.put_credential(&credential)?;
            let subject = format!("organization/{organization}/credential/{key}");
            tx.audit(operator.audit(at, "credential.rotated", subject, &["secrets"]))?;
            Ok(credential)
        })
        .await?;
    Ok(ok(&issued(&credential, text)))
}

/// Finish a rotation
///
/// Only the newest secret is good from now on. Finishing what is finished succeeds.
#[utoipa::path(
    post,
    path = "/v1/admin/organizations/{id}/credentials/{key}/finish-rotation",
    operation_id = "finish_rotation",
    tag = "admin",
    security(("operator_token" = [])),
    params(
        ("id" = String, Path, description = "The organization."),
        ("key" = String, Path, description = "The credential's key."),
    ),
    responses(
        (status = 200, description = "As it is now.", body = Credential),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn finish_rotation(
    State(app): State<Arc<App>>,
    operator: AsOperator,
) -> Result<Response, ApiError> {
    let (organization, key) = ids(&operator)?;
    let at = app.clock.now();
    let credential = app
        .store
        .write::<_, ApiError, _>(move |tx| {
            let mut credential = find(tx, &organization, &key)?;
            if credential.secrets.len() > 1 {
                credential.secrets.truncate(1);
                tx.put_credential(&credential)?;
                let subject = format!("organization/{organization}/credential/{key}");
                let row = operator.audit(at, "credential.rotation_finished", subject, &["secrets"]);
                tx.audit(row)?;
            }
            Ok(credential)
        })
        .await?;
    Ok(ok(&view::credential(&credential)))
}
