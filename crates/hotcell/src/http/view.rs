//! The domain as the API shows it.

use hotcell_api::{admin, files, lease};
use hotcell_core::{gate::QuotaSettings, model};
use hotcell_runtime::{Check, CheckStatus, Facts, Isolation};

use super::quota_view;
use crate::{
    handles::{Component, LeaseView, ProfileState, ProfileView},
    switches::Switches,
};

fn engine(facts: &Facts) -> lease::Engine {
    lease::Engine {
        kind: facts.kind.clone(),
        engine: facts.engine.clone(),
        isolation: match facts.isolation {
            Isolation::Gvisor => lease::Isolation::Gvisor,
            Isolation::SharedKernel => lease::Isolation::SharedKernel,
            Isolation::None => lease::Isolation::None,
        },
        scratch_is_bounded: facts.scratch_is_bounded,
    }
}

fn end(reason: &model::EndReason) -> (lease::LeaseEnd, Option<String>) {
    match reason {
        model::EndReason::Requested => (lease::LeaseEnd::Requested, None),
        model::EndReason::HardTimeLimit => (lease::LeaseEnd::HardTimeLimit, None),
        model::EndReason::StartFailed(detail) => {
            (lease::LeaseEnd::StartFailed, Some(detail.clone()))
        }
        model::EndReason::OutOfMemory => (lease::LeaseEnd::OutOfMemory, None),
        model::EndReason::SandboxLost => (lease::LeaseEnd::SandboxLost, None),
        model::EndReason::RuntimeRestarted => (lease::LeaseEnd::RuntimeRestarted, None),
    }
}

pub(super) fn lease(view: &LeaseView) -> lease::Lease {
    let record = &view.record;
    let (end, end_detail) = record.end.as_ref().map(end).unzip();
    lease::Lease {
        id: record.id.clone(),
        organization: record.organization.clone(),
        workspace: record.workspace.clone(),
        chat: record.chat.clone(),
        user: record.user.clone(),
        profile: record.profile.clone(),
        resource_class: record.resource_class,
        state: match record.state {
            model::LeaseState::Starting => lease::LeaseState::Starting,
            model::LeaseState::Running => lease::LeaseState::Running,
            model::LeaseState::Idle => lease::LeaseState::Idle,
            model::LeaseState::Ending => lease::LeaseState::Ending,
            model::LeaseState::Ended => lease::LeaseState::Ended,
        },
        created_at_ms: record.created_at,
        changed_at_ms: record.changed_at,
        ends_at_ms: view.ends_at,
        idle_since_ms: view.idle_since,
        active_calls: view.active_calls as u64,
        engine: view.engine.as_ref().map(engine),
        end,
        end_detail: end_detail.flatten(),
    }
}

pub(super) fn output(record: &model::OutputRecord) -> files::Output {
    files::Output {
        id: record.id.clone(),
        name: record.name.clone(),
        bytes: record.bytes,
        media_type: record.media_type.clone(),
        sha256: record.sha256.clone(),
        created_at_ms: record.created_at,
        // Ids need no escaping in a path.
        content_url: format!(
            "/v1/workspaces/{}/chats/{}/outputs/{}/content",
            record.workspace, record.chat, record.id
        ),
        preview_url: None,
    }
}

pub(super) fn deployment(deployment: &model::Deployment, switches: Switches) -> admin::Deployment {
    admin::Deployment {
        enabled: deployment.enabled,
        default_profile: deployment.default_profile.clone(),
        forced_off: switches.forced_off,
        config_locked: switches.config_locked,
    }
}

pub(super) fn organization(
    organization: &model::Organization,
    declared: bool,
) -> admin::Organization {
    admin::Organization {
        id: organization.id.clone(),
        name: organization.name.clone(),
        enabled: organization.enabled,
        profile: organization.profile.clone(),
        created_at_ms: organization.created_at,
        declared,
    }
}

pub(super) fn workspace(
    workspace: &model::Workspace,
    quotas: &QuotaSettings,
    declared: bool,
) -> admin::Workspace {
    admin::Workspace {
        id: workspace.id.clone(),
        organization: workspace.organization.clone(),
        name: workspace.name.clone(),
        enabled: workspace.enabled,
        quotas: quota_view::quotas(quotas),
        created_at_ms: workspace.created_at,
        declared,
    }
}

pub(super) fn credential(credential: &model::Credential) -> admin::Credential {
    admin::Credential {
        key: credential.id.clone(),
        organization: credential.organization.clone(),
        created_at_ms: credential.created_at,
        secrets_issued_at_ms: credential.secrets.iter().map(|s| s.issued_at).collect(),
    }
}

pub(super) fn audit(row: &model::AuditRow) -> admin::AuditRow {
    admin::AuditRow {
        at_ms: row.at,
        actor: match &row.actor {
            model::Actor::Operator => "operator".to_owned(),
            model::Actor::LocalOperator => "local_operator".to_owned(),
            model::Actor::Backend(key) => format!("backend:{key}"),
            model::Actor::System => "system".to_owned(),
        },
        action: row.action.clone(),
        subject: row.subject.clone(),
        fields: row.fields.clone(),
        request_id: row.request.clone(),
    }
}

fn check(check: &Check) -> admin::Check {
    admin::Check {
        id: check.id.clone(),
        status: match check.status {
            CheckStatus::Pass => admin::CheckStatus::Pass,
            CheckStatus::Warn => admin::CheckStatus::Warn,
            CheckStatus::Fail => admin::CheckStatus::Fail,
        },
        message: check.message.clone(),
        fix: check.fix.clone(),
    }
}

pub(super) fn profile(view: &ProfileView) -> admin::Profile {
    let (state, faulted_reason) = match &view.state {
        ProfileState::Starting => (admin::ProfileState::Starting, None),
        ProfileState::Active => (admin::ProfileState::Active, None),
        ProfileState::Faulted { reason } => (admin::ProfileState::Faulted, Some(reason.clone())),
    };
    admin::Profile {
        id: view.name.clone(),
        state,
        faulted_reason,
        engine: view.facts.as_ref().map(engine),
        checks: view.checks.iter().map(check).collect(),
        checked_at_ms: view.checked_at,
        unknown_sandboxes: view.unknown.clone(),
        warm: admin::WarmPool {
            wanted: view.warm.wanted,
            ready: view.warm.ready,
            problem: view.warm.problem.clone(),
        },
        // There are no others than that of the configuration.
        declared: true,
    }
}

pub(super) fn component(component: &Component) -> admin::Component {
    admin::Component {
        name: component.name.clone(),
        ok: component.ok,
        detail: component.detail.clone(),
    }
}
