//! Failures as `application/problem+json`.

use hotcell_types::{CallId, ResourceClass};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ErrorCode;

/// The media type of a [`Problem`].
pub const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";

/// A failure. `status` and `title` follow from `code`; the rest says what happened here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:hotcell:problem:` and the code.
    #[serde(rename = "type")]
    #[schema(example = "urn:hotcell:problem:denied")]
    pub kind: String,
    /// The same few words for every problem with this code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable name of the failure; switch on this.
    pub code: ErrorCode,
    /// Which level of the gate refused: `deployment`, `organization`, `workspace`, `role`, `profile`, or `quota:` and the quota's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub denial: Option<String>,
    /// What happened and what to do, in a sentence for people.
    pub detail: String,
    /// The request's id, which is also in the journal; empty inside an event stream before the answer has one.
    pub request_id: String,
    /// The limit that was passed, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limit_bytes: Option<u64>,
    /// The limit that was passed, when it is a count or, of `quota:max_job_seconds`, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limit: Option<u64>,
    /// The limit that was passed, when it is a resource class: `SMALL`, `MEDIUM` or `LARGE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub limit_class: Option<ResourceClass>,
    /// The server's time in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub server_seconds: Option<u64>,
    /// The call that failed; its output up to then can still be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub call: Option<CallId>,
    /// The key of the configuration that declares what was to be changed, such as `workspaces.w1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub declared_in: Option<String>,
    /// What is wrong with a document, each with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<FieldProblem>,
}

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldProblem {
    /// Where: a JSON path, such as `$.egress[3].target`.
    pub path: String,
    /// What.
    pub reason: String,
}

impl Problem {
    /// A problem with this code; the request id is filled in where the answer is sent.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:hotcell:problem:{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            code,
            denial: None,
            detail: detail.into(),
            request_id: String::new(),
            limit_bytes: None,
            limit: None,
            limit_class: None,
            server_seconds: None,
            call: None,
            declared_in: None,
            problems: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_left_out() {
        let problem = Problem::new(ErrorCode::Replayed, "Sign it again.");
        assert_eq!(
            serde_json::to_value(&problem).unwrap(),
            serde_json::json!({
                "type": "urn:hotcell:problem:replayed",
                "title": "The request was used before",
                "status": 401,
                "code": "replayed",
                "detail": "Sign it again.",
                "request_id": "",
            })
        );
    }
}
