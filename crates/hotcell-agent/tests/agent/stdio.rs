//! Byte streams.

use std::{
    io::{BufReader, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use hotcell_agent_proto::{AgentErrorCode, ExecExit, Frame, FrameDecoder, StdioRequest, Stream};

use crate::{
    client::{Request, read_head},
    host::{Host, wait_for},
};

const SOON: Duration = Duration::from_secs(5);

fn request(program: &[&str]) -> Request {
    let stdio = StdioRequest {
        program: program.iter().map(|&word| word.to_owned()).collect(),
        cwd: None,
        env: [("GREETING".to_owned(), "hi".to_owned())].into(),
    };
    Request::new("POST", "/v1/stdio", "")
        .header("upgrade", "hotcell-stdio")
        .header("connection", "upgrade")
        .header("hotcell-stdio", &serde_json::to_string(&stdio).unwrap())
}

struct Session {
    stream: BufReader<TcpStream>,
    decoder: FrameDecoder,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Option<ExecExit>,
}

impl Session {
    fn open(host: &Host, program: &[&str]) -> Self {
        let mut stream = request(program).open(host.address);
        let (status, headers) = read_head(&mut stream);
        assert_eq!(
            (status, headers["upgrade"].as_str()),
            (101, "hotcell-stdio")
        );
        Self {
            stream,
            decoder: FrameDecoder::default(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit: None,
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    fn read_until(&mut self, done: impl Fn(&Self) -> bool) {
        let mut buffer = [0; 65_536];
        while !done(self) {
            let length = self.stream.read(&mut buffer).unwrap();
            assert!(length > 0, "the stream ended early");
            self.decoder.push(&buffer[..length]);
            while let Some(frame) = self.decoder.next_frame().unwrap() {
                match frame {
                    Frame::Output(Stream::Stdout, bytes) => self.stdout.extend_from_slice(&bytes),
                    Frame::Output(Stream::Stderr, bytes) => self.stderr.extend_from_slice(&bytes),
                    Frame::Progress(_) => {}
                    Frame::Exit(exit) => self.exit = Some(exit),
                    Frame::Failed(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[test]
fn bytes_go_both_ways_and_the_exit_comes_last() {
    let host = Host::start();
    let mut session = Session::open(&host, &["sh", "-c", "echo $GREETING >&2; pwd; cat; exit 6"]);
    session.write(b"one\n\0\xff");
    session.read_until(|session| session.stdout.ends_with(b"one\n\0\xff"));
    let work = host.workspace.display().to_string();
    assert!(session.stdout.starts_with(work.as_bytes()));
    session.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    session.read_until(|session| session.exit.is_some());
    assert_eq!(session.exit.as_ref().unwrap().exit_code, Some(6));
    assert_eq!(session.stderr, b"hi\n");
    let mut rest = Vec::new();
    session.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn a_large_stream_is_complete_and_waits_for_its_reader() {
    let host = Host::start();
    let mut session = Session::open(&host, &["cat"]);
    let data: Vec<u8> = (0..20_000_000u32)
        .map(|n| (n.wrapping_mul(n) >> 9) as u8)
        .collect();
    let mut writer = session.stream.get_ref().try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&data).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        session.read_until(|session| session.exit.is_some());
    });
    assert!(session.stdout == data);
    let exit = session.exit.unwrap();
    assert_eq!(
        (exit.stdout_bytes, exit.stdout_dropped_bytes),
        (20_000_000, 0)
    );
}

#[test]
fn mc04_nothing_is_left_however_the_connection_ends() {
    let host = Host::start();
    let stubborn = "trap '' TERM; (setsid sleep 3009 &); sh -c 'sleep 3010; :' ";
    for reset in [false, true] {
        let session = Session::open(&host, &["bash", "-c", stubborn]);
        wait_for("the process to run", SOON, || host.running().len() >= 3);
        if reset {
            rustix::net::sockopt::set_socket_linger(session.stream.get_ref(), Some(Duration::ZERO))
                .unwrap();
        }
        drop(session);
        wait_for("its tree to end", SOON, || host.running().is_empty());
    }
    // What a process leaves behind when it ends by itself ends with it.
    let mut session = Session::open(&host, &["bash", "-c", "(setsid sleep 3011 &); echo up"]);
    session.read_until(|session| session.exit.is_some());
    wait_for("its tree to end", SOON, || host.running().is_empty());
    // A restart of the shell is no business of a stream's.
    let mut session = Session::open(&host, &["cat"]);
    assert_eq!(host.send("POST", "/v1/restart", "").status, 200);
    session.write(b"still here");
    session.read_until(|session| session.stdout == b"still here");
}

#[test]
fn a_stream_that_cannot_start_is_an_ordinary_failure() {
    let host = Host::start();
    let send = |request: Request| request.send(host.address).error().code;
    assert_eq!(
        send(request(&["/no/such/program"])),
        AgentErrorCode::SpawnFailed
    );
    assert_eq!(send(request(&[])), AgentErrorCode::BadRequest);
    assert_eq!(
        send(request(&["cat"]).header("upgrade", "websocket")),
        AgentErrorCode::BadRequest
    );
    assert_eq!(
        send(request(&["cat"]).header("hotcell-stdio", "{}")),
        AgentErrorCode::BadRequest
    );
    assert!(host.running().is_empty());
}
