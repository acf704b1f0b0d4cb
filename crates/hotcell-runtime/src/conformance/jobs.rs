//! Commands that outlive the request that started them.

use std::time::Duration;

use hotcell_agent_proto::{AgentErrorCode, Command, JobRequest, JobState, JobStatus};
use hotcell_types::JobId;

use super::{
    Fault,
    bench::{Bench, Cell, eventually, expect_refusal},
    checks, ensure, failed,
};
use crate::OutputStream;

checks! {
    "LC-12" "a job's output comes by offset, its code is kept" Anything output_by_offset;
    "jobs" "the same id is the same job" Anything same_id;
    "jobs" "stopping, running out of time and restarting end a job" Anything ends;
    "jobs" "a stopped job leaves no process" Processes stop_ends_the_tree;
    "jobs" "a job's flood is kept from its end" Processes flood;
    "jobs" "a job starts from the chat's shell state and leaves it" Processes state;
}

fn request(cell: &Cell, text: &str) -> JobRequest {
    JobRequest {
        job: cell.job_id(),
        command: Command::Shell(text.into()),
        cwd: None,
        env: Default::default(),
        timeout_ms: 100_000,
    }
}

async fn ended(cell: &Cell, job: &JobId) -> Result<JobStatus, Fault> {
    let patience = Duration::from_secs(20);
    let over = async || Ok(cell.sandbox.job(job).await?.state != JobState::Running);
    eventually("the job ends", patience, over).await?;
    Ok(cell.sandbox.job(job).await?)
}

/// Reads a stream of a job from the start, in pieces of this size.
async fn read(
    cell: &Cell,
    job: &JobId,
    stream: OutputStream,
    piece: u64,
) -> Result<Vec<u8>, Fault> {
    let mut whole = Vec::new();
    loop {
        let at = whole.len() as u64;
        let output = cell.sandbox.job_output(job, stream, at, piece).await?;
        ensure!(output.offset == at, "asked at {at}, got {}", output.offset);
        ensure!(output.bytes.len() as u64 <= piece, "more than asked for");
        if output.bytes.is_empty() {
            ensure!(output.total == at, "{at} of {} bytes came", output.total);
            return Ok(whole);
        }
        whole.extend_from_slice(&output.bytes);
    }
}

async fn output_by_offset(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let out = if bench.env.real { "echo" } else { "err" };
    let to_stderr = if bench.env.real { " >&2" } else { "" };
    let text = format!("echo one\n{out} bad{to_stderr}\nsleep 1\necho two\nexit 7");
    let job = request(&cell, &text);
    let status = cell.sandbox.start_job(job.clone()).await?;
    ensure!(status.job == job.job, "another id came back");
    cell.sh("echo meanwhile").await?.ok()?;
    let listed = cell.sandbox.jobs().await?;
    ensure!(
        listed.iter().any(|status| status.job == job.job),
        "it is not listed"
    );
    let status = ended(&cell, &job.job).await?;
    ensure!(
        status.state == JobState::Exited && status.exit_code == Some(7),
        "{status:?}"
    );
    for piece in [1, 3, 1_000] {
        let out = read(&cell, &job.job, OutputStream::Stdout, piece).await?;
        ensure!(out == b"one\ntwo\n", "by {piece}: {out:?}");
    }
    let err = read(&cell, &job.job, OutputStream::Stderr, 100).await?;
    ensure!(err == b"bad\n", "stderr {err:?}");
    let unknown = cell.job_id();
    let missing = &[AgentErrorCode::NotFound];
    expect_refusal("an unknown job", cell.sandbox.job(&unknown).await, missing)?;
    let output = cell
        .sandbox
        .job_output(&unknown, OutputStream::Stdout, 0, 1)
        .await;
    expect_refusal("output of an unknown job", output, missing)
}

