//! The commands that a fake sandbox understands.
//!
//! A text is split at line ends and `;`. There is no quoting; a line is a word and the rest.
//!
//! | line | does |
//! |---|---|
//! | `echo TEXT`, `err TEXT` | prints a line to stdout, to stderr |
//! | `printf TEXT` | prints without a line end |
//! | `big N` | prints N bytes `x` |
//! | `sleep MS` | waits that many **milliseconds** of `tokio::time` |
//! | `hang` | waits for ever |
//! | `exit N` | ends with N modulo 256; a text that ends otherwise ends with the last line's code |
//! | `true`, `false` | code 0, code 1 |
//! | `signal NAME N` | ends by a signal with that number |
//! | `background MS` | leaves a process behind for that long |
//! | `cd PATH`, `pwd`, `export K=V`, `printenv K` | the chat's shell state |
//! | `write PATH TEXT`, `append PATH TEXT`, `cat PATH`, `rm PATH`, `mkdir PATH` | files |
//! | `mkfifo PATH`, `link PATH TARGET`, `truncate -s BYTES PATH` | what is no plain file |
//! | `fail-lost` | the connection breaks here |
//! | `fail-agent` | the agent fails without an exit code |
//! | `die oom`, `die exited`, `die lost` | the whole sandbox ends |
//!
//! Anything else is `command not found`, code 127.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use hotcell_agent_proto::{
    AgentError, AgentErrorCode, ExecExit, ExecProgress, Stream as OutputStream,
};
use hotcell_types::{SandboxPath, limits};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    ExecEvent, SandboxEnd, SandboxError,
    fake::{
        files::{Content, Node},
        lock,
        unit::{CallGuard, Run, Shell, Unit},
    },
};

/// How long `hang` hangs: longer than any time limit.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The code of a process that KILL ended.
const KILLED: i32 = 137;

/// One output stream: its first bytes at once, its last ones at the end.
struct Output {
    stream: OutputStream,
    head_bytes: u64,
    tail_bytes: usize,
    total: u64,
    sent: u64,
    tail: BytesMut,
}

impl Output {
    fn new(stream: OutputStream, whole: bool) -> Self {
        Self {
            stream,
            head_bytes: if whole {
                u64::MAX
            } else {
                limits::OUTPUT_HEAD_BYTES as u64
            },
            tail_bytes: limits::OUTPUT_TAIL_BYTES,
            total: 0,
            sent: 0,
            tail: BytesMut::new(),
        }
    }

    fn push(&mut self, mut bytes: Bytes, ready: &mut VecDeque<ExecEvent>) {
        self.total += bytes.len() as u64;
        let room = usize::try_from(self.head_bytes - self.sent).unwrap_or(usize::MAX);
        let mut head = bytes.split_to(bytes.len().min(room));
        self.sent += head.len() as u64;
        while !head.is_empty() {
            let piece = head.split_to(head.len().min(limits::MAX_FRAME_BYTES));
            ready.push_back(ExecEvent::Output(self.stream, piece));
        }
        self.tail.extend_from_slice(&bytes);
        let over = self.tail.len().saturating_sub(self.tail_bytes);
        drop(self.tail.split_to(over));
    }

    /// Sends the tail; returns how much was dropped before it.
    fn finish(&mut self, ready: &mut VecDeque<ExecEvent>) -> u64 {
        let mut tail = std::mem::take(&mut self.tail);
        let dropped = self.total - self.sent - tail.len() as u64;
        while !tail.is_empty() {
            let piece = tail.split_to(tail.len().min(limits::MAX_FRAME_BYTES));
            ready.push_back(ExecEvent::Output(self.stream, piece.freeze()));
        }
        dropped
    }
}

/// How a call ends.
enum Ending {
    Code(i32),
    Signal(String, i32),
    TimedOut,
}

/// A text that is being run.
pub(super) struct Call {
    unit: Arc<Unit>,
    run: Arc<Run>,
    shell: Shell,
    /// Whether the shell's state is the chat's.
    keeps_shell: bool,
    lines: VecDeque<String>,
    outputs: [Output; 2],
    ready: VecDeque<ExecEvent>,
    paused: Option<Instant>,
    started: Instant,
    deadline: Instant,
    code: i32,
    over: bool,
    restarts: watch::Receiver<u64>,
    end: watch::Receiver<Option<SandboxEnd>>,
    _guard: Option<CallGuard>,
}

/// What a [`Call`] is made of.
pub(super) struct Plan {
    pub(super) text: String,
    pub(super) shell: Shell,
    pub(super) keeps_shell: bool,
    /// Whether all of its output is passed on, however much.
    pub(super) whole_output: bool,
    pub(super) timeout_ms: u64,
    pub(super) guard: Option<CallGuard>,
}

