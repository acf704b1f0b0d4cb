//! What tests of real sandboxes share: an opened runtime in directories of its own, leases, and
//! a short way to run commands.
#![allow(
    dead_code,
    reason = "every test binary takes what it needs of this module"
)]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::StreamExt;
use hotcell_agent_proto::{Command, ExecExit, ExecRequest};
use hotcell_runtime::{
    ExecEvent, ImageRef, Labels, NetworkMode, OutputStream, Runtime, Sandbox, SandboxError,
    SandboxSpec, VolumeMount,
};
use hotcell_runtime_embedded::{
    Embedded, EmbeddedConfig, ImageStore, NetworkStack, OciKind, RuntimeChoice,
};
pub(crate) use hotcell_testkit::{RealClock, RealIds, given};
use hotcell_types::{
    AgentKey, CallId, IdSource, InstallationId, LeaseId, ResourceClass, Resources, VolumeKind,
    limits,
};

/// The engines that everything is tested on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    RunscOwn,
    RunscKernel,
    Runc,
}

impl Engine {
    pub(crate) fn choice(self) -> RuntimeChoice {
        let (kind, network) = match self {
            Self::RunscOwn => (OciKind::Runsc, NetworkStack::Own),
            Self::RunscKernel => (OciKind::Runsc, NetworkStack::Kernel),
            Self::Runc => (OciKind::Runc, NetworkStack::Auto),
        };
        RuntimeChoice::Fixed {
            kind,
            path: None,
            network,
        }
    }

    /// What the matrix calls it.
    pub(crate) fn column(self) -> &'static str {
        match self {
            Self::RunscOwn => "embedded/runsc",
            Self::RunscKernel => "embedded/runsc-kernel-stack",
            Self::Runc => "embedded/runc",
        }
    }

    pub(crate) fn is_gvisor(self) -> bool {
        self != Self::Runc
    }
}

/// Makes one test of each function for each engine.
/// See the file.
#[macro_export]
macro_rules! on_every_engine {
    ($($name:ident),* $(,)?) => {
        mod runsc_own { $crate::on_engine!(RunscOwn: $($name),*); }
        mod runsc_kernel { $crate::on_engine!(RunscKernel: $($name),*); }
        mod runc { $crate::on_engine!(Runc: $($name),*); }
    };
}

/// See the file.
#[macro_export]
macro_rules! on_engine {
    ($engine:ident: $($name:ident),*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let rig = $crate::common::Rig::open($crate::common::Engine::$engine).await;
                Box::pin(super::$name(&rig)).await;
                rig.end().await;
            }
        )*
    };
}

/// Where tests keep what is large or must be on a disk.
fn scratch_root() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The image of all tests, imported once per tar.
fn image() -> (PathBuf, ImageRef) {
    let tar = given("HOTCELL_TEST_IMAGE_TAR");
    let meta = fs::metadata(&tar).unwrap();
    let name = format!("test-{}-{}", meta.len(), meta.mtime());
    let dir = scratch_root().join("images");
    fs::create_dir_all(&dir).unwrap();
    let lock = fs::File::create(scratch_root().join("images.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let store = ImageStore::open(&dir).unwrap();
    let info = store
        .resolve(&name)
        .or_else(|_| store.import(&tar, &name, &mut |_| {}))
        .unwrap();
    (dir, info.image)
}

/// A configuration in the directories for state, for the run and for images.
pub(crate) fn config(
    engine: Engine,
    (state, run, images): (&Path, &Path, &Path),
    agent_binary: PathBuf,
    installation: InstallationId,
) -> EmbeddedConfig {
    let volume_root = state.join("volumes");
    fs::create_dir_all(&volume_root).unwrap();
    EmbeddedConfig {
        state_dir: state.join("state"),
        run_dir: run.to_owned(),
        image_dir: images.to_owned(),
        volume_root,
        agent_binary,
        installation,
        oci_runtime: engine.choice(),
        max_sandboxes: 64,
        clock: Arc::new(RealClock),
        ids: Arc::new(RealIds),
    }
}

/// An opened runtime.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) runtime: Arc<Embedded>,
    pub(crate) config: EmbeddedConfig,
    pub(crate) image: ImageRef,
    /// After the runtime: a failed test must not leave its sandboxes on this host.
    ending: Ending,
}

/// Removes what a failed test left, and the directories of every test.
struct Ending {
    config: EmbeddedConfig,
    _state: tempfile::TempDir,
    _run: tempfile::TempDir,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let config = self.config.clone();
        let cleaning = std::thread::spawn(move || {
            let tokio = tokio::runtime::Runtime::new().unwrap();
            tokio.block_on(async {
                let runtime = Embedded::open(config).await.unwrap();
                for observed in runtime.list().await.unwrap() {
                    runtime.remove(&observed.lease).await.unwrap();
                }
            });
        });
        if cleaning.join().is_err() {
            eprintln!("sandboxes of a failed test are left");
        }
    }
}

