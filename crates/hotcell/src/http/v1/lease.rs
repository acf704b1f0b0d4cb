//! The chat's sandbox.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use hotcell_api::{Member, Problem, lease::LeaseAnswer, user::MemberQuery};

use crate::http::{
    App,
    error::ApiError,
    json::{Query, ok},
    scope::InChat,
    view,
};

/// Show the chat's sandbox
#[utoipa::path(
    get,
    path = "/v1/workspaces/{workspace}/chats/{chat}/lease",
    operation_id = "get_lease",
    tag = "lease",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The live sandbox, else the last one that ended; `null` when there never was one.", body = LeaseAnswer),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_lease(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(_member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let lease = app.sandboxes.lease(&scope.workspace, &scope.chat).await?;
    Ok(ok(&LeaseAnswer {
        lease: lease.as_ref().map(view::lease),
    }))
}

/// End the chat's sandbox
///
/// Ends what runs in it and removes it; files on the volumes stay, those in `/workspace` are gone.
/// Ending what is not there succeeds.
#[utoipa::path(
    delete,
    path = "/v1/workspaces/{workspace}/chats/{chat}/lease",
    operation_id = "end_lease",
    tag = "lease",
    params(
        ("workspace" = String, Path, description = "The workspace."),
        ("chat" = String, Path, description = "The chat."),
        MemberQuery,
    ),
    responses(
        (status = 200, description = "The sandbox as it stands now; `null` when there never was one.", body = LeaseAnswer),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The server failed.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn end_lease(
    State(app): State<Arc<App>>,
    scope: InChat,
    Query(member): Query<MemberQuery>,
) -> Result<Response, ApiError> {
    let member = Member::from(member);
    let lease = app.sandboxes.end(&scope.caller(&member)).await?;
    Ok(ok(&LeaseAnswer {
        lease: lease.as_ref().map(view::lease),
    }))
}
