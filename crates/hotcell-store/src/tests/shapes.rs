//! The stored shapes, compared with `tests/shapes.json`.
//!
//! A difference means that a file written by an earlier release would be read differently. A new shape is a
//! new version of its DTO; then write the file anew with `HOTCELL_BLESS=1` and look at what changed:
//! examples of released versions must stay.

use hotcell_core::gate::{DenialRecord, QuotaSettings, QuotaValue};
use hotcell_core::model::{
    Actor, AuditRow, Credential, CredentialSecret, Deployment, EndReason, LeaseRecord,
    Organization, OutputRecord, Workspace,
};
use hotcell_types::{CredentialId, InstallationId, ResourceClass, Role, UnixMillis};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{CountedIds, audit_row, credential, key, lease, organization, output, workspace};
use crate::{
    denials::DenialDto,
    dto::{
        AuditDto, ClassV1, CredentialDto, DeploymentDto, Keyed, LeaseDto, LeaseStateV1,
        OrganizationDto, OutputDto, WorkspaceDto,
    },
    idempotency::{IdempotencyDto, StateV1},
    key::Vault,
    meta::{InstallationDto, MasterDto, SchemaRow},
    quota::{AdmissionHead, AdmissionHeadDto, QuotasDto},
    tables::Table,
};

#[derive(Default)]
struct Shapes(Map<String, Value>);

impl Shapes {
    fn add<D: Serialize>(&mut self, name: &str, dto: D) {
        let value = serde_json::to_value(dto).unwrap();
        let old = self.0.insert(name.to_owned(), value);
        assert!(old.is_none(), "{name} twice");
    }
}

fn end_reasons() -> Vec<EndReason> {
    let all = vec![
        EndReason::Requested,
        EndReason::HardTimeLimit,
        EndReason::StartFailed("no image".to_owned()),
        EndReason::OutOfMemory,
        EndReason::SandboxLost,
        EndReason::RuntimeRestarted,
    ];
    // A new variant needs an example here.
    for reason in &all {
        match reason {
            EndReason::Requested
            | EndReason::HardTimeLimit
            | EndReason::StartFailed(_)
            | EndReason::OutOfMemory
            | EndReason::SandboxLost
            | EndReason::RuntimeRestarted => {}
        }
    }
    all
}

fn actors() -> Vec<Actor> {
    vec![
        Actor::Operator,
        Actor::LocalOperator,
        Actor::Backend(CredentialId::from_bits(1)),
        Actor::System,
    ]
}

fn denials() -> Vec<(&'static str, DenialRecord)> {
    let record = |role, limit| DenialRecord {
        at: UnixMillis(1),
        organization: "o1".parse().unwrap(),
        workspace: "w1".parse().unwrap(),
        chat: "c1".parse().unwrap(),
        user: "u1".parse().unwrap(),
        role,
        name: "role".to_owned(),
        limit,
        request: None,
    };
    vec![
        ("viewer", record(Role::Viewer, None)),
        ("editor", record(Role::Editor, Some(QuotaValue::Count(1)))),
        ("admin", record(Role::Admin, Some(QuotaValue::Bytes(2)))),
        ("owner", record(Role::Owner, Some(QuotaValue::Seconds(3)))),
        (
            "class",
            record(Role::Owner, Some(QuotaValue::Class(ResourceClass::Small))),
        ),
    ]
}

fn full_lease() -> LeaseRecord {
    lease(1, "w1", "c1", hotcell_core::model::LeaseState::Running)
}

