//! Running commands: texts, exit codes, stdin, environment.

use hotcell_agent_proto::{AgentErrorCode, Command};

use crate::host::{Host, exec_request};

#[test]
fn ex05_nothing_waits_for_input() {
    let host = Host::start();
    for text in [
        "cat",
        "read x; echo \"[$x]\"",
        "python3 -c 'input()'",
        "git commit; git log",
        "less /etc/passwd",
        "ssh-keygen -t ed25519",
        "sudo -k true",
        "apt-get install hotcell-no-such-package",
        "cat </dev/tty",
    ] {
        let outcome = host.exec(&exec_request(text, 10_000)).unwrap();
        assert!(!outcome.exit.timed_out, "{text}");
        assert!(outcome.took.as_secs() < 5, "{text} took {:?}", outcome.took);
    }
    assert_eq!(host.bash("read x; echo \"[$x]\"").out(), "[]\n");
    let env = host
        .bash("echo $DEBIAN_FRONTEND,$GIT_TERMINAL_PROMPT,$PAGER,$TERM")
        .out();
    assert_eq!(env, "noninteractive,0,cat,dumb\n");
}

#[test]
fn ex06_the_text_runs_as_from_a_file() {
    let host = Host::start();
    let lines: String = (0..2_000).map(|n| format!("x=$((x+{n}))\n")).collect();
    let texts = [
        "cat <<EOF\na $HOME EOF b\n  EOF\n'\nEOF\necho after".to_owned(),
        "cat <<'EOF'\n$HOME `x` EOF\nEOF\n".to_owned(),
        "cat <<EOF\nnever ended $((1+1))".to_owned(),
        "echo no newline".to_owned(),
        "echo a\r\necho b\r\n".to_owned(),
        "echo 'lone".to_owned(),
        "echo it's".to_owned(),
        "echo a\x01b\x7f\x1b[0m".to_owned(),
        "echo x\n# the end".to_owned(),
        "echo back\\".to_owned(),
        "echo back\\\n".to_owned(),
        "f() { echo \"in $1\"; }\nf x".to_owned(),
        "if true; then".to_owned(),
        "echo ok; )".to_owned(),
        "exit 3 # x".to_owned(),
        "echo \"${0##*/}\" | wc -l; echo $# $-".to_owned(),
        "#!/bin/sh\necho $BASH_VERSION | wc -l".to_owned(),
        "return 4".to_owned(),
        String::new(),
        format!("{lines}echo $x"),
    ];
    for text in texts {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("script");
        std::fs::write(&file, &text).unwrap();
        let expected = std::process::Command::new("bash")
            .args(["--norc", "--noprofile"])
            .arg(&file)
            .env("HOME", &host.workspace)
            .env("LANG", "C.UTF-8")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let outcome = host.exec(&exec_request(&text, 10_000)).unwrap();
        assert_eq!(outcome.stdout, expected.stdout, "{text:?}");
        assert_eq!(outcome.code(), expected.status.code(), "{text:?}");
        // The same messages, but for the file's name.
        let names = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.lines()
                .map(|line| {
                    line.split_once(": ")
                        .map_or(line, |(_, rest)| rest)
                        .to_owned()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&outcome.stderr), names(&expected.stderr), "{text:?}");
    }
    let syntax = host.bash("if true; then");
    assert_eq!(syntax.code(), Some(2));
    assert!(
        syntax
            .err()
            .contains("syntax error: unexpected end of file"),
        "{}",
        syntax.err()
    );
}

#[test]
fn ex16_exit_codes_are_the_shells_own() {
    let host = Host::start();
    for (text, code, signal) in [
        ("/etc", 126, None),
        ("nosuchcmd", 127, None),
        ("false", 1, None),
        ("exit 256", 0, None),
        ("exit 300", 44, None),
        ("kill -SEGV $$", 139, Some("SIGSEGV")),
        ("kill -KILL $$", 137, Some("SIGKILL")),
        ("bash -c 'exit 255'", 255, None),
        ("bash -c 'kill -SEGV $$'; exit $?", 139, None),
        ("set -e; false; echo not reached", 1, None),
    ] {
        let outcome = host.bash(text);
        assert_eq!(outcome.code(), Some(code), "{text}");
        assert_eq!(outcome.exit.signal.as_deref(), signal, "{text}");
        assert!(!outcome.exit.timed_out);
    }
    let mut request = exec_request("pwd", 5_000);
    request.cwd = Some("/no/such/directory".into());
    assert_eq!(
        host.exec(&request).unwrap_err().code,
        AgentErrorCode::BadCwd
    );
    request.cwd = Some("/etc/passwd".into());
    assert_eq!(
        host.exec(&request).unwrap_err().code,
        AgentErrorCode::BadCwd
    );
    request.cwd = Some("/usr".into());
    assert_eq!(host.exec(&request).unwrap().out(), "/usr\n");
    for user in ["nosuchuser", "root"] {
        let mut request = exec_request("id", 5_000);
        request.user = Some(user.into());
        if user != "root" || crate::host::is_root() {
            assert_eq!(
                host.exec(&request).unwrap_err().code,
                AgentErrorCode::NoSuchUser
            );
        }
    }
    let mut request = exec_request("id -u", 5_000);
    request.user = Some(crate::host::owner(&host.workspace).to_string());
    assert_eq!(host.exec(&request).unwrap().code(), Some(0));
}

