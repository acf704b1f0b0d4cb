//! The quotas of a workspace, and what it uses of them.

use hotcell_types::{ResourceClass, UnixMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admin::present;

/// What a workspace may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quotas {
    /// Live sandboxes at once; idle ones count until they end. 2 unless set.
    pub max_concurrent: u64,
    /// The largest resource class: `SMALL`, `MEDIUM` or `LARGE`. `SMALL` unless set.
    #[schema(value_type = String, example = "SMALL")]
    pub max_resource_class: ResourceClass,
    /// The longest single job, in seconds. 3,600 unless set.
    pub max_job_seconds: u64,
    /// Bytes of collected files stored per UTC day. 1 GiB unless set.
    pub max_artifact_bytes_per_day: u64,
    /// New sandboxes per rolling hour. 60 unless set.
    pub max_jobs_per_hour: u64,
    /// The names of those that an operator set; the others are the defaults.
    pub set: Vec<String>,
}

/// Changes quotas; what is absent stays, `null` makes it the default again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutQuotas {
    /// Live sandboxes at once: 0 to 100,000.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub max_concurrent: Option<Option<u64>>,
    /// The largest resource class: `SMALL`, `MEDIUM` or `LARGE`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub max_resource_class: Option<Option<ResourceClass>>,
    /// The longest single job, in seconds: 0 to 2,592,000.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub max_job_seconds: Option<Option<u64>>,
    /// Bytes of collected files stored per UTC day: 0 to 2^50.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub max_artifact_bytes_per_day: Option<Option<u64>>,
    /// New sandboxes per rolling hour: 0 to 100,000.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    pub max_jobs_per_hour: Option<Option<u64>>,
}

/// One quota that is used up by what was taken from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaMeter {
    /// What is used now.
    pub used: u64,
    /// What may be used.
    pub limit: u64,
    /// Whether the limit is the default.
    pub is_default: bool,
    /// When time frees some of it, in milliseconds since the Unix epoch; `null` when nothing is
    /// used, or when time alone frees nothing.
    #[schema(value_type = Option<u64>)]
    pub frees_at_ms: Option<UnixMillis>,
}

/// One quota that limits each request on its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobSecondsLimit {
    /// The longest single job, in seconds.
    pub limit: u64,
    /// Whether the limit is the default.
    pub is_default: bool,
}

/// The largest resource class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassLimit {
    /// `SMALL`, `MEDIUM` or `LARGE`.
    #[schema(value_type = String, example = "SMALL")]
    pub limit: ResourceClass,
    /// Whether the limit is the default.
    pub is_default: bool,
}

/// What a workspace uses of its quotas now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// The workspace.
    #[schema(value_type = String)]
    pub workspace: WorkspaceId,
    /// When this was so, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub at_ms: UnixMillis,
    /// Live sandboxes. They free their places when they end, so no time is told.
    pub max_concurrent: QuotaMeter,
    /// The largest resource class.
    pub max_resource_class: ClassLimit,
    /// The longest single job.
    pub max_job_seconds: JobSecondsLimit,
    /// Bytes of collected files stored on this UTC day. Removing files gives nothing back.
    pub max_artifact_bytes_per_day: QuotaMeter,
    /// Sandboxes that were made in the last hour; the time is when the oldest of them leaves it.
    pub max_jobs_per_hour: QuotaMeter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_keeps_null_resets_and_nothing_is_guessed() {
        let parse = |text: &str| serde_json::from_str::<PutQuotas>(text);
        assert_eq!(parse("{}").unwrap(), PutQuotas::default());
        let some = parse(r#"{"max_concurrent":null,"max_resource_class":"LARGE"}"#).unwrap();
        assert_eq!(some.max_concurrent, Some(None));
        assert_eq!(some.max_resource_class, Some(Some(ResourceClass::Large)));
        for bad in [
            r#"{"max_concurent":1}"#,
            r#"{"max_concurrent":-1}"#,
            r#"{"max_concurrent":1.5}"#,
            r#"{"max_concurrent":"1"}"#,
            r#"{"max_resource_class":"small"}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
