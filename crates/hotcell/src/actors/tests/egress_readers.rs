//! What answers a sandbox's questions falls over: its filter begins anew, or the sandbox is answered
//! nothing. Never is it deaf while it looks well, and never does anything open.

use hotcell_egress::fake::ask;
use hotcell_testkit::wait_until;

use super::{
    egress::{ALLOWED, Filtered, happened, set_policy, start},
    *,
};
use crate::{actors::egress::FilterStateForTests as FilterState, egress::Happened};

const FALLS: &str = "falls.example.org";
const POLICY: &str = r#"{"egress":[{"action":"allow","target":"*.example.org"}]}"#;

async fn running(filtered: &Filtered) -> (Host, Life) {
    let mut host = filtered.host();
    let life = host.boot(PATIENT).await;
    set_policy(&life, POLICY).await;
    start(&life).await;
    (host, life)
}

/// Asks what it falls over at, until `seen`; an answer never comes.
async fn fall(filtered: &Filtered, seen: impl Fn() -> bool) {
    let resolver = filtered.resolver();
    let asking = tokio::spawn(async move { ask(resolver, FALLS).await });
    wait_until("the reader's end", || {
        filtered.resolver() != resolver || seen()
    })
    .await;
    asking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_falls_over_is_followed_by_a_new_one() {
    let filtered = Filtered::new();
    let (_host, life) = running(&filtered).await;
    let lease = life.record("c").unwrap().id;
    let context = life.sandboxes.context_for_tests();
    let filter = context.egress.filter_for_tests(&lease).unwrap();
    ask(filtered.resolver(), ALLOWED).await.unwrap();
    let before = filtered.firewall().calls();
    let installed = |life: &Life| {
        let of = |it: &&Happened| matches!(it, Happened::Installed { .. });
        happened(life).iter().filter(of).count()
    };
    let first = installed(&life);
    for waits in [false, true] {
        filtered.upstream.fall_over(FALLS, waits);
        fall(&filtered, || false).await;
        let mut state = filter.state.subscribe();
        let serving = state.wait_for(|state| *state == FilterState::Serving);
        drop(serving.await.unwrap());
        // Its rules were there all the time, and it goes on where the other one ended.
        assert!(filtered.firewall().is_connected("fk0"));
        assert_eq!(ask(filtered.resolver(), ALLOWED).await.unwrap().len(), 1);
    }
    assert_eq!(filtered.firewall().calls(), before, "nothing was touched");
    assert_eq!((first, installed(&life)), (1, 3), "one more for each");
    life.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_keep_falling_over_are_given_up_and_said_to_be() {
    let filtered = Filtered::new();
    let (_host, life) = running(&filtered).await;
    let lease = life.record("c").unwrap().id;
    let context = life.sandboxes.context_for_tests();
    let filter = context.egress.filter_for_tests(&lease).unwrap();
    let address = ask(filtered.resolver(), ALLOWED).await.unwrap();
    let before = filtered.firewall().calls();
    filtered.upstream.fall_over(FALLS, false);
    let given_up = |state: &FilterState| matches!(state, FilterState::Failed(why) if why.contains("resolver ended"));
    while !given_up(&filter.state.borrow()) {
        fall(&filtered, || given_up(&filter.state.borrow())).await;
    }
    // What was open stays open, nothing else is, and nobody answers.
    assert_eq!(filtered.firewall().calls(), before);
    assert_eq!(filtered.open(&life), address);
    assert!(ask(filtered.resolver(), ALLOWED).await.is_err());
    // Whoever wants the sandbox has it tried again.
    let record = life.record("c").unwrap();
    context.egress.ensure(&context, &record).await.unwrap();
    assert_eq!(ask(filtered.resolver(), ALLOWED).await.unwrap(), address);
    life.stop().await;
}
