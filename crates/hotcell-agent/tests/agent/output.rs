//! Output: bytes, caps, timing.

use std::time::Duration;

use hotcell_agent_proto::{Frame, FrameDecoder, Stream};
use hotcell_types::limits::{OUTPUT_HEAD_BYTES, OUTPUT_TAIL_BYTES};

use crate::{
    client::{Request, read_chunk, read_head},
    host::{Host, exec_request, now},
};

#[test]
fn ex08_bytes_pass_unchanged() {
    let host = Host::start();
    assert_eq!(host.bash("printf 'a\\377b\\n'").stdout, b"a\xffb\n");
    assert_eq!(host.bash("printf '\\360' >&2").stderr, b"\xf0");
    assert_eq!(host.bash("printf 'x\\000y\\n'").stdout, b"x\0y\n");
    assert_eq!(host.bash("iconv -t UTF-16LE <<<hi").stdout, b"h\0i\0\n\0");
    let random = host.bash("head -c 100000 /dev/urandom | tee kept | cat; exit 3");
    assert_eq!(random.code(), Some(3));
    assert_eq!(
        random.stdout,
        std::fs::read(host.workspace.join("kept")).unwrap()
    );
}

#[test]
fn ex12_long_lines_stream_in_pieces() {
    let host = Host::start();
    let outcome = host.bash("printf '=%.0s' {1..1000000}");
    assert_eq!(outcome.stdout, vec![b'='; 1_000_000]);
    assert_eq!(outcome.exit.stdout_dropped_bytes, 0);
    let outcome = host.bash("head -c 75000 /dev/zero | base64 -w0; echo");
    assert_eq!(outcome.stdout.len(), 100_001);

    // About 500 kB/s without a newline: something comes at least every 250 ms.
    let text = "for i in $(seq 30); do head -c 50000 /dev/zero | tr '\\0' x; sleep 0.1; done";
    let request = serde_json::to_vec(&exec_request(text, 30_000)).unwrap();
    let mut stream = Request::new("POST", "/v1/exec", request).open(host.address);
    assert_eq!(read_head(&mut stream).0, 200);
    let mut decoder = FrameDecoder::default();
    let begin = now();
    let (mut last, mut pieces) = (begin, 0);
    let mut longest = Duration::ZERO;
    let mut reports = 0;
    let exit = 'all: loop {
        decoder.push(&read_chunk(&mut stream).unwrap());
        longest = longest.max(last.elapsed());
        last = now();
        pieces += 1;
        while let Some(frame) = decoder.next_frame().unwrap() {
            match frame {
                Frame::Exit(exit) => break 'all exit,
                Frame::Progress(_) => reports += 1,
                Frame::Output(Stream::Stdout, bytes) => assert!(!bytes.is_empty()),
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(exit.stdout_bytes, 1_500_000);
    assert_eq!(exit.stdout_dropped_bytes, 1_500_000 - 1_048_576);
    assert!(reports > 0);
    // On the whole as often as promised; a single gap may be the test host's.
    assert!(
        begin.elapsed() < pieces * Duration::from_millis(250),
        "{pieces} pieces"
    );
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}

#[test]
fn ex13_huge_output_is_drained_and_counted() {
    let host = Host::start();
    let begin = host.resident_kib();
    let kept = OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES;
    let outcome = host.bash("seq 1 3000000; echo FATAL: boom >&2; exit 9");
    assert_eq!(outcome.code(), Some(9));
    assert_eq!(outcome.err(), "FATAL: boom\n");
    assert_eq!(outcome.stdout.len(), kept);
    assert!(outcome.stdout.starts_with(b"1\n2\n3\n"));
    assert!(outcome.stdout.ends_with(b"\n2999999\n3000000\n"));
    let exit = outcome.exit;
    assert_eq!(exit.stdout_bytes, 22_888_896);
    assert_eq!(exit.stdout_dropped_bytes, exit.stdout_bytes - kept as u64);
    assert_eq!(exit.stderr_dropped_bytes, 0);

    let both = "head -c 1G /dev/zero >&2 & head -c 1G /dev/zero; wait; echo; echo end";
    let outcome = host.exec(&exec_request(both, 60_000)).unwrap();
    assert_eq!(
        (outcome.exit.stdout_bytes, outcome.exit.stderr_bytes),
        ((1 << 30) + 5, 1 << 30)
    );
    assert!(outcome.stdout.ends_with(b"\0\nend\n"));
    let outcome = host.bash("yes | head -c 2G");
    assert_eq!(outcome.exit.stdout_bytes, 2 << 30);
    let grown = host.resident_kib().saturating_sub(begin);
    assert!(grown < 64 * 1024, "{grown} KiB");
}

#[test]
fn ex15_a_command_that_ends_at_once_loses_nothing() {
    let host = Host::start();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..32 {
                    let outcome = host.bash("echo running; exit 5");
                    assert_eq!(
                        (outcome.out().as_str(), outcome.code()),
                        ("running\n", Some(5)),
                        "{outcome:?}"
                    );
                }
            });
        }
    });
}

#[test]
fn ex22_a_silent_call_keeps_its_connection_alive() {
    let host = Host::start();
    let outcome = host.send(
        "POST",
        "/v1/exec",
        serde_json::to_vec(&exec_request("sleep 5.8; echo ten", 30_000)).unwrap(),
    );
    let frames = outcome.frames();
    assert!(
        matches!(frames.first(), Some(Frame::Progress(_))),
        "{frames:?}"
    );
    assert!(frames.contains(&Frame::Output(Stream::Stdout, "ten\n".into())));
}

#[test]
fn a_reader_that_does_not_read_does_not_stop_the_command() {
    let host = Host::start();
    let text = "head -c 300M /dev/zero; echo done >done";
    let request = serde_json::to_vec(&exec_request(text, 30_000)).unwrap();
    let stream = Request::new("POST", "/v1/exec", request).open(host.address);
    crate::host::wait_for("the command to end", Duration::from_secs(20), || {
        host.workspace.join("done").exists()
    });
    drop(stream);
}