impl Rig {
    pub(crate) async fn open(engine: Engine) -> Self {
        Self::open_with(engine, |_| {}).await
    }

    pub(crate) async fn open_with(
        engine: Engine,
        change: impl FnOnce(&mut EmbeddedConfig),
    ) -> Self {
        let agent_binary = given("HOTCELL_TEST_AGENT");
        let (image_dir, image) = tokio::task::spawn_blocking(image).await.unwrap();
        let state = tempfile::tempdir_in(scratch_root()).unwrap();
        let run = tempfile::Builder::new()
            .prefix("hotcell-test-")
            .tempdir_in("/run")
            .unwrap();
        let installation = InstallationId::from_bits(RealIds.bits());
        let mut config = config(
            engine,
            (state.path(), run.path(), &image_dir),
            agent_binary,
            installation,
        );
        change(&mut config);
        let runtime = Arc::new(Embedded::open(config.clone()).await.unwrap());
        Self {
            engine,
            runtime,
            ending: Ending {
                config: config.clone(),
                _state: state,
                _run: run,
            },
            config,
            image,
        }
    }

    /// The same after the daemon was replaced.
    pub(crate) async fn reopen(self) -> Self {
        self.reopen_after(async || {}).await
    }

    /// The same, with something done while nobody has it open.
    pub(crate) async fn reopen_after(self, between: impl AsyncFnOnce()) -> Self {
        let Self {
            engine,
            runtime,
            config,
            image,
            ending,
        } = self;
        drop(Arc::try_unwrap(runtime).ok().expect("the only user"));
        between().await;
        let runtime = Arc::new(Embedded::open(config.clone()).await.unwrap());
        Self {
            engine,
            runtime,
            config,
            image,
            ending,
        }
    }

    /// Ends all sandboxes and the runtime, and looks that nothing is left of them.
    pub(crate) async fn end(self) {
        for observed in self.runtime.list().await.unwrap() {
            self.runtime.remove(&observed.lease).await.unwrap();
        }
        self.assert_nothing_left();
        let Self {
            runtime,
            config,
            ending: _ending,
            ..
        } = self;
        drop(Arc::try_unwrap(runtime).ok().expect("the only user"));
        let mounts = mounts_with(&config.run_dir);
        assert!(mounts.is_empty(), "{mounts:?}");
    }

    /// Nothing of any sandbox is on this host, but for what the installation itself has.
    pub(crate) fn assert_nothing_left(&self) {
        let state = self.config.state_dir.canonicalize().unwrap();
        assert_eq!(mounts_with(&state), Vec::<String>::new());
        assert_eq!(loops_with(&state), Vec::<String>::new());
        let processes = processes_with(&self.config.run_dir.join("oci"));
        assert_eq!(processes, Vec::<String>::new());
        let groups = self.control_groups();
        assert!(groups.is_empty(), "{groups:?}");
        for dir in [state.join("sandboxes"), self.config.run_dir.join("oci")] {
            let left: Vec<_> = fs::read_dir(&dir).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }

    /// The directories of sandboxes in every control group hierarchy.
    pub(crate) fn control_groups(&self) -> Vec<PathBuf> {
        let text = self.config.installation.as_str();
        let base = format!("hotcell/{}", &text[text.len() - 10..]);
        let root = Path::new("/sys/fs/cgroup");
        fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .chain([root.to_owned()])
            .filter_map(|hierarchy| fs::read_dir(hierarchy.join(&base)).ok())
            .flatten()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect()
    }

    /// A specification for a new lease.
    pub(crate) fn spec(&self) -> (SandboxSpec, LeaseId, AgentKey) {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&RealIds.bits().to_ne_bytes());
        let key = AgentKey::new(key);
        let spec = spec(&self.config, &self.image, key.clone());
        let lease = spec.labels.lease.clone();
        (spec, lease, key)
    }

    /// A volume of this kind, writable by the sandbox user.
    pub(crate) fn volume(&self, kind: VolumeKind) -> VolumeMount {
        volume(&self.config, kind)
    }

    /// A running sandbox.
    pub(crate) async fn start(&self) -> Cell {
        self.start_with(|_| {}).await
    }

    pub(crate) async fn start_with(&self, change: impl FnOnce(&mut SandboxSpec)) -> Cell {
        let (mut spec, lease, key) = self.spec();
        change(&mut spec);
        self.runtime.create(&spec).await.unwrap();
        self.runtime.start(&lease, &key).await.unwrap();
        self.cell(&lease, &key).await
    }

