//! One agent on this host, and what can be seen of it from outside.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use hotcell_agent_proto::{
    AgentError, Command as AgentCommand, ExecExit, ExecRequest, Frame, JobRequest, JobStatus,
    Stream,
};
use hotcell_types::{CallId, JobId};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::client::{KEY, LEASE, Request, Response};

/// The user that the agent runs as when the tests run as root.
const UID: u32 = 1000;

pub(crate) fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test measures real time")]
    Instant::now()
}

/// How long a shell may take to wait for its command, on a busy machine.
const AHEAD: Duration = Duration::from_secs(8);

/// Waits until `condition` holds.
pub(crate) fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begin = now();
    while !condition() {
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        #[expect(clippy::disallowed_methods, reason = "the pause between two looks")]
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The agent's binary where any user can execute it.
fn binary() -> &'static Path {
    static BINARY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &BINARY
        .get_or_init(|| {
            let directory = tempfile::tempdir().unwrap();
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(directory.path(), mode).unwrap();
            let path = directory.path().join("hotcell-agent");
            std::fs::copy(env!("CARGO_BIN_EXE_hotcell-agent"), &path).unwrap();
            (directory, path)
        })
        .1
}

pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    pub(crate) workspace: PathBuf,
    pub(crate) run: PathBuf,
    pub(crate) agent: Child,
    _directory: TempDir,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit: ExecExit,
    pub(crate) took: Duration,
}

impl Outcome {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
    pub(crate) fn code(&self) -> Option<i32> {
        self.exit.exit_code
    }
}

pub(crate) fn call_id() -> CallId {
    CallId::from_bits(7)
}

pub(crate) fn exec_request(text: &str, timeout_ms: u64) -> ExecRequest {
    ExecRequest {
        call: call_id(),
        command: AgentCommand::Shell(text.to_owned()),
        cwd: None,
        user: None,
        env: BTreeMap::new(),
        timeout_ms,
        restart: false,
    }
}

impl Host {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(env: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let (workspace, run) = (directory.path().join("work"), directory.path().join("run"));
        let mut command = Command::new(binary());
        for path in [&workspace, &run] {
            std::fs::create_dir(path).unwrap();
            if is_root() {
                chown(path, Some(UID), Some(UID)).unwrap();
            }
        }
        if is_root() {
            command.uid(UID).gid(UID);
        }
        let mut agent = command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOTCELL_AGENT_KEY", KEY)
            .env("HOTCELL_LEASE", LEASE)
            .env("HOTCELL_AGENT_LISTEN", "127.0.0.1:0")
            .env("HOTCELL_AGENT_WORKSPACE", &workspace)
            .env("HOTCELL_AGENT_RUN", &run)
            .envs(env.iter().copied())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(agent.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening ")
            .unwrap()
            .parse()
            .unwrap();
        Self {
            address,
            workspace,
            run,
            agent,
            _directory: directory,
        }
    }

    pub(crate) fn send(&self, method: &str, target: &str, body: impl Into<Vec<u8>>) -> Response {
        Request::new(method, target, body).send(self.address)
    }

    pub(crate) fn get(&self, target: &str) -> Response {
        self.send("GET", target, "")
    }

    /// Runs a call to its end.
    pub(crate) fn exec(&self, request: &ExecRequest) -> Result<Outcome, AgentError> {
        let begin = now();
        let response = self.send("POST", "/v1/exec", serde_json::to_vec(request).unwrap());
        if response.status != 200 {
            return Err(response.error());
        }
        assert!(response.whole, "the answer was cut");
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut frames = response.frames();
        let exit = match frames.pop() {
            Some(Frame::Exit(exit)) => exit,
            Some(Frame::Failed(error)) => return Err(error),
            other => panic!("the last frame is {other:?}"),
        };
        for frame in frames {
            match frame {
                Frame::Output(Stream::Stdout, bytes) => stdout.extend_from_slice(&bytes),
                Frame::Output(Stream::Stderr, bytes) => stderr.extend_from_slice(&bytes),
                Frame::Progress(_) => {}
                other => panic!("{other:?} before the end"),
            }
        }
        Ok(Outcome {
            stdout,
            stderr,
            exit,
            took: begin.elapsed(),
        })
    }

    /// Runs a command text with a generous limit.
    pub(crate) fn bash(&self, text: &str) -> Outcome {
        self.exec(&exec_request(text, 60_000)).unwrap()
    }

    pub(crate) fn job(&self, number: u128, text: &str, timeout_ms: u64) -> (JobId, JobStatus) {
        let job = JobId::from_bits(number);
        let request = JobRequest {
            job: job.clone(),
            command: AgentCommand::Shell(text.to_owned()),
            cwd: None,
            env: BTreeMap::new(),
            timeout_ms,
        };
        let response = self.send("POST", "/v1/jobs", serde_json::to_vec(&request).unwrap());
        (job, response.ok())
    }

    pub(crate) fn job_status(&self, job: &JobId) -> JobStatus {
        self.get(&format!("/v1/jobs/{job}")).ok()
    }

    pub(crate) fn agent_pid(&self) -> i32 {
        i32::try_from(self.agent.id()).unwrap()
    }

    /// Everything that descends from the agent: process id, parent, state, command line.
    pub(crate) fn processes(&self) -> Vec<Seen> {
        let all: Vec<Seen> = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Seen::look)
            .collect();
        let mut found = Vec::new();
        let mut parents = vec![self.agent_pid()];
        while let Some(parent) = parents.pop() {
            for process in all.iter().filter(|process| process.parent == parent) {
                parents.push(process.pid);
                found.push(process.clone());
            }
        }
        found
    }

