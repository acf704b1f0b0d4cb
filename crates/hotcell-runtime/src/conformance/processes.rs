//! Processes that a call leaves, outlives or must end.

use std::time::Duration;

use futures_util::future::join_all;
use hotcell_agent_proto::JobRequest;

use super::{
    Fault,
    bench::{Bench, Cell, eventually},
    checks, ensure,
};
use crate::Isolation;

checks! {
    "EX-01" "a child in the background does not hold the call" Processes background;
    "EX-01" "later output of the background stays out of other calls" Processes late_output;
    "EX-02" "a timeout ends all that the call started and nothing else" Processes timeouts;
    "EX-02" "a dropped call ends its processes" Processes dropped_call;
    "EX-03" "orphans are reaped" Processes zombies;
}

async fn count(cell: &Cell, marker: &str) -> Result<usize, Fault> {
    // The brackets keep the pattern from finding the command that looks.
    let (first, rest) = marker.split_at(1);
    let text = format!("ps -eo args | grep -c '[{first}]{rest}'");
    let done = cell.sh(text).await?;
    Ok(done.out().trim().parse()?)
}

async fn background(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let cases = [
        ("sleep 300.1 & echo hi", 0, "hi\n"),
        ("python3 -m http.server 8123 & echo hi", 0, "hi\n"),
        ("(sleep 300.1 >/dev/null 2>&1 &) ; echo hi", 0, "hi\n"),
        ("nohup sh -c 'sleep 300.1; :' & disown; exit 7", 7, ""),
        ("sleep 300.1 & echo hi", 0, "hi\n"),
    ];
    for (round, (text, code, out)) in cases.into_iter().enumerate() {
        let done = cell.sh(text).await?;
        ensure!(
            done.took < Duration::from_secs(2),
            "{text} took {:?}",
            done.took
        );
        ensure!(
            done.exit.exit_code == Some(code) && done.out() == out,
            "{text}: {:?} {:?}",
            done.exit,
            done.out()
        );
        ensure!(
            done.exit.still_running >= 1 && !done.exit.notes.is_empty(),
            "{text} in round {round} says nothing of its child: {:?}",
            done.exit
        );
    }
    // Each was let go of before it had become a `sleep`.
    let what = "all four children run on";
    eventually(what, Duration::from_secs(5), async || {
        Ok(count(&cell, "sleep 300.1").await? >= 4)
    })
    .await?;
    let ended = cell.sandbox.restart().await?;
    ensure!(ended >= 5, "the restart ended {ended} processes");
    let left = count(&cell, "sleep 300.1").await?;
    ensure!(left == 0, "{left} outlived the restart");
    Ok(())
}

async fn late_output(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let text = "(for i in $(seq 100); do echo late; echo late >&2; sleep 0.02; done) & echo hi";
    ensure!(
        cell.sh(text).await?.exit.exit_code == Some(0),
        "it did not start"
    );
    for _ in 0..5 {
        let done = cell.sh("sleep 0.3; echo own").await?;
        ensure!(
            done.out() == "own\n" && done.stderr.is_empty(),
            "{:?} {:?}",
            done.out(),
            done.err()
        );
    }
    Ok(())
}

async fn timeouts(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let daemon = "import os,time; os.fork() and os._exit(0); os.setsid(); \
                  os.fork() and os._exit(0); time.sleep(100.7)";
    let cases = [
        "exec -a mark-100.7 bash -c 'while :; do :; done'".to_owned(),
        "trap '' TERM INT HUP; sleep 100.7".to_owned(),
        "setsid sleep 100.7".to_owned(),
        "bash -c 'sleep 100.7 & sleep 100.7'".to_owned(),
        format!("python3 -c '{daemon}'; sleep 100.7"),
    ];
    let job = JobRequest {
        job: cell.job_id(),
        command: hotcell_agent_proto::Command::Shell("sleep 200.3".into()),
        cwd: None,
        env: Default::default(),
        timeout_ms: 100_000,
    };
    cell.sandbox.start_job(job.clone()).await?;
    cell.sh("sleep 200.3 &").await?;
    let calls = cases.iter().map(|text| {
        let cell = &cell;
        async move {
            let mut request = cell.shell(format!("echo before; {text}"));
            request.timeout_ms = 2_000;
            let done = cell.run(request).await?;
            ensure!(
                done.exit.timed_out && done.exit.exit_code.is_none(),
                "{text}: {:?}",
                done.exit
            );
            ensure!(
                done.took >= Duration::from_secs(2) && done.took < Duration::from_millis(3_500),
                "{text} took {:?}",
                done.took
            );
            ensure!(done.out() == "before\n", "{text}: {:?}", done.out());
            Ok(())
        }
    });
    for result in join_all(calls).await {
        result?;
    }
    for second in 0..4 {
        let left = count(&cell, "100.7").await?;
        ensure!(left == 0, "{left} processes live {second} s later");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let others = count(&cell, "sleep 200.3").await?;
    ensure!(others == 2, "{others} of 2 processes of others live");
    cell.sandbox.stop_job(&job.job).await?;
    Ok(())
}

async fn dropped_call(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let text = "setsid sleep 300.9 & sleep 300.9";
    let stream = cell.sandbox.exec(cell.shell(text)).await?;
    eventually("both run", Duration::from_secs(5), async || {
        Ok(count(&cell, "sleep 300.9").await? == 2)
    })
    .await?;
    drop(stream);
    eventually("both are gone", Duration::from_secs(5), async || {
        Ok(count(&cell, "sleep 300.9").await? == 0)
    })
    .await
}

async fn zombies(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let look = "ps -e -o stat= | grep -c Z; ps -e -o pid= | wc -l";
    let numbers = async || -> Result<(i64, i64), Fault> {
        let out = cell.sh(look).await?.out();
        let mut lines = out.lines().map(str::parse::<i64>);
        match (lines.next(), lines.next()) {
            (Some(Ok(zombies)), Some(Ok(all))) => Ok((zombies, all)),
            _ => super::failed(format!("ps says {out:?}")),
        }
    };
    let (_, before) = numbers().await?;
    // Starting a process costs gVisor ten times as much.
    let rounds = match bench.facts.isolation {
        Isolation::Gvisor => 150,
        Isolation::SharedKernel | Isolation::None => 500,
    };
    cell.sh(format!(
        "for i in $(seq {rounds}); do bash -c '(sleep 0.01 &) ; exit'; done"
    ))
    .await?
    .ok()?;
    eventually(
        "at most 2 zombies, no more processes than before",
        Duration::from_secs(2),
        async || {
            let (zombies, after) = numbers().await?;
            Ok(zombies <= 2 && (after - before).abs() <= 3)
        },
    )
    .await
}
