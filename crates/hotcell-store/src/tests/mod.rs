//! Tests of the store that need its insides; those that need other processes are in `tests/`.

mod damage;
mod declared;
mod denials;
mod disk;
mod group;
mod idempotency;
mod jobs;
mod migration;
mod policies;
mod property;
mod quota;
mod quota_bytes;
mod quota_model;
mod rules;
mod shapes;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use hotcell_core::model::{
    Actor, AuditRow, Credential, CredentialSecret, LeaseRecord, LeaseState, Organization,
    OutputRecord, Workspace,
};
use hotcell_types::{Clock, CredentialId, IdSource, LeaseId, OutputId, ResourceClass, UnixMillis};

use crate::{OpenError, Store, StoreError, StoreKey};

/// Disk failures on order.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Which sync from now on fails, once; none when zero.
    pub(crate) failing_sync: AtomicU64,
    /// Whether every write fails.
    pub(crate) failing_writes: AtomicBool,
}

impl Faults {
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        let count_down = |left: u64| left.checked_sub(1);
        let before =
            self.failing_sync
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count_down);
        match before {
            Ok(1) => Err(std::io::Error::other("the disk does not sync")),
            _ => Ok(()),
        }
    }

    pub(crate) fn write(&self) -> std::io::Result<()> {
        if self.failing_writes.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("the disk does not write"));
        }
        Ok(())
    }
}

/// A clock that stands.
pub(crate) struct StandingClock;

impl Clock for StandingClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(1_700_000_000_000)
    }
}

/// Ids that count up, spread over all bits.
#[derive(Default)]
pub(crate) struct CountedIds(AtomicU64);

impl IdSource for CountedIds {
    fn bits(&self) -> u128 {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }
}

pub(crate) fn key() -> StoreKey {
    StoreKey::new([7; 32])
}

pub(crate) fn open(path: &Path) -> Result<Store, OpenError> {
    Store::open(
        path,
        key(),
        Arc::new(StandingClock),
        Arc::new(CountedIds::default()),
    )
}

/// A directory with a store that was just made in it.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("store.redb")
    }

    pub(crate) fn open(&self) -> Store {
        open(&self.path()).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn organization(id: &str) -> Organization {
    Organization {
        id: id.parse().unwrap(),
        name: format!("Organization {id}"),
        enabled: true,
        profile: None,
        created_at: UnixMillis(1),
    }
}

pub(crate) fn workspace(id: &str, organization: &str) -> Workspace {
    Workspace {
        id: id.parse().unwrap(),
        organization: organization.parse().unwrap(),
        name: format!("Workspace {id}"),
        enabled: true,
        created_at: UnixMillis(2),
    }
}

pub(crate) fn credential(number: u128, organization: &str) -> Credential {
    Credential {
        id: CredentialId::from_bits(number),
        organization: organization.parse().unwrap(),
        secrets: vec![CredentialSecret {
            text: format!("very-secret-text-{number}"),
            issued_at: UnixMillis(3),
        }],
        created_at: UnixMillis(3),
    }
}

pub(crate) fn lease(number: u128, workspace: &str, chat: &str, state: LeaseState) -> LeaseRecord {
    LeaseRecord {
        id: LeaseId::from_bits(number),
        organization: "o1".parse().unwrap(),
        workspace: workspace.parse().unwrap(),
        chat: chat.parse().unwrap(),
        user: "u1".parse().unwrap(),
        profile: "default".parse().unwrap(),
        resource_class: ResourceClass::Small,
        state,
        created_at: UnixMillis(4),
        changed_at: UnixMillis(4),
        end: None,
    }
}

pub(crate) fn output(number: u128, workspace: &str, chat: &str, at: u64) -> OutputRecord {
    OutputRecord {
        id: OutputId::from_bits(number),
        workspace: workspace.parse().unwrap(),
        chat: chat.parse().unwrap(),
        user: "u1".parse().unwrap(),
        lease: LeaseId::from_bits(1),
        name: "a \"b\"\n.pdf".parse().unwrap(),
        path: "/workspace/a.pdf".to_owned(),
        bytes: 12,
        media_type: "application/pdf".to_owned(),
        sha256: "00".repeat(32),
        created_at: UnixMillis(at),
    }
}

pub(crate) fn audit_row(action: &str) -> AuditRow {
    AuditRow {
        at: UnixMillis(5),
        actor: Actor::System,
        action: action.to_owned(),
        subject: "workspace/w1".to_owned(),
        fields: vec!["enabled".to_owned()],
        request: None,
    }
}

/// Writes an organization `o1` with a workspace `w1`.
pub(crate) async fn furnish(store: &Store) {
    store
        .write(|tx| {
            tx.put_organization(&organization("o1"))?;
            tx.put_workspace(&workspace("w1", "o1"))
        })
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
}
