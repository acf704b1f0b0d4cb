//! Single calls: exit codes, input, text, limits of what may be asked.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use hotcell_agent_proto::{AgentErrorCode, Command};

use super::{
    Fault,
    bench::{Bench, expect_refusal, finish, start_of},
    checks, ensure, failed,
};

checks! {
    "EX-05" "commands that read stdin end at once" Processes stdin_is_empty;
    "EX-05" "nothing prompts or pages" Processes nothing_prompts;
    "EX-06" "any text runs as bash would run it from a file" Processes any_text;
    "EX-08" "bytes that are not UTF-8 arrive" Processes any_bytes;
    "EX-15" "many short commands all give output and code" Anything many_short;
    "EX-16" "exit codes are the shell's" Processes exit_codes;
    "EX-16" "a bad directory and a bad user are no exit codes" Anything typed_refusals;
    "EX-18" "SIGPIPE ends a pipeline quietly" Processes sigpipe;
    "EX-19" "long commands run, long variables are refused" Processes long_texts;
    "exec" "a program runs without a shell" Processes programs;
    "exec" "twenty calls at once keep apart" Anything concurrent;
    "exec" "stdio carries bytes both ways and ends" Anything stdio;
}

async fn stdin_is_empty(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let cases = [
        ("cat", Some(0), ""),
        ("read x; echo \"[$x]\"", Some(0), "[]\n"),
        ("python3 -c 'input()'", Some(1), ""),
        ("cat | cat; wc -c", Some(0), "0\n"),
        (
            "bash -i -c 'read x; echo \"<$x>\"' 2>/dev/null",
            Some(0),
            "<>\n",
        ),
    ];
    for (text, code, out) in cases {
        let done = cell.sh(text).await?;
        ensure!(
            done.took < Duration::from_secs(5),
            "{text} took {:?}",
            done.took
        );
        ensure!(
            done.exit.exit_code == code && done.out() == out,
            "{text}: {:?} {:?} {:?}",
            done.exit.exit_code,
            done.out(),
            start_of(&done.err())
        );
    }
    Ok(())
}

async fn nothing_prompts(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let text = "echo $DEBIAN_FRONTEND $GIT_TERMINAL_PROMPT $PAGER $TERM; tty";
    let done = cell.sh(text).await?;
    ensure!(
        done.out() == "noninteractive 0 cat dumb\nnot a tty\n",
        "{:?}",
        done.out()
    );
    Ok(())
}

async fn any_text(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let lines: String = (0..2_000).map(|n| format!("x=$((x+{n}))\n")).collect();
    let cases = [
        "cat <<EOF\na $((1+1)) EOF inside\nEOF\n".to_owned(),
        "cat <<'E O F'\n$HOME `id` \\\nE O F\necho after".to_owned(),
        "cat <<-X\n\tindented\n\tX\n".to_owned(),
        "echo no newline at the end".to_owned(),
        "echo crlf\r\necho two\r\n".to_owned(),
        "echo 'lone".to_owned(),
        "echo $((".to_owned(),
        "printf '%s' '\u{1}\u{2}\u{1b}[31m\u{7f}' | od -c".to_owned(),
        "echo a\n# the last line".to_owned(),
        "echo a\\".to_owned(),
        "f() { echo \"f:$1\"; }\nf 'x y'; f \"q\\\"q\"".to_owned(),
        "cat <<EOF\nnever ended".to_owned(),
        "echo '测试 😀'; echo \"${#x}\"".to_owned(),
        "if true; then echo yes".to_owned(),
        "}".to_owned(),
        "set -e; false; echo not here".to_owned(),
        "trap 'echo trapped' EXIT; echo body; exit 4".to_owned(),
        "exec echo replaced".to_owned(),
        "echo $0 | tr -d '[:print:]' | wc -c; set -- a b; echo $# $2; shift; echo $1".to_owned(),
        format!("x=0\n{lines}echo $x"),
        "\n\n   \n".to_owned(),
        "echo before; return 3; echo after".to_owned(),
    ];
    for text in cases {
        cell.put("/workspace/case.sh", text.clone()).await?;
        let program = Command::Program(vec!["bash".into(), "/workspace/case.sh".into()]);
        let should = cell.run(cell.request(program)).await?;
        // A shell that one case has left half-way must not reach the next one.
        let mut request = cell.shell(text.clone());
        request.restart = true;
        let is = cell.run(request).await?;
        ensure!(
            is.exit.exit_code == should.exit.exit_code && is.stdout == should.stdout,
            "{:?}: {:?} {:?} where bash gives {:?} {:?}; stderr {:?}",
            start_of(&text),
            is.exit.exit_code,
            start_of(&is.out()),
            should.exit.exit_code,
            start_of(&should.out()),
            start_of(&is.err())
        );
        ensure!(
            is.stderr.is_empty() == should.stderr.is_empty(),
            "{:?}: stderr {:?} where bash gives {:?}",
            start_of(&text),
            start_of(&is.err()),
            start_of(&should.err())
        );
    }
    let broken = cell.sh("echo 'lone").await?;
    ensure!(
        broken.exit.exit_code == Some(2) && broken.err().contains("unexpected EOF"),
        "a syntax error gives {:?} {:?}",
        broken.exit.exit_code,
        broken.err()
    );
    Ok(())
}

