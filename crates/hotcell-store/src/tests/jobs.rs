//! Jobs and deletions: what is kept, what is refused, what their rows look like.

use hotcell_core::{
    deletion::DeletionRecord,
    job::{JobRecord, JobState, JobTail, JobTails},
    model::{Actor, LeaseState},
};
use hotcell_types::{JobId, LeaseId, UnixMillis, limits};
use serde_json::{Value, json};

use super::{Home, furnish, lease};
use crate::{
    StoreError,
    deletions::DeletionDto,
    dto::Keyed,
    jobs::{JobDto, JobTailsDto},
};

fn job(number: u128, state: JobState) -> JobRecord {
    JobRecord {
        id: JobId::from_bits(number),
        organization: "o1".parse().unwrap(),
        workspace: "w1".parse().unwrap(),
        chat: "c1".parse().unwrap(),
        user: "u1".parse().unwrap(),
        lease: LeaseId::from_bits(1),
        state,
        max_ms: 1_000,
        created_at: UnixMillis(u64::try_from(number).unwrap()),
        ended_at: state.has_ended().then_some(UnixMillis(9)),
        exit_code: None,
        signal: None,
        reason: None,
        stdout_bytes: 3,
        stderr_bytes: 0,
        duration_ms: None,
    }
}

const STATES: [JobState; 7] = [
    JobState::Starting,
    JobState::Running,
    JobState::Exited,
    JobState::Stopped,
    JobState::TimedOut,
    JobState::Failed,
    JobState::Lost,
];

fn tails() -> JobTails {
    JobTails {
        stdout: JobTail {
            offset: 7,
            bytes: b"\xffend".to_vec(),
        },
        stderr: JobTail::default(),
    }
}

fn deletion(user: Option<&str>) -> DeletionRecord {
    DeletionRecord {
        workspace: "w1".parse().unwrap(),
        user: user.map(|user| user.parse().unwrap()),
        actor: Actor::LocalOperator,
        requested_at: UnixMillis(8),
        request: Some("rq_1".to_owned()),
    }
}

pub(super) fn shapes(add: &mut dyn FnMut(&str, Value)) {
    for state in STATES {
        let dto = JobDto::from(&job(1, state));
        add(&format!("jobs {state:?}"), json!(dto));
    }
    add("job_tails", json!(JobTailsDto::from(&tails())));
    add(
        "deletions",
        json!(DeletionDto::from(&deletion(Some("u@x")))),
    );
}

pub(super) fn is_read(name: &str, value: &Value) {
    let again = match name.split(' ').next().unwrap() {
        "jobs" => json!(serde_json::from_value::<JobDto>(value.clone()).unwrap()),
        "job_tails" => json!(serde_json::from_value::<JobTailsDto>(value.clone()).unwrap()),
        _ => json!(serde_json::from_value::<DeletionDto>(value.clone()).unwrap()),
    };
    assert_eq!(again, *value);
}

#[test]
fn dtos_give_back_what_was_put_in() {
    for state in STATES {
        let job = JobRecord {
            exit_code: Some(7),
            signal: Some("SIGKILL".to_owned()),
            reason: Some("gone".to_owned()),
            duration_ms: Some(3),
            ..job(1, state)
        };
        let back: JobRecord = Keyed(job.id.clone(), JobDto::from(&job)).into();
        assert_eq!(back, job);
    }
}

