//! Addresses that were learned: how long they stay, and which goes when there are too many.

use super::*;

#[test]
fn eg12_the_ceiling_lets_the_oldest_without_a_connection_go() {
    let limits = LearnedLimits {
        ceiling: 4,
        ..LearnedLimits::default()
    };
    let mut table = LearnedTable::new(limits);
    let ip = |n: u8| IpAddr::from([203, 0, 113, n]);
    let at = |seconds: u64| NOW.plus_millis(seconds * 1_000);
    for n in 1..=4 {
        let changes = table.learn(at(n.into()), None, 5_000, &[ip(n)], || {
            panic!("not at the ceiling")
        });
        assert!(changes.close.is_empty());
    }
    // 1 is the oldest and in use: 2 goes.
    let changes = table.learn(at(10), None, 5_000, &[ip(5)], || HashSet::from([ip(1)]));
    assert_eq!((changes.close, changes.evicted_in_use), (vec![ip(2)], 0));
    // All in use: a new answer is still never refused.
    let all = || (1..=5).map(ip).collect();
    let changes = table.learn(at(11), None, 5_000, &[ip(6)], all);
    assert_eq!((changes.close, changes.evicted_in_use), (vec![ip(1)], 1));
    assert_eq!(table.len(), 4);
    assert!(table.get(ip(6), at(12)).is_some());
    // An address of the same answer is not what makes room for it.
    let changes = table.learn(at(12), None, 5_000, &[ip(3), ip(7), ip(8)], HashSet::new);
    assert_eq!(changes.close, [ip(4), ip(5)]);
}

#[test]
fn eg14_every_answer_renews_and_a_longer_promise_holds() {
    let ip: IpAddr = "203.0.113.5".parse().unwrap();
    let limits = LearnedLimits {
        grace_ms: 60_000,
        ..LearnedLimits::default()
    };
    let mut table = LearnedTable::new(limits);
    // An hour's promise, not yet kept by the packet filter: asked for again by the next answer.
    let first = table.learn(NOW, None, 3_600_000, &[ip], HashSet::new);
    assert_eq!(first.open, [(ip, 4_500_000)]);
    assert_eq!(
        table.learn(NOW, None, 1_000, &[ip], HashSet::new).open,
        [(ip, 4_500_000)]
    );
    table.confirm(NOW, &first);
    // Kept: a shorter promise changes nothing, and does not cut the longer one.
    let later = NOW.plus_millis(600_000);
    assert!(
        table
            .learn(later, None, 1_000, &[ip], HashSet::new)
            .open
            .is_empty()
    );
    // An answer from the cache when little is left opens the address again.
    let after = NOW.plus_millis(4_499_000);
    assert_eq!(
        table.learn(after, None, 1_000, &[ip], HashSet::new).open,
        [(ip, 75_000)]
    );
    // Once the packet filter is in doubt, so is everything in it.
    table.doubt();
    assert_eq!(
        table.learn(after, None, 1_000, &[ip], HashSet::new).open,
        [(ip, 75_000)]
    );
    // What the kernel still has is taken over.
    let adopted = LearnedTable::adopted(limits, after, [(ip, 5_000)]);
    assert_eq!(adopted.remaining(after).collect::<Vec<_>>(), [(ip, 5_000)]);
    assert!(adopted.get(ip, after.plus_millis(5_000)).is_none());
}

#[test]
fn eg16_an_address_stays_for_the_grace() {
    let mut filter = filter("deny", &["allow api.example.org"], false);
    let sifted = take_in(
        &mut filter,
        "api.example.org",
        &[address("api.example.org", "203.0.113.5")],
    );
    // An hour, and a quarter of one so that not every answer needs a change.
    let granted = [("203.0.113.5".parse().unwrap(), 4_500_000)];
    assert_eq!(sifted.changes.open, granted);
    let open = |seconds: u64| {
        filter
            .learned()
            .get(
                "203.0.113.5".parse().unwrap(),
                NOW.plus_millis(seconds * 1_000),
            )
            .is_some()
    };
    assert!(open(370) && open(900) && open(3_600) && open(4_499) && !open(4_500));
}