async fn any_bytes(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let cases: [(&str, &[u8]); 4] = [
        ("printf 'a\\377b\\n'", b"a\xffb\n"),
        ("printf '\\360'", b"\xf0"),
        ("printf 'x\\000y\\n'", b"x\0y\n"),
        (
            "python3 -c \"import sys; sys.stdout.buffer.write('hi\\n'.encode('utf-16-le'))\"",
            b"h\0i\0\n\0",
        ),
    ];
    for (text, bytes) in cases {
        let done = cell.sh(text).await?;
        ensure!(done.stdout == bytes, "{text} gives {:?}", done.stdout);
        let done = cell.sh(format!("{{ {text}; }} >&2; exit 3")).await?;
        ensure!(
            done.stderr == bytes && done.exit.exit_code == Some(3),
            "{text} on stderr gives {:?}",
            done.stderr
        );
    }
    let done = cell
        .sh("head -c 100000 /dev/urandom | tee r; sha256sum < r >&2")
        .await?;
    let hash = super::bench::sha256(&done.stdout);
    ensure!(
        done.stdout.len() == 100_000 && done.err().starts_with(&hash),
        "{} random bytes came, with another hash",
        done.stdout.len()
    );
    Ok(())
}

async fn many_short(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let mut results = stream::iter(0..bench.env.exit_runs)
        .map(|_| cell.sh("echo running; exit 5"))
        .buffer_unordered(16);
    let (mut good, mut bad) = (0, Vec::new());
    while let Some(result) = results.next().await {
        match result {
            Ok(done) if done.stdout == b"running\n" && done.exit.exit_code == Some(5) => good += 1,
            Ok(done) => bad.push(format!("{:?} {:?}", done.exit.exit_code, done.out())),
            Err(error) => bad.push(format!("{error:?}")),
        }
    }
    ensure!(
        bad.is_empty(),
        "{good} good, {} bad, the first {}",
        bad.len(),
        bad[0]
    );
    Ok(())
}

async fn exit_codes(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let cases = [
        ("/etc", 126, None),
        ("nosuchcmd", 127, None),
        ("false", 1, None),
        ("exit 256", 0, None),
        ("exit 300", 44, None),
        ("kill -SEGV $$", 139, Some("SIGSEGV")),
        ("kill -KILL $$", 137, Some("SIGKILL")),
        ("bash -c 'exit 255'", 255, None),
        ("bash -c 'kill -TERM $$'", 143, None),
        ("true", 0, None),
    ];
    for (text, code, signal) in cases {
        let done = cell.sh(text).await?;
        ensure!(
            done.exit.exit_code == Some(code) && !done.exit.timed_out,
            "{text} gives {:?}",
            done.exit
        );
        // bash may turn itself into its last command, whose signal is then told too.
        if signal.is_some() {
            ensure!(
                done.exit.signal.as_deref() == signal,
                "{text} ended by {:?}",
                done.exit.signal
            );
        }
    }
    Ok(())
}

async fn typed_refusals(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let mut request = cell.shell("echo in");
    request.cwd = Some("/workspace/nowhere".into());
    expect_refusal(
        "a directory that is not there",
        cell.run(request).await,
        &[AgentErrorCode::BadCwd],
    )?;
    let mut request = cell.shell("echo in");
    request.user = Some("nobody-at-all".into());
    expect_refusal(
        "a user that is not there",
        cell.run(request).await,
        &[AgentErrorCode::NoSuchUser],
    )?;
    let mut request = cell.shell("pwd");
    request.cwd = Some("/tmp".into());
    let done = cell.run(request).await?;
    ensure!(done.ok()? == "/tmp\n", "pwd says {:?}", done.out());
    Ok(())
}

async fn sigpipe(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let status = "yes | head -1 >/dev/null; echo ${PIPESTATUS[0]}";
    let python = format!(
        "import subprocess; print(subprocess.run(['bash', '-c', '''{status}'''], \
         capture_output=True, text=True).stdout, end='')"
    );
    let cases = [
        (
            "yes | head -1; echo ${PIPESTATUS[0]}".to_owned(),
            "y\n141\n",
        ),
        (
            "for i in $(seq 20); do echo $i; done | head -1".to_owned(),
            "1\n",
        ),
        ("find / 2>/dev/null | head -1".to_owned(), "/\n"),
        (format!("python3 - <<'E'\n{python}\nE"), "141\n"),
        // A new bash shows what was ignored when it was started, and nothing else.
        ("bash -c 'trap -p'".to_owned(), ""),
        (
            "python3 -c 'import signal; \
             print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))'"
                .to_owned(),
            "[]\n",
        ),
    ];
    for (text, out) in cases {
        let done = cell.sh(text.clone()).await?;
        ensure!(
            done.out() == out && done.stderr.is_empty() && done.took < Duration::from_secs(10),
            "{text}: {:?} {:?} after {:?}",
            start_of(&done.out()),
            start_of(&done.err()),
            done.took
        );
    }
    let request = hotcell_agent_proto::StdioRequest {
        program: vec!["bash".into(), "-c".into(), status.into()],
        cwd: None,
        env: Default::default(),
    };
    let stdio = cell.sandbox.stdio(request).await?;
    let done = finish(stdio.output, tokio::time::Instant::now()).await?;
    ensure!(
        done.out() == "141\n",
        "through stdio it is {:?}",
        done.out()
    );
    Ok(())
}

