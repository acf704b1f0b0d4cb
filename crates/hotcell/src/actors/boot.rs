//! Starting and stopping the actors, and taking over what an earlier daemon left.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use hotcell_core::{
    model::{Actor, AuditRow, Deployment, LeaseRecord},
    profile::ProfileLimits,
};
use hotcell_store::{Store, StoreError};
use hotcell_supervision::{AddError, CallError};
use hotcell_types::{Clock, IdSource, ProfileId, WorkspaceId, limits};
use ractor::SpawnErr;
use tokio::time::Instant;

use super::{
    context::Context,
    crew::Crew,
    egress::Egress,
    jobs::JobBook,
    live::Live,
    profile::{OpenRuntime, Profile, ProfileMsg},
    sweep::FinalSweep,
    workspace::WorkspaceMsg,
};
use crate::{
    config::ImageChoice,
    denials::Denials,
    egress::{EgressParts, Journal},
    handles::Sandboxes,
    metrics::Metrics,
    skew::ClockSkew,
    store_check::StoreCheck,
    switches::Switches,
    volumes::Volumes,
};

/// What the actors work with.
pub struct Parts {
    /// The durable state; closed by whoever opened it, after the actors stopped.
    pub store: Store,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where ids come from.
    pub ids: Arc<dyn IdSource>,
    /// The directories that sandboxes mount.
    pub volumes: Volumes,
    /// What the profile allows each sandbox.
    pub limits: ProfileLimits,
    /// Collects what is ready in a sandbox that is about to stop or end.
    pub final_sweep: Option<Arc<dyn FinalSweep>>,
    /// Sandboxes that run at once.
    pub max_sandboxes: usize,
    /// What sandboxes run.
    pub image: ImageChoice,
    /// What filters are made with.
    pub egress: EgressParts,
    /// What the environment forces.
    pub switches: Switches,
    /// Opens the engine of the profile `default`.
    pub open: OpenRuntime,
}