#[tokio::test]
async fn jobs_end_once_and_are_found_by_chat_and_lease() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    store
        .write::<_, StoreError, _>(|tx| {
            tx.put_job(&job(1, JobState::Starting))?;
            tx.put_job(&job(2, JobState::Running))?;
            tx.put_job(&job(1, JobState::Running))?;
            tx.put_job(&job(1, JobState::Exited))?;
            tx.put_job_tails(&job(1, JobState::Exited).id, &tails())
        })
        .await
        .unwrap();
    let (w, c, l) = (
        "w1".parse().unwrap(),
        "c1".parse().unwrap(),
        LeaseId::from_bits(1),
    );
    let all = store.read_now(|view| view.jobs_of_chat(&w, &c)).unwrap();
    assert_eq!(all, [job(2, JobState::Running), job(1, JobState::Exited)]);
    let live = store.read_now(|view| view.live_jobs(&l)).unwrap();
    assert_eq!(live, [job(2, JobState::Running)]);
    let kept = store.read_now(|view| view.job_tails(&all[1].id)).unwrap();
    assert_eq!(kept, Some(tails()));

    let revived = store
        .write::<_, StoreError, _>(|tx| tx.put_job(&job(1, JobState::Running)))
        .await;
    assert!(matches!(
        revived,
        Err(StoreError::Immutable { field: "end", .. })
    ));
    let lost = store
        .write::<_, StoreError, _>(|tx| {
            let seen = [(JobId::from_bits(2), tails())].into();
            tx.lose_jobs(
                &LeaseId::from_bits(1),
                "out_of_memory",
                UnixMillis(99),
                &seen,
            )
        })
        .await
        .unwrap();
    assert_eq!(lost, [JobId::from_bits(2)]);
    let lost = store.read_now(|view| view.job(&lost[0])).unwrap().unwrap();
    assert_eq!((lost.state, lost.duration_ms), (JobState::Lost, Some(97)));
    assert_eq!(lost.reason.as_deref(), Some("out_of_memory"));
    assert_eq!(lost.stdout_bytes, 11, "what was last seen of it counts");
    let kept = store.read_now(|view| view.job_tails(&lost.id)).unwrap();
    assert_eq!(kept, Some(tails()));
    let live = store.read_now(|view| view.live_jobs(&l)).unwrap();
    assert_eq!(live, []);
}

#[tokio::test]
async fn a_chat_forgets_its_oldest_ended_jobs_first() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let many = u128::from(limits::MAX_JOBS_PER_CHAT);
    store
        .write::<_, StoreError, _>(move |tx| {
            tx.put_job(&job(1, JobState::Running))?;
            for number in 2..=many {
                tx.put_job(&job(number, JobState::Exited))?;
            }
            tx.put_job(&job(many + 1, JobState::Running))
        })
        .await
        .unwrap();
    let (w, c) = ("w1".parse().unwrap(), "c1".parse().unwrap());
    let all = store.read_now(|view| view.jobs_of_chat(&w, &c)).unwrap();
    assert_eq!(all.len() as u64, limits::MAX_JOBS_PER_CHAT);
    let ids: Vec<_> = all.iter().map(|job| job.id.clone()).collect();
    assert!(ids.contains(&JobId::from_bits(1)), "one that runs stays");
    assert!(!ids.contains(&JobId::from_bits(2)), "the oldest ended went");
    let gone = store.read_now(|view| view.job(&JobId::from_bits(2)));
    assert_eq!(gone.unwrap(), None);
}

#[tokio::test]
async fn jobs_are_forgotten_with_their_lease() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    store
        .write::<_, StoreError, _>(|tx| {
            tx.put_lease(&lease(1, "w1", "c1", LeaseState::Starting))?;
            tx.put_job(&job(1, JobState::Exited))?;
            tx.put_job_tails(&JobId::from_bits(1), &tails())?;
            tx.put_lease(&lease(1, "w1", "c1", LeaseState::Ended))?;
            tx.forget_ended_leases(UnixMillis(1_000), 10)
        })
        .await
        .unwrap();
    let id = JobId::from_bits(1);
    assert_eq!(store.read_now(|view| view.job(&id)).unwrap(), None);
    assert_eq!(store.read_now(|view| view.job_tails(&id)).unwrap(), None);
}

#[tokio::test]
async fn a_deletion_is_written_once_and_goes_with_its_workspace() {
    let home = Home::new();
    let store = home.open();
    furnish(&store).await;
    let begun = store
        .write::<_, StoreError, _>(|tx| {
            Ok([
                tx.begin_deletion(&deletion(Some("u1")))?,
                tx.begin_deletion(&deletion(Some("u1")))?,
                tx.begin_deletion(&deletion(None))?,
            ])
        })
        .await
        .unwrap();
    assert_eq!(begun, [true, false, true]);
    let all = store.read_now(|view| view.deletions()).unwrap();
    assert_eq!(all, [deletion(None), deletion(Some("u1"))]);
    store
        .write::<_, StoreError, _>(|tx| tx.finish_deletion(&deletion(None)))
        .await
        .unwrap();
    assert_eq!(store.read_now(|view| view.deletions()).unwrap(), []);
    let unknown = DeletionRecord {
        workspace: "w2".parse().unwrap(),
        ..deletion(None)
    };
    let refused = store
        .write::<_, StoreError, _>(move |tx| tx.begin_deletion(&unknown))
        .await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })));
}