fn present() -> Value {
    let mut shapes = Shapes::default();
    shapes.add("meta/schema", SchemaRow { version: 1 });
    shapes.add(
        "meta/installation",
        InstallationDto::V1 {
            id: InstallationId::from_bits(1),
            created_at: UnixMillis(1),
        },
    );
    shapes.add(
        "meta/master",
        MasterDto::V1 {
            sealed: "(sealed)".to_owned(),
        },
    );
    shapes.add(
        "meta/deployment",
        DeploymentDto::from(&Deployment::default()),
    );
    let deployment = Deployment {
        enabled: true,
        default_profile: Some("embedded".parse().unwrap()),
    };
    shapes.add("meta/deployment with all", DeploymentDto::from(&deployment));
    shapes.add("organizations", OrganizationDto::from(&organization("o1")));
    let with_profile = Organization {
        profile: Some("embedded".parse().unwrap()),
        ..organization("o1")
    };
    shapes.add(
        "organizations with all",
        OrganizationDto::from(&with_profile),
    );
    shapes.add("workspaces", WorkspaceDto::from(&workspace("w1", "o1")));
    // Key and nonce are fixed here, so the example also pins how secrets are sealed.
    let vault = Vault::new(&key());
    let sealed = CredentialDto::seal(&credential(1, "o1"), &vault, &CountedIds::default());
    shapes.add("credentials", sealed.unwrap());
    shapes.add("leases", LeaseDto::from(&full_lease()));
    for reason in end_reasons() {
        let name = format!("leases ended {reason:?}");
        let ended = LeaseRecord {
            end: Some(reason),
            ..full_lease()
        };
        shapes.add(&name, LeaseDto::from(&ended));
    }
    shapes.add("leases states", json!(LeaseStateV1::ALL));
    shapes.add("leases classes", json!(ClassV1::ALL));
    shapes.add("outputs", OutputDto::from(&output(1, "w1", "c1", 1)));
    super::policies::shapes(&mut |name, value| shapes.add(name, value));
    for actor in actors() {
        let name = format!("audit by {actor:?}");
        let row = AuditRow {
            actor,
            request: Some("rq_1".to_owned()),
            ..audit_row("workspace.updated")
        };
        shapes.add(&name, AuditDto::from(&row));
    }
    super::jobs::shapes(&mut |name, value| shapes.add(name, value));
    shapes.add(
        "quotas",
        QuotasDto::from(&QuotaSettings {
            max_concurrent: Some(1),
            max_resource_class: Some(ResourceClass::Large),
            max_job_seconds: Some(2),
            max_artifact_bytes_per_day: Some(3),
            max_jobs_per_hour: Some(4),
        }),
    );
    shapes.add("quotas none", QuotasDto::from(&QuotaSettings::default()));
    shapes.add(
        "admission_heads",
        AdmissionHeadDto::V1(AdmissionHead {
            first: 1,
            next: 2,
            latest: UnixMillis(3),
            corrected_before: 4,
            corrected_to: UnixMillis(5),
        }),
    );
    shapes.add("declarations", super::declared::shape());
    for (name, record) in denials() {
        shapes.add(&format!("denials {name}"), DenialDto::from(&record));
    }
    for (name, state) in [
        ("begun", StateV1::Begun { by: "b".to_owned() }),
        ("acting", StateV1::Acting { by: "b".to_owned() }),
        ("done", StateV1::Done { answer: None }),
    ] {
        let dto = IdempotencyDto::V1 {
            at: UnixMillis(1),
            fingerprint: "00".to_owned(),
            state,
        };
        shapes.add(&format!("idempotency_keys {name}"), dto);
    }
    shapes.add(
        "tables",
        json!(
            Table::ALL
                .iter()
                .map(|table| table.name())
                .collect::<Vec<_>>()
        ),
    );
    Value::Object(shapes.0)
}

fn snapshot_path() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shapes.json")
}

#[test]
fn stored_shapes_are_those_of_the_snapshot() {
    let present = present();
    if std::env::var_os("HOTCELL_BLESS").is_some() {
        let text = serde_json::to_string_pretty(&present).unwrap();
        std::fs::write(snapshot_path(), text + "\n").unwrap();
    }
    let text = std::fs::read_to_string(snapshot_path()).unwrap();
    let snapshot: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let Value::Object(present) = present else {
        unreachable!()
    };
    for (name, shape) in &present {
        assert_eq!(
            Some(shape),
            snapshot.get(name),
            "the stored shape {name} changed; see the top of this file"
        );
    }
}

