//! Which workspace and chat a signed request is about, and for whom it acts.
//!
//! One extractor parses the path and checks that the workspace belongs to the organization of
//! the credential, so no handler can forget to. A workspace of another organization looks
//! exactly like one that does not exist.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use hotcell_api::{ErrorCode, Member};
use hotcell_core::model::{Actor, AuditRow, Workspace};
use hotcell_types::{ChatId, RequestId, UnixMillis, WorkspaceId};
use http::request::Parts;

use super::{
    App, Principal,
    error::{ApiError, unknown_workspace},
    json::Params,
};
use crate::handles::Caller;

/// A chat of a workspace that the backend may act for.
pub(super) struct InChat {
    pub(super) workspace: WorkspaceId,
    pub(super) chat: ChatId,
    pub(super) principal: Principal,
    pub(super) request: RequestId,
    pub(super) params: Params,
}

fn extension<T: Clone + Send + Sync + 'static>(parts: &Parts) -> Result<T, ApiError> {
    parts.extensions.get::<T>().cloned().ok_or_else(|| {
        // A route without the layer that it needs: refused, never let through.
        ApiError::new(
            ErrorCode::Unauthenticated,
            "This route takes signed requests only.",
        )
    })
}

impl FromRequestParts<Arc<App>> for InChat {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let principal: Principal = extension(parts)?;
        let request: RequestId = extension(parts)?;
        let params = Params::of(parts).await?;
        // An id that nothing can have is as unknown as one that nothing has.
        let id: WorkspaceId = params.get("workspace").map_err(|_| unknown_workspace())?;
        let found: Option<Workspace> = app.store.read_now(|snapshot| snapshot.workspace(&id))?;
        if found.is_none_or(|workspace| workspace.organization != principal.organization) {
            return Err(unknown_workspace());
        }
        let chat: ChatId = params.get("chat")?;
        let span = tracing::Span::current();
        span.record("workspace", id.as_str());
        span.record("chat", chat.as_str());
        Ok(Self {
            workspace: id,
            chat,
            principal,
            request,
            params,
        })
    }
}

impl InChat {
    /// Who calls.
    pub(super) fn caller(&self, member: &Member) -> Caller {
        Caller {
            organization: self.principal.organization.clone(),
            workspace: self.workspace.clone(),
            chat: self.chat.clone(),
            user: member.id.clone(),
            role: member.role.into(),
            actor: Actor::Backend(self.principal.credential.clone()),
            request: self.request.clone(),
        }
    }

    /// Whether the gate lets the member bring files in. Which profile a sandbox would get does not
    /// matter yet.
    pub(super) fn admitted(&self, app: &App, member: &Member) -> Result<(), ApiError> {
        Ok(app.sandboxes.may_bring_files(&self.caller(member))?)
    }

    /// Whether the member's role may change things in the chat; no switch matters for that.
    pub(super) fn needs_editor(&self, app: &App, member: &Member) -> Result<(), ApiError> {
        Ok(app.sandboxes.needs_editor(&self.caller(member))?)
    }

    /// A row of the audit trail about something in this chat.
    pub(super) fn audit(&self, at: UnixMillis, action: &str, fields: &[&str]) -> AuditRow {
        AuditRow {
            at,
            actor: Actor::Backend(self.principal.credential.clone()),
            action: action.to_owned(),
            subject: format!("workspace/{}/chat/{}", self.workspace, self.chat),
            fields: fields.iter().map(|&field| field.to_owned()).collect(),
            request: Some(self.request.to_string()),
        }
    }
}