async fn same_id(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let mark = "/workspace/runs.txt";
    let text = if bench.env.real {
        format!("echo x >> {mark}; sleep 1")
    } else {
        format!("append {mark} x; sleep 1")
    };
    let job = request(&cell, &text);
    for _ in 0..3 {
        let status = cell.sandbox.start_job(job.clone()).await?;
        ensure!(status.job == job.job, "another id came back");
    }
    ended(&cell, &job.job).await?;
    cell.sandbox.start_job(job.clone()).await?;
    let runs = cell.get(mark).await?;
    ensure!(runs == b"x\n", "it ran {} times", runs.len() / 2);
    Ok(cell.sandbox.remove_file(&super::bench::path(mark)).await?)
}

async fn ends(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let job = request(&cell, "echo start; sleep 90000");
    cell.sandbox.start_job(job.clone()).await?;
    for _ in 0..2 {
        let status = cell.sandbox.stop_job(&job.job).await?;
        ensure!(status.state == JobState::Stopped, "{status:?}");
    }
    let mut job = request(&cell, "sleep 90000");
    job.timeout_ms = 300;
    cell.sandbox.start_job(job.clone()).await?;
    let status = ended(&cell, &job.job).await?;
    ensure!(
        status.state == JobState::TimedOut && status.exit_code.is_none(),
        "{status:?}"
    );
    let job = request(&cell, "sleep 90000");
    cell.sandbox.start_job(job.clone()).await?;
    cell.sandbox.restart().await?;
    match cell.sandbox.job(&job.job).await {
        Ok(status) if status.state != JobState::Running => Ok(()),
        Err(crate::SandboxError::Agent(error)) if error.code == AgentErrorCode::NotFound => Ok(()),
        other => failed(format!("after a restart: {other:?}")),
    }
}

async fn stop_ends_the_tree(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let job = request(&cell, "trap '' TERM; setsid sleep 400.1 & sleep 400.1");
    cell.sandbox.start_job(job.clone()).await?;
    let look = "ps -eo args | grep -c '[s]leep 400.1'";
    eventually("both run", Duration::from_secs(5), async || {
        Ok(cell.sh(look).await?.out() == "2\n")
    })
    .await?;
    cell.sandbox.stop_job(&job.job).await?;
    let left = cell.sh(look).await?.out();
    ensure!(left == "0\n", "{left:?} live after the stop returned");
    Ok(())
}

async fn flood(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let job = request(&cell, "seq 1 3000000");
    cell.sandbox.start_job(job.clone()).await?;
    let status = ended(&cell, &job.job).await?;
    let written: u64 = (1..=3_000_000_u64)
        .map(|n| n.to_string().len() as u64 + 1)
        .sum();
    ensure!(
        status.stdout_bytes == written && status.stdout_forgotten_bytes > 0,
        "{status:?}"
    );
    let at = written - 16;
    let output = cell
        .sandbox
        .job_output(&job.job, OutputStream::Stdout, at, 100)
        .await?;
    ensure!(
        output.bytes.as_ref() == b"2999999\n3000000\n",
        "the end is {:?}",
        output.bytes
    );
    // What is forgotten is skipped, and the answer says where it begins.
    let output = cell
        .sandbox
        .job_output(&job.job, OutputStream::Stdout, 0, 100)
        .await?;
    ensure!(
        output.offset == status.stdout_forgotten_bytes,
        "asked at 0, got {}, forgotten {}",
        output.offset,
        status.stdout_forgotten_bytes
    );
    Ok(())
}

async fn state(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    cell.sh("cd /tmp; export CHOSEN=yes").await?.ok()?;
    let job = request(&cell, "pwd; echo $CHOSEN; cd /; export CHOSEN=no");
    cell.sandbox.start_job(job.clone()).await?;
    ended(&cell, &job.job).await?;
    let out = read(&cell, &job.job, OutputStream::Stdout, 100).await?;
    ensure!(out == b"/tmp\nyes\n", "the job saw {out:?}");
    let done = cell.sh("pwd; echo $CHOSEN").await?;
    ensure!(done.ok()? == "/tmp\nyes\n", "it left {:?}", done.out());
    Ok(())
}
