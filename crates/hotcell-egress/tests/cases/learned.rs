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

/// Ten addresses whose time is up in turn, all of them told to the packet filter.
fn full_table(limits: LearnedLimits) -> LearnedTable {
    let mut table = LearnedTable::new(limits);
    for n in 0..10 {
        let then = NOW.plus_millis(n * 2_000);
        let address = [192, 0, 2, u8::try_from(n).unwrap()].into();
        let changes = table.learn(then, None, 5_000, &[address], HashSet::new);
        table.confirm(then, &changes);
    }
    table
}

/// Which goes first is a matter of when it was last shown, and of who uses it, whatever came in between.
#[test]
fn eg12_an_address_that_was_shown_again_goes_last() {
    let limits = LearnedLimits {
        ceiling: 10,
        ..LearnedLimits::default()
    };
    let ip = |n: u8| IpAddr::from([192, 0, 2, n]);
    let at = |seconds: u64| NOW.plus_millis(seconds * 1_000);
    let mut table = full_table(limits);
    // Shown again, by the long way and at once; neither needs anything of the packet filter.
    let again = table.learn(at(30), None, 5_000, &[ip(0)], HashSet::new);
    assert_eq!(again, hotcell_egress::learned::Changes::default());
    assert!(table.holds(at(31), None, 5_000, &[ip(2), ip(1)]));
    // One that is not there is not shown, and nothing is made of the question.
    assert!(!table.holds(at(31), None, 5_000, &[ip(3), ip(99)]));
    // In use: 3, which was just asked for, and 4 and 6.
    let used = || HashSet::from([ip(3), ip(4), ip(6)]);
    let mut gone = Vec::new();
    for n in 0..8 {
        let changes = table.learn(at(40 + u64::from(n)), None, 5_000, &[ip(50 + n)], used);
        assert_eq!((changes.close.len(), changes.evicted_in_use), (1, 0), "{n}");
        gone.extend(changes.close);
        assert_eq!(table.len(), 10);
    }
    // The oldest first, those shown again last, and never one in use while others are there.
    assert_eq!(gone, [5, 7, 8, 9, 0, 1, 2, 50].map(ip));
}

/// What is answered at once is exactly what the long way would find nothing to do for.
#[test]
fn eg14_an_answer_at_once_never_saves_a_renewal() {
    let limits = LearnedLimits {
        grace_ms: 60_000,
        ..LearnedLimits::default()
    };
    let ip: IpAddr = "203.0.113.5".parse().unwrap();
    for ttl_ms in [0, 1_000, 60_000, 90_000, 3_600_000, u64::MAX] {
        for seconds in 0..200 {
            let mut table = LearnedTable::new(limits);
            let opened = table.learn(NOW, None, 90_000, &[ip], HashSet::new);
            assert!(!table.holds(NOW, None, 0, &[ip]), "not confirmed");
            table.confirm(NOW, &opened);
            let later = NOW.plus_millis(seconds * 1_000);
            let held = table.holds(later, None, ttl_ms, &[ip]);
            let needs = table.learn(later, None, ttl_ms, &[ip], HashSet::new);
            assert_eq!(held, needs.open.is_empty(), "{ttl_ms} {seconds}");
        }
        let mut doubtful = LearnedTable::new(limits);
        let opened = doubtful.learn(NOW, None, ttl_ms, &[ip], HashSet::new);
        doubtful.confirm(NOW, &opened);
        doubtful.doubt();
        assert!(!doubtful.holds(NOW, None, 0, &[ip]));
    }
}