fn round_trip<D: DeserializeOwned + Serialize>(value: &Value) {
    let dto: D = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(dto).unwrap(), *value);
}

#[test]
fn every_shape_of_the_snapshot_is_still_read() {
    let text = std::fs::read_to_string(snapshot_path()).unwrap();
    let snapshot: Map<String, Value> = serde_json::from_str(&text).unwrap();
    for (name, value) in &snapshot {
        match name.split(' ').next().unwrap() {
            "meta/schema" => round_trip::<SchemaRow>(value),
            "meta/installation" => round_trip::<InstallationDto>(value),
            "meta/master" => round_trip::<MasterDto>(value),
            "meta/deployment" => round_trip::<DeploymentDto>(value),
            "organizations" => round_trip::<OrganizationDto>(value),
            "workspaces" => round_trip::<WorkspaceDto>(value),
            "credentials" => round_trip::<CredentialDto>(value),
            "network_policies" | "lease_filters" => super::policies::is_read(name, value),
            "leases" if value.is_object() => round_trip::<LeaseDto>(value),
            "leases" if name.ends_with("states") => round_trip::<Vec<LeaseStateV1>>(value),
            "leases" => round_trip::<Vec<ClassV1>>(value),
            "outputs" => round_trip::<OutputDto>(value),
            "audit" => round_trip::<AuditDto>(value),
            "jobs" | "job_tails" | "deletions" => super::jobs::is_read(name, value),
            "declarations" => super::declared::is_read(value),
            "quotas" => round_trip::<QuotasDto>(value),
            "admission_heads" => round_trip::<AdmissionHeadDto>(value),
            "denials" => round_trip::<DenialDto>(value),
            "idempotency_keys" => round_trip::<IdempotencyDto>(value),
            "tables" => {}
            other => panic!("nothing reads {other}"),
        }
    }
}

#[test]
fn dtos_give_back_what_was_put_in() {
    let organization = Organization {
        profile: Some("embedded".parse().unwrap()),
        ..organization("o1")
    };
    let back: Organization = Keyed(
        organization.id.clone(),
        OrganizationDto::from(&organization),
    )
    .into();
    assert_eq!(back, organization);
    let workspace = workspace("w1", "o1");
    let back: Workspace = Keyed(workspace.id.clone(), WorkspaceDto::from(&workspace)).into();
    assert_eq!(back, workspace);
    for reason in end_reasons() {
        let lease = LeaseRecord {
            end: Some(reason),
            ..full_lease()
        };
        let back: LeaseRecord = Keyed(lease.id.clone(), LeaseDto::from(&lease)).into();
        assert_eq!(back, lease);
    }
    let output = output(1, "w1", "c1", 1);
    let back: OutputRecord = Keyed(output.id.clone(), OutputDto::from(&output)).into();
    assert_eq!(back, output);
    for actor in actors() {
        let row = AuditRow {
            actor,
            ..audit_row("x")
        };
        assert_eq!(AuditRow::from(AuditDto::from(&row)), row);
    }
    for (_, record) in denials() {
        assert_eq!(DenialRecord::from(DenialDto::from(&record)), record);
    }
    let vault = Vault::new(&key());
    let credential = Credential {
        secrets: vec![
            CredentialSecret {
                text: "new ü".to_owned(),
                issued_at: UnixMillis(9),
            },
            CredentialSecret {
                text: "old".to_owned(),
                issued_at: UnixMillis(8),
            },
        ],
        ..credential(1, "o1")
    };
    let dto = CredentialDto::seal(&credential, &vault, &CountedIds::default()).unwrap();
    assert_eq!(dto.open(credential.id.clone(), &vault).unwrap(), credential);
}

#[test]
fn unknown_versions_are_errors_and_not_guesses() {
    for text in [
        r#"{"v":"2","enabled":true,"default_profile":null}"#,
        r#"{"enabled":true,"default_profile":null}"#,
        r#"{"v":"1"}"#,
        "[]",
        "",
    ] {
        assert!(
            serde_json::from_str::<DeploymentDto>(text).is_err(),
            "{text}"
        );
    }
}
