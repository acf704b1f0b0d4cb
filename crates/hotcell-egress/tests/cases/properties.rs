//! Whatever comes.

use super::*;

proptest! {
    /// Whatever is learned in whatever order: never over the ceiling, everything of the last answer
    /// is open for at least the grace, and what the changes say is what the table holds.
    #[test]
    fn the_table_and_its_changes_agree(
        steps in prop::collection::vec((0_u64..4_000, prop::collection::vec(0_u8..40, 1..12), 0_u64..5_000), 1..80),
        ceiling in 12_usize..20,
        used in prop::collection::hash_set(0_u8..40, 0..40),
    ) {
        let ip = |n: u8| IpAddr::from([192, 0, 2, n]);
        let limits = LearnedLimits { grace_ms: 2_000, ceiling };
        let mut table = LearnedTable::new(limits);
        let mut kernel = std::collections::HashMap::<IpAddr, UnixMillis>::new();
        let mut now = NOW;
        for (wait_ms, answer, ttl_ms) in steps {
            now = now.plus_millis(wait_ms);
            kernel.retain(|_, until| *until > now);
            let answer: Vec<IpAddr> = answer.into_iter().map(ip).collect();
            let in_use = used.iter().copied().map(ip).collect::<HashSet<_>>();
            let changes = table.learn(now, None, ttl_ms, &answer, || in_use.clone());
            if changes.evicted_in_use == 0 {
                prop_assert!(changes.close.iter().all(|address| !in_use.contains(address)));
            }
            for address in &changes.close {
                prop_assert!(kernel.remove(address).is_some());
            }
            table.confirm(now, &changes);
            for (address, for_ms) in &changes.open {
                prop_assert!(*for_ms >= ttl_ms.max(2_000));
                kernel.insert(*address, now.plus_millis(*for_ms));
            }
            let due = now.plus_millis(ttl_ms.max(2_000));
            prop_assert!(answer.iter().all(|address| kernel.get(address) >= Some(&due)));
            prop_assert!(table.len() <= ceiling);
            let held: std::collections::HashMap<IpAddr, u64> = table.remaining(now).collect();
            let there: std::collections::HashMap<IpAddr, u64> =
                kernel.iter().map(|(address, until)| (*address, until.millis_since(now))).collect();
            prop_assert_eq!(held, there);
        }
    }

    /// Whatever an answer holds, only public addresses on the chain are ever opened.
    #[test]
    fn nothing_inside_and_nothing_off_the_chain_is_opened(
        records in prop::collection::vec((0_u8..5, prop_oneof![
            (0_u8..5).prop_map(Ok),
            prop_oneof![any::<u32>().prop_map(|n| IpAddr::from(n.to_be_bytes())),
                        any::<u128>().prop_map(|n| IpAddr::from(n.to_be_bytes()))].prop_map(Err),
        ]), 0..30),
    ) {
        let owner = |n: u8| name(&format!("n{n}.example.org"));
        let records: Vec<AnswerRecord> = records.into_iter().map(|(n, data)| AnswerRecord {
            owner: Some(owner(n)),
            data: match data { Ok(n) => AnswerData::Alias(owner(n)), Err(address) => AnswerData::Address(address) },
            ttl_seconds: 1,
        }).collect();
        let mut filter = filter("deny", &["allow n0.example.org"], true);
        let sifted = take_in(&mut filter, "n0.example.org", &records);
        // Reachability the slow way: the first alias of each name counts.
        let mut reached = vec![owner(0)];
        while let Some(next) = records.iter().find_map(|r| {
            let AnswerData::Alias(target) = &r.data else { return None };
            let first = records.iter().find(|o| o.owner == r.owner && matches!(o.data, AnswerData::Alias(_)));
            (first == Some(r) && reached.contains(r.owner.as_ref()?) && !reached.contains(target)).then(|| target.clone())
        }) {
            reached.push(next);
        }
        for (address, _) in &sifted.changes.open {
            let on_chain = records.iter().any(|r| {
                r.data == AnswerData::Address(*address) && r.owner.as_ref().is_some_and(|o| reached.contains(o))
            });
            prop_assert!(on_chain);
            prop_assert_eq!(filter.plan().verdict(*address).why, Why::Default);
        }
    }
}
