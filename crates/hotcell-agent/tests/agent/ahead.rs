//! The shell that is started before its command is there.

use std::{collections::BTreeMap, time::Duration};

use hotcell_agent_proto::{Command, Restarted};
use rustix::process::Signal;

use crate::host::{Host, exec_request, wait_for};

const SOON: Duration = Duration::from_secs(8);

/// What a call can see of its shell that may depend on how that came to be; younger than the shell.
const LOOK: &str = "echo $((SECONDS < 3)) $# $- [${REPLY-}] [${BASH_ENV-}]; readlink /proc/self/fd/0; \
    ls /proc/self/fd; ulimit -a; umask; pwd; env | grep -v ^_= | sort; set -o; shopt; compgen -v | sort";

#[test]
fn a_call_goes_to_the_shell_that_waits_and_cannot_tell() {
    let host = Host::start();
    let waiting = host.waiting();
    assert_eq!(host.bash("echo $$").out(), format!("{}\n", waiting.pid));
    // With the state of the call before, and again.
    host.bash("mkdir -p d; cd d; export A='1 \"x\"'");
    let waiting = host.waiting();
    // A program is no shell's: it leaves the one that waits, which is old by then.
    let mut pause = exec_request("", 10_000);
    pause.command = Command::Program(vec!["sleep".into(), "3".into()]);
    assert_eq!(host.exec(&pause).unwrap().code(), Some(0));
    assert_eq!(host.waiting().pid, waiting.pid);
    let ahead = host.bash(&format!("[ $$ = {} ] || exit; {LOOK}", waiting.pid));
    assert_eq!(ahead.code(), Some(0), "{}", ahead.err());
    assert!(ahead.out().starts_with("1 0 "), "{}", ahead.out());
    assert!(ahead.out().contains("\n/dev/null\n"), "{}", ahead.out());
    // One that names its directory is started for itself; nothing else is different.
    let waiting = host.waiting();
    let mut request = exec_request(&format!("[ $$ != {} ] || exit; {LOOK}", waiting.pid), 5_000);
    request.cwd = Some("d".into());
    let started = host.exec(&request).unwrap();
    assert_eq!(started.code(), Some(0), "{}", started.err());
    // `OLDPWD` is the same: neither has changed its directory.
    assert_eq!(ahead.out(), started.out());
}

#[test]
fn only_calls_that_fit_get_it() {
    let host = Host::start();
    host.bash("export A=1");
    for (text, name) in [
        ("echo $$ $B", "a variable"),
        ("trap 'echo x' EXIT; echo $$", "a trap"),
    ] {
        let waiting = host.waiting();
        let mut request = exec_request(text, 5_000);
        if name == "a variable" {
            request.env = BTreeMap::from([("B".into(), "2".into())]);
        }
        let outcome = host.exec(&request).unwrap();
        assert_eq!(outcome.code(), Some(0), "{name}");
        let own = format!("{}", waiting.pid);
        assert!(!outcome.out().contains(&own), "{name}: {}", outcome.out());
    }
}

#[test]
fn what_user_code_does_to_it_costs_no_call() {
    let host = Host::start();
    let waiting = host.waiting();
    waiting.signal(Signal::KILL);
    wait_for("its end", SOON, || {
        !host
            .processes()
            .iter()
            .any(|process| process.pid == waiting.pid && process.state != 'Z')
    });
    assert_eq!(host.bash("echo a").out(), "a\n");
    // Its files, from inside.
    host.waiting();
    host.bash("rm -f $(dirname \"$0\")/*");
    assert_eq!(host.bash("echo b").out(), "b\n");
    assert_eq!(host.bash("echo d").out(), "d\n");
}

#[test]
fn a_restart_ends_it() {
    let host = Host::start();
    host.bash("export A=1; cd /usr");
    let waiting = host.waiting();
    let ended: Restarted = host.send("POST", "/v1/restart", "").ok();
    assert_eq!(ended.ended, 0, "it is nobody's call");
    wait_for("its end", SOON, || {
        !host
            .processes()
            .iter()
            .any(|process| process.pid == waiting.pid && process.state != 'Z')
    });
    assert_eq!(host.bash("echo [${A-}]").out(), "[]\n");
}
