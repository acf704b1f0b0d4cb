//! The supervision tree, and how leases and workspaces get their actors.
//!
//! ```text
//!   root ─┬─ egress ───── <lease>, …, space-<n>, …     filters, and guards of their tables
//!         ├─ profiles ─── default, default-warm        one engine, and the keeper of its warm pool
//!         ├─ workspaces ─ <workspace>, …               admission, on demand
//!         └─ leases ───── <lease>, …                   one sandbox each
//! ```
//!
//! Started in this order, stopped in reverse. The store is a thread of its own below all of them:
//! it is opened before the tree and closed after it. Filters outlive the actors of the leases whose
//! traffic they filter.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hotcell_supervision::{
    AddError, Address, CallError, ChildSpec, ChildStatus, Restart, Supervisor, SupervisorHandle,
};
use hotcell_types::{LeaseId, WorkspaceId, limits};
use ractor::SpawnErr;

use super::{
    context::Context,
    egress::{
        Filter, FilterActor, FilterArguments, GuardActor, GuardArguments, Space as FilterSpace,
    },
    lease::{LeaseActor, LeaseArguments, Origin},
    live::{LiveLease, lock},
    profile::{OpenRuntime, ProfileActor, ProfileArguments},
    warm::{KeeperActor, KeeperArguments},
    workspace::{WorkspaceActor, WorkspaceArguments, WorkspaceMsg},
};

fn guard_id(number: u64) -> String {
    format!("space-{number}")
}

struct Tree {
    root: SupervisorHandle,
    egress: SupervisorHandle,
    profiles: SupervisorHandle,
    workspaces: SupervisorHandle,
    leases: SupervisorHandle,
}

/// The supervisors, and the addresses of the workspaces' actors.
#[derive(Default)]
pub(crate) struct Crew {
    tree: OnceLock<Tree>,
    workspaces: Mutex<HashMap<WorkspaceId, Address<WorkspaceMsg>>>,
    started: AtomicU64,
}

impl Crew {
    /// Starts the tree.
    ///
    /// # Errors
    /// The root could not be spawned.
    pub(crate) async fn start(context: &Arc<Context>, open: OpenRuntime) -> Result<(), SpawnErr> {
        let jitter = || Arc::clone(&context.ids);
        let of_profile = Arc::clone(context);
        let profile = ChildSpec::actor_at(
            context.profile.id.as_str(),
            context.profile.actor.clone(),
            move || {
                let context = Arc::clone(&of_profile);
                let open = Arc::clone(&open);
                (ProfileActor, ProfileArguments { context, open })
            },
        );
        let mut of_profiles = vec![profile];
        if context.allowed.warm_pool > 0 {
            let of_keeper = Arc::clone(context);
            let make = move || {
                let context = Arc::clone(&of_keeper);
                (KeeperActor, KeeperArguments { context })
            };
            let (keeper, _) = ChildSpec::actor(format!("{}-warm", context.profile.id), make);
            of_profiles.push(keeper.stop_timeout_ms(limits::MAX_CHILD_STOP_MS));
        }
        let (egress_spec, egress) = Supervisor::child("egress", Vec::new(), jitter());
        let (profiles_spec, profiles) = Supervisor::child("profiles", of_profiles, jitter());
        let (workspaces_spec, workspaces) = Supervisor::child("workspaces", Vec::new(), jitter());
        let (leases_spec, leases) = Supervisor::child("leases", Vec::new(), jitter());
        let children = vec![
            egress_spec.stop_timeout_ms(limits::MAX_CHILD_STOP_MS),
            profiles_spec,
            workspaces_spec,
            leases_spec.stop_timeout_ms(limits::MAX_CHILD_STOP_MS),
        ];
        let root = Supervisor::start("root", children, jitter()).await?;
        let tree = Tree {
            root,
            egress,
            profiles,
            workspaces,
            leases,
        };
        if context.crew.tree.set(tree).is_err() {
            tracing::error!("the supervision tree was started twice");
        }
        Ok(())
    }

