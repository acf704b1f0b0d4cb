//! Opening one learned address: our transaction, read back, against forking `nft` for the same.

use std::{net::Ipv4Addr, process::Command};

use hotcell_egress::{
    firewall::{Firewall, OpenAddress},
    layout::{Link, learned_set},
    ruleset::Family,
};
use tokio::time::Instant;

use crate::{
    ours,
    row::{Target, median, row},
    space::Space,
};

const ROUNDS: u32 = 200;
/// Of ours to one of the other's.
const OURS_A_ROUND: u32 = 10;

fn measure() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let firewall = runtime.block_on(ours::firewall());
    let link = Link {
        sandbox: Ipv4Addr::new(10, 0, 0, 2),
        gateway: Ipv4Addr::new(10, 0, 0, 1),
    };
    let rules = ours::lease(&ours::model(), "bench", "sb0", link);
    runtime
        .block_on(firewall.add_lease(&ours::table(), &rules))
        .unwrap();
    let set = learned_set("bench", Family::V4);
    let address = |number: u32| Ipv4Addr::from(0xcb00_0000 + number);
    let (mut own_us, mut forked_us) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for number in 0..OURS_A_ROUND {
            let open = [OpenAddress {
                set: set.clone(),
                address: address(round * OURS_A_ROUND + number).into(),
                for_ms: 60_000,
            }];
            let start = Instant::now();
            runtime
                .block_on(firewall.open(&ours::table(), &open))
                .unwrap();
            own_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        let element = format!("{{ {} timeout 60s }}", address(100_000 + round));
        let start = Instant::now();
        let status = Command::new("nft")
            .args(["add", "element", "inet", "hotcell", set.as_str(), &element])
            .status()
            .unwrap();
        forked_us.push(start.elapsed().as_secs_f64() * 1e6);
        assert!(status.success());
    }
    let (own, forked) = (median(&own_us), median(&forked_us));
    row(
        "nft.learn_ratio",
        forked / own,
        "ratio",
        Target::AtLeast(20.0),
        &format!(
            "one address opened: `nft` forked {forked:.0} µs / our transaction, read back, {own:.0} µs"
        ),
    );
}

/// In a namespace without other tables.
pub(crate) fn learning() {
    Space::new().run(measure).join().unwrap();
}
