//! Quotas against a model that is too simple to be wrong.

use std::collections::BTreeMap;

use hotcell_core::{
    gate::{HOUR_MS, QuotaSettings},
    model::{LeaseRecord, LeaseState},
};
use hotcell_types::{ResourceClass, UnixMillis};
use proptest::prelude::*;

use super::{
    Home,
    quota::{NOON, admit_in, end, live, name, ready, set, write},
};

#[derive(Debug, Clone)]
enum Step {
    Admit(u8),
    End(u8),
    Idle(u8),
    /// Milliseconds that pass; may be negative.
    Time(i64),
    Limits(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..12).prop_map(Step::Admit),
        4 => (0_u8..12).prop_map(Step::End),
        1 => (0_u8..12).prop_map(Step::Idle),
        4 => (0_i64..1_500_000).prop_map(Step::Time),
        1 => (-50_000_i64..0).prop_map(Step::Time),
        2 => (0_u64..6, 0_u64..8).prop_map(|(live, hour)| Step::Limits(live, hour)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The counter is what the rows are, and the window is what a list of all admissions says.
    #[test]
    fn quotas_follow_a_simple_model(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let home = Home::new();
            let store = ready(&home).await;
            let (mut live_chats, mut admissions) = (BTreeMap::new(), Vec::<u64>::new());
            let (mut now, mut number, mut max_live, mut max_hour) = (NOON.0, 0_u128, 2, 60);
            for step in steps {
                match step {
                    Step::Time(by) => now = now.saturating_add_signed(by),
                    Step::Limits(live, hour) => {
                        (max_live, max_hour) = (live, hour);
                        set(&store, QuotaSettings {
                            max_concurrent: Some(live),
                            max_jobs_per_hour: Some(hour),
                            ..QuotaSettings::default()
                        }).await;
                    }
                    Step::Admit(chat) if !live_chats.contains_key(&chat) => {
                        number += 1;
                        let id = number;
                        let got = write(&store, move |tx| {
                            let chat = format!("c{chat}");
                            admit_in(tx, id, &chat, ResourceClass::Small, UnixMillis(now))
                        }).await;
                        // A clock that is a little behind stands still.
                        let at = now.max(admissions.last().copied().unwrap_or(0));
                        let in_hour = admissions.iter().filter(|a| **a + HOUR_MS > at).count();
                        let wanted = if live_chats.len() as u64 >= max_live {
                            Some("quota:max_concurrent")
                        } else if in_hour as u64 >= max_hour {
                            Some("quota:max_jobs_per_hour")
                        } else {
                            None
                        };
                        assert_eq!(name(&got), wanted);
                        if let Ok(lease) = got {
                            live_chats.insert(chat, lease);
                            admissions.push(at);
                        }
                    }
                    Step::Admit(_) => {}
                    Step::End(chat) => {
                        if let Some(lease) = live_chats.remove(&chat) {
                            end(&store, lease).await;
                        }
                    }
                    Step::Idle(chat) => {
                        if let Some(lease) = live_chats.get(&chat).cloned() {
                            write(&store, move |tx| tx.put_lease(&LeaseRecord {
                                state: LeaseState::Idle,
                                ..lease
                            })).await;
                        }
                    }
                }
                let (counted, rows) = store.read_now(live).unwrap();
                assert_eq!((counted as usize, rows), (live_chats.len(), live_chats.len()));
            }
        });
    }
}
