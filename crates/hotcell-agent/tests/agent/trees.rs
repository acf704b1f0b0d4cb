//! Process trees: what stays, what ends, what is reaped.

use std::time::Duration;

use hotcell_agent_proto::{AgentErrorCode, Health, Restarted};
use rustix::process::Signal;

use crate::{
    client::Request,
    host::{Host, exec_request, wait_for},
};

const SOON: Duration = Duration::from_secs(5);
/// A time limit of two seconds, one second for the end, half a second for a busy test host.
const LATEST: Duration = Duration::from_millis(3_500);

#[test]
fn ex01_what_is_left_in_the_background_does_not_hold_the_call() {
    let host = Host::start();
    let left = [
        ("sleep 301 & echo hi", "hi\n", 0, 1),
        ("sleep 302 & echo hi", "hi\n", 0, 1),
        (
            "python3 -m http.server --bind 127.0.0.1 0 & echo hi",
            "hi\n",
            0,
            1,
        ),
        ("(sleep 303 >/dev/null 2>&1 &) ; echo hi", "hi\n", 0, 1),
        ("nohup sh -c 'sleep 304' & disown; exit 7", "", 7, 2),
        ("setsid sh -c 'sleep 305; true' & echo hi", "hi\n", 0, 2),
    ];
    for (text, out, code, least) in left {
        let outcome = host.exec(&exec_request(text, 60_000)).unwrap();
        assert!(
            outcome.took < Duration::from_secs(2),
            "{text}: {:?}",
            outcome.took
        );
        assert_eq!(
            (outcome.out().as_str(), outcome.code()),
            (out, Some(code)),
            "{text}"
        );
        // The shell's child may not have forked its own yet.
        assert!(
            (1..=least).contains(&outcome.exit.still_running),
            "{text}: {outcome:?}"
        );
        assert!(
            outcome
                .exit
                .notes
                .iter()
                .any(|note| note.contains("background")),
            "{outcome:?}"
        );
    }
    let sleeps = |host: &Host| {
        host.running()
            .iter()
            .filter(|process| process.command.starts_with("sleep\x0030"))
            .count()
    };
    wait_for("the sleeps to run", SOON, || sleeps(&host) == 5);

    // Later output of an earlier call shows up nowhere, and does not end its writer.
    host.bash("(sleep 0.2; echo late; echo late >&2; sleep 306) & echo now");
    let outcome = host.bash("sleep 0.5; echo mine");
    assert_eq!(
        (outcome.out().as_str(), outcome.err().as_str()),
        ("mine\n", "")
    );
    assert_eq!(sleeps(&host), 6);

    let ended: Restarted = host.send("POST", "/v1/restart", "").ok();
    assert!(ended.ended >= 6, "{ended:?}");
    assert!(host.running().is_empty(), "{:?}", host.running());
}

#[test]
fn ex02_a_timeout_ends_the_whole_tree_and_nothing_else() {
    let host = Host::start();
    host.bash("sleep 3001 & disown");
    let (job, _) = host.job(1, "sleep 3002", 60_000);
    let daemon = "import os,time\nif os.fork()==0:\n os.setsid()\n if os.fork()==0: time.sleep(100)\n os._exit(0)\ntime.sleep(100)";
    let texts = [
        "while :; do :; done".to_owned(),
        "trap '' TERM INT HUP; sleep 100".to_owned(),
        "echo before; setsid sleep 100".to_owned(),
        "bash -c 'sleep 100 & sleep 100'".to_owned(),
        format!("python3 -c '{daemon}'"),
        "setsid bash -c 'trap \"\" TERM; while :; do sleep 1; done' & sleep 100".to_owned(),
        "kill -STOP $$".to_owned(),
    ];
    std::thread::scope(|scope| {
        let host = &host;
        for text in &texts {
            scope.spawn(move || {
                let outcome = host.exec(&exec_request(text, 2_000)).unwrap();
                assert!(outcome.exit.timed_out, "{text}: {outcome:?}");
                assert_eq!(outcome.code(), None);
                assert!(outcome.took >= Duration::from_secs(2), "{text}");
                assert!(outcome.took < LATEST, "{text}: {:?}", outcome.took);
                assert_eq!(outcome.exit.still_running, 0, "{text}: {outcome:?}");
                if text.starts_with("echo") {
                    assert_eq!(outcome.out(), "before\n");
                }
            });
        }
    });
    let left = || {
        let mut left: Vec<_> = host
            .running()
            .into_iter()
            .map(|seen| seen.command)
            .collect();
        left.retain(|command| !command.contains("bash\0"));
        left.sort();
        left
    };
    // A new idle shim has no command line at the moment it is executed.
    wait_for("a look at the rest", SOON, || {
        left() == ["sleep\x003001\0", "sleep\x003002\0"]
    });
    assert_eq!(host.job_status(&job).exit_code, None);
}

