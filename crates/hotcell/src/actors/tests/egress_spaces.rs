//! Tables of filters that outlive something: their sandbox, who speaks for them, the way out.

use hotcell_egress::{
    fake::{FirewallCall, FirewallHook, ask},
    firewall::FirewallError,
};
use hotcell_testkit::wait_until;

use super::{
    egress::{ALLOWED, Filtered, POLICY, happened, kinds, set_policy, start},
    *,
};
use crate::egress::Happened;

async fn running(host: &mut Host) -> Life {
    let life = host.boot(PATIENT).await;
    life.fake.script(|script| script.ways_out = true);
    set_policy(&life, POLICY).await;
    start(&life).await;
    life
}

fn out_tables(filtered: &Filtered) -> Vec<String> {
    let mut names = filtered.firewall().table_names();
    names.retain(|name| name.starts_with("hotcell_out_"));
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_vanished_sandbox_left_behind_is_swept_at_boot() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host).await;
    let short = life.record("c").unwrap().id.short().to_owned();
    assert_eq!(filtered.firewall().leases(), [short]);
    assert_eq!(out_tables(&filtered).len(), 1);
    life.stop().await;

    // It vanishes while nobody looks. Another installation's table is none of ours.
    host.fake.as_ref().unwrap().forget_all();
    let firewall = filtered.firewall();
    let mut foreign = hotcell_egress::layout::base(
        "hotcell_out_inst_other_hcu-x".parse().unwrap(),
        &hotcell_egress::layout::Scope::Host,
    );
    foreign.chains.clear();
    hotcell_egress::firewall::Firewall::replace(&firewall, &foreign, &[])
        .await
        .unwrap();
    let life = host.boot(PATIENT).await;
    wait_until("the end", || life.state("c") == Some(LeaseState::Ended)).await;
    assert_eq!(firewall.leases(), [""; 0], "its chains are gone");
    assert_eq!(out_tables(&filtered), ["hotcell_out_inst_other_hcu-x"]);

    // The next one begins anew.
    life.fake.script(|script| script.ways_out = true);
    start(&life).await;
    assert_eq!(firewall.leases().len(), 1);
    assert_eq!(out_tables(&filtered).len(), 2);
    life.sandboxes.end(&caller("c")).await.unwrap();
    assert_eq!(out_tables(&filtered), ["hotcell_out_inst_other_hcu-x"]);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leases_way_out_is_not_anothers() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host).await;
    drop(life.sandboxes.acquire(&caller("d")).await.unwrap());
    assert_eq!(out_tables(&filtered).len(), 2, "each has its own");
    let firewall = filtered.firewall();
    assert!(firewall.is_connected("fk0") && firewall.is_connected("fk1"));

    // Both are watched: the first one's way out is put back, too.
    firewall.flush_tables("hotcell_out_");
    filtered.host.tell_change("nft");
    wait_until("both ways out", || out_tables(&filtered).len() == 2).await;
    life.sandboxes.end(&caller("c")).await.unwrap();
    let left = out_tables(&filtered);
    assert!(
        matches!(&left[..], [one] if one.ends_with("_fku1")),
        "{left:?}"
    );
    assert!(firewall.is_connected("fk1"));
    life.stop().await;
    // The next daemon keeps what its lease needs.
    let life = host.boot(PATIENT).await;
    assert_eq!(out_tables(&filtered), left);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_way_out_a_sandbox_reaches_the_gateway_only() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host).await;
    let firewall = filtered.firewall();
    let refuse: FirewallHook = Arc::new(|call| {
        Box::pin(async move {
            match call {
                FirewallCall::Replace => Err(FirewallError::Refused {
                    doing: "replace a table",
                    source: std::io::ErrorKind::PermissionDenied.into(),
                }),
                _ => Ok(()),
            }
        })
    });
    firewall.set_hook(Some(refuse));
    firewall.flush_tables("hotcell_out_");
    filtered.host.tell_change("nft");
    wait_until("the cut", || !firewall.is_connected("fk0")).await;
    // Its own rules are not in doubt: the daemon goes on with its agent.
    assert!(firewall.reaches_gateway("fk0"));
    wait_until("the event", || kinds(&life).contains(&"foreign_change")).await;
    // A comparison of its own table does not undo that.
    let comparisons = firewall.comparisons();
    filtered.host.tell_change("dockerd");
    wait_until("the comparison", || firewall.comparisons() > comparisons).await;
    assert!(!firewall.is_connected("fk0"));

    firewall.set_hook(None);
    wait_until("the way out", || firewall.is_connected("fk0")).await;
    assert_eq!(out_tables(&filtered).len(), 1);
    wait_until("the event", || {
        happened(&life)
            .iter()
            .any(|it| matches!(it, Happened::ForeignChange { restored: true, .. }))
    })
    .await;
    life.sandboxes.end(&caller("c")).await.unwrap();
    assert_eq!(out_tables(&filtered), [""; 0]);
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_with_the_kernel_is_replaced_after_a_fault() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host).await;
    ask(filtered.resolver(), ALLOWED).await.unwrap();

    // Nobody new can speak yet: what is there stays, nothing new opens.
    filtered.host.set_broken(Some("no kernel today"));
    filtered.host.end_speakers();
    let told = |part: &'static str| {
        let is_it = move |it: &Happened| matches!(it, Happened::PacketFilterFailed { name: None, why } if why.contains(part));
        happened(&life).iter().any(is_it)
    };
    wait_until("the fault", || told("no kernel today")).await;
    let firewall = filtered.firewall();
    assert!(firewall.is_connected("fk0"));
    filtered.upstream.set(ALLOWED, &[[203, 0, 113, 9].into()]);
    let before = filtered.open(&life);
    // The rules are changed meanwhile.
    firewall.tamper(|ruleset| {
        for chain in &mut ruleset.chains {
            chain.rules.clear();
        }
    });

    filtered.host.set_broken(None);
    wait_until("another", || told("opened again")).await;
    wait_until("the restoration", || {
        kinds(&life).contains(&"foreign_change")
    })
    .await;
    assert_eq!(filtered.open(&life), before, "what was open is open again");
    // Somebody watches again, and the filter that was there opens addresses by the new one.
    firewall.flush();
    filtered.host.tell_change("nft");
    wait_until("the table", || firewall.is_connected("fk0")).await;
    life.sandboxes.end(&caller("c")).await.unwrap();
    assert_eq!(firewall.leases(), [""; 0]);
    life.stop().await;
}
