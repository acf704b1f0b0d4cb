//! The tool definitions.

use axum::response::Response;
use hotcell_api::{Problem, tools::Tools};

use crate::http::json::ok;

/// List the tools
///
/// The definitions of `bash` and `present_files` in the two shapes that models are commonly told about tools in.
#[utoipa::path(
    get,
    path = "/v1/tools",
    operation_id = "list_tools",
    tag = "sandbox",
    responses(
        (status = 200, description = "The definitions.", body = Tools),
        (status = "4XX", description = "Refused.", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_tools() -> Response {
    ok(&Tools::new())
}
