//! What one `bash` call leaves to the next.

use std::collections::BTreeMap;

use hotcell_agent_proto::Restarted;

use crate::host::{Host, exec_request};

#[test]
fn directory_and_exports_persist_until_restart() {
    let host = Host::start();
    let work = host.workspace.display().to_string();
    assert_eq!(
        host.bash("pwd; echo $HOME").out(),
        format!("{work}\n{work}\n")
    );
    let first = host.bash(
        "mkdir -p 'a b/c'; ln -s 'a b' link; cd link/c; export X='1 $HOME\n\"q\" '\\''s'\\'''\n\
         Y=plain; export Z; declare -rx R=ro; export -n PAGER; unset LANG; f() { echo f; }; \
         export -f f; exit 3",
    );
    assert_eq!(first.code(), Some(3));
    assert!(first.exit.notes.is_empty(), "{:?}", first.exit.notes);
    let second = host.bash(
        "pwd; pwd -P; echo \"$X\"; echo \"[$Y][${Z-unset}][${LANG-unset}][$OLDPWD]\"; f; \
         env | grep -c -e ^LANG= -e ^PAGER=; cd - >/dev/null; pwd; (R=2) 2>&1 | grep -c readonly",
    );
    assert_eq!(
        second.out(),
        format!(
            "{work}/link/c\n{work}/a b/c\n1 $HOME\n\"q\" 's'\n[][unset][unset][{work}]\nf\n0\n\
             {work}\n1\n"
        )
    );
    // A failing call and one that is killed keep what there is.
    host.bash("cd '/usr'; export X=2; false");
    assert_eq!(host.bash("echo $X; pwd; kill -9 $$").out(), "2\n/usr\n");
    assert_eq!(host.bash("echo $X; pwd").out(), "2\n/usr\n");

    let _: Restarted = host.send("POST", "/v1/restart", "").ok();
    assert_eq!(host.bash("echo [$X]; pwd").out(), format!("[]\n{work}\n"));
    host.bash("cd /usr; sleep 300 & disown");
    let mut request = exec_request("pwd", 5_000);
    request.restart = true;
    assert_eq!(host.exec(&request).unwrap().out(), format!("{work}\n"));
    assert!(host.running().is_empty());
}

#[test]
fn the_environment_of_a_request_is_for_that_call_alone() {
    let host = Host::start();
    host.bash("export KEPT=1 OVER=mine");
    let mut request = exec_request("echo $KEPT $OVER $ONCE $LANG; export LATER=2", 5_000);
    request.env = BTreeMap::from([
        ("OVER".into(), "theirs".into()),
        ("ONCE".into(), "a'b \"c\"\nd $x".into()),
        ("LANG".into(), "C".into()),
        ("BASH_ENV".into(), "/etc/passwd".into()),
        ("odd-name".into(), "odd".into()),
    ]);
    assert_eq!(
        host.exec(&request).unwrap().out(),
        "1 theirs a'b \"c\" d $x C\n"
    );
    let next = host.bash("echo [$KEPT][$LATER][${ONCE-unset}][$LANG]; env | grep -c odd");
    assert_eq!(next.out(), "[1][2][unset][C.UTF-8]\n0\n");
    let mut request = exec_request("env | grep odd", 5_000);
    request.env = BTreeMap::from([("odd-name".into(), "odd".into())]);
    assert_eq!(host.exec(&request).unwrap().out(), "odd-name=odd\n");
}

#[test]
fn a_named_directory_wins_and_a_vanished_one_is_told_of() {
    let host = Host::start();
    let work = host.workspace.display().to_string();
    host.bash("mkdir d e; cd d");
    let mut request = exec_request("pwd; echo $PWD", 5_000);
    request.cwd = Some("e".into());
    assert_eq!(
        host.exec(&request).unwrap().out(),
        format!("{work}/e\n{work}/e\n")
    );
    host.bash("cd ../d; rmdir ../d");
    let outcome = host.bash("pwd");
    assert_eq!(outcome.out(), format!("{work}\n"));
    assert!(
        outcome.exit.notes[0].contains("/d"),
        "{:?}",
        outcome.exit.notes
    );
    assert!(host.bash("true").exit.notes.is_empty());
}

#[test]
fn the_plumbing_does_not_show() {
    let host = Host::start();
    for round in 0..2 {
        let outcome = host.bash(
            "declare -F; compgen -v | grep -i -e hotcell -e BASH_ENV; env | grep -i -e hotcell_ \
             -e BASH_ENV; echo $#; set -x; echo x; exit 0",
        );
        assert_eq!(outcome.out(), "0\nx\n", "round {round}");
        assert_eq!(outcome.err(), "+ echo x\n+ exit 0\n");
    }
    assert!(host.bash("ls -A").out().is_empty());
    // The prelude of the shell that waits for the next call.
    host.waiting();
    let left: Vec<_> = std::fs::read_dir(&host.run).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let name = left[0].as_ref().unwrap().file_name();
    assert!(name.to_str().unwrap().ends_with(".rc"), "{left:?}");
}

