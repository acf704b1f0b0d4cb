//! The store against maps in memory, over random changes, failures and reopenings.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use hotcell_core::model::{
    AuditRow, Credential, LeaseRecord, LeaseState, Organization, OutputRecord, Workspace,
};
use hotcell_types::{CredentialId, LeaseId, OutputId, UnixMillis};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::{Home, audit_row, credential, lease, organization, output, workspace};
use crate::{AuditPage, Store, StoreError, Tx};

#[derive(Debug, Clone)]
enum Op {
    PutOrganization(u8, bool),
    DeleteOrganization(u8),
    PutWorkspace(u8, u8),
    DeleteWorkspace(u8),
    PutCredential(u8, u8, u8),
    DeleteCredential(u8),
    PutLease(u8, u8, u8, LeaseState, u64),
    PutOutput(u8, u8, u8),
    DeleteOutput(u8),
    Audit(u8),
}

/// How a change ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Keep,
    Fail,
    Panic,
}

#[derive(Debug, Clone)]
enum Step {
    /// Changes that are queued together.
    Batch(Vec<(Vec<Op>, End)>),
    Reopen,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    organizations: BTreeMap<String, Organization>,
    workspaces: BTreeMap<String, Workspace>,
    credentials: BTreeMap<String, Credential>,
    leases: BTreeMap<String, LeaseRecord>,
    outputs: BTreeMap<String, OutputRecord>,
    audit: Vec<AuditRow>,
}

fn org(number: u8) -> String {
    format!("o{number}")
}

fn ws(number: u8) -> String {
    format!("w{number}")
}

fn chat(number: u8) -> String {
    format!("c{number}")
}

fn lease_of(op: (u8, u8, u8, LeaseState, u64)) -> LeaseRecord {
    let (number, workspace, of_chat, state, at) = op;
    let mut record = lease(u128::from(number), &ws(workspace), &chat(of_chat), state);
    record.changed_at = UnixMillis(at);
    record
}

impl Model {
    /// What the documentation of the store promises. `Err` leaves the model half changed, like a change that fails.
    fn apply(&mut self, op: &Op) -> Result<(), ()> {
        match *op {
            Op::PutOrganization(id, enabled) => {
                let mut row = organization(&org(id));
                row.enabled = enabled;
                self.organizations.insert(org(id), row);
            }
            Op::DeleteOrganization(id) => {
                let of = org(id);
                if self.organizations.contains_key(&of) {
                    let is_of =
                        |organization: &hotcell_types::OrganizationId| organization.as_str() == of;
                    if self.workspaces.values().any(|w| is_of(&w.organization)) {
                        return Err(());
                    }
                    self.credentials.retain(|_, c| !is_of(&c.organization));
                    self.organizations.remove(&of);
                }
            }
            Op::PutWorkspace(id, of) => {
                if let Some(old) = self.workspaces.get(&ws(id)) {
                    if old.organization.as_str() != org(of) {
                        return Err(());
                    }
                } else if !self.organizations.contains_key(&org(of)) {
                    return Err(());
                }
                self.workspaces.insert(ws(id), workspace(&ws(id), &org(of)));
            }
            Op::DeleteWorkspace(id) => {
                let of = ws(id);
                let has_live = self
                    .leases
                    .values()
                    .any(|l| l.workspace.as_str() == of && l.state != LeaseState::Ended);
                let has_outputs = self.outputs.values().any(|o| o.workspace.as_str() == of);
                if self.workspaces.contains_key(&of) {
                    if has_live || has_outputs {
                        return Err(());
                    }
                    self.workspaces.remove(&of);
                }
            }
            Op::PutCredential(id, of, secret) => {
                let row = credential_of(id, of, secret);
                if let Some(old) = self.credentials.get(row.id.as_str()) {
                    if old.organization != row.organization {
                        return Err(());
                    }
                } else if !self.organizations.contains_key(&org(of)) {
                    return Err(());
                }
                self.credentials.insert(row.id.to_string(), row);
            }
            Op::DeleteCredential(id) => {
                let id = CredentialId::from_bits(u128::from(id));
                self.credentials.remove(id.as_str());
            }
            Op::PutLease(a, b, c, d, e) => {
                let row = lease_of((a, b, c, d, e));
                match self.leases.get(row.id.as_str()) {
                    Some(old) => {
                        let same = old.workspace == row.workspace && old.chat == row.chat;
                        let revived = old.state == LeaseState::Ended && row.state != old.state;
                        if !same || revived {
                            return Err(());
                        }
                    }
                    None if !self.workspaces.contains_key(&ws(b)) => return Err(()),
                    None => {}
                }
                let other_is_live = self.leases.values().any(|other| {
                    other.id != row.id
                        && other.workspace == row.workspace
                        && other.chat == row.chat
                        && other.state != LeaseState::Ended
                });
                if row.state != LeaseState::Ended && other_is_live {
                    return Err(());
                }
                self.leases.insert(row.id.to_string(), row);
            }
            Op::PutOutput(id, of, of_chat) => {
                let row = output(u128::from(id), &ws(of), &chat(of_chat), u64::from(id));
                match self.outputs.get(row.id.as_str()) {
                    Some(old) if *old == row => return Ok(()),
                    Some(_) => return Err(()),
                    None if !self.workspaces.contains_key(&ws(of)) => return Err(()),
                    None => {}
                }
                self.outputs.insert(row.id.to_string(), row);
            }
            Op::DeleteOutput(id) => {
                let id = OutputId::from_bits(u128::from(id));
                self.outputs.remove(id.as_str());
            }
            Op::Audit(number) => self.audit.push(audit_row(&format!("action-{number}"))),
        }
        Ok(())
    }
}

