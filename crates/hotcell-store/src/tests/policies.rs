//! Network policies, and who refers to their texts.

use hotcell_core::{
    model::{EndReason, LeaseRecord, LeaseState},
    network::{LeaseFilterRecord, NetworkPolicyRecord},
};
use hotcell_types::{LeaseId, UnixMillis, limits};
use serde_json::Value;

use super::{Home, furnish, lease};
use crate::{
    Store, StoreError,
    policies::{LeaseFilterDto, NetworkPolicyDto},
    rows::Order,
    tables::{Span, Table},
};

/// For the snapshot of stored shapes.
pub(super) fn shapes(add: &mut dyn FnMut(&str, Value)) {
    let sha256 = "5f".repeat(32);
    let policy = NetworkPolicyDto::V1 {
        text_sha256: sha256.clone(),
        changed_at: UnixMillis(6),
    };
    add("network_policies", serde_json::to_value(policy).unwrap());
    for text_sha256 in [Some(sha256), None] {
        let name = match text_sha256 {
            Some(_) => "lease_filters",
            None => "lease_filters without policy",
        };
        let filter = LeaseFilterDto::V1 {
            text_sha256,
            enforces_addresses: true,
            blocks_encrypted_dns: true,
        };
        add(name, serde_json::to_value(filter).unwrap());
    }
}

/// For the same snapshot: whether it is read back.
pub(super) fn is_read(name: &str, value: &Value) {
    let again = if name.starts_with("network_policies") {
        let dto: NetworkPolicyDto = serde_json::from_value(value.clone()).unwrap();
        serde_json::to_value(dto)
    } else {
        let dto: LeaseFilterDto = serde_json::from_value(value.clone()).unwrap();
        serde_json::to_value(dto)
    };
    assert_eq!(again.unwrap(), *value);
}

fn policy(text: &str) -> NetworkPolicyRecord {
    NetworkPolicyRecord {
        organization: "o1".parse().unwrap(),
        text: text.to_owned(),
        changed_at: UnixMillis(6),
    }
}

fn filter(policy: Option<&str>) -> LeaseFilterRecord {
    LeaseFilterRecord {
        policy: policy.map(str::to_owned),
        enforces_addresses: true,
        blocks_encrypted_dns: false,
    }
}

fn texts(store: &Store) -> usize {
    let scan = |view: &crate::Snapshot<'_>| {
        view.scan(
            Table::PolicyTexts,
            &Span::all(),
            Order::Ascending,
            usize::MAX,
        )
    };
    store.read_now(scan).unwrap().len()
}

fn of_lease(store: &Store, number: u128) -> Option<LeaseFilterRecord> {
    store
        .read_now(|view| view.lease_filter(&LeaseId::from_bits(number)))
        .unwrap()
}

#[tokio::test]
async fn a_sandbox_keeps_its_policy_and_the_last_one_removes_the_text() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    // Longer than any row may be: a text is no row.
    let long = format!("{{\"egress\":[]}}{}", " ".repeat(limits::MAX_POLICY_BYTES));
    let typed = long.clone();
    store
        .write::<(), StoreError, _>(move |tx| {
            tx.put_network_policy(&policy(&typed))?;
            for number in [1, 2] {
                let chat = format!("c{number}");
                tx.put_lease(&lease(number, "w1", &chat, LeaseState::Starting))?;
                tx.pin_lease_filter(&LeaseId::from_bits(number), &filter(Some(&typed)))?;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(texts(&store), 1, "one text for three that refer to it");
    // The organization's policy changes; what sandboxes were created with does not.
    store
        .write::<(), StoreError, _>(|tx| {
            tx.put_network_policy(&policy("{}"))?;
            // Pinned once, pinned for good.
            tx.pin_lease_filter(&LeaseId::from_bits(1), &filter(Some("{}")))
        })
        .await
        .unwrap();
    store.close().await.unwrap();
    let store = home.open();
    let o1 = "o1".parse().unwrap();
    let now = store.read_now(|view| view.network_policy(&o1)).unwrap();
    assert_eq!(now, Some(policy("{}")));
    assert_eq!(of_lease(&store, 1), Some(filter(Some(&long))));
    assert_eq!(texts(&store), 2);
    for number in [1, 2] {
        store
            .write::<(), StoreError, _>(move |tx| {
                let chat = format!("c{number}");
                tx.put_lease(&LeaseRecord {
                    end: Some(EndReason::Requested),
                    ..lease(number, "w1", &chat, LeaseState::Ended)
                })
            })
            .await
            .unwrap();
        assert_eq!(of_lease(&store, number), None);
    }
    assert_eq!(texts(&store), 1);
    let gone = store
        .write::<bool, StoreError, _>(|tx| tx.delete_network_policy(&"o1".parse().unwrap()))
        .await;
    assert!(gone.unwrap());
    assert_eq!(texts(&store), 0);
}

#[tokio::test]
async fn a_policy_goes_with_its_organization_and_needs_one() {
    let home = Home::new();
    let store = home.open();
    let refused = store
        .write::<(), StoreError, _>(|tx| tx.put_network_policy(&policy("{}")))
        .await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })));
    let refused = store
        .write::<(), StoreError, _>(|tx| tx.pin_lease_filter(&LeaseId::from_bits(1), &filter(None)))
        .await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })));
    store
        .write::<(), StoreError, _>(|tx| {
            tx.put_organization(&super::organization("o1"))?;
            tx.put_network_policy(&policy("{}"))
        })
        .await
        .unwrap();
    store
        .write::<bool, StoreError, _>(|tx| tx.delete_organization(&"o1".parse().unwrap()))
        .await
        .unwrap();
    assert_eq!(texts(&store), 0);
    let o1 = "o1".parse().unwrap();
    let left = store.read_now(|view| view.network_policy(&o1)).unwrap();
    assert_eq!(left, None);
}
