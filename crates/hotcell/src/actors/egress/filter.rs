//! The filter of one sandbox: its rules in the kernel, and its resolver.
//!
//! ```text
//!   Install ──► prepare ──► Space::admit ──► what is open is taken over ──► sockets ──► Serving
//!      ▲           │             │                                            │
//!      │           └─────────────┴──────────── failed, with the reason ───────┤
//!      └── after a pause, or when its lease asks ── Failed ◄───────────────────┘
//! ```
//! Whatever fails, the rules that are in the kernel stay there.

use std::{io, net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use hotcell_egress::{
    dns::{DnsFilter, DnsParts, EventSink, FilterEvent, serve},
    firewall::FirewallError,
    host::{Host, Namespace},
    layout::Reach,
};
use hotcell_runtime::RuntimeError;
use hotcell_supervision::Address;
use hotcell_types::limits;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use super::{chain, place::Place, prepare::prepare, unenforceable};
use crate::{
    actors::context::Context,
    egress::{Happened, Journal, Whose, of_lookup},
};

/// How often a space that was just shut is looked for again.
const SPACE_TRIES: u32 = 3;

/// Where a filter stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FilterState {
    /// It is being installed.
    Installing,
    /// The kernel has its rules, and its resolver listens.
    Serving,
    /// It could not be installed; the words say why.
    Failed(String),
}

/// A filter, as everybody sees it. Outlives its actor.
pub(crate) struct Filter {
    pub(crate) whose: Whose,
    pub(crate) address: Address<FilterMsg>,
    pub(crate) state: watch::Sender<FilterState>,
}

impl Filter {
    pub(super) fn new(whose: Whose) -> Self {
        Self {
            whose,
            address: Address::new(),
            state: watch::Sender::new(FilterState::Installing),
        }
    }

    /// Its actor was given up.
    pub(crate) fn set_fault(&self, reason: &str) {
        let reason = format!("the filter's actor keeps failing: {reason}");
        self.state.send_replace(FilterState::Failed(reason));
    }
}

/// What the actor of a filter is told.
#[derive(Debug)]
pub(crate) enum FilterMsg {
    /// Install it, unless it is installed.
    Install,
    /// It was installed, or not.
    Installed(Result<Resolver, RuntimeError>),
    /// Its resolver ended although nobody told it to.
    ResolverEnded,
    /// A task panicked.
    Panicked,
    #[cfg(test)]
    Crash,
}