fn credential_of(id: u8, of: u8, secret: u8) -> Credential {
    let mut row = credential(u128::from(id), &org(of));
    row.secrets[0].text = format!("secret-{secret}");
    row
}

fn apply(tx: &mut Tx<'_>, op: &Op) -> Result<(), StoreError> {
    match *op {
        Op::PutOrganization(id, enabled) => {
            let mut row = organization(&org(id));
            row.enabled = enabled;
            tx.put_organization(&row)
        }
        Op::DeleteOrganization(id) => tx.delete_organization(&org(id).parse().unwrap()).map(drop),
        Op::PutWorkspace(id, of) => tx.put_workspace(&workspace(&ws(id), &org(of))),
        Op::DeleteWorkspace(id) => tx.delete_workspace(&ws(id).parse().unwrap()).map(drop),
        Op::PutCredential(id, of, secret) => tx.put_credential(&credential_of(id, of, secret)),
        Op::DeleteCredential(id) => tx
            .delete_credential(&CredentialId::from_bits(u128::from(id)))
            .map(drop),
        Op::PutLease(a, b, c, d, e) => tx.put_lease(&lease_of((a, b, c, d, e))),
        Op::PutOutput(id, of, of_chat) => tx.put_output(&output(
            u128::from(id),
            &ws(of),
            &chat(of_chat),
            u64::from(id),
        )),
        Op::DeleteOutput(id) => tx
            .delete_output(&OutputId::from_bits(u128::from(id)))
            .map(drop),
        Op::Audit(number) => tx.audit(audit_row(&format!("action-{number}"))).map(drop),
    }
}

/// Everything that can be listed, through every index.
fn check(store: &Store, model: &Model) {
    store
        .read_now(|s| {
            let organizations: Vec<_> = model.organizations.values().cloned().collect();
            assert_eq!(s.organizations()?, organizations);
            let workspaces: Vec<_> = model.workspaces.values().cloned().collect();
            assert_eq!(s.workspaces(None)?, workspaces);
            for organization in 0..3 {
                let of = org(organization).parse().unwrap();
                let mine: Vec<_> = workspaces
                    .iter()
                    .filter(|w| w.organization == of)
                    .cloned()
                    .collect();
                assert_eq!(s.workspaces(Some(&of))?, mine);
                let mine: Vec<_> = model
                    .credentials
                    .values()
                    .filter(|c| c.organization == of)
                    .cloned()
                    .collect();
                assert_eq!(s.credentials(&of)?, mine);
            }
            let is_live = |l: &&LeaseRecord| l.state != LeaseState::Ended;
            let mut live: Vec<_> = model.leases.values().filter(is_live).cloned().collect();
            live.sort_by_key(|l| (l.workspace.clone(), l.id.clone()));
            assert_eq!(s.leases()?, live);
            assert_eq!(s.live_lease_count()?, live.len() as u64);
            for id in 0..6_u8 {
                let id = LeaseId::from_bits(u128::from(id));
                assert_eq!(s.lease(&id)?.as_ref(), model.leases.get(id.as_str()));
            }
            let mut ended: Vec<_> = model
                .leases
                .values()
                .filter(|l| l.state == LeaseState::Ended)
                .cloned()
                .collect();
            ended.sort_by_key(|l| std::cmp::Reverse((l.changed_at, l.id.clone())));
            assert_eq!(s.ended_leases(None, 100)?, ended);
            for workspace in 0..3 {
                for of_chat in 0..3 {
                    let workspace = ws(workspace).parse().unwrap();
                    let of_chat = chat(of_chat).parse().unwrap();
                    let wanted = live
                        .iter()
                        .find(|l| l.workspace == workspace && l.chat == of_chat);
                    let found = s.live_lease_of_chat(&workspace, &of_chat)?;
                    assert_eq!(found.as_ref(), wanted);
                    let mut outputs: Vec<_> = model
                        .outputs
                        .values()
                        .filter(|o| o.workspace == workspace && o.chat == of_chat)
                        .cloned()
                        .collect();
                    outputs.sort_by_key(|o| std::cmp::Reverse((o.created_at, o.id.clone())));
                    assert_eq!(s.outputs_of_chat(&workspace, &of_chat)?, outputs);
                }
            }
            let page = AuditPage {
                before: None,
                limit: 1_000,
            };
            let mut audit: Vec<AuditRow> = s.audit(page)?.into_iter().map(|e| e.row).collect();
            audit.reverse();
            assert_eq!(audit, model.audit);
            Ok(())
        })
        .unwrap();
}

