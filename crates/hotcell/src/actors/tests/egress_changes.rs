//! What others do to the packet filter while sandboxes run, on a host in memory.

use std::{net::IpAddr, sync::Arc};

use hotcell_egress::{
    denied::DeniedPacket,
    fake::{FirewallCall, FirewallHook, ask},
    firewall::FirewallError,
    ruleset::{Element, ObjectName},
};
use hotcell_testkit::wait_until;

use super::egress::{ADDRESS, ALLOWED, Filtered, actions, happened, kinds, learned, running};
use crate::egress::Happened;

#[tokio::test(flavor = "multi_thread")]
async fn what_others_do_to_the_packet_filter_is_undone_told_and_written_down() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host, &filtered).await;
    ask(filtered.resolver(), ALLOWED).await.unwrap();
    let firewall = filtered.firewall();

    // Changes of others that are none of our business.
    let before = firewall.calls();
    let comparisons = firewall.comparisons();
    filtered.host.tell_change("nft");
    filtered.host.tell_denied(DeniedPacket {
        short: life.record("c").unwrap().id.short().to_owned(),
        protocol: 6,
        destination: [198, 51, 100, 9].into(),
        port: Some(443),
    });
    wait_until("the packet", || kinds(&life).contains(&"packet_denied")).await;
    wait_until("the comparison", || firewall.comparisons() > comparisons).await;
    assert_eq!(firewall.calls(), before);

    firewall.flush();
    filtered.host.tell_change("nft");
    wait_until("the restoration", || {
        kinds(&life).contains(&"foreign_change")
    })
    .await;
    assert!(firewall.is_connected("fk0"));
    assert_eq!(filtered.open(&life), [IpAddr::from(ADDRESS)]);
    let told = happened(&life).into_iter().find_map(|it| match it {
        Happened::ForeignChange {
            process,
            differences,
            restored,
        } => Some((process, differences, restored)),
        _ => None,
    });
    let (process, differences, restored) = told.unwrap();
    assert_eq!(process.as_deref(), Some("nft"));
    assert_eq!(differences, ["the table is gone"]);
    assert!(restored);
    wait_until("the audit row", || {
        actions(&life).contains(&"packet_filter.restored".to_owned())
    })
    .await;

    // A rule that lets everything through: cut off before it is restored.
    let calls = firewall.calls().len();
    firewall.tamper(|ruleset| {
        for set in &mut ruleset.sets {
            set.elements.retain(|it| !matches!(it, Element::Ipv4(_)));
        }
    });
    filtered.host.tell_change("nft");
    wait_until("the restoration", || {
        kinds(&life)
            .iter()
            .filter(|kind| **kind == "foreign_change")
            .count()
            == 2
    })
    .await;
    let since = firewall.calls()[calls..].to_vec();
    assert_eq!(since[..2], [FirewallCall::Connect, FirewallCall::Replace]);
    assert!(firewall.is_connected("fk0"));

    // An address that somebody else opened in the sandbox's own set.
    let set = learned(&life);
    let open = hotcell_egress::firewall::OpenAddress {
        set: set.clone(),
        address: [198, 51, 100, 66].into(),
        for_ms: 3_600_000,
    };
    let table = ObjectName::fixed("hotcell");
    let table: ObjectName = format!("{}_{}", table.as_str(), life.store.installation())
        .parse()
        .unwrap();
    hotcell_egress::firewall::Firewall::open(&firewall, &table, &[open])
        .await
        .unwrap();
    filtered.host.tell_change("nft");
    wait_until("the closing", || {
        firewall.open_in(&set) == [IpAddr::from(ADDRESS)]
    })
    .await;
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_restored_is_tried_again_and_told_once() {
    let filtered = Filtered::new();
    let mut host = filtered.host();
    let life = running(&mut host, &filtered).await;
    let refuse: FirewallHook = Arc::new(|_| {
        Box::pin(async {
            Err(FirewallError::Refused {
                doing: "do anything",
                source: std::io::ErrorKind::PermissionDenied.into(),
            })
        })
    });
    filtered.firewall().set_hook(Some(refuse));
    filtered.firewall().flush();
    filtered.host.tell_change("nft");
    filtered.host.tell_change("nft");
    wait_until("the alarm", || {
        actions(&life).contains(&"packet_filter.broken".to_owned())
    })
    .await;
    filtered.firewall().set_hook(None);
    wait_until("the restoration", || {
        filtered.firewall().is_connected("fk0")
    })
    .await;
    wait_until("the audit row", || {
        actions(&life).contains(&"packet_filter.restored".to_owned())
    })
    .await;
    let broken = actions(&life)
        .into_iter()
        .filter(|it| it == "packet_filter.broken")
        .count();
    assert_eq!(broken, 1);
    life.stop().await;
}
