//! Quotas and denials as the API shows them, and changes of quotas as it takes them.

use hotcell_api::{denial, quota, user::MemberRole};
use hotcell_core::gate::{DenialRecord, Quota, QuotaSettings, QuotaValue};
use hotcell_store::QuotaUsage;
use hotcell_types::{Role, UnixMillis, WorkspaceId, limits};

use super::error::ApiError;

pub(super) fn quotas(settings: &QuotaSettings) -> quota::Quotas {
    let quotas = settings.resolve();
    quota::Quotas {
        max_concurrent: quotas.max_concurrent,
        max_resource_class: quotas.max_resource_class,
        max_job_seconds: quotas.max_job_seconds,
        max_artifact_bytes_per_day: quotas.max_artifact_bytes_per_day,
        max_jobs_per_hour: quotas.max_jobs_per_hour,
        set: settings
            .set()
            .into_iter()
            .map(|quota| quota.name().to_owned())
            .collect(),
    }
}

pub(super) fn usage(workspace: WorkspaceId, at: UnixMillis, usage: &QuotaUsage) -> quota::Usage {
    let quotas = &usage.quotas;
    let is_default = |quota| !usage.set.contains(&quota);
    let meter = |quota, used, limit, frees_at: Option<UnixMillis>| quota::QuotaMeter {
        used,
        limit,
        is_default: is_default(quota),
        frees_at_ms: frees_at.filter(|_| used > 0),
    };
    quota::Usage {
        workspace,
        at_ms: at,
        max_concurrent: meter(
            Quota::MaxConcurrent,
            usage.live,
            quotas.max_concurrent,
            None,
        ),
        max_resource_class: quota::ClassLimit {
            limit: quotas.max_resource_class,
            is_default: is_default(Quota::MaxResourceClass),
        },
        max_job_seconds: quota::JobSecondsLimit {
            limit: quotas.max_job_seconds,
            is_default: is_default(Quota::MaxJobSeconds),
        },
        max_artifact_bytes_per_day: meter(
            Quota::MaxArtifactBytesPerDay,
            usage.stored_bytes_today,
            quotas.max_artifact_bytes_per_day,
            Some(usage.day_ends_at),
        ),
        max_jobs_per_hour: meter(
            Quota::MaxJobsPerHour,
            usage.admitted_in_hour,
            quotas.max_jobs_per_hour,
            usage.hour_frees_at,
        ),
    }
}

pub(super) fn denial(record: &DenialRecord) -> denial::Denial {
    let mut shown = denial::Denial {
        at_ms: record.at,
        denial: record.name.clone(),
        limit: None,
        limit_bytes: None,
        limit_class: None,
        organization: record.organization.clone(),
        workspace: record.workspace.clone(),
        chat: record.chat.clone(),
        user: record.user.clone(),
        role: match record.role {
            Role::Viewer => MemberRole::Viewer,
            Role::Editor => MemberRole::Editor,
            Role::Admin => MemberRole::Admin,
            Role::Owner => MemberRole::Owner,
        },
        request_id: record.request.clone(),
    };
    match record.limit {
        Some(QuotaValue::Count(limit) | QuotaValue::Seconds(limit)) => shown.limit = Some(limit),
        Some(QuotaValue::Bytes(limit)) => shown.limit_bytes = Some(limit),
        Some(QuotaValue::Class(class)) => shown.limit_class = Some(class),
        None => {}
    }
    shown
}

/// Lays a change over settings. The names of the fields that it changed.
///
/// # Errors
/// A value is out of its range; the answer names the field.
pub(super) fn change(
    settings: &mut QuotaSettings,
    change: &quota::PutQuotas,
) -> Result<Vec<&'static str>, ApiError> {
    let mut changed = Vec::new();
    let mut number = |field: &'static str,
                      setting: &mut Option<u64>,
                      wanted: Option<Option<u64>>,
                      most: u64|
     -> Result<(), ApiError> {
        let Some(wanted) = wanted else {
            return Ok(());
        };
        if wanted.is_some_and(|value| value > most) {
            return Err(ApiError::bad_request(format!(
                "In the field {field}: it must be 0 to {most}, or null for the default."
            ))
            .with_limit(most));
        }
        if *setting != wanted {
            *setting = wanted;
            changed.push(field);
        }
        Ok(())
    };
    number(
        "quotas.max_concurrent",
        &mut settings.max_concurrent,
        change.max_concurrent,
        limits::MAX_QUOTA_SANDBOXES,
    )?;
    number(
        "quotas.max_job_seconds",
        &mut settings.max_job_seconds,
        change.max_job_seconds,
        limits::MAX_QUOTA_JOB_SECONDS,
    )?;
    number(
        "quotas.max_artifact_bytes_per_day",
        &mut settings.max_artifact_bytes_per_day,
        change.max_artifact_bytes_per_day,
        limits::MAX_QUOTA_BYTES,
    )?;
    number(
        "quotas.max_jobs_per_hour",
        &mut settings.max_jobs_per_hour,
        change.max_jobs_per_hour,
        limits::MAX_QUOTA_SANDBOXES,
    )?;
    if let Some(wanted) = change.max_resource_class
        && settings.max_resource_class != wanted
    {
        settings.max_resource_class = wanted;
        changed.push("quotas.max_resource_class");
    }
    Ok(changed)
}