/// Why the actors could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The store failed.
    #[error("the store failed while the daemon started")]
    Store(#[from] StoreError),
    /// The root of the tree could not be spawned.
    #[error("the supervision tree could not be started")]
    Tree(#[from] SpawnErr),
    /// A supervisor does not answer.
    #[error("a supervisor does not answer")]
    Call(#[from] CallError),
    /// The actor of a workspace could not be started.
    #[error("the actor of a workspace could not be started")]
    Workspace(#[from] AddError),
}

/// The running actors.
pub struct Appliance {
    context: Arc<Context>,
}

/// The name of the one profile that the configuration makes.
pub fn default_profile() -> ProfileId {
    "default"
        .parse()
        .unwrap_or_else(|_| unreachable!("it is a valid id"))
}

impl Appliance {
    /// Starts the tree, then takes over every lease of the store: adopts the sandboxes that run,
    /// ends leases that lost theirs, removes what ended ones left. Returns when each stands where
    /// it can stay, or after `limits::BOOT_RECONCILE_TIMEOUT_MS`.
    ///
    /// # Errors
    /// The store fails, or an actor cannot be started. An engine that cannot be opened is no
    /// error: its profile is faulted then.
    pub async fn start(parts: Parts) -> Result<Self, BootError> {
        let journal = Arc::new(Journal::new(Arc::clone(&parts.clock)));
        let metrics = Metrics::default();
        let counted = journal.counted();
        metrics.register(|registry| {
            let help = "What filters of sandboxes decided and did, by kind of event";
            registry.register("egress_events", help, counted);
        });
        let egress = Egress::new(parts.egress, journal, &parts.store.installation());
        let of_store = metrics.clone();
        let observe = move |took, worked| of_store.committed(took, worked);
        parts.store.observe_commits(Box::new(observe));
        let warm_pool = parts.limits.warm_pool;
        let context = Arc::new(Context {
            egress,
            switches: parts.switches,
            denials: Denials::new(
                parts.store.clone(),
                Arc::clone(&parts.clock),
                metrics.clone(),
            ),
            metrics,
            store_check: StoreCheck::default(),
            skew: ClockSkew::default(),
            store: parts.store,
            clock: parts.clock,
            ids: parts.ids,
            volumes: parts.volumes,
            limits: parts.limits.lease,
            scratch_bytes: parts.limits.scratch_bytes,
            allowed: parts.limits,
            final_sweep: parts.final_sweep,
            jobs: JobBook::default(),
            profile: Profile::new(default_profile(), parts.image),
            live: Live::new(parts.max_sandboxes, warm_pool),
            crew: Crew::default(),
            leaving: AtomicBool::new(false),
        });
        first_start(&context).await?;
        Crew::start(&context, parts.open).await?;
        let appliance = Self { context };
        match appliance.take_over().await {
            Ok(()) => {
                appliance.context.live.pool.begin();
                Ok(appliance)
            }
            Err(error) => {
                appliance.stop().await;
                Err(error)
            }
        }
    }

    /// What HTTP sees of the actors.
    #[must_use]
    pub fn sandboxes(&self) -> Sandboxes {
        Sandboxes::new(Arc::clone(&self.context))
    }

    /// Nothing new begins from now on; what runs goes on.
    pub fn leave(&self) {
        self.context.leaving.store(true, Ordering::Release);
    }

    /// Stops every actor. Sandboxes stay as they are, for the next daemon to adopt.
    pub async fn stop(&self) {
        self.leave();
        self.context.jobs.stop().await;
        self.context.crew.stop().await;
        if let Err(error) = self.context.denials.flush().await {
            tracing::warn!(%error, "the last denials cannot be written down");
        }
    }

    async fn take_over(&self) -> Result<(), BootError> {
        let context = &self.context;
        let deadline = Instant::now() + Duration::from_millis(limits::BOOT_RECONCILE_TIMEOUT_MS);
        context.crew.started().await?;
        let mut of_workspace: BTreeMap<WorkspaceId, Vec<LeaseRecord>> = BTreeMap::new();
        let records = context.store.read(|view| view.leases()).await?;
        // Before anybody starts or removes a sandbox.
        let filters = async {
            context.profile.tried().await;
            context.egress.take_over(context, &records).await;
        };
        if tokio::time::timeout_at(deadline, filters).await.is_err() {
            tracing::warn!("not every filter was taken over in time; that goes on");
        }
        for record in records {
            let of = of_workspace.entry(record.workspace.clone()).or_default();
            of.push(record);
        }
        let mut adopted = Vec::new();
        for (workspace, records) in of_workspace {
            let address = context.crew.workspace(context, &workspace).await?;
            let question = |port| WorkspaceMsg::AdoptThese(records, port);
            adopted.extend(
                address
                    .call(question, limits::ACTOR_CALL_TIMEOUT_MS)
                    .await?,
            );
        }
        let all = async {
            context.profile.tried().await;
            for lease in &adopted {
                lease.settled().await;
            }
            // Of an engine that is not open nothing can be swept.
            let question = |port| ProfileMsg::Sweep(Some(port));
            let _ = context
                .profile
                .actor
                .call(question, limits::BOOT_RECONCILE_TIMEOUT_MS)
                .await;
        };
        if tokio::time::timeout_at(deadline, all).await.is_err() {
            tracing::warn!("not every lease was reconciled in time; that goes on");
        }
        tracing::info!(
            adopted = adopted.len(),
            "the leases of the store are taken over"
        );
        Ok(())
    }
}

/// In a new store the profile of the configuration is the deployment's default.
async fn first_start(context: &Arc<Context>) -> Result<(), StoreError> {
    let is_new = context.store.read_now(|view| {
        let untouched = view.deployment()? == Deployment::default();
        Ok(untouched && view.organizations()?.is_empty())
    })?;
    if !is_new {
        return Ok(());
    }
    let (profile, now) = (context.profile.id.clone(), context.clock.now());
    context
        .store
        .write(move |tx| {
            tx.put_deployment(&Deployment {
                enabled: false,
                default_profile: Some(profile),
            })?;
            tx.audit(AuditRow {
                at: now,
                actor: Actor::System,
                action: "deployment.updated".into(),
                subject: "deployment".into(),
                fields: vec!["default_profile".into()],
                request: None,
            })?;
            Ok(())
        })
        .await
}
