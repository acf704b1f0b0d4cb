//! What the configuration declares is read here and changed there.

use hotcell_api::ErrorCode;
use hotcell_core::declared::DeclaredObject;
use hotcell_types::{OrganizationId, WorkspaceId};

use crate::http::{App, error::ApiError};

pub(super) fn organization(id: &OrganizationId) -> DeclaredObject {
    DeclaredObject::Organization(id.clone())
}

pub(super) fn network_policy(id: &OrganizationId) -> DeclaredObject {
    DeclaredObject::NetworkPolicy(id.clone())
}

pub(super) fn workspace(id: &WorkspaceId) -> DeclaredObject {
    DeclaredObject::Workspace(id.clone())
}

/// Refuses a change of what is declared. Marks change only before the server serves, so this holds for
/// the whole request.
pub(super) fn refuse(app: &App, object: &DeclaredObject) -> Result<(), ApiError> {
    if !app
        .store
        .read_now(|snapshot| snapshot.is_declared(object))?
    {
        return Ok(());
    }
    let mut sentence = object.to_string();
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let key = object.key();
    let file = match &app.config_file {
        Some(file) => format!("the configuration {}", file.display()),
        None => "the server's configuration".to_owned(),
    };
    Err(ApiError::new(
        ErrorCode::Declared,
        format!(
            "{sentence} is declared in {file} as {key}. Change it there and restart the server; or take it out there, and it can be changed here."
        ),
    )
    .with_declared_in(key))
}
