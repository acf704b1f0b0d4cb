//! What checks work with: sandboxes, and calls that are awaited to their end.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hotcell_agent_proto::{AgentErrorCode, Command, ExecExit, ExecRequest, Health};
use hotcell_types::{
    AgentKey, CallId, ChatId, JobId, LeaseId, ResourceClass, SandboxPath, VolumeKind,
    volume::{SANDBOX_GID, SANDBOX_UID},
};
use sha2::{Digest, Sha256};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use super::{ConformanceEnv, Fault, ensure, failed};
use crate::{
    ByteStream, ExecEvent, ExecStream, Facts, Labels, NetworkMode, ObservedState, OutputStream,
    Runtime, Sandbox, SandboxError, SandboxSpec, VolumeMount,
};

/// The time limit of a call that names none.
const CALL_TIMEOUT_MS: u64 = 60_000;
/// How long a sandbox may take to be ready.
const READY_TIMEOUT_MS: u64 = 60_000;
/// `/workspace` of a sandbox that asks for no special size.
const SCRATCH_BYTES: u64 = 256 << 20;

/// A sandbox that runs.
pub(crate) struct Cell {
    pub(crate) lease: LeaseId,
    pub(crate) key: AgentKey,
    pub(crate) spec: SandboxSpec,
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) health: Health,
    ids: Arc<dyn hotcell_types::IdSource>,
}

/// What checks share.
pub(crate) struct Bench {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) env: ConformanceEnv,
    pub(crate) facts: Facts,
    shared: AsyncMutex<Option<Arc<Cell>>>,
    made: Mutex<Vec<LeaseId>>,
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit: ExecExit,
    /// From the request to the exit.
    pub(crate) took: Duration,
    /// The longest wait for an event.
    pub(crate) longest_wait: Duration,
    /// Progress events.
    pub(crate) progress: usize,
}

impl Done {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Its output, when it ended with 0.
    pub(crate) fn ok(&self) -> Result<String, Fault> {
        ensure!(
            self.exit.exit_code == Some(0),
            "exit code {:?}, stdout {:?}, stderr {:?}",
            self.exit.exit_code,
            start_of(&self.out()),
            start_of(&self.err())
        );
        Ok(self.out())
    }
}

/// The first characters, for a message.
pub(crate) fn start_of(text: &str) -> String {
    text.chars().take(300).collect()
}

/// A path that is written down here.
pub(crate) fn path(text: &str) -> SandboxPath {
    text.parse()
        .unwrap_or_else(|_| unreachable!("{text} is a path"))
}

/// Content for a write, in pieces.
pub(crate) fn pieces(content: Bytes) -> ByteStream {
    let chunks: Vec<_> = content
        .chunks(60_000)
        .map(|chunk| Ok(content.slice_ref(chunk)))
        .collect();
    Box::pin(stream::iter(chunks))
}

/// Lower-case hex SHA-256.
pub(crate) fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// Memory of this process in bytes.
pub(crate) fn own_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or_default()
        * 1024
}

