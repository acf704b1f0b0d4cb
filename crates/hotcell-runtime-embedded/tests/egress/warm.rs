//! A sandbox that was made ahead has a way out from its birth: nothing passes there before a filter stands.

use hotcell_runtime::{NetworkMode, Runtime};

use crate::{
    stage::{Guard, Probe, Stage, policy},
    staged,
};

staged!(nothing_passes_before_the_filter_of_a_claimed_one,);

async fn nothing_passes_before_the_filter_of_a_claimed_one(stage: &Stage<'_>) {
    let (mut spec, lease, key) = stage.rig.spec();
    spec.network = NetworkMode::Filtered;
    stage.rig.runtime.warm(&spec.ahead()).await.unwrap();
    let cell = stage.rig.cell(&lease, &key).await;
    let open: [Probe<'_>; 2] = [("tcp", "203.0.113.7", 80), ("udp", "203.0.113.7", 9999)];
    let before = stage.internet.arrived();
    assert_eq!(cell.probe(&open).await, [false; 2], "it is nobody's");
    stage.rig.runtime.claim(&spec).await.unwrap();
    assert_eq!(cell.probe(&open).await, [false; 2], "it is claimed");
    assert_eq!(stage.internet.arrived(), before);
    // The control, and what its policy closes beside it.
    let site = stage.rig.runtime.filter_site(&lease).await.unwrap();
    let guard = Guard::open(stage.internet, &site).await;
    let rules = policy("deny", &["allow 203.0.113.7"]);
    let _filter = guard.admit(&lease, &site, rules).await;
    let closed = [("tcp", "203.0.113.6", 80), ("tcp", "169.254.169.254", 80)];
    cell.only(&open, &closed).await;
    stage.rig.runtime.remove(&lease).await.unwrap();
}
