//! Jobs: they outlive requests, and their output can be read again.

use std::time::Duration;

use hotcell_agent_proto::{AgentErrorCode, Health, JobList, JobState, JobStatus};
use hotcell_types::JobId;

use crate::host::{Host, wait_for};

const SOON: Duration = Duration::from_secs(8);

fn output(host: &Host, job: &JobId, stream: &str, offset: u64, limit: u64) -> (Vec<u8>, u64, u64) {
    let target = format!("/v1/jobs/{job}/output?stream={stream}&offset={offset}&limit={limit}");
    let response = host.get(&target);
    assert_eq!(response.status, 200);
    let number = |name: &str| response.headers[name].parse().unwrap();
    (
        response.body.clone(),
        number("hotcell-offset"),
        number("hotcell-total"),
    )
}

#[test]
fn lc12_output_by_offset_has_no_gaps_and_no_repeats() {
    let host = Host::start();
    let text = "for i in $(seq 40); do echo line $i; echo e$i >&2; sleep 0.05; done; exit 7";
    let (job, status) = host.job(1, text, 60_000);
    assert_eq!(status.state, JobState::Running);
    assert_eq!(
        host.get("/v1/health").ok::<Health>().jobs,
        std::slice::from_ref(&job)
    );
    // The same id again is the same job.
    assert_eq!(host.job(1, "echo other", 60_000).1.state, JobState::Running);

    let mut read = Vec::new();
    let mut others = 0;
    loop {
        let before = host.job_status(&job);
        let (piece, offset, total) = output(&host, &job, "stdout", read.len() as u64, 33);
        assert_eq!(offset, read.len() as u64);
        assert!(total >= before.stdout_bytes);
        let is_end = before.state != JobState::Running && piece.is_empty();
        read.extend(piece);
        if is_end {
            break;
        }
        host.bash("true");
        others += 1;
    }
    assert!(others > 3);
    let expected: String = (1..=40).map(|n| format!("line {n}\n")).collect();
    assert_eq!(String::from_utf8(read).unwrap(), expected);
    let status = host.job_status(&job);
    assert_eq!(
        (status.state, status.exit_code),
        (JobState::Exited, Some(7))
    );
    assert!(status.duration_ms >= 2_000, "{status:?}");
    let stderr = output(&host, &job, "stderr", 0, 1 << 20).0;
    assert_eq!(stderr.iter().filter(|&&byte| byte == b'\n').count(), 40);
    assert_eq!(
        output(&host, &job, "stdout", 1 << 40, 10).1,
        expected.len() as u64
    );
    assert_eq!(
        host.get("/v1/jobs").ok::<JobList>().jobs,
        [host.job_status(&job)]
    );
    assert!(host.get("/v1/health").ok::<Health>().jobs.is_empty());
}

#[test]
fn jobs_start_from_the_shell_and_leave_it_alone() {
    let host = Host::start();
    host.bash("mkdir d; cd d; export A=1");
    let (job, _) = host.job(1, "pwd; echo $A; export A=2; cd /", 5_000);
    wait_for("the job", SOON, || {
        host.job_status(&job).state == JobState::Exited
    });
    let work = host.workspace.display();
    let out = output(&host, &job, "stdout", 0, 1_000).0;
    assert_eq!(String::from_utf8(out).unwrap(), format!("{work}/d\n1\n"));
    assert_eq!(host.bash("echo $A; pwd").out(), format!("1\n{work}/d\n"));
}

#[test]
fn a_stopped_job_takes_its_tree_along_and_nothing_else() {
    let host = Host::start();
    let text = "trap '' TERM; echo up; (setsid sleep 3004 &); sleep 3005";
    let (job, _) = host.job(1, text, 60_000);
    let (other, _) = host.job(2, "sleep 3006", 60_000);
    wait_for("the job to run", SOON, || {
        host.running()
            .iter()
            .filter(|process| process.command.starts_with("sleep"))
            .count()
            == 3
    });
    let stopped = host.send("DELETE", &format!("/v1/jobs/{job}"), "").ok();
    let JobStatus {
        state,
        stdout_bytes,
        signal,
        ..
    } = stopped;
    assert_eq!((state, stdout_bytes), (JobState::Stopped, 3));
    assert_eq!(signal.as_deref(), Some("SIGKILL"));
    wait_for("only the other to be left", SOON, || {
        host.running()
            .iter()
            .all(|process| !process.command.contains("3004"))
            && host
                .running()
                .iter()
                .filter(|p| p.command.starts_with("sleep"))
                .count()
                == 1
    });
    assert_eq!(host.job_status(&other).state, JobState::Running);
    assert_eq!(output(&host, &job, "stdout", 0, 10).0, b"up\n");
    let ended: hotcell_agent_proto::Restarted = host.send("POST", "/v1/restart", "").ok();
    assert!(ended.ended >= 1);
    wait_for("the other to stop", SOON, || {
        host.job_status(&other).state == JobState::Stopped
    });
    let missing = host.get(&format!("/v1/jobs/{}", JobId::from_bits(99)));
    assert_eq!(missing.error().code, AgentErrorCode::NotFound);
    assert_eq!(
        host.get("/v1/jobs/nonsense").error().code,
        AgentErrorCode::NotFound
    );
}

#[test]
fn a_job_that_runs_out_of_time_is_killed() {
    let host = Host::start();
    let (job, _) = host.job(1, "trap '' TERM; echo x; sleep 100 & sleep 100", 1_000);
    wait_for("the job to end", SOON, || {
        host.job_status(&job).state == JobState::TimedOut
    });
    let status = host.job_status(&job);
    assert_eq!(status.exit_code, None);
    assert!((1_000..2_500).contains(&status.duration_ms), "{status:?}");
    assert!(host.running().is_empty());
}

#[test]
fn a_job_that_writes_much_keeps_the_end() {
    let host = Host::start();
    let (job, _) = host.job(1, "seq 1 3000000", 30_000);
    wait_for("the job to end", SOON, || {
        host.job_status(&job).state == JobState::Exited
    });
    let status = host.job_status(&job);
    assert_eq!(status.stdout_bytes, 22_888_896);
    assert_eq!(status.stdout_forgotten_bytes, 22_888_896 - (16 << 20));
    let (piece, offset, total) = output(&host, &job, "stdout", 0, u64::MAX);
    assert_eq!(
        (offset, total),
        (status.stdout_forgotten_bytes, status.stdout_bytes)
    );
    assert_eq!(piece.len(), 1 << 20);
    assert!(
        output(&host, &job, "stdout", total - 8, 8)
            .0
            .ends_with(b"3000000\n")
    );
}
