//! The tree on the fake engine. Time is real and short: the store commits on a thread of its
//! own, which a paused clock would outrun.

mod boot;
mod crash;
mod egress;
mod egress_changes;
mod egress_readers;
mod egress_spaces;
mod kills;
mod lifecycle;
mod renewal;
mod warm;

use std::{sync::Arc, time::Duration};

use hotcell_core::{
    gate::QuotaSettings,
    lease::LeaseLimits,
    model::{Actor, Deployment, LeaseRecord, LeaseState, Organization, Workspace},
    profile::ProfileLimits,
};
use hotcell_runtime::{Runtime, RuntimeError, fake::FakeRuntime};
use hotcell_store::{Store, StoreError, StoreKey};
use hotcell_types::{Clock, RequestId, Role, UnixMillis};
use tempfile::TempDir;

use super::{Appliance, OpenRuntime, Parts};
use crate::{
    clock::{SystemClock, SystemIds},
    egress::EgressParts,
    handles::{Caller, Sandboxes},
    volumes::Volumes,
};

/// Limits that no test reaches by accident.
const PATIENT: LeaseLimits = LeaseLimits {
    start_timeout_ms: 30_000,
    idle_timeout_ms: 3_600_000,
    hard_timeout_ms: 7_200_000,
};

/// What outlives a daemon: its directory and its engine.
struct Host {
    dir: TempDir,
    fake: Option<FakeRuntime>,
    egress: EgressParts,
    clock: Arc<dyn Clock>,
    warm_pool: usize,
}

/// A running tree.
struct Life {
    appliance: Appliance,
    sandboxes: Sandboxes,
    store: Store,
    fake: FakeRuntime,
}

fn open_store(dir: &TempDir) -> Store {
    Store::open(
        &dir.path().join("store.redb"),
        StoreKey::new([7; 32]),
        Arc::new(SystemClock),
        Arc::new(SystemIds),
    )
    .unwrap()
}

impl Host {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            fake: None,
            egress: EgressParts::none(),
            clock: Arc::new(SystemClock),
            warm_pool: 0,
        }
    }

    async fn boot(&mut self, limits: LeaseLimits) -> Life {
        self.boot_with(limits, 8).await
    }

    async fn boot_with(&mut self, limits: LeaseLimits, max_sandboxes: usize) -> Life {
        let store = open_store(&self.dir);
        let fake = self
            .fake
            .get_or_insert_with(|| FakeRuntime::new(store.installation()))
            .clone();
        let engine = fake.clone();
        let open: OpenRuntime = Arc::new(move || {
            let engine: Arc<dyn Runtime> = Arc::new(engine.clone());
            Box::pin(async move { Ok(engine) })
        });
        switch_on(&store).await;
        self.start(store, fake, limits, max_sandboxes, open).await
    }

    async fn start(
        &self,
        store: Store,
        fake: FakeRuntime,
        limits: LeaseLimits,
        max_sandboxes: usize,
        open: OpenRuntime,
    ) -> Life {
        let appliance = Appliance::start(Parts {
            store: store.clone(),
            clock: Arc::clone(&self.clock),
            ids: Arc::new(SystemIds),
            volumes: Volumes::open(self.dir.path()).unwrap(),
            limits: ProfileLimits {
                lease: limits,
                scratch_bytes: 1 << 26,
                jobs: true,
                warm_pool: self.warm_pool,
                ..ProfileLimits::default()
            },
            final_sweep: None,
            max_sandboxes,
            image: "fake".parse().unwrap(),
            egress: self.egress.clone(),
            switches: crate::switches::Switches::default(),
            open,
        })
        .await
        .unwrap();
        Life {
            sandboxes: appliance.sandboxes(),
            appliance,
            store,
            fake,
        }
    }
}

impl Life {
    async fn stop(self) {
        self.appliance.stop().await;
        self.store.close().await.unwrap();
    }

    fn record(&self, chat: &str) -> Option<LeaseRecord> {
        let chat = chat.parse().unwrap();
        self.store
            .read_now(|view| view.newest_lease_of_chat(&"w".parse().unwrap(), &chat))
            .unwrap()
    }

    fn state(&self, chat: &str) -> Option<LeaseState> {
        self.record(chat).map(|record| record.state)
    }
}

/// One workspace of one organization, all switches on.
async fn switch_on(store: &Store) {
    store
        .write::<(), StoreError, _>(|tx| {
            tx.put_deployment(&Deployment {
                enabled: true,
                default_profile: Some("default".parse().unwrap()),
            })?;
            tx.put_organization(&Organization {
                id: "o".parse().unwrap(),
                name: "O".into(),
                enabled: true,
                profile: None,
                created_at: UnixMillis(1),
            })?;
            tx.put_workspace(&Workspace {
                id: "w".parse().unwrap(),
                organization: "o".parse().unwrap(),
                name: "W".into(),
                enabled: true,
                created_at: UnixMillis(1),
            })?;
            // Tests of other things are in no quota's way.
            tx.put_quotas(
                &"w".parse().unwrap(),
                &QuotaSettings {
                    max_concurrent: Some(1_000),
                    max_jobs_per_hour: Some(100_000),
                    ..QuotaSettings::default()
                },
            )
        })
        .await
        .unwrap();
}

fn caller(chat: &str) -> Caller {
    caller_as(chat, "u", Role::Editor)
}

fn caller_as(chat: &str, user: &str, role: Role) -> Caller {
    Caller {
        organization: "o".parse().unwrap(),
        workspace: "w".parse().unwrap(),
        chat: chat.parse().unwrap(),
        user: user.parse().unwrap(),
        role,
        actor: Actor::System,
        request: RequestId::from_bits(5),
    }
}

fn broken(reason: &str) -> RuntimeError {
    RuntimeError::Failed {
        action: "do it",
        reason: reason.into(),
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