#[test]
fn ex03_nothing_stays_a_zombie() {
    let host = Host::start();
    host.bash("true");
    let before = host.processes().len();
    let begin = crate::host::now();
    for _ in 0..10 {
        host.bash("for i in $(seq 50); do bash -c '(sleep 0.01 &) ; exit'; done");
    }
    // Orphans of a dead shim are the agent's own to reap.
    assert!(
        host.exec(&exec_request("sleep 0.3 & kill -9 $PPID", 5_000))
            .is_err()
    );
    wait_for("everything to be reaped", SOON, || {
        let now = host.processes();
        now.iter().filter(|process| process.state == 'Z').count() == 0 && now.len() <= before + 3
    });
    assert!(begin.elapsed() < Duration::from_secs(40));
}

#[test]
fn ex04_a_fork_bomb_ends_with_its_call() {
    let host = Host::start();
    // As a process limit would: without one the bomb would be the host's problem.
    let bomb = "ulimit -u $(( $(ps -eLo uid= | grep -c \"^ *$(id -u)$\") + 120 )) && :(){ :|:& };:; sleep 100";
    let outcome = host.exec(&exec_request(bomb, 2_000)).unwrap();
    assert!(outcome.exit.timed_out || outcome.code().is_some());
    assert!(outcome.took < LATEST, "{:?}", outcome.took);
    let begin = crate::host::now();
    assert_eq!(host.bash("echo ok").out(), "ok\n");
    assert!(begin.elapsed() < Duration::from_secs(10));
    wait_for("the bomb to be gone", Duration::from_secs(10), || {
        host.running().is_empty()
    });
}

#[test]
fn a_lost_connection_ends_the_call() {
    let host = Host::start();
    let text = "trap '' TERM; (setsid sleep 100 &); echo go >started; sleep 100";
    let request = serde_json::to_vec(&exec_request(text, 60_000)).unwrap();
    let stream = Request::new("POST", "/v1/exec", request).open(host.address);
    wait_for("the call to run", SOON, || {
        host.workspace.join("started").exists()
    });
    drop(stream);
    wait_for("its tree to end", SOON, || host.running().is_empty());
    wait_for("its slot to be free", SOON, || {
        host.get("/v1/health").ok::<Health>().calls == 0
    });
}

#[test]
fn a_killed_shim_is_told_of_and_replaced() {
    let host = Host::start();
    let error = host.exec(&exec_request(
        "sleep 100 & kill -9 $PPID; sleep 100",
        60_000,
    ));
    assert_eq!(error.unwrap_err().code, AgentErrorCode::Internal);
    wait_for("its orphans to end", SOON, || host.running().is_empty());
    // Idle ones, too.
    for process in host
        .processes()
        .iter()
        .filter(|process| host.shims().contains(&process.pid))
    {
        process.signal(Signal::KILL);
    }
    for _ in 0..3 {
        assert_eq!(host.bash("echo again").out(), "again\n");
    }
}

#[test]
fn a_killed_shim_takes_no_other_call_along() {
    let host = Host::start();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| host.bash("sleep 1.5; echo other"));
        host.bash("sleep 3003 & true");
        wait_for("the other to run", SOON, || host.running().len() >= 3);
        assert!(
            host.exec(&exec_request("kill -9 $PPID; sleep 100", 60_000))
                .is_err()
        );
        assert_eq!(other.join().unwrap().out(), "other\n");
    });
    assert_eq!(host.running().len(), 1);
}
