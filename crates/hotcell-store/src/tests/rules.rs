//! What the store accepts and refuses.

use hotcell_core::model::{CredentialSecret, Deployment, EndReason, LeaseState};
use hotcell_types::{CredentialId, LeaseId, OutputId, UnixMillis, limits};

use super::{Home, audit_row, credential, furnish, lease, organization, output, workspace};
use crate::{AuditPage, StoreError, Tx};

async fn write<T: Send + 'static>(
    store: &crate::Store,
    change: impl FnOnce(&mut Tx<'_>) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    store.write(change).await
}

#[tokio::test]
async fn everything_that_was_written_is_read_back_also_after_reopening() {
    let home = Home::new();
    let store = home.open();
    let installation = store.installation();
    let agent_key = store.agent_key(&LeaseId::from_bits(1));
    assert_ne!(
        agent_key.expose(),
        store.agent_key(&LeaseId::from_bits(2)).expose()
    );
    assert!(!store.read_now(|s| s.deployment()).unwrap().enabled);
    let deployment = Deployment {
        enabled: true,
        default_profile: Some("embedded".parse().unwrap()),
    };
    let stored = deployment.clone();
    furnish(&store).await;
    write(&store, move |tx| {
        tx.put_deployment(&stored)?;
        tx.put_credential(&credential(1, "o1"))?;
        tx.put_lease(&lease(1, "w1", "c1", LeaseState::Starting))?;
        tx.put_output(&output(1, "w1", "c1", 10))?;
        tx.audit(audit_row("first"))?;
        tx.audit(audit_row("second"))
    })
    .await
    .unwrap();
    store.close().await.unwrap();

    let store = home.open();
    assert_eq!(store.installation(), installation);
    assert_eq!(
        store.agent_key(&LeaseId::from_bits(1)).expose(),
        agent_key.expose()
    );
    store
        .read(move |s| {
            assert_eq!(s.deployment()?, deployment);
            assert_eq!(s.organizations()?, [organization("o1")]);
            assert_eq!(s.workspaces(None)?, [workspace("w1", "o1")]);
            let o1 = "o1".parse().unwrap();
            assert_eq!(s.workspaces(Some(&o1))?, [workspace("w1", "o1")]);
            assert_eq!(s.credentials(&o1)?, [credential(1, "o1")]);
            let lease = lease(1, "w1", "c1", LeaseState::Starting);
            assert_eq!(s.leases()?, std::slice::from_ref(&lease));
            assert_eq!(s.live_lease_count()?, 1);
            let chat = s.live_lease_of_chat(&lease.workspace, &lease.chat)?;
            assert_eq!(chat, Some(lease.clone()));
            assert_eq!(
                s.outputs_of_chat(&lease.workspace, &lease.chat)?,
                [output(1, "w1", "c1", 10)]
            );
            Ok(())
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn secrets_are_not_in_the_file() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    write(&store, |tx| tx.put_credential(&credential(1, "o1")))
        .await
        .unwrap();
    store.close().await.unwrap();
    let bytes = std::fs::read(home.path()).unwrap();
    let finds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    assert!(finds(CredentialId::from_bits(1).as_str().as_bytes()));
    assert!(!finds(b"very-secret-text"));
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(home.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn what_is_referred_to_must_exist_and_is_not_deleted() {
    let home = Home::new();
    let store = home.open();
    let missing = write(&store, |tx| tx.put_workspace(&workspace("w1", "o1"))).await;
    assert!(
        matches!(
            missing,
            Err(StoreError::NotFound {
                what: "organization",
                ..
            })
        ),
        "{missing:?}"
    );
    let missing = write(&store, |tx| tx.put_credential(&credential(1, "o1"))).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
    furnish(&store).await;
    let in_use = write(&store, |tx| tx.delete_organization(&"o1".parse().unwrap())).await;
    assert!(
        matches!(
            &in_use,
            Err(StoreError::InUse {
                what: "organization",
                by: "workspaces",
                ..
            })
        ),
        "{in_use:?}"
    );
    write(&store, |tx| {
        tx.put_lease(&lease(1, "w1", "c1", LeaseState::Running))
    })
    .await
    .unwrap();
    let delete = |tx: &mut Tx<'_>| tx.delete_workspace(&"w1".parse().unwrap());
    let in_use = write(&store, delete).await;
    assert!(matches!(
        in_use,
        Err(StoreError::InUse {
            by: "live leases",
            ..
        })
    ));
    write(&store, |tx| {
        tx.put_output(&output(1, "w1", "c1", 1))?;
        tx.put_lease(&lease(1, "w1", "c1", LeaseState::Ended))
    })
    .await
    .unwrap();
    let in_use = write(&store, delete).await;
    assert!(matches!(
        in_use,
        Err(StoreError::InUse {
            by: "collected files",
            ..
        })
    ));
    write(&store, |tx| tx.delete_output(&OutputId::from_bits(1)))
        .await
        .unwrap();
    assert!(write(&store, delete).await.unwrap());
    assert!(!write(&store, delete).await.unwrap());
    write(&store, |tx| tx.put_credential(&credential(1, "o1")))
        .await
        .unwrap();
    assert!(
        write(&store, |tx| tx.delete_organization(&"o1".parse().unwrap()))
            .await
            .unwrap()
    );
    store
        .read_now(|s| {
            assert_eq!(s.organizations()?, []);
            assert_eq!(s.credential(&CredentialId::from_bits(1))?, None);
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn a_chat_has_one_live_lease_and_an_ended_one_stays_ended() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let put = |number, chat, state| {
        write(&store, move |tx| {
            tx.put_lease(&lease(number, "w1", chat, state))
        })
    };
    put(1, "c1", LeaseState::Starting).await.unwrap();
    put(1, "c1", LeaseState::Running).await.unwrap();
    let second = put(2, "c1", LeaseState::Starting).await;
    assert!(
        matches!(&second, Err(StoreError::ChatHasLiveLease(id)) if *id == LeaseId::from_bits(1)),
        "{second:?}"
    );
    put(2, "c2", LeaseState::Starting).await.unwrap();
    let moved = put(2, "c3", LeaseState::Starting).await;
    assert!(matches!(
        moved,
        Err(StoreError::Immutable { field: "chat", .. })
    ));
    let mut ended = lease(1, "w1", "c1", LeaseState::Ended);
    ended.changed_at = UnixMillis(50);
    ended.end = Some(EndReason::StartFailed("no image".to_owned()));
    let stored = ended.clone();
    write(&store, move |tx| tx.put_lease(&stored))
        .await
        .unwrap();
    let revived = put(1, "c1", LeaseState::Running).await;
    assert!(matches!(
        revived,
        Err(StoreError::Immutable { field: "end", .. })
    ));
    store
        .read_now(|s| {
            let (workspace, chat) = (&ended.workspace, &ended.chat);
            assert_eq!(s.live_lease_of_chat(workspace, chat)?, None);
            assert_eq!(
                s.newest_lease_of_chat(workspace, chat)?,
                Some(ended.clone())
            );
            assert_eq!(s.ended_leases(None, 10)?, [ended.clone()]);
            assert_eq!(s.ended_leases(Some(UnixMillis(50)), 10)?, []);
            assert_eq!(s.live_lease_count()?, 1);
            Ok(())
        })
        .unwrap();
    put(3, "c1", LeaseState::Starting).await.unwrap();
    // A lease may also be written for the first time when it is over.
    put(4, "c4", LeaseState::Ended).await.unwrap();
    let forgotten = write(&store, |tx| tx.forget_ended_leases(UnixMillis(60), 100)).await;
    assert_eq!(forgotten.unwrap(), 2);
    store
        .read_now(|s| {
            let newest = s.newest_lease_of_chat(&ended.workspace, &ended.chat)?;
            assert_eq!(newest.map(|lease| lease.id), Some(LeaseId::from_bits(3)));
            assert_eq!(s.lease(&ended.id)?, None);
            assert_eq!(s.leases()?.len(), 2);
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn listings_of_one_owner_hold_nothing_of_another() {
    let home = Home::new();
    let store = home.open();
    write(&store, |tx| {
        // Ids that are prefixes of each other, around the separator.
        for id in ["o", "o-", "o.", "o0", "o:"] {
            tx.put_organization(&organization(id))?;
        }
        for (id, owner) in [
            ("a", "o"),
            ("b", "o-"),
            ("c", "o."),
            ("d", "o0"),
            ("e", "o:"),
        ] {
            tx.put_workspace(&workspace(id, owner))?;
        }
        tx.put_output(&output(1, "a", "c", 3))?;
        tx.put_output(&output(2, "a", "c", 1))?;
        tx.put_output(&output(3, "a", "c", 2))?;
        tx.put_output(&output(4, "a", "c0", 9))?;
        tx.put_output(&output(5, "a", "c-", 9))
    })
    .await
    .unwrap();
    store
        .read_now(|s| {
            for (id, owner) in [
                ("a", "o"),
                ("b", "o-"),
                ("c", "o."),
                ("d", "o0"),
                ("e", "o:"),
            ] {
                let listed = s.workspaces(Some(&owner.parse().unwrap()))?;
                assert_eq!(listed, [workspace(id, owner)]);
            }
            let outputs = s.outputs_of_chat(&"a".parse().unwrap(), &"c".parse().unwrap())?;
            let times: Vec<u64> = outputs.iter().map(|output| output.created_at.0).collect();
            assert_eq!(times, [3, 2, 1], "the newest first");
            let all = s.outputs_of_workspace(&"a".parse().unwrap(), 100)?;
            assert_eq!(all.len(), 5);
            assert_eq!(s.outputs_of_workspace(&"a".parse().unwrap(), 2)?.len(), 2);
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn audit_rows_are_numbered_paged_and_never_renumbered() {
    let home = Home::new();
    let store = home.open();
    for number in 0..5_u64 {
        let written = write(&store, move |tx| {
            let mut row = audit_row(&format!("action-{number}"));
            row.at = UnixMillis(number);
            tx.audit(row)
        })
        .await;
        assert_eq!(written.unwrap(), number + 1);
    }
    let numbers = |before, limit| {
        let page = AuditPage { before, limit };
        let entries = store.read_now(|s| s.audit(page)).unwrap();
        entries.iter().map(|entry| entry.number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(None, 2), [5, 4]);
    assert_eq!(numbers(Some(4), 2), [3, 2]);
    assert_eq!(numbers(Some(2), 2), [1]);
    assert!(numbers(Some(1), 2).is_empty());
    let forgotten = write(&store, |tx| tx.forget_audit(UnixMillis(4), 100)).await;
    assert_eq!(forgotten.unwrap(), 4);
    assert_eq!(numbers(None, 100), [5]);
    let forgotten = write(&store, |tx| tx.forget_audit(UnixMillis(100), 100)).await;
    assert_eq!(forgotten.unwrap(), 1);
    let next = write(&store, |tx| tx.audit(audit_row("after"))).await;
    assert_eq!(next.unwrap(), 6);
}

#[tokio::test]
async fn limits_hold() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let mut huge = organization("huge");
    huge.name = "x".repeat(limits::MAX_STORED_ROW_BYTES);
    let refused = write(&store, move |tx| tx.put_organization(&huge)).await;
    assert!(matches!(
        refused,
        Err(StoreError::TooLarge { what: "a row", .. })
    ));
    let refused = write(&store, |tx| {
        let mut row = audit_row("many");
        row.fields = vec!["x".repeat(200_000)];
        loop {
            tx.audit(row.clone())?;
        }
        #[expect(unreachable_code, reason = "only the limit ends the loop")]
        Ok(())
    })
    .await;
    assert!(matches!(
        refused,
        Err(StoreError::TooLarge {
            what: "a change",
            ..
        })
    ));
    let mut many = credential(1, "o1");
    let secret = |at| CredentialSecret {
        text: "s".to_owned(),
        issued_at: UnixMillis(at),
    };
    many.secrets = vec![secret(3), secret(2), secret(1)];
    let refused = write(&store, move |tx| tx.put_credential(&many)).await;
    assert!(matches!(refused, Err(StoreError::LimitReached { .. })));
    let refused = write(&store, |tx| {
        for number in 0..=limits::MAX_CREDENTIALS_PER_ORGANIZATION as u128 {
            tx.put_credential(&credential(number, "o1"))?;
        }
        Ok(())
    })
    .await;
    assert!(matches!(
        refused,
        Err(StoreError::LimitReached { limit: 100, .. })
    ));
    // None of the refused changes left anything behind.
    store
        .read_now(|s| {
            assert_eq!(s.credentials(&"o1".parse().unwrap())?, []);
            assert_eq!(s.organizations()?.len(), 1);
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn a_sealed_secret_opens_in_its_own_row_only() {
    use crate::key::{Place, Vault};
    let vault = Vault::new(&super::key());
    let ids = super::CountedIds::default();
    let place = Place {
        table: "credentials",
        key: "a",
        part: "1",
    };
    let sealed = vault.seal(place, b"secret", &ids).unwrap();
    assert_eq!(vault.open(place, &sealed).unwrap().as_slice(), b"secret");
    assert_ne!(vault.seal(place, b"secret", &ids).unwrap(), sealed);
    for moved in [
        Place { key: "b", ..place },
        Place { part: "2", ..place },
        Place {
            table: "meta",
            ..place
        },
    ] {
        assert!(vault.open(moved, &sealed).is_err());
    }
    for broken in ["", "AAAA", "no base64 !", &sealed[..sealed.len() - 4]] {
        assert!(vault.open(place, broken).is_err());
    }
}