/// Asks again and again until something holds, for `patience` at most.
pub(crate) async fn eventually<F>(
    what: &str,
    patience: Duration,
    mut holds: impl FnMut() -> F,
) -> Result<(), Fault>
where
    F: Future<Output = Result<bool, Fault>>,
{
    let deadline = Instant::now() + patience;
    loop {
        if holds().await? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return failed(format!("not within {} ms: {what}", patience.as_millis()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Cell {
    pub(crate) fn request(&self, command: Command) -> ExecRequest {
        ExecRequest {
            call: CallId::from_bits(self.ids.bits()),
            command,
            cwd: None,
            user: None,
            env: Default::default(),
            timeout_ms: CALL_TIMEOUT_MS,
            restart: false,
        }
    }

    /// A shell command, not yet run.
    pub(crate) fn shell(&self, text: impl Into<String>) -> ExecRequest {
        self.request(Command::Shell(text.into()))
    }

    pub(crate) fn job_id(&self) -> JobId {
        JobId::from_bits(self.ids.bits())
    }

    /// Runs a shell command to its end.
    pub(crate) async fn sh(&self, text: impl Into<String>) -> Result<Done, SandboxError> {
        self.run(self.shell(text)).await
    }

    /// Runs a call to its end.
    pub(crate) async fn run(&self, request: ExecRequest) -> Result<Done, SandboxError> {
        let start = Instant::now();
        let stream = self.sandbox.exec(request).await?;
        finish(stream, start).await
    }

    /// Writes a file.
    pub(crate) async fn put(
        &self,
        at: &str,
        content: impl Into<Bytes>,
    ) -> Result<(), SandboxError> {
        let content = content.into();
        let (bytes, hash) = (content.len() as u64, sha256(&content));
        self.sandbox
            .write_file(&path(at), 0o644, bytes, &hash, pieces(content))
            .await?;
        Ok(())
    }

    /// Reads a file whole.
    pub(crate) async fn get(&self, at: &str) -> Result<Vec<u8>, SandboxError> {
        let (_, mut content) = self.sandbox.read_file(&path(at)).await?;
        let mut whole = Vec::new();
        while let Some(piece) = content.next().await {
            whole.extend_from_slice(&piece?);
        }
        Ok(whole)
    }

    /// The directory of the host behind a volume.
    pub(crate) fn volume(&self, kind: VolumeKind) -> Result<&Path, Fault> {
        self.spec
            .mounts
            .iter()
            .find(|mount| mount.kind == kind)
            .map(|mount| mount.host_path.as_path())
            .ok_or_else(|| Fault::Failed(format!("{kind:?} is not mounted")))
    }
}

/// Reads a call's events to its end. `start` is when it was asked for.
pub(crate) async fn finish(mut stream: ExecStream, start: Instant) -> Result<Done, SandboxError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut longest_wait, mut progress, mut before) = (Duration::ZERO, 0, start);
    while let Some(event) = stream.next().await {
        let now = Instant::now();
        longest_wait = longest_wait.max(now - before);
        before = now;
        match event? {
            ExecEvent::Output(OutputStream::Stdout, bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Output(OutputStream::Stderr, bytes) => stderr.extend_from_slice(&bytes),
            ExecEvent::Progress(_) => progress += 1,
            ExecEvent::Exit(exit) => {
                if stream.next().await.is_some() {
                    let why = "an event after the exit".to_owned();
                    return Err(SandboxError::Protocol(why));
                }
                return Ok(Done {
                    stdout,
                    stderr,
                    exit,
                    took: start.elapsed(),
                    longest_wait,
                    progress,
                });
            }
        }
    }
    Err(SandboxError::Protocol("a stream without an exit".into()))
}

/// The agent's refusal, when it is one of this kind.
pub(crate) fn expect_refusal<T>(
    what: &str,
    result: Result<T, SandboxError>,
    codes: &[AgentErrorCode],
) -> Result<(), Fault> {
    match result {
        Err(SandboxError::Agent(error)) if codes.contains(&error.code) => Ok(()),
        Err(error) => failed(format!("{what}: {error:?} where {codes:?} belongs")),
        Ok(_) => failed(format!("{what} worked; it must be refused as {codes:?}")),
    }
}

impl Bench {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, env: ConformanceEnv) -> Self {
        Self {
            facts: runtime.facts(),
            runtime,
            env,
            shared: AsyncMutex::default(),
            made: Mutex::default(),
        }
    }

    /// A key that nobody can guess.
    pub(crate) fn key(&self) -> AgentKey {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.env.ids.bits().to_be_bytes());
        bytes[16..].copy_from_slice(&self.env.ids.bits().to_be_bytes());
        AgentKey::new(bytes)
    }

    fn volume_directory(&self, lease: &LeaseId, kind: VolumeKind) -> std::io::Result<PathBuf> {
        let name = kind.mount_path().trim_start_matches("/mnt/");
        let at = self.env.volume_root.join(lease.as_str()).join(name);
        fs::create_dir_all(&at)?;
        fs::set_permissions(&at, fs::Permissions::from_mode(0o755))?;
        // The fake's tests need no root; there nobody looks at owners.
        if self.env.real {
            chown(&at, Some(SANDBOX_UID), Some(SANDBOX_GID))?;
        }
        Ok(at)
    }

    /// A sandbox to be, with all volumes. What is made of it is removed after the check.
    pub(crate) fn spec(&self) -> Result<SandboxSpec, Fault> {
        let lease = LeaseId::from_bits(self.env.ids.bits());
        self.made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(lease.clone());
        let mounts = VolumeKind::ALL
            .into_iter()
            .map(|kind| {
                Ok(VolumeMount {
                    kind,
                    host_path: self.volume_directory(&lease, kind)?,
                })
            })
            .collect::<Result<_, std::io::Error>>()?;
        let chat: ChatId = format!("chat-{}", lease.short()).parse()?;
        Ok(SandboxSpec {
            labels: Labels {
                installation: self.env.installation.clone(),
                lease,
                workspace: "conformance".parse()?,
                chat,
            },
            image: self.env.image.clone(),
            resources: ResourceClass::Small.resources(),
            scratch_bytes: SCRATCH_BYTES,
            mounts,
            network: NetworkMode::None,
            agent_key: self.key(),
        })
    }

    /// Makes it and waits until it is ready.
    pub(crate) async fn make(&self, spec: SandboxSpec) -> Result<Cell, Fault> {
        self.runtime.create(&spec).await?;
        let key = spec.agent_key.clone();
        self.start(spec, key).await
    }

    /// Starts what was created and waits until it is ready.
    pub(crate) async fn start(&self, spec: SandboxSpec, key: AgentKey) -> Result<Cell, Fault> {
        self.runtime.start(&spec.labels.lease, &key).await?;
        self.enter(spec, key).await
    }

    /// Waits until one that runs is ready.
    pub(crate) async fn enter(&self, spec: SandboxSpec, key: AgentKey) -> Result<Cell, Fault> {
        let lease = spec.labels.lease.clone();
        let sandbox = self.runtime.sandbox(&lease, &key)?;
        let health = sandbox.ready(READY_TIMEOUT_MS).await?;
        Ok(Cell {
            lease,
            key,
            spec,
            sandbox,
            health,
            ids: Arc::clone(&self.env.ids),
        })
    }

    /// A sandbox for this check alone.
    pub(crate) async fn fresh(&self) -> Result<Cell, Fault> {
        self.make(self.spec()?).await
    }

    /// The sandbox that checks share which leave it as they found it. A new shell state.
    pub(crate) async fn shared(&self) -> Result<Arc<Cell>, Fault> {
        let mut shared = self.shared.lock().await;
        if let Some(cell) = &*shared
            && cell.sandbox.restart().await.is_ok()
        {
            return Ok(Arc::clone(cell));
        }
        let cell = Arc::new(self.fresh().await?);
        self.made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|lease| *lease != cell.lease);
        if let Some(old) = shared.replace(Arc::clone(&cell)) {
            self.discard(&old.lease).await;
        }
        Ok(cell)
    }

    /// Where the engine says that a lease stands.
    pub(crate) async fn observed(&self, lease: &LeaseId) -> Result<Option<ObservedState>, Fault> {
        let all = self.runtime.list().await?;
        Ok(all
            .into_iter()
            .find(|observed| observed.lease == *lease)
            .map(|observed| observed.state))
    }

    async fn discard(&self, lease: &LeaseId) {
        // What cannot be removed shows in the next check of `list`.
        let _ = self.runtime.remove(lease).await;
        let _ = fs::remove_dir_all(self.env.volume_root.join(lease.as_str()));
    }

    /// Removes what the last check left, and at the end the shared sandbox too.
    pub(crate) async fn clean_up(&self, all: bool) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for lease in made {
            self.discard(&lease).await;
        }
        if all && let Some(cell) = self.shared.lock().await.take() {
            self.discard(&cell.lease).await;
        }
    }
}