#[test]
fn own_exit_traps_run_and_the_state_persists() {
    let host = Host::start();
    let n = std::cell::Cell::new(0);
    let check = |text: &str, code: i32, out: &str, err: &str| {
        n.set(n.get() + 1);
        let value = n.get();
        let outcome = host.bash(&format!("export N={value}; {text}"));
        assert_eq!(outcome.out(), out, "{text}");
        assert_eq!(outcome.code(), Some(code), "{text}: {}", outcome.err());
        assert_eq!(outcome.err(), err, "{text}");
        assert!(
            outcome.exit.notes.is_empty(),
            "{text}: {:?}",
            outcome.exit.notes
        );
        assert_eq!(host.bash("echo $N").out(), format!("{value}\n"), "{text}");
    };
    check("trap 'echo bye $?' EXIT; exit 4", 4, "bye 4\n", "");
    check("trap 'echo bye $?' EXIT", 0, "bye 0\n", "");
    check("trap 'echo \"it'\\''s\"; exit 9' 0; true", 9, "it's\n", "");
    check(
        "set -e; trap 'r=$?; echo r$r' EXIT; false; echo no",
        1,
        "r1\n",
        "",
    );
    check(
        "set -euo pipefail; c() { echo c$?; }; trap c EXIT; (exit 3)",
        3,
        "c3\n",
        "",
    );
    check(
        "s() { trap 'echo inner' EXIT; }; s; echo x",
        0,
        "x\ninner\n",
        "",
    );
    check("trap 'echo a' EXIT; trap 'echo b' EXIT; :", 0, "b\n", "");
    check("trap 'echo a' EXIT; trap - EXIT; exit 2", 2, "", "");
    check(
        "mkdir -p t/u && cd $_ && trap 'echo t' EXIT; basename $PWD; cd ../..",
        0,
        "u\nt\n",
        "",
    );
    check(
        "set -x; trap 'echo t' EXIT; echo y",
        0,
        "y\nt\n",
        "+ trap 'echo t' EXIT\n+ echo y\n+ echo t\n",
    );
    check(
        "trap 'echo usr' USR1; kill -USR1 $$; echo z",
        0,
        "usr\nz\n",
        "",
    );
    check("(trap 'echo sub' EXIT); echo z", 0, "sub\nz\n", "");

    // One that the hook cannot see is at least told of, and keeps the state before.
    std::fs::write(host.workspace.join("lib"), "trap 'echo lib' EXIT").unwrap();
    let outcome = host.bash("export N=lost; . ./lib");
    assert_eq!(outcome.out(), "lib\n");
    assert!(
        outcome.exit.notes[0].contains("not kept"),
        "{:?}",
        outcome.exit.notes
    );
    assert_ne!(host.bash("echo $N").out(), "lost\n");
    let outcome = host.bash("trap '' EXIT");
    assert!(
        outcome.exit.notes[0].contains("not kept"),
        "{:?}",
        outcome.exit.notes
    );
    let outcome = host.bash("exec true");
    assert!(
        outcome.exit.notes[0].contains("not kept"),
        "{:?}",
        outcome.exit.notes
    );
}

#[test]
fn a_vandalised_run_directory_costs_only_state() {
    let host = Host::start();
    let run = host.run.display().to_string();
    host.bash("export A=1");
    let outcome = host.bash(&format!(
        "set -e; rm -rf {run}/* ; mkfifo {run}/call-3.state; echo on"
    ));
    assert_eq!((outcome.out().as_str(), outcome.code()), ("on\n", Some(0)));
    assert_eq!(host.bash("echo $A").out(), "1\n");
    let outcome = host.bash(&format!("rm -rf {run}; chmod 0 {run}; echo on; exit 5"));
    assert_eq!((outcome.out().as_str(), outcome.code()), ("on\n", Some(5)));
    assert_eq!(host.bash("echo $A; export A=2").out(), "1\n");
    assert_eq!(host.bash("echo $A").out(), "2\n");
    let outcome = host.bash("export BIG=$(head -c 2000000 /dev/zero | tr '\\0' x); echo on");
    assert_eq!(outcome.out(), "on\n");
    assert!(
        outcome.exit.notes[0].contains("not kept"),
        "{:?}",
        outcome.exit.notes
    );
    assert_eq!(host.bash("echo ${#BIG}").out(), "0\n");
}

#[test]
fn the_run_directory_may_be_missing() {
    let host = Host::start_with(&[("HOTCELL_AGENT_RUN", "/no/such/directory")]);
    host.bash("export A=1");
    assert_eq!(host.bash("echo $A").out(), "1\n");
}