fn run(steps: &[Step]) {
    let runtime = Runtime::new().unwrap();
    let home = Home::new();
    let mut store = home.open();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Reopen => {
                runtime.block_on(store.close()).unwrap();
                store = home.open();
            }
            Step::Batch(changes) => {
                // join_all polls in order, and the queue has room: they are queued in order.
                let results =
                    runtime.block_on(join_all(changes.iter().cloned().map(|(ops, end)| {
                        store.write(move |tx| {
                            for op in &ops {
                                apply(tx, op)?;
                            }
                            match end {
                                End::Keep => Ok(()),
                                End::Fail => Err(StoreError::Reopening),
                                End::Panic => panic!("on purpose"),
                            }
                        })
                    })));
                for ((ops, end), result) in changes.iter().zip(results) {
                    let mut changed = model.clone();
                    let applied = ops.iter().try_for_each(|op| changed.apply(op));
                    match (applied, end) {
                        (Ok(()), End::Keep) => {
                            result.unwrap();
                            model = changed;
                        }
                        (Ok(()), End::Fail) => {
                            assert!(matches!(result, Err(StoreError::Reopening)));
                        }
                        (Ok(()), End::Panic) => {
                            assert!(matches!(result, Err(StoreError::Panicked(_))));
                        }
                        (Err(()), _) => assert!(result.is_err(), "{ops:?} was accepted"),
                    }
                }
            }
        }
        check(&store, &model);
    }
    runtime.block_on(store.close()).unwrap();
    check(&home.open(), &model);
}

fn op() -> impl Strategy<Value = Op> {
    let small = 0..3_u8;
    let id = 0..6_u8;
    let state = prop_oneof![
        Just(LeaseState::Starting),
        Just(LeaseState::Running),
        Just(LeaseState::Ended),
    ];
    prop_oneof![
        3 => (small.clone(), any::<bool>()).prop_map(|(a, b)| Op::PutOrganization(a, b)),
        1 => small.clone().prop_map(Op::DeleteOrganization),
        4 => (small.clone(), small.clone()).prop_map(|(a, b)| Op::PutWorkspace(a, b)),
        1 => small.clone().prop_map(Op::DeleteWorkspace),
        2 => (id.clone(), small.clone(), id.clone()).prop_map(|(a, b, c)| Op::PutCredential(a, b, c)),
        1 => id.clone().prop_map(Op::DeleteCredential),
        5 => (id.clone(), small.clone(), small.clone(), state, 0..5_u64)
            .prop_map(|(a, b, c, d, e)| Op::PutLease(a, b, c, d, e)),
        3 => (id.clone(), small.clone(), small).prop_map(|(a, b, c)| Op::PutOutput(a, b, c)),
        1 => id.prop_map(Op::DeleteOutput),
        2 => any::<u8>().prop_map(Op::Audit),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let end = prop_oneof![8 => Just(End::Keep), 1 => Just(End::Fail), 1 => Just(End::Panic)];
    let change = (proptest::collection::vec(op(), 1..4), end);
    prop_oneof![
        12 => proptest::collection::vec(change, 1..6).prop_map(Step::Batch),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_maps_in_memory_do(steps in proptest::collection::vec(step(), 1..25)) {
        run(&steps);
    }
}