impl Call {
    pub(super) fn new(unit: Arc<Unit>, run: Arc<Run>, plan: Plan) -> Self {
        let now = Instant::now();
        let mut restarts = run.restarts.subscribe();
        restarts.mark_unchanged();
        Self {
            lines: plan
                .text
                .split(['\n', ';'])
                .map(|line| line.trim().to_owned())
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .collect(),
            shell: plan.shell,
            keeps_shell: plan.keeps_shell,
            outputs: [OutputStream::Stdout, OutputStream::Stderr]
                .map(|stream| Output::new(stream, plan.whole_output)),
            ready: VecDeque::new(),
            paused: None,
            started: now,
            deadline: now
                .checked_add(Duration::from_millis(plan.timeout_ms))
                .unwrap_or(now + FOREVER),
            code: 0,
            over: false,
            restarts,
            end: run.end.subscribe(),
            unit,
            run,
            _guard: plan.guard,
        }
    }

    /// The next event; `None` after the end.
    pub(super) async fn next(&mut self) -> Option<Result<ExecEvent, SandboxError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.over {
                return None;
            }
            if let Some(end) = self.end.borrow().clone() {
                self.over = true;
                return Some(Err(SandboxError::Lost(format!(
                    "the sandbox ended: {end:?}"
                ))));
            }
            if self.restarts.has_changed().unwrap_or(true) {
                self.finish(Ending::Signal("SIGKILL".into(), KILLED));
                continue;
            }
            if Instant::now() >= self.deadline {
                self.finish(Ending::TimedOut);
                continue;
            }
            if let Some(until) = self.paused {
                self.pause(until).await;
                continue;
            }
            match self.lines.pop_front() {
                None => self.finish(Ending::Code(self.code)),
                Some(line) => match self.step(&line) {
                    Ok(None) => {}
                    Ok(Some(ending)) => self.finish(ending),
                    Err(error) => {
                        self.over = true;
                        return Some(Err(error));
                    }
                },
            }
        }
    }

    async fn pause(&mut self, until: Instant) {
        let progress = Instant::now() + Duration::from_millis(limits::KEEP_ALIVE_INTERVAL_MS);
        let wake = until.min(self.deadline).min(progress);
        tokio::select! {
            () = sleep_until(wake) => {
                if Instant::now() >= until {
                    self.paused = None;
                } else if wake == progress {
                    self.ready.push_back(ExecEvent::Progress(ExecProgress {
                        stdout_bytes: self.outputs[0].total,
                        stderr_bytes: self.outputs[1].total,
                    }));
                }
            }
            _ = self.restarts.changed() => self.restarts.mark_changed(),
            _ = self.end.changed() => {}
        }
    }

    fn finish(&mut self, ending: Ending) {
        self.over = true;
        let dropped = [0, 1].map(|at| self.outputs[at].finish(&mut self.ready));
        if self.keeps_shell {
            *lock(&self.run.shell) = self.shell.clone();
        }
        let (exit_code, signal, timed_out) = match ending {
            Ending::Code(code) => (Some(code), None, false),
            Ending::Signal(name, code) => (Some(code), Some(name), false),
            Ending::TimedOut => (None, Some("SIGTERM".to_owned()), true),
        };
        let still_running = self.run.in_background();
        self.ready.push_back(ExecEvent::Exit(ExecExit {
            exit_code,
            signal,
            timed_out,
            stdout_bytes: self.outputs[0].total,
            stderr_bytes: self.outputs[1].total,
            stdout_dropped_bytes: dropped[0],
            stderr_dropped_bytes: dropped[1],
            still_running,
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            notes: if still_running == 0 {
                Vec::new()
            } else {
                vec![format!(
                    "{still_running} processes still run in the background"
                )]
            },
        }));
    }

    fn print(&mut self, stream: OutputStream, text: impl Into<Bytes>) {
        let at = usize::from(stream == OutputStream::Stderr);
        self.outputs[at].push(text.into(), &mut self.ready);
    }

    fn say(&mut self, code: i32, message: &str) {
        self.print(OutputStream::Stderr, format!("{message}\n"));
        self.code = code;
    }

    fn path(&self, word: &str) -> String {
        let whole = if word.starts_with('/') {
            word.to_owned()
        } else {
            format!("{}/{word}", self.shell.cwd)
        };
        whole.parse::<SandboxPath>().map_or(whole, String::from)
    }

    fn file_result(&mut self, result: Result<(), AgentError>) {
        if let Err(error) = result {
            self.say(1, &error.message);
        }
    }

    fn step(&mut self, line: &str) -> Result<Option<Ending>, SandboxError> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.trim().parse::<u64>().unwrap_or_default();
        self.code = 0;
        match word {
            "echo" => self.print(OutputStream::Stdout, format!("{rest}\n")),
            "err" => self.print(OutputStream::Stderr, format!("{rest}\n")),
            "printf" => self.print(OutputStream::Stdout, rest.to_owned()),
            "big" => {
                let mut left = number();
                let block = Bytes::from(vec![b'x'; limits::MAX_FRAME_BYTES]);
                while left > 0 {
                    let piece = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
                    self.print(OutputStream::Stdout, block.slice(..piece));
                    left -= piece as u64;
                }
            }
            "sleep" => self.paused = Some(Instant::now() + Duration::from_millis(number())),
            "hang" => self.paused = Some(Instant::now() + FOREVER),
            "true" => {}
            "false" => self.code = 1,
            "exit" => {
                let code = rest.trim().parse::<i32>().unwrap_or_default();
                return Ok(Some(Ending::Code(code & 0xff)));
            }
            "signal" => {
                let (name, number) = rest.split_once(' ').unwrap_or((rest, "9"));
                let number = number.trim().parse::<i32>().unwrap_or(9);
                return Ok(Some(Ending::Signal(name.to_owned(), 128 + (number & 0x7f))));
            }
            "background" => {
                let end = Instant::now() + Duration::from_millis(number());
                lock(&self.run.background).push(end);
            }
            "fail-lost" => return Err(SandboxError::Lost("the connection broke".into())),
            "fail-agent" => {
                let error = AgentError::new(AgentErrorCode::Internal, "the call's process died");
                return Err(error.into());
            }
            "die" => {
                self.unit.end(match rest {
                    "oom" => SandboxEnd::OutOfMemory,
                    "lost" => SandboxEnd::Lost,
                    _ => SandboxEnd::Exited,
                });
            }
            "cd" | "pwd" | "export" | "printenv" => self.shell_state(word, rest),
            _ => self.files(word, rest),
        }
        Ok(None)
    }

    fn shell_state(&mut self, word: &str, rest: &str) {
        match word {
            "cd" => {
                let path = self.path(rest);
                if lock(&self.unit.files).is_directory(&path) {
                    self.shell.cwd = path;
                } else {
                    self.say(1, &format!("cd: {rest}: No such file or directory"));
                }
            }
            "pwd" => self.print(OutputStream::Stdout, format!("{}\n", self.shell.cwd)),
            "export" => {
                if let Some((name, value)) = rest.split_once('=') {
                    self.shell.env.insert(name.to_owned(), value.to_owned());
                }
            }
            _ => match self.shell.env.get(rest) {
                Some(value) => self.print(OutputStream::Stdout, format!("{value}\n")),
                None => self.code = 1,
            },
        }
    }

    fn files(&mut self, word: &str, rest: &str) {
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let path = self.path(name);
        let unit = Arc::clone(&self.unit);
        let mut files = lock(&unit.files);
        let result = match word {
            "write" => {
                let text = Bytes::from(format!("{text}\n"));
                files.write(&path, text, 0o644).map(drop)
            }
            "append" => {
                let mut whole = match files.read(&path) {
                    Ok((_, Content::Bytes(bytes))) => bytes.to_vec(),
                    _ => Vec::new(),
                };
                whole.extend_from_slice(format!("{text}\n").as_bytes());
                files.write(&path, whole.into(), 0o644).map(drop)
            }
            "cat" => match files.read(&path) {
                Ok((_, Content::Bytes(bytes))) => {
                    self.print(OutputStream::Stdout, bytes);
                    Ok(())
                }
                // Nothing prints a hole.
                Ok((_, Content::Zeros(_))) => Ok(()),
                Err(error) => Err(error),
            },
            "rm" => files.remove(&path),
            "mkdir" => files.make(&path, Node::Directory),
            "mkfifo" => files.make(&path, Node::Fifo),
            "link" => files.make(&path, Node::Link(self.path(text))),
            "truncate" => {
                let text = text.trim();
                let (bytes, name) = text.split_once(' ').unwrap_or((text, "file"));
                let content = Content::Zeros(bytes.parse().unwrap_or_default());
                files.make(&self.path(name), Node::File(content, 0o644))
            }
            _ => {
                self.say(127, &format!("bash: line 1: {word}: command not found"));
                return;
            }
        };
        drop(files);
        self.file_result(result);
    }
}