    /// Waits until the tree stands.
    ///
    /// # Errors
    /// It does not.
    pub(crate) async fn started(&self) -> Result<(), CallError> {
        let tree = self.tree()?;
        tree.root.started(limits::SUPERVISOR_CALL_TIMEOUT_MS).await
    }

    /// Stops everything, leases first.
    pub(crate) async fn stop(&self) {
        if let Some(tree) = self.tree.get() {
            tree.root.stop().await;
        }
        lock(&self.workspaces).clear();
    }

    fn tree(&self) -> Result<&Tree, CallError> {
        self.tree.get().ok_or(CallError::Gone)
    }

    /// Starts the actor of a lease.
    ///
    /// # Errors
    /// It cannot be added.
    pub(crate) async fn start_lease(
        &self,
        context: &Arc<Context>,
        live: &Arc<LiveLease>,
        origin: Origin,
    ) -> Result<(), AddError> {
        let arguments = LeaseArguments {
            context: Arc::clone(context),
            live: Arc::clone(live),
            origin,
        };
        let make = move || (LeaseActor, arguments.clone());
        let of_fault = Arc::clone(live);
        let spec = ChildSpec::actor_at(live.id.as_str(), live.address.clone(), make)
            .restart(Restart::Transient)
            .on_fault(move |reason| of_fault.set_fault(Some(reason.to_owned())));
        let tree = self.tree().map_err(AddError::Call)?;
        tree.leases.add(spec).await
    }

    /// Starts the actor of a filter.
    ///
    /// # Errors
    /// It cannot be added.
    pub(crate) async fn start_filter(
        &self,
        context: &Arc<Context>,
        filter: &Arc<Filter>,
    ) -> Result<(), AddError> {
        let arguments = FilterArguments {
            context: Arc::clone(context),
            filter: Arc::clone(filter),
        };
        let make = move || (FilterActor, arguments.clone());
        let of_fault = Arc::clone(filter);
        let id = filter.whose.lease.as_str();
        let spec = ChildSpec::actor_at(id, filter.address.clone(), make)
            .on_fault(move |reason| of_fault.set_fault(reason));
        let tree = self.tree().map_err(AddError::Call)?;
        tree.egress.add(spec).await
    }

    /// Starts the actor of a filter again that was given up.
    pub(crate) async fn retry_filter(&self, lease: &LeaseId) {
        if let Ok(tree) = self.tree()
            && let Err(error) = tree.egress.retry(lease.as_str()).await
        {
            tracing::warn!(%lease, %error, "the filter's actor cannot be started again");
        }
    }

    /// Stops the actor of a filter for good.
    pub(crate) async fn stop_filter(&self, lease: &LeaseId) {
        if let Ok(tree) = self.tree()
            && let Err(error) = tree.egress.remove(lease.as_str()).await
        {
            tracing::warn!(%lease, %error, "the filter's actor cannot be stopped");
        }
    }

    /// Starts the guard of a packet filter.
    ///
    /// # Errors
    /// It cannot be added.
    pub(crate) async fn start_guard(
        &self,
        context: &Arc<Context>,
        space: &Arc<FilterSpace>,
    ) -> Result<(), AddError> {
        let arguments = GuardArguments {
            context: Arc::clone(context),
            space: Arc::clone(space),
        };
        let make = move || (GuardActor, arguments.clone());
        let (spec, _) = ChildSpec::actor(guard_id(space.number()), make);
        let tree = self.tree().map_err(AddError::Call)?;
        tree.egress.add(spec).await
    }

    /// Starts the guard of a packet filter again that was given up.
    pub(crate) async fn retry_guard(&self, number: u64) {
        if let Ok(tree) = self.tree()
            && let Err(error) = tree.egress.retry(&guard_id(number)).await
        {
            tracing::warn!(number, %error, "the guard of a packet filter cannot be started again");
        }
    }

    /// Stops the guard of a packet filter that nobody needs any more.
    pub(crate) async fn stop_guard(&self, number: u64) {
        if let Ok(tree) = self.tree()
            && let Err(error) = tree.egress.remove(&guard_id(number)).await
        {
            tracing::warn!(number, %error, "the guard of a packet filter cannot be stopped");
        }
    }

