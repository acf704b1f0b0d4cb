//! Filters on a host in memory: before, after and around the sandboxes that they are for.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
};

use hotcell_core::network::NetworkPolicyRecord;
use hotcell_egress::{
    fake::{FakeFirewall, FakeHost, FakeUpstream, FirewallCall, FirewallHook, ask},
    firewall::FirewallError,
    layout::learned_set,
    ruleset::{Family, ObjectName},
};
use hotcell_runtime::fake::{Effect, Hook, Moment};
use hotcell_store::AuditPage;
use hotcell_testkit::wait_until;
use tokio::sync::Notify;

use super::*;
use crate::{
    actors::egress::{FilterMsgForTests, FilterStateForTests as FilterState},
    config::NetworkConfig,
    egress::{EventQuery, Happened},
    handles::AcquireError,
};

pub(super) const ALLOWED: &str = "files.example.org";
pub(super) const ADDRESS: [u8; 4] = [203, 0, 113, 7];
pub(super) const POLICY: &str = r#"{"egress":[{"action":"allow","target":"files.example.org"}]}"#;

/// A host in memory whose sandboxes are filtered.
pub(super) struct Filtered {
    pub(super) host: FakeHost,
    pub(super) upstream: FakeUpstream,
}

impl Filtered {
    pub(super) fn new() -> Self {
        let upstream = FakeUpstream::default();
        upstream.set(ALLOWED, &[ADDRESS.into()]);
        upstream.set("denied.example.org", &[[203, 0, 113, 8].into()]);
        Self {
            host: FakeHost::default(),
            upstream,
        }
    }

    pub(super) fn parts(&self) -> EgressParts {
        EgressParts {
            network: NetworkConfig {
                filtered: true,
                ..NetworkConfig::default()
            },
            host: Arc::new(self.host.clone()),
            upstream: Ok(Arc::new(self.upstream.clone())),
            appliance: Vec::new(),
        }
    }

    pub(super) fn firewall(&self) -> FakeFirewall {
        self.host.firewall()
    }

    pub(super) fn host(&self) -> Host {
        Host {
            egress: self.parts(),
            ..Host::new()
        }
    }

