//! What a configuration declares, and what it no longer does.

use hotcell_core::{
    declared::{Declarations, DeclaredObject, DeclaredOrganization, DeclaredWorkspace},
    deletion::DeletionRecord,
    gate::QuotaSettings,
    model::Actor,
};
use hotcell_types::UnixMillis;
use serde_json::Value;

use super::{Home, furnish, workspace};
use crate::{AuditFilter, DeclareError, Reconciled, Store, StoreError, declared::DeclarationDto};

/// For the snapshot of stored shapes.
pub(super) fn shape() -> DeclarationDto {
    DeclarationDto::V1 {
        since: UnixMillis(7),
    }
}

/// For the same snapshot: whether it is read back.
pub(super) fn is_read(value: &Value) {
    let dto: DeclarationDto = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(dto).unwrap(), *value);
}

const POLICY: &str = r#"{"egress": []}"#;

fn organization(id: &str, network_policy: Option<&str>) -> DeclaredOrganization {
    DeclaredOrganization {
        id: id.parse().unwrap(),
        name: format!("Declared {id}"),
        enabled: true,
        profile: None,
        network_policy: network_policy.map(str::to_owned),
    }
}

fn declarations() -> Declarations {
    Declarations {
        organizations: vec![organization("o1", None), organization("o2", Some(POLICY))],
        workspaces: vec![DeclaredWorkspace {
            id: "w2".parse().unwrap(),
            organization: "o2".parse().unwrap(),
            name: "Two".to_owned(),
            enabled: true,
            quotas: QuotaSettings {
                max_concurrent: Some(9),
                ..QuotaSettings::default()
            },
        }],
    }
}

async fn reconcile(store: &Store, wanted: Declarations) -> Result<Reconciled, DeclareError> {
    store
        .write(move |tx| tx.reconcile(&wanted, UnixMillis(9)))
        .await
}

/// Actions and subjects, the oldest first; all of the system.
fn audited(store: &Store) -> Vec<String> {
    let filter = AuditFilter {
        limit: 100,
        ..AuditFilter::default()
    };
    let (rows, _) = store.read_now(|s| s.audit_page(&filter)).unwrap();
    let show = |entry: &crate::AuditEntry| {
        let row = &entry.row;
        assert_eq!(row.actor, Actor::System);
        format!("{} {} {}", row.action, row.subject, row.fields.join(","))
    };
    rows.iter().rev().map(show).collect()
}

fn declared(store: &Store) -> Vec<String> {
    let declared = store.read_now(|s| s.declared()).unwrap();
    declared.iter().map(DeclaredObject::key).collect()
}

#[tokio::test]
async fn what_is_declared_is_made_and_marked_once() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let done = reconcile(&store, declarations()).await.unwrap();
    let keys: Vec<_> = done.changed.iter().map(DeclaredObject::key).collect();
    assert_eq!(
        keys,
        [
            "organizations.o1",
            "organizations.o2",
            "organizations.o2.network_policy",
            "workspaces.w2"
        ]
    );
    assert!(done.released.is_empty() && done.being_deleted.is_empty());
    assert_eq!(
        declared(&store),
        [
            "organizations.o2.network_policy",
            "organizations.o1",
            "organizations.o2",
            "workspaces.w2"
        ]
    );
    let rows = [
        "organization.updated organization/o1 name",
        "organization.declared organization/o1 ",
        "organization.created organization/o2 name,enabled,profile",
        "organization.declared organization/o2 ",
        "network_policy.saved organization/o2 network_policy",
        "network_policy.declared organization/o2 ",
        "workspace.created workspace/w2 organization,name,enabled,quotas.max_concurrent",
        "workspace.declared workspace/w2 ",
    ];
    assert_eq!(audited(&store), rows);
    let (o1, quotas, policy) = store
        .read_now(|s| {
            let o2 = "o2".parse().unwrap();
            Ok((
                s.organization(&"o1".parse().unwrap())?,
                s.quota_settings(&"w2".parse().unwrap())?,
                s.network_policy(&o2)?,
            ))
        })
        .unwrap();
    let o1 = o1.unwrap();
    assert_eq!(
        (o1.name.as_str(), o1.created_at),
        ("Declared o1", UnixMillis(1))
    );
    assert_eq!(quotas.max_concurrent, Some(9));
    assert_eq!(policy.unwrap().text, POLICY);

    // Again: nothing is written.
    let again = reconcile(&store, declarations()).await.unwrap();
    assert_eq!(again, Reconciled::default());
    assert_eq!(audited(&store), rows);
}