    /// Those that commands have started: all but shims, zombies and the shell of the next call.
    pub(crate) fn running(&self) -> Vec<Seen> {
        let is_shim = |process: &Seen| process.command.ends_with("hotcell-agent\0shim\0");
        self.processes()
            .into_iter()
            .filter(|p| !is_shim(p) && p.state != 'Z' && !self.waits(p))
            .collect()
    }

    /// Whether it is a shell that waits for its command: it has a prelude and nothing else yet.
    fn waits(&self, process: &Seen) -> bool {
        let last = process.command.trim_end_matches('\0').rsplit('\0').next();
        let text = last
            .map(Path::new)
            .filter(|path| path.starts_with(&self.run));
        text.is_some_and(|text| !text.exists() && text.with_extension("rc").exists())
    }

    /// The shell of the next call, once it waits.
    pub(crate) fn waiting(&self) -> Seen {
        let mut found = None;
        wait_for("a shell ahead", AHEAD, || {
            let mut all = self.processes().into_iter();
            // Blocked in its prelude, not on its way there.
            found = all.find(|process| process.state == 'S' && self.waits(process));
            found.is_some()
        });
        found.unwrap()
    }

    pub(crate) fn shims(&self) -> Vec<i32> {
        self.processes()
            .into_iter()
            .filter(|process| process.command.ends_with("hotcell-agent\0shim\0"))
            .map(|process| process.pid)
            .collect()
    }

    fn status(&self, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.agent_pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        self.status("VmRSS:").parse().unwrap()
    }

    pub(crate) fn ignored_signals(&self) -> u64 {
        u64::from_str_radix(&self.status("SigIgn:"), 16).unwrap()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) state: char,
    pub(crate) command: String,
}

impl Seen {
    fn look(pid: i32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Some(Self {
            pid,
            parent,
            state,
            command: String::from_utf8_lossy(&command).into_owned(),
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid).unwrap(), signal).unwrap();
    }
}

pub(crate) fn owner(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().uid()
}

impl Drop for Host {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.agent_pid()).unwrap();
        // It ends everything that it has started, first.
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.agent.wait();
    }
}