    /// Changes of the packet filter count like calls of the engine.
    pub(super) fn kill_after(
        &self,
        survived: usize,
        counter: &Arc<AtomicUsize>,
        dead: &Arc<Notify>,
    ) {
        let (counter, dead) = (Arc::clone(counter), Arc::clone(dead));
        let hook: FirewallHook = Arc::new(move |_| {
            let is_dead = counter.fetch_add(1, Ordering::SeqCst) >= survived;
            let dead = Arc::clone(&dead);
            Box::pin(async move {
                if is_dead {
                    dead.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        });
        self.firewall().set_hook(Some(hook));
    }

    /// Every sandbox that runs has its rules.
    pub(super) async fn assert_nobody_runs_open(&self, life: &Life) {
        for sandbox in life.fake.list().await.unwrap() {
            if sandbox.state == hotcell_runtime::ObservedState::Running {
                let leases = self.firewall().leases();
                let short = sandbox.lease.short();
                assert!(leases.iter().any(|it| it == short), "{short}: {leases:?}");
            }
        }
    }

    pub(super) fn resolver(&self) -> SocketAddr {
        let gateways = self.host.gateways();
        assert_eq!(gateways.len(), 1, "one sandbox");
        self.host.resolver(gateways[0]).unwrap()
    }

    pub(super) fn open(&self, life: &Life) -> Vec<IpAddr> {
        self.firewall().open_in(&learned(life))
    }
}

pub(super) fn learned(life: &Life) -> ObjectName {
    learned_set(life.record("c").unwrap().id.short(), Family::V4)
}

pub(super) async fn set_policy(life: &Life, text: &'static str) {
    life.store
        .write::<(), StoreError, _>(move |tx| {
            tx.put_network_policy(&NetworkPolicyRecord {
                organization: "o".parse().unwrap(),
                text: text.to_owned(),
                changed_at: UnixMillis(1),
            })
        })
        .await
        .unwrap();
}

pub(super) async fn start(life: &Life) {
    drop(life.sandboxes.acquire(&caller("c")).await.unwrap());
}

pub(super) async fn running(host: &mut Host, filtered: &Filtered) -> Life {
    let life = host.boot(PATIENT).await;
    set_policy(&life, POLICY).await;
    start(&life).await;
    assert!(filtered.firewall().is_connected("fk0"));
    life
}

pub(super) fn happened(life: &Life) -> Vec<Happened> {
    let query = EventQuery {
        limit: 1_000,
        ..EventQuery::default()
    };
    let events = life.sandboxes.egress_events(&query).events;
    events.into_iter().map(|event| event.happened).collect()
}

pub(super) fn kinds(life: &Life) -> Vec<&'static str> {
    happened(life).iter().map(Happened::kind).collect()
}

pub(super) fn actions(life: &Life) -> Vec<String> {
    let page = AuditPage {
        before: None,
        limit: 100,
    };
    let rows = life.store.read_now(|view| view.audit(page)).unwrap();
    rows.into_iter().map(|entry| entry.row.action).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_there_before_anything_runs_and_until_it_is_gone() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = host.boot(PATIENT).await;
    set_policy(&life, POLICY).await;
    let firewall = filtered.firewall();
    let seen = Arc::new(AtomicUsize::new(0));
    let hook: Hook = Arc::new({
        let (firewall, seen) = (firewall.clone(), Arc::clone(&seen));
        move |moment, effect, _| {
            if (moment, effect) == (Moment::Before, Effect::Start) {
                assert!(firewall.is_connected("fk0"), "started without a filter");
                seen.fetch_add(1, Ordering::SeqCst);
            }
            if (moment, effect) == (Moment::After, Effect::Remove) {
                assert!(firewall.is_connected("fk0"), "open before it was removed");
                seen.fetch_add(1, Ordering::SeqCst);
            }
            Box::pin(async { Ok(()) })
        }
    });
    life.fake.set_hook(Some(hook));
    start(&life).await;
    let short = life.record("c").unwrap().id.short().to_owned();
    assert_eq!(firewall.leases(), [short]);

    // A name that is allowed opens its address before the answer is there; another is not asked for.
    let resolver = filtered.resolver();
    assert_eq!(
        ask(resolver, ALLOWED).await.unwrap(),
        [IpAddr::from(ADDRESS)]
    );
    assert_eq!(filtered.open(&life), [IpAddr::from(ADDRESS)]);
    let denied = ask(resolver, "denied.example.org").await.unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(filtered.upstream.asked(), [ALLOWED]);
    assert_eq!(
        kinds(&life),
        ["filter_installed", "name_allowed", "name_denied"]
    );

    life.sandboxes.end(&caller("c")).await.unwrap();
    assert_eq!(firewall.leases(), [""; 0]);
    assert_eq!(seen.load(Ordering::SeqCst), 2);
    // Nobody answers any more, and what was decided is still told.
    assert!(tokio::net::TcpStream::connect(resolver).await.is_err());
    assert_eq!(kinds(&life).len(), 3);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_filter_nothing_starts() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = host.boot(PATIENT).await;
    filtered.host.set_broken(Some("no kernel today"));
    let refused = life.sandboxes.acquire(&caller("c")).await.unwrap_err();
    let AcquireError::StartFailed(RuntimeError::EgressUnenforceable(reason)) = refused else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("no kernel today"), "{reason}");
    assert_eq!(life.fake.count(Effect::Start), 0);
    wait_until("the end", || life.state("c") == Some(LeaseState::Ended)).await;
    assert_eq!(life.fake.list().await.unwrap(), []);

    // The kernel refuses every change.
    filtered.host.set_broken(None);
    let refuse: FirewallHook = Arc::new(|_| {
        Box::pin(async {
            Err(FirewallError::Refused {
                doing: "do anything",
                source: std::io::ErrorKind::PermissionDenied.into(),
            })
        })
    });
    filtered.firewall().set_hook(Some(refuse));
    let refused = life.sandboxes.acquire(&caller("c2")).await.unwrap_err();
    let AcquireError::StartFailed(RuntimeError::EgressUnenforceable(_)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(life.fake.count(Effect::Start), 0);

    // Mended, the next call works.
    filtered.firewall().set_hook(None);
    drop(life.sandboxes.acquire(&caller("c3")).await.unwrap());
    assert_eq!(filtered.firewall().leases().len(), 1);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_actor_that_crashes_leaves_its_filter() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host, &filtered).await;
    let resolver = filtered.resolver();
    ask(resolver, ALLOWED).await.unwrap();
    let before = filtered.firewall().calls();
    let context = life.sandboxes.context_for_tests();
    let live = context
        .live
        .get(&"w".parse().unwrap(), &"c".parse().unwrap())
        .unwrap();
    let old = live.address.get().unwrap().get_id();
    live.address
        .cast(super::super::lease::LeaseMsg::Crash)
        .unwrap();
    wait_until("its successor", || {
        live.address.get().is_some_and(|it| it.get_id() != old)
    })
    .await;
    start(&life).await;
    assert_eq!(filtered.firewall().calls(), before, "nothing was touched");
    assert_eq!(
        ask(resolver, ALLOWED).await.unwrap(),
        [IpAddr::from(ADDRESS)]
    );
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_actor_that_crashes_leaves_its_rules_and_its_successor_takes_them_over() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host, &filtered).await;
    ask(filtered.resolver(), ALLOWED).await.unwrap();
    let before = filtered.firewall().calls();
    let resolver = filtered.resolver();
    let lease = life.record("c").unwrap().id;
    let context = life.sandboxes.context_for_tests();
    let filter = context.egress.filter_for_tests(&lease).unwrap();
    filter.address.cast(FilterMsgForTests::Crash).unwrap();
    wait_until("its successor", || filtered.resolver() != resolver).await;
    let mut state = filter.state.subscribe();
    state
        .wait_for(|state| *state == FilterState::Serving)
        .await
        .unwrap();
    assert_eq!(filtered.firewall().calls(), before, "nothing was touched");
    assert!(filtered.firewall().is_connected("fk0"));
    // What it opened is known: an answer needs no change.
    ask(filtered.resolver(), ALLOWED).await.unwrap();
    assert_eq!(filtered.open(&life), [IpAddr::from(ADDRESS)]);
    assert!(happened(&life).contains(&Happened::Installed { adopted: true }));
    // Its lease ends as ever.
    life.sandboxes.end(&caller("c")).await.unwrap();
    assert_eq!(filtered.firewall().leases(), [""; 0]);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_daemon_takes_over_what_is_there_with_the_policy_of_then() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host, &filtered).await;
    ask(filtered.resolver(), ALLOWED).await.unwrap();
    // From now on everything is denied, for sandboxes to come.
    set_policy(&life, r#"{"egress":[]}"#).await;
    life.stop().await;
    let before = filtered.firewall().calls();
    assert!(filtered.firewall().is_connected("fk0"), "rules stay");

    let life = host.boot(PATIENT).await;
    assert_eq!(filtered.firewall().calls(), before, "nothing was touched");
    assert_eq!(filtered.open(&life), [IpAddr::from(ADDRESS)]);
    assert_eq!(
        ask(filtered.resolver(), ALLOWED).await.unwrap(),
        [IpAddr::from(ADDRESS)]
    );
    assert!(happened(&life).contains(&Happened::Installed { adopted: true }));
    life.sandboxes.end(&caller("c")).await.unwrap();

    // The next sandbox has the policy of now.
    start(&life).await;
    let gateways = filtered.host.gateways();
    let resolver = filtered.host.resolver(*gateways.last().unwrap()).unwrap();
    assert!(ask(resolver, ALLOWED).await.is_err());
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_while_no_daemon_ran_is_undone() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host, &filtered).await;
    ask(filtered.resolver(), ALLOWED).await.unwrap();
    life.stop().await;
    // Somebody lets everything through.
    filtered.firewall().tamper(|ruleset| {
        for chain in &mut ruleset.chains {
            if chain.name.as_str().ends_with("_forward") {
                chain.rules.clear();
            }
        }
    });
    let before = filtered.firewall().calls().len();
    let life = host.boot(PATIENT).await;
    let calls = filtered.firewall().calls();
    assert_eq!(calls[before..], [FirewallCall::Replace]);
    assert_eq!(
        filtered.open(&life),
        [IpAddr::from(ADDRESS)],
        "what was open stays open"
    );
    life.stop().await;
    // A machine that was restarted has no table at all, and no sandbox either.
    filtered.firewall().flush();
    host.fake.as_ref().unwrap().forget_all();
    let life = host.boot(PATIENT).await;
    wait_until("the end", || life.state("c") == Some(LeaseState::Ended)).await;
    start(&life).await;
    assert_eq!(filtered.firewall().leases().len(), 1);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_made_without_a_filter_stays_so_and_one_with_keeps_it() {
    let filtered = Filtered::new();
    let mut host = Host::new();
    let life = host.boot(PATIENT).await;
    start(&life).await;
    life.stop().await;
    // Now the profile is filtered; this sandbox has no way out that could be.
    host.egress = filtered.parts();
    let life = host.boot(PATIENT).await;
    start(&life).await;
    assert_eq!(filtered.firewall().calls(), []);
    life.sandboxes.end(&caller("c")).await.unwrap();
    start(&life).await;
    assert!(filtered.firewall().is_connected("fk0"));
    life.stop().await;
    // And no longer: the one that runs keeps its filter all the same.
    host.egress = EgressParts {
        network: NetworkConfig::default(),
        ..filtered.parts()
    };
    let life = host.boot(PATIENT).await;
    start(&life).await;
    assert!(filtered.firewall().is_connected("fk0"));
    ask(filtered.resolver(), "denied.example.org")
        .await
        .unwrap();
    life.stop().await;
}