    /// The way into a sandbox whose agent is up.
    pub(crate) async fn cell(&self, lease: &LeaseId, key: &AgentKey) -> Cell {
        let sandbox = self.runtime.sandbox(lease, key).unwrap();
        sandbox.ready(30_000).await.unwrap();
        Cell {
            lease: lease.clone(),
            key: key.clone(),
            sandbox,
        }
    }

    /// The host's number of a sandbox's first process.
    pub(crate) fn main_pid(&self, lease: &LeaseId) -> u32 {
        let path = self
            .config
            .run_dir
            .join("oci")
            .join(lease.short())
            .join("pid");
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }
}

/// A volume of this kind, writable by the sandbox user.
pub(crate) fn volume(config: &EmbeddedConfig, kind: VolumeKind) -> VolumeMount {
    let host_path = config.volume_root.join(format!("{kind:?}"));
    fs::create_dir_all(&host_path).unwrap();
    std::os::unix::fs::chown(&host_path, Some(1000), Some(1000)).unwrap();
    VolumeMount { kind, host_path }
}

/// A specification for a new lease.
pub(crate) fn spec(config: &EmbeddedConfig, image: &ImageRef, agent_key: AgentKey) -> SandboxSpec {
    SandboxSpec {
        labels: Labels {
            installation: config.installation.clone(),
            lease: LeaseId::from_bits(RealIds.bits()),
            workspace: "w1".parse().unwrap(),
            chat: "c1".parse().unwrap(),
        },
        image: image.clone(),
        resources: ResourceClass::Small.resources(),
        scratch_bytes: limits::DEFAULT_SCRATCH_BYTES,
        mounts: Vec::new(),
        network: NetworkMode::None,
        agent_key,
    }
}

/// A running sandbox.
pub(crate) struct Cell {
    pub(crate) lease: LeaseId,
    pub(crate) key: AgentKey,
    pub(crate) sandbox: Arc<dyn Sandbox>,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: ExecExit,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    pub(crate) fn code(&self) -> i32 {
        self.exit.exit_code.unwrap_or(-1)
    }
}

impl Cell {
    /// Runs a shell text.
    pub(crate) async fn sh(&self, text: &str) -> Said {
        self.try_sh(text, 60_000).await.unwrap()
    }

    pub(crate) async fn try_sh(&self, text: &str, timeout_ms: u64) -> Result<Said, SandboxError> {
        let request = ExecRequest {
            call: CallId::from_bits(RealIds.bits()),
            command: Command::Shell(text.to_owned()),
            cwd: None,
            user: None,
            env: BTreeMap::new(),
            timeout_ms,
            restart: false,
        };
        let mut stream = self.sandbox.exec(request).await?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = stream.next().await {
            match event? {
                ExecEvent::Output(OutputStream::Stdout, bytes) => stdout.extend(bytes),
                ExecEvent::Output(OutputStream::Stderr, bytes) => stderr.extend(bytes),
                ExecEvent::Progress(_) => {}
                ExecEvent::Exit(exit) => {
                    return Ok(Said {
                        exit,
                        stdout: String::from_utf8_lossy(&stdout).into_owned(),
                        stderr: String::from_utf8_lossy(&stderr).into_owned(),
                    });
                }
            }
        }
        Err(SandboxError::Lost("no exit came".into()))
    }

    /// Runs a shell text that must succeed, and gives its stdout without the last newline.
    pub(crate) async fn get(&self, text: &str) -> String {
        let said = self.sh(text).await;
        assert_eq!(said.code(), 0, "{text}: {said:?}");
        said.stdout.trim_end().to_owned()
    }
}

/// Resources like the small class, but with less memory.
pub(crate) fn memory(mib: u64) -> Resources {
    Resources {
        memory_bytes: mib << 20,
        ..ResourceClass::Small.resources()
    }
}

/// Lines of the host's mount table that name a path.
pub(crate) fn mounts_with(path: &Path) -> Vec<String> {
    lines_with("/proc/self/mountinfo", path)
}

fn lines_with(file: &str, path: &Path) -> Vec<String> {
    let path = path.to_str().unwrap();
    fs::read_to_string(file)
        .unwrap()
        .lines()
        .filter(|line| line.contains(path))
        .map(str::to_owned)
        .collect()
}

/// Files beneath `path` that loop devices use.
pub(crate) fn loops_with(path: &Path) -> Vec<String> {
    fs::read_dir("/sys/block")
        .unwrap()
        .filter_map(|entry| {
            fs::read_to_string(entry.unwrap().path().join("loop/backing_file")).ok()
        })
        .filter(|file| file.contains(path.to_str().unwrap()))
        .collect()
}

/// Command lines of processes that name a path.
pub(crate) fn processes_with(path: &Path) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(path.to_str().unwrap()))
        .collect()
}