#[tokio::test]
async fn what_is_no_longer_declared_stays_as_it_is_and_is_let_go() {
    let home = Home::new();
    let store = home.open();
    reconcile(&store, declarations()).await.unwrap();
    let mut fewer = declarations();
    fewer.workspaces.clear();
    fewer.organizations[1].network_policy = None;
    let done = reconcile(&store, fewer).await.unwrap();
    let keys: Vec<_> = done.released.iter().map(DeclaredObject::key).collect();
    assert_eq!(keys, ["organizations.o2.network_policy", "workspaces.w2"]);
    assert_eq!(declared(&store), ["organizations.o1", "organizations.o2"]);
    let rows = audited(&store);
    assert_eq!(
        rows[rows.len() - 2..],
        [
            "network_policy.released organization/o2 ",
            "workspace.released workspace/w2 "
        ]
    );
    // Nothing of it is lost.
    let (w2, quotas, policy) = store
        .read_now(|s| {
            let w2 = "w2".parse().unwrap();
            let policy = s.network_policy(&"o2".parse().unwrap())?;
            Ok((s.workspace(&w2)?, s.quota_settings(&w2)?, policy))
        })
        .unwrap();
    assert_eq!(w2.unwrap().name, "Two");
    assert_eq!(quotas.max_concurrent, Some(9));
    assert_eq!(policy.unwrap().text, POLICY);
    // And it can be declared again.
    let done = reconcile(&store, declarations()).await.unwrap();
    assert_eq!(done.changed.len(), 2);
    assert_eq!(declared(&store).len(), 4);
}

#[tokio::test]
async fn a_workspace_of_another_organization_stops_all_of_it() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let mut wanted = declarations();
    wanted.workspaces[0].id = "w1".parse().unwrap();
    let error = reconcile(&store, wanted).await.unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("workspaces.w1.organization is o2") && words.contains("declare o1"),
        "{words}"
    );
    assert!(declared(&store).is_empty() && audited(&store).is_empty());
    let o2 = store.read_now(|s| s.organization(&"o2".parse().unwrap()));
    assert_eq!(o2.unwrap(), None);
}

#[tokio::test]
async fn a_workspace_that_is_being_deleted_is_left_alone() {
    let home = Home::new();
    let store = home.open();
    reconcile(&store, Declarations::default()).await.unwrap();
    store
        .write(|tx| {
            tx.put_organization(&super::organization("o2"))?;
            tx.put_workspace(&workspace("w2", "o2"))?;
            tx.begin_deletion(&DeletionRecord {
                workspace: "w2".parse().unwrap(),
                user: None,
                actor: Actor::Operator,
                requested_at: UnixMillis(1),
                request: None,
            })
        })
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
    let done = reconcile(&store, declarations()).await.unwrap();
    assert_eq!(done.being_deleted, ["w2".parse().unwrap()]);
    assert!(!declared(&store).contains(&"workspaces.w2".to_owned()));
}

#[test]
fn a_file_of_schema_one_is_taken_over() {
    let old = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vm-tests/old/schema-1");
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("store.redb");
    std::fs::copy(old.join("store.redb"), &path).unwrap();
    let open = || {
        let ids = std::sync::Arc::new(super::CountedIds::default());
        Store::open(
            &path,
            crate::StoreKey::read(&old.join("store.key")).unwrap(),
            std::sync::Arc::new(super::StandingClock),
            ids,
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = open().unwrap();
        let (organization, policy, credentials, outputs) = store
            .read_now(|s| {
                let id = "old-acme".parse().unwrap();
                let (workspace, chat) = ("old-w1".parse().unwrap(), "shell".parse().unwrap());
                Ok((
                    s.organization(&id)?,
                    s.network_policy(&id)?,
                    s.credentials(&id)?,
                    s.outputs_of_chat(&workspace, &chat)?,
                ))
            })
            .unwrap();
        assert!(organization.unwrap().enabled);
        assert!(policy.unwrap().text.contains("*.example.com"));
        assert!(credentials[0].secrets[0].text.starts_with("hotcell_sk_"));
        assert_eq!(outputs[0].name.as_str(), "out.txt");
        assert!(declared(&store).is_empty());
        reconcile(&store, declarations()).await.unwrap();
        assert_eq!(declared(&store).len(), 4);
        store.close().await.unwrap();
    });
    let before = std::fs::read(home.path().join("store.redb.before-schema-1-to-2")).unwrap();
    assert!(before == std::fs::read(old.join("store.redb")).unwrap());
}