    /// Starts the actors of leases again that were given up.
    pub(crate) async fn retry_leases(&self, leases: &[Arc<LiveLease>]) {
        let Ok(tree) = self.tree() else {
            return;
        };
        for lease in leases.iter().filter(|lease| lease.fault().is_some()) {
            if let Err(error) = tree.leases.retry(lease.id.as_str()).await {
                tracing::warn!(lease = %lease.id, %error, "the lease's actor cannot be started again");
            }
        }
    }

    /// The address of a workspace's actor, which is started if there is none. It may take a
    /// moment until it leads somewhere.
    ///
    /// # Errors
    /// It cannot be added.
    pub(crate) async fn workspace(
        &self,
        context: &Arc<Context>,
        workspace: &WorkspaceId,
    ) -> Result<Address<WorkspaceMsg>, AddError> {
        let (address, number) = {
            let mut known = lock(&self.workspaces);
            if let Some(address) = known.get(workspace) {
                return Ok(address.clone());
            }
            let address = Address::new();
            known.insert(workspace.clone(), address.clone());
            (address, self.started.fetch_add(1, Ordering::Relaxed))
        };
        let arguments = WorkspaceArguments {
            context: Arc::clone(context),
            workspace: workspace.clone(),
            begun: Arc::default(),
        };
        let make = move || (WorkspaceActor, arguments.clone());
        // Its predecessor may not be quite gone: each has a name of its own.
        let id = format!("{workspace}#{number}");
        let (of_fault, faulted) = (Arc::clone(context), workspace.clone());
        let spec = ChildSpec::actor_at(id, address.clone(), make)
            .restart(Restart::Transient)
            .on_fault(move |_| of_fault.crew.forget_workspace(&faulted));
        let added = async {
            let tree = self.tree().map_err(AddError::Call)?;
            tree.workspaces.add(spec).await
        };
        match added.await {
            Ok(()) => Ok(address),
            Err(error) => {
                self.forget_workspace(workspace);
                Err(error)
            }
        }
    }

    /// Forgets the address of a workspace's actor that is about to stop, or was given up.
    /// Whoever has it already finds nobody there and asks again.
    pub(crate) fn forget_workspace(&self, workspace: &WorkspaceId) {
        lock(&self.workspaces).remove(workspace);
    }

    /// Whether the root supervisor answers. Waits for it.
    pub(crate) async fn round_trip(&self) -> bool {
        match self.tree() {
            Ok(tree) => tree.root.status().await.is_ok(),
            Err(_) => false,
        }
    }

    /// The children of one supervisor; an error when it does not say.
    async fn children(handle: &SupervisorHandle) -> Result<Vec<ChildStatus>, String> {
        let limit = std::time::Duration::from_millis(limits::READY_PATIENCE_MS);
        match tokio::time::timeout(limit, handle.status()).await {
            Ok(answered) => answered.map_err(|error| error.to_string()),
            Err(_) => Err("it does not answer".to_owned()),
        }
    }

    /// Every child that is faulted: its supervisor, its id and the reason.
    pub(crate) async fn faulted(&self) -> Vec<(&'static str, String, String)> {
        let Ok(tree) = self.tree() else {
            return vec![(
                "root",
                "supervisor".to_owned(),
                "it does not run".to_owned(),
            )];
        };
        let mut faulted = Vec::new();
        for (name, handle) in [
            ("root", &tree.root),
            ("egress", &tree.egress),
            ("profiles", &tree.profiles),
            ("workspaces", &tree.workspaces),
            ("leases", &tree.leases),
        ] {
            let children = match Self::children(handle).await {
                Ok(children) => children,
                Err(reason) => {
                    faulted.push((name, "supervisor".to_owned(), reason));
                    continue;
                }
            };
            for child in children {
                if let Some(reason) = child.fault() {
                    faulted.push((name, child.id.clone(), reason.to_owned()));
                }
            }
        }
        faulted
    }
}