/// A resolver that does not answer yet.
pub(crate) struct Resolver {
    dns: DnsFilter,
    sockets: Vec<(UdpSocket, TcpListener)>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// The actor of one filter.
pub(crate) struct FilterActor;

/// What a filter's actor is started with, the first time and after a crash.
#[derive(Clone)]
pub(crate) struct FilterArguments {
    pub(crate) context: Arc<Context>,
    pub(crate) filter: Arc<Filter>,
}

/// What one actor knows.
pub(crate) struct FilterActorState {
    context: Arc<Context>,
    filter: Arc<Filter>,
    tasks: JoinSet<()>,
    installing: bool,
    serving: bool,
    next_try: Option<AbortHandle>,
}

#[ractor::async_trait]
impl Actor for FilterActor {
    type Msg = FilterMsg;
    type State = FilterActorState;
    type Arguments = FilterArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<FilterMsg>,
        args: FilterArguments,
    ) -> Result<FilterActorState, ActorProcessingErr> {
        args.filter.state.send_replace(FilterState::Installing);
        myself.cast(FilterMsg::Install)?;
        Ok(FilterActorState {
            context: args.context,
            filter: args.filter,
            tasks: JoinSet::new(),
            installing: false,
            serving: false,
            next_try: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<FilterMsg>,
        message: FilterMsg,
        state: &mut FilterActorState,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            FilterMsg::Install => state.install(&myself),
            FilterMsg::Installed(Ok(resolver)) => state.serve(&myself, resolver),
            FilterMsg::Installed(Err(error)) => state.failed(&myself, &error),
            FilterMsg::ResolverEnded => return Err("the resolver ended".into()),
            FilterMsg::Panicked => return Err("a task of the filter panicked".into()),
            #[cfg(test)]
            FilterMsg::Crash => panic!("told to"),
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<FilterMsg>,
        state: &mut FilterActorState,
    ) -> Result<(), ActorProcessingErr> {
        // Its sockets are closed when this returns.
        state.tasks.shutdown().await;
        Ok(())
    }
}

impl FilterActorState {
    fn task(
        &mut self,
        myself: &ActorRef<FilterMsg>,
        work: impl Future<Output = FilterMsg> + Send + 'static,
    ) -> AbortHandle {
        let myself = myself.clone();
        self.tasks.spawn(async move {
            let message = AssertUnwindSafe(work).catch_unwind().await;
            // The actor is gone: its successor begins anew.
            let _ = myself.cast(message.unwrap_or(FilterMsg::Panicked));
        })
    }

    fn install(&mut self, myself: &ActorRef<FilterMsg>) {
        if let Some(waiting) = self.next_try.take() {
            waiting.abort();
        }
        if self.serving {
            self.filter.state.send_replace(FilterState::Serving);
            return;
        }
        if self.installing {
            return;
        }
        self.installing = true;
        let (context, whose) = (Arc::clone(&self.context), self.filter.whose.clone());
        self.task(myself, async move {
            FilterMsg::Installed(install(&context, &whose).await)
        });
    }

    fn serve(&mut self, myself: &ActorRef<FilterMsg>, resolver: Resolver) {
        self.installing = false;
        self.serving = true;
        for (udp, tcp) in resolver.sockets {
            let mut server = serve(resolver.dns.clone(), udp, tcp);
            self.task(myself, async move {
                if let Err(error) = server.block_until_done().await {
                    tracing::warn!(%error, "a resolver of a sandbox failed");
                }
                FilterMsg::ResolverEnded
            });
        }
        self.filter.state.send_replace(FilterState::Serving);
    }

    fn failed(&mut self, myself: &ActorRef<FilterMsg>, error: &RuntimeError) {
        self.installing = false;
        let reason = match error {
            // The words are shown behind "egress cannot be enforced".
            RuntimeError::EgressUnenforceable(reason) => reason.clone(),
            error => error.to_string(),
        };
        let is_news = !matches!(
            self.filter.state.send_replace(FilterState::Failed(reason.clone())),
            FilterState::Failed(before) if before == reason
        );
        // One without a sandbox has nothing to filter; its lease sees to that.
        if is_news && !matches!(error, RuntimeError::NoSuchSandbox) {
            let happened = Happened::NotInstalled { why: reason };
            self.context.egress.tell(&self.filter.whose, happened);
        }
        let pause = Duration::from_millis(limits::FILTER_RETRY_MS);
        self.next_try = Some(self.task(myself, async move {
            tokio::time::sleep(pause).await;
            FilterMsg::Install
        }));
    }
}

struct Sink {
    journal: Arc<Journal>,
    whose: Whose,
}

impl EventSink for Sink {
    fn record(&self, event: FilterEvent) {
        for happened in of_lookup(event) {
            self.journal.record(&self.whose, happened);
        }
    }
}

async fn install(context: &Arc<Context>, whose: &Whose) -> Result<Resolver, RuntimeError> {
    let egress = &context.egress;
    let runtime = context.profile.runtime()?;
    let upstream = egress.upstream()?;
    let site = runtime.filter_site(&whose.lease).await?;
    let place = Place::of(&site)?;
    let prepared = prepare(context, &whose.lease, &site).await?;
    let mut tries = SPACE_TRIES;
    let (space, admitted) = loop {
        let space = egress.space(context, &runtime, &place).await?;
        match space.admit(&whose.lease, prepared.rules.clone()).await {
            // The last other one left between the two.
            Err(FirewallError::Gone) if tries > 0 => tries -= 1,
            Err(error) => return Err(unenforceable(chain(&error))),
            Ok(admitted) => break (space, admitted),
        }
    };
    if !admitted.adopted {
        // Connections of a sandbox that had these addresses before, or that other rules let through.
        let forgotten = space.edge().forget(&prepared.sandbox).await;
        forgotten.map_err(|error| unenforceable(chain(&error)))?;
    }
    // After the lease's own rules: one that nobody needs is closed, and this one is needed now.
    if let Some(way_out) = Place::way_out_of(&site)? {
        let mut tries = SPACE_TRIES;
        let attached = loop {
            let attached = match egress.space(context, &runtime, &way_out).await {
                Ok(out) => out.attach(&whose.lease, &space).await,
                Err(error) => break Err(error),
            };
            match attached {
                Err(FirewallError::Gone) if tries > 0 => tries -= 1,
                other => break other.map_err(|error| unenforceable(chain(&error))),
            }
        };
        if let Err(error) = attached {
            // One that an earlier daemon left running must not go on by a way that is open.
            if let Err(error) = space.let_as_far_as(&whose.lease, Reach::Gateway).await {
                tracing::warn!(lease = %whose.lease, %error, "the sandbox cannot be cut off");
            }
            return Err(error);
        }
    }
    let dns = DnsFilter::new(DnsParts {
        filter: prepared.model,
        firewall: space.firewall(),
        table: space.table().clone(),
        learned_sets: prepared.learned_sets,
        upstream,
        connections: space.edge().connections(&prepared.sandbox),
        events: Arc::new(Sink {
            journal: Arc::clone(&egress.journal),
            whose: whose.clone(),
        }),
        rate_per_second: DnsParts::USUAL_RATE_PER_SECOND,
    });
    dns.with_filter(|filter, now| filter.adopt(now, admitted.remaining_ms));
    let mut sockets = Vec::new();
    for gateway in &prepared.gateways {
        let opened = sockets_at(&*egress.host, &site.namespace, *gateway, &prepared.sandbox).await;
        sockets.push(opened.map_err(|error| {
            unenforceable(format!("the resolver cannot listen on {gateway}: {error}"))
        })?);
    }
    space.serves(whose, &dns, prepared.gateways).await;
    let adopted = admitted.adopted;
    egress.tell(whose, Happened::Installed { adopted });
    Ok(Resolver { dns, sockets })
}

/// The sockets of a predecessor may be open for a moment more.
async fn sockets_at(
    host: &dyn Host,
    namespace: &Namespace,
    gateway: IpAddr,
    sandbox: &[IpAddr],
) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = limits::FILTER_SOCKET_TRIES;
    loop {
        let opened = host.resolver_sockets(namespace.clone(), gateway, sandbox.to_vec());
        match opened.await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => tries -= 1,
            result => return result,
        }
        tokio::time::sleep(Duration::from_millis(limits::FILTER_SOCKET_PAUSE_MS)).await;
    }
}