#[test]
fn ex18_signals_are_as_a_shell_expects_them() {
    let host = Host::start();
    let outcome = host.bash("yes | head -1; echo ${PIPESTATUS[0]}");
    assert_eq!(
        (outcome.out().as_str(), outcome.err().as_str()),
        ("y\n141\n", "")
    );
    let outcome = host.bash("for i in $(seq 20); do echo $i; done | head -1");
    assert_eq!(
        (outcome.out().as_str(), outcome.err().as_str()),
        ("1\n", "")
    );
    let outcome = host.bash("find / 2>/dev/null | head -1");
    assert_eq!(
        (outcome.out().as_str(), outcome.err().as_str()),
        ("/\n", "")
    );
    let masks = "grep -E '^Sig(Ign|Blk):' /proc/self/status | tr -d '\\n\\t'";
    // glibc has the test runner ignore its two internal signals, and so does the agent then;
    // no more than that may be passed on.
    let clean = &format!(
        "SigBlk:{:016x}SigIgn:{:016x}",
        0,
        host.ignored_signals() & 0x1_8000_0000
    );
    assert_eq!(host.bash(masks).out(), *clean);
    assert_eq!(host.bash(&format!("bash -c {masks:?}")).out(), *clean);
    let mut request = exec_request("", 5_000);
    request.command = Command::Program(vec![
        "grep".into(),
        "-E".into(),
        "^Sig(Ign|Blk):".into(),
        "/proc/self/status".into(),
    ]);
    let out = host.exec(&request).unwrap().out();
    assert_eq!(out.replace(['\n', '\t'], ""), *clean);
}

#[test]
fn ex19_long_texts_and_long_variables() {
    let host = Host::start();
    for bytes in [131_071, 131_072, 1 << 20, 10 << 20] {
        let frame = "cat >big <<'EOF'\n\nEOF\nwc -c <big";
        let text = frame.replacen(
            "\n\n",
            &format!("\n{}\n", "x".repeat(bytes - frame.len())),
            1,
        );
        assert_eq!(text.len(), bytes);
        let outcome = host.bash(&text);
        assert_eq!(outcome.out().trim(), (bytes - frame.len() + 1).to_string());
    }
    let mut request = exec_request("echo", 5_000);
    request.env.insert("LONG".into(), "x".repeat(200_000));
    assert_eq!(
        host.exec(&request).unwrap_err().code,
        AgentErrorCode::EnvTooLarge
    );
    request.env.insert("LONG".into(), "x".repeat(100_000));
    request.command = Command::Shell("echo ${#LONG}; env | grep -c ^LONG=".into());
    assert_eq!(host.exec(&request).unwrap().out(), "100000\n1\n");
    let outcome = host.bash("ls $(seq -f '%0100g' 50000)");
    assert_eq!(outcome.code(), Some(126));
    assert!(
        outcome.err().contains("Argument list too long"),
        "{}",
        outcome.err()
    );
}

#[test]
fn a_program_runs_without_a_shell() {
    let host = Host::start();
    host.bash("mkdir sub; cd sub; export FROM_SHELL=1");
    let mut request = exec_request("", 5_000);
    let program =
        |words: &[&str]| Command::Program(words.iter().map(|&word| word.to_owned()).collect());
    request.command = program(&["printf", "%s|", "a b", "$HOME", ""]);
    assert_eq!(host.exec(&request).unwrap().out(), "a b|$HOME||");
    request.command = program(&["env"]);
    assert!(!host.exec(&request).unwrap().out().contains("FROM_SHELL"));
    request.command = program(&["/no/such/program"]);
    assert_eq!(
        host.exec(&request).unwrap_err().code,
        AgentErrorCode::SpawnFailed
    );
    request.command = program(&["no-such-program"]);
    assert_eq!(
        host.exec(&request).unwrap_err().code,
        AgentErrorCode::SpawnFailed
    );
    request.command = program(&["sh", "-c", "kill -TERM $$"]);
    assert_eq!(
        host.exec(&request).unwrap().exit.signal.as_deref(),
        Some("SIGTERM")
    );
    for bad in [program(&[]), program(&[""]), program(&["a\0b"])] {
        request.command = bad;
        assert_eq!(
            host.exec(&request).unwrap_err().code,
            AgentErrorCode::BadRequest
        );
    }
    request.command = Command::Shell("echo \0".into());
    assert_eq!(
        host.exec(&request).unwrap_err().code,
        AgentErrorCode::BadRequest
    );
    request.command = Command::Shell("echo".into());
    request.timeout_ms = 0;
    assert_eq!(
        host.exec(&request).unwrap_err().code,
        AgentErrorCode::BadRequest
    );
}
