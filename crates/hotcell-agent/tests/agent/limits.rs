//! What is refused because there is too much of it.

use std::time::Duration;

use hotcell_agent_proto::{AgentErrorCode, Health, JobList};
use hotcell_types::{
    JobId,
    limits::{MAX_CALLS_PER_SANDBOX, MAX_COMMAND_BYTES, MAX_JOBS_PER_SANDBOX},
};

use crate::host::{Host, exec_request, wait_for};

#[test]
fn calls_at_once() {
    let host = Host::start();
    std::thread::scope(|scope| {
        for _ in 0..MAX_CALLS_PER_SANDBOX {
            scope.spawn(|| host.bash("sleep 100"));
        }
        wait_for("all calls to run", Duration::from_secs(20), || {
            host.get("/v1/health").ok::<Health>().calls as usize == MAX_CALLS_PER_SANDBOX
        });
        let error = host.exec(&exec_request("true", 1_000)).unwrap_err();
        assert_eq!(error.code, AgentErrorCode::Busy);
        let mut request = exec_request("echo after", 5_000);
        request.restart = true;
        assert_eq!(host.exec(&request).unwrap().out(), "after\n");
    });
}

#[test]
fn jobs_at_once() {
    let host = Host::start();
    for number in 0..MAX_JOBS_PER_SANDBOX as u128 {
        host.job(
            number,
            if number == 3 { "true" } else { "sleep 3007" },
            60_000,
        );
    }
    wait_for("one job to end", Duration::from_secs(10), || {
        host.job_status(&JobId::from_bits(3)).exit_code == Some(0)
    });
    host.job(1_000, "sleep 3008", 60_000);
    let jobs: JobList = host.get("/v1/jobs").ok();
    assert_eq!(jobs.jobs.len(), MAX_JOBS_PER_SANDBOX);
    assert_eq!(
        host.get(&format!("/v1/jobs/{}", JobId::from_bits(3)))
            .status,
        404
    );
    let request = serde_json::json!({
        "job": JobId::from_bits(1_001), "command": {"shell": "true"}, "timeout_ms": 1000
    });
    let response = host.send("POST", "/v1/jobs", request.to_string());
    assert_eq!(response.error().code, AgentErrorCode::Busy);
}

#[test]
fn a_text_over_the_limit_is_refused_with_the_limit() {
    let host = Host::start();
    let error = host
        .exec(&exec_request(&"x".repeat(MAX_COMMAND_BYTES + 1), 1_000))
        .unwrap_err();
    assert_eq!(error.code, AgentErrorCode::BadRequest);
    assert!(error.message.contains(&MAX_COMMAND_BYTES.to_string()));
}
