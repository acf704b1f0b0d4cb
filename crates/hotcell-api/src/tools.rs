//! The two tools as a model is told about them, in the two common shapes.

use hotcell_types::limits;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// The tool definitions. Their arguments are the bodies of `POST …/bash` and
/// `POST …/present_files` without `user`, which the backend adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tools {
    /// As function tools: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    #[schema(value_type = Vec<Object>)]
    pub openai: Vec<Value>,
    /// As tools with an input schema: `{"name", "description", "input_schema"}`.
    #[schema(value_type = Vec<Object>)]
    pub anthropic: Vec<Value>,
}

struct Tool {
    name: &'static str,
    description: String,
    schema: Value,
}

fn bash() -> Tool {
    Tool {
        name: "bash",
        description: "Run a bash script in this chat's isolated sandbox and return its exit code, \
            stdout and stderr. Working directory, exported variables and files persist between \
            calls. Files the user attached are in /mnt/uploaded-files (read-only), skills in \
            /mnt/skills (read-only). Write results to /workspace; what should be there in later \
            chats goes to /mnt/user-data (this user) or /mnt/workspace-data (everyone in the \
            workspace). Hand finished files to the user with present_files."
            .to_owned(),
        schema: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["command"],
            "properties": {
                "command": {
                    "type": "string",
                    "description": "The text of the bash script.",
                },
                "timeout_ms": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": limits::MAX_COMMAND_TIMEOUT_MS,
                    "description": format!(
                        "How long it may run, in milliseconds; {} when absent.",
                        limits::DEFAULT_COMMAND_TIMEOUT_MS
                    ),
                },
                "restart": {
                    "type": "boolean",
                    "description": "End what still runs from earlier calls and forget the \
                        shell's state first.",
                },
            },
        }),
    }
}

fn present_files() -> Tool {
    Tool {
        name: "present_files",
        description: format!(
            "Attach finished files from the sandbox to the chat, so that the user can download \
             them. At most {} files and {} MiB per call. Only these types: {}.",
            limits::MAX_OUTPUTS_PER_COLLECTION,
            limits::MAX_OUTPUT_BYTES_PER_COLLECTION >> 20,
            limits::ALLOWED_OUTPUT_TYPES.join(", "),
        ),
        schema: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["paths"],
            "properties": {
                "paths": {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": limits::MAX_PATHS_PER_COLLECTION,
                    "description": "Paths of the files, the most important first; a relative \
                        one is taken from /workspace.",
                },
            },
        }),
    }
}

impl Tools {
    /// The definitions.
    #[must_use]
    pub fn new() -> Self {
        let tools = [bash(), present_files()];
        Self {
            openai: tools
                .iter()
                .map(|tool| {
                    json!({"type": "function", "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.schema,
                    }})
                })
                .collect(),
            anthropic: tools
                .iter()
                .map(|tool| {
                    json!({
                        "name": tool.name,
                        "description": tool.description,
                        "input_schema": tool.schema,
                    })
                })
                .collect(),
        }
    }
}

impl Default for Tools {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bash::BashRequest, files::PresentFilesRequest};

    #[test]
    fn both_shapes_name_the_same_two_tools_and_their_arguments_are_bodies() {
        let tools = Tools::new();
        let names = |list: &[Value], pointer: &str| -> Vec<String> {
            list.iter()
                .map(|tool| tool.pointer(pointer).unwrap().as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(
            names(&tools.openai, "/function/name"),
            ["bash", "present_files"]
        );
        assert_eq!(names(&tools.anthropic, "/name"), ["bash", "present_files"]);
        let user = json!({"id": "u1", "role": "editor"});
        let mut all = json!({"command": "true", "timeout_ms": 5, "restart": false});
        for name in tools.anthropic[0]["input_schema"]["properties"]
            .as_object()
            .unwrap()
            .keys()
        {
            assert!(all.get(name).is_some(), "{name}");
        }
        all["user"] = user.clone();
        assert!(serde_json::from_value::<BashRequest>(all).is_ok());
        assert!(
            serde_json::from_value::<PresentFilesRequest>(json!({"paths": ["x"], "user": user}))
                .is_ok()
        );
    }
}