async fn long_texts(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    for bytes in [131_071, 131_072, 1 << 20, 10 << 20] {
        let (start, end) = ("cat > long.txt <<'E'\n", "\nE\nwc -c < long.txt");
        let body = "x".repeat(bytes - start.len() - end.len());
        let done = cell.sh(format!("{start}{body}{end}")).await?;
        let written = format!("{}\n", body.len() + 1);
        ensure!(
            done.ok()? == written,
            "a command of {bytes} bytes gives {:?}",
            done.out()
        );
    }
    let mut request = cell.shell("echo in");
    request.env.insert("LONG".into(), "x".repeat(200_000));
    expect_refusal(
        "a variable of 200 kB",
        cell.run(request).await,
        &[AgentErrorCode::EnvTooLarge],
    )?;
    // Three megabytes of arguments: over the kernel's limit. The words are the kernel's, and
    // gVisor has other ones.
    let done = cell.sh("/bin/true $(seq 1 500000)").await?;
    ensure!(
        done.exit.exit_code == Some(126) && done.err().contains("/bin/true: "),
        "500,000 arguments: {:?} {:?}",
        done.exit.exit_code,
        done.err()
    );
    let done = cell.sh("/bin/true $(seq 1 50000)").await?;
    ensure!(
        done.exit.exit_code == Some(0),
        "50,000 arguments: {:?}",
        done.err()
    );
    Ok(())
}

async fn programs(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let program = |words: &[&str]| {
        cell.request(Command::Program(
            words.iter().map(|word| (*word).to_owned()).collect(),
        ))
    };
    let done = cell
        .run(program(&["printf", "%s|", "a b", "$HOME", "'\"", ""]))
        .await?;
    ensure!(
        done.ok()? == "a b|$HOME|'\"||",
        "the arguments became {:?}",
        done.out()
    );
    let mut request = program(&["printenv", "GIVEN"]);
    request.env.insert("GIVEN".into(), "a\nb".into());
    ensure!(
        cell.run(request).await?.ok()? == "a\nb\n",
        "the variable did not arrive"
    );
    match cell.run(program(&["no-such-program"])).await {
        Ok(done) if done.exit.exit_code == Some(127) => Ok(()),
        other => expect_refusal(
            "a program that is not there",
            other,
            &[AgentErrorCode::NotFound, AgentErrorCode::SpawnFailed],
        ),
    }
}

async fn concurrent(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let calls = (0..20).map(|number| {
        let cell = &cell;
        async move {
            let done = cell
                .sh(format!("echo {number}; sleep 0.2; exit {number}"))
                .await?;
            let good = done.out() == format!("{number}\n") && done.exit.exit_code == Some(number);
            ensure!(good, "call {number}: {:?} {:?}", done.out(), done.exit);
            Ok(())
        }
    });
    for result in futures_util::future::join_all(calls).await {
        result?;
    }
    Ok(())
}

async fn stdio(bench: &Bench) -> Result<(), Fault> {
    use tokio::io::AsyncWriteExt;

    let cell = bench.shared().await?;
    let request = hotcell_agent_proto::StdioRequest {
        program: vec!["cat".into()],
        cwd: None,
        env: Default::default(),
    };
    let mut stdio = cell.sandbox.stdio(request).await?;
    let mut sent = Vec::new();
    for round in 0..50_u8 {
        let piece = vec![round; 7_001];
        let write = tokio::time::timeout(Duration::from_secs(5), stdio.stdin.write_all(&piece));
        write.await??;
        sent.extend_from_slice(&piece);
        // Reads along, as a caller must: the pipe between holds only so much.
        let mut seen = 0;
        while seen < piece.len() {
            match stdio.output.next().await {
                Some(Ok(crate::ExecEvent::Output(crate::OutputStream::Stdout, bytes))) => {
                    ensure!(
                        bytes.iter().all(|byte| *byte == round),
                        "bytes of another round came back"
                    );
                    seen += bytes.len();
                }
                Some(Ok(crate::ExecEvent::Progress(_))) => {}
                other => return failed(format!("in the middle: {other:?}")),
            }
        }
        ensure!(seen == piece.len(), "more came back than went in");
    }
    stdio.stdin.shutdown().await?;
    let done = finish(stdio.output, tokio::time::Instant::now()).await?;
    ensure!(
        done.exit.exit_code == Some(0) && done.stdout.is_empty(),
        "the end: {:?} {:?}",
        done.exit,
        done.out()
    );
    Ok(())
}
