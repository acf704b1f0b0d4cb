//! A call that came with an idempotency key: what is kept of its end, and how it is told again.

use std::sync::Arc;

use hotcell_api::{Problem, bash::BashResult};
use hotcell_types::{CallId, limits::MAX_IDEMPOTENT_ANSWER_BYTES};
use serde::{Deserialize, Serialize};

use super::{Call, call::Outcome};
use crate::http::{App, error::ApiError, idempotency, scope::InChat};

/// What is kept of a call's end.
#[derive(Serialize, Deserialize)]
struct Kept {
    call: CallId,
    /// Absent when it was too long to keep.
    result: Option<BashResult>,
    problem: Option<Problem>,
    exit_code: Option<i32>,
}

/// The end of a call as it is kept with its key. A result that is too long leaves its exit code.
pub(super) fn kept(call: &CallId, outcome: &Outcome) -> String {
    let (result, problem) = match outcome {
        Ok(result) => (Some(BashResult::clone(result)), None),
        Err(error) => (None, Some(error.problem().clone())),
    };
    let mut kept = Kept {
        call: call.clone(),
        exit_code: result.as_ref().and_then(|result| result.exit_code),
        result,
        problem,
    };
    // Strings and numbers always serialize.
    let text = serde_json::to_string(&kept).unwrap_or_default();
    if text.len() <= MAX_IDEMPOTENT_ANSWER_BYTES {
        return text;
    }
    kept.result = None;
    serde_json::to_string(&kept).unwrap_or_default()
}

/// The call that a key's answer is about: the one in memory when it is still there, else made
/// from what was kept.
///
/// # Errors
/// Its result was too long to keep, and the call is forgotten.
pub(in crate::http) fn recall(
    app: &App,
    scope: &InChat,
    answer: &str,
) -> Result<Arc<Call>, ApiError> {
    let kept: Kept = serde_json::from_str(answer)
        .map_err(|error| ApiError::internal("a kept answer cannot be read", &error))?;
    if let Some(call) = app.calls.find(&scope.workspace, &scope.chat, &kept.call) {
        return Ok(call);
    }
    let outcome = match (kept.result, kept.problem) {
        (Some(result), _) => Ok(Arc::new(result)),
        (None, Some(problem)) => Err(ApiError::from_problem(problem)),
        (None, None) => {
            let code = kept.exit_code;
            return Err(idempotency::answer_gone(&match code {
                Some(code) => format!("The command ended with the exit code {code}."),
                None => "The command ended without an exit code.".to_owned(),
            }));
        }
    };
    let (workspace, chat) = (scope.workspace.clone(), scope.chat.clone());
    let call = Call::new(kept.call, workspace, chat, scope.request.clone());
    call.end(outcome);
    Ok(Arc::new(call))
}
