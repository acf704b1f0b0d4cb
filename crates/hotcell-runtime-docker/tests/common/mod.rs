//! What tests of real engines share: an opened runtime in directories of its own, leases, and a
//! short way to run commands.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "every test binary takes what it needs of this module, and fails where it stands"
)]

pub(crate) mod engine;

use std::{
    collections::{BTreeSet, HashMap},
    env, fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bollard::{API_DEFAULT_VERSION, Docker, query_parameters::CreateImageOptionsBuilder};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use hotcell_agent_proto::{Command, ExecExit, ExecRequest};
use hotcell_runtime::{
    ExecEvent, ImageRef, Labels, NetworkMode, Observed, ObservedState, OutputStream, Runtime,
    Sandbox, SandboxError, SandboxSpec, VolumeMount,
};
use hotcell_runtime_docker::{DockerConfig, DockerRuntime, EngineKind};
pub(crate) use hotcell_testkit::{RealClock, RealIds, given};
use hotcell_types::{
    AgentKey, CallId, IdSource, InstallationId, LeaseId, ResourceClass, VolumeKind,
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

/// The engines that everything is tested on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Case {
    DockerRunc,
    DockerRunsc,
    Podman,
    PodmanRunsc,
    PodmanRootless,
}

impl Case {
    pub(crate) fn kind(self) -> EngineKind {
        match self {
            Self::DockerRunc | Self::DockerRunsc => EngineKind::Docker,
            _ => EngineKind::Podman,
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::DockerRunc | Self::DockerRunsc => "HOTCELL_TEST_DOCKER",
            Self::Podman => "HOTCELL_TEST_PODMAN",
            Self::PodmanRunsc => "HOTCELL_TEST_PODMAN_RUNSC",
            Self::PodmanRootless => "HOTCELL_TEST_PODMAN_ROOTLESS",
        }
    }

    pub(crate) fn socket(self) -> String {
        let variable = self.variable();
        let socket = env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: real engines are tested by `cargo xtask test`")
        });
        socket.trim_start_matches("unix://").to_owned()
    }

    pub(crate) fn oci_runtime(self) -> Option<String> {
        match self {
            Self::DockerRunsc | Self::PodmanRunsc => Some("runsc".into()),
            _ => None,
        }
    }

    pub(crate) fn is_gvisor(self) -> bool {
        self.oci_runtime().is_some()
    }

    /// What the matrix calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DockerRunc => "docker/runc",
            Self::DockerRunsc => "docker/runsc",
            Self::Podman => "podman/runc",
            Self::PodmanRunsc => "podman/runsc",
            Self::PodmanRootless => "podman-rootless/runc",
        }
    }
}

/// Makes one test of each function for each engine.
#[macro_export]
macro_rules! on_every_engine {
    ($($name:ident),* $(,)?) => {
        mod docker_runc { $crate::on_engine!(DockerRunc: $($name),*); }
        mod docker_runsc { $crate::on_engine!(DockerRunsc: $($name),*); }
        mod podman { $crate::on_engine!(Podman: $($name),*); }
        mod podman_runsc { $crate::on_engine!(PodmanRunsc: $($name),*); }
        mod podman_rootless { $crate::on_engine!(PodmanRootless: $($name),*); }
    };
}

/// See the file.
#[macro_export]
macro_rules! on_engine {
    ($case:ident: $($name:ident),*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let rig = $crate::common::Rig::open($crate::common::Case::$case).await;
                Box::pin(super::$name(&rig)).await;
                rig.end().await;
            }
        )*
    };
}

pub(crate) fn client(socket: &str) -> Docker {
    Docker::connect_with_unix(socket, 120, API_DEFAULT_VERSION).unwrap()
}

/// Imports a tar file as an image and returns its digest; one that is there is taken.
pub(crate) async fn import(docker: &Docker, tar: &Path, name: &str) -> ImageRef {
    let find = async || {
        let images = docker
            .list_images(None::<bollard::query_parameters::ListImagesOptions>)
            .await
            .unwrap();
        images
            .into_iter()
            .find(|image| image.repo_tags.iter().any(|tag| tag.contains(name)))
            .map(|image| format!("sha256:{}", image.id.trim_start_matches("sha256:")))
            .map(|id| id.parse().unwrap())
    };
    if let Some(image) = find().await {
        return image;
    }
    let file = tokio::fs::File::open(tar).await.unwrap();
    let pieces = futures_util::stream::try_unfold(file, |mut file| async move {
        use tokio::io::AsyncReadExt;
        let mut piece = vec![0; 1 << 20];
        let read = file.read(&mut piece).await?;
        piece.truncate(read);
        Ok::<_, std::io::Error>((read > 0).then(|| (Bytes::from(piece), file)))
    });
    let options = CreateImageOptionsBuilder::default()
        .from_src("-")
        .repo(name)
        .build();
    docker
        .create_image(Some(options), Some(bollard::body_try_stream(pieces)), None)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
    find().await.expect("the imported image is listed")
}

/// The image of all tests, imported once for each engine.
async fn image(case: Case) -> ImageRef {
    static LOCK: Mutex<Option<HashMap<String, ImageRef>>> = Mutex::const_new(None);
    let socket = case.socket();
    let mut known = LOCK.lock().await;
    let known = known.get_or_insert_default();
    if let Some(image) = known.get(&socket) {
        return image.clone();
    }
    let tar = given("HOTCELL_TEST_IMAGE_TAR");
    let name = format!("hotcell-test-{}", fs::metadata(&tar).unwrap().len());
    let docker = client(&socket).negotiate_version().await.unwrap();
    let image = import(&docker, &tar, &name).await;
    known.insert(socket, image.clone());
    image
}

/// An opened runtime.
pub(crate) struct Rig {
    pub(crate) case: Case,
    pub(crate) runtime: Arc<DockerRuntime>,
    pub(crate) config: DockerConfig,
    pub(crate) image: ImageRef,
    ending: Ending,
}

/// Removes what a failed test left, and the directories of every test.
struct Ending {
    config: DockerConfig,
    state: tempfile::TempDir,
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
                let runtime = DockerRuntime::open(config).await.unwrap();
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

/// A directory that a rootless engine's user can pass through.
fn directory(parent: &Path) -> tempfile::TempDir {
    let dir = tempfile::Builder::new()
        .prefix("hotcell-test-")
        .tempdir_in(parent)
        .unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    dir
}

impl Rig {
    pub(crate) async fn open(case: Case) -> Self {
        let image = image(case).await;
        Self::open_at(case, &case.socket(), image).await
    }

    /// On an engine of the test's own.
    pub(crate) async fn open_at(case: Case, socket: &str, image: ImageRef) -> Self {
        let state = directory(Path::new("/var/tmp"));
        let run = directory(Path::new("/run"));
        let config = DockerConfig {
            engine: case.kind(),
            socket: socket.parse().unwrap(),
            oci_runtime: case.oci_runtime(),
            volume_root: state.path().to_owned(),
            agent_binary: given("HOTCELL_TEST_AGENT"),
            installation: InstallationId::from_bits(RealIds.bits()),
            images: BTreeSet::from([image.clone()]),
            warm_pool: false,
            run_dir: run.path().to_owned(),
            clock: Arc::new(RealClock),
            ids: Arc::new(RealIds),
        };
        let runtime = Arc::new(DockerRuntime::open(config.clone()).await.unwrap());
        Self {
            case,
            runtime,
            config: config.clone(),
            image,
            ending: Ending {
                config,
                state,
                _run: run,
            },
        }
    }

    /// The same after the daemon was replaced.
    pub(crate) async fn reopen(&mut self) {
        self.runtime = Arc::new(DockerRuntime::open(self.config.clone()).await.unwrap());
    }

    pub(crate) fn docker(&self) -> Docker {
        client(self.config.socket.as_str())
    }

    /// Ends all sandboxes, and looks that nothing is left of them.
    pub(crate) async fn end(self) {
        for observed in self.runtime.list().await.unwrap() {
            self.runtime.remove(&observed.lease).await.unwrap();
        }
        self.assert_nothing_left().await;
    }

    /// Nothing of any sandbox is on this host or in the engine.
    pub(crate) async fn assert_nothing_left(&self) {
        assert_eq!(self.containers().await, Vec::<String>::new());
        let state = self.ending.state.path().to_string_lossy().into_owned();
        let run = self.config.run_dir.to_string_lossy().into_owned();
        for mounts in self.mount_tables() {
            let left: Vec<_> = mounts
                .lines()
                .filter(|line| line.contains(&state) || line.contains(&run))
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let scratch = self.config.volume_root.join(".scratch");
        let left: Vec<_> = fs::read_dir(scratch)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != "template" && name != "probe")
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// Our mounts, and the ones that the engine sees.
    pub(crate) fn mount_tables(&self) -> Vec<String> {
        let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let stream = std::os::unix::net::UnixStream::connect(self.config.socket.as_str()).unwrap();
        let peer = rustix::net::sockopt::socket_peercred(&stream).unwrap().pid;
        let theirs = format!("/proc/{}/mountinfo", peer.as_raw_nonzero());
        vec![own, fs::read_to_string(theirs).unwrap_or_default()]
    }

    /// Names of the installation's containers, as the engine lists them.
    pub(crate) async fn containers(&self) -> Vec<String> {
        let label = format!("io.hotcell.installation={}", self.config.installation);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = bollard::query_parameters::ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        let rows = self.docker().list_containers(Some(options)).await.unwrap();
        rows.into_iter()
            .map(|row| {
                row.names
                    .unwrap()
                    .concat()
                    .trim_start_matches('/')
                    .to_owned()
            })
            .collect()
    }

    /// The host's number of a sandbox's first process.
    pub(crate) async fn pid(&self, lease: &LeaseId) -> rustix::process::Pid {
        let found = self
            .docker()
            .inspect_container(&format!("hotcell-{lease}"), None)
            .await
            .unwrap();
        let pid = found.state.unwrap().pid.unwrap();
        rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    /// A specification for a new lease.
    pub(crate) fn spec(&self) -> (SandboxSpec, LeaseId, AgentKey) {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&RealIds.bits().to_ne_bytes());
        let key = AgentKey::new(key);
        let lease = LeaseId::from_bits(RealIds.bits());
        let spec = SandboxSpec {
            labels: Labels {
                installation: self.config.installation.clone(),
                lease: lease.clone(),
                workspace: "w".parse().unwrap(),
                chat: "c".parse().unwrap(),
            },
            image: self.image.clone(),
            resources: ResourceClass::Small.resources(),
            scratch_bytes: 128 << 20,
            mounts: VolumeKind::ALL.map(|kind| self.volume(kind)).into(),
            network: NetworkMode::None,
            agent_key: key.clone(),
        };
        (spec, lease, key)
    }

    /// A volume of this kind, writable by the sandbox user.
    pub(crate) fn volume(&self, kind: VolumeKind) -> VolumeMount {
        let host_path = self.config.volume_root.join(format!("{kind:?}"));
        fs::create_dir_all(&host_path).unwrap();
        chown(&host_path, Some(1000), Some(1000)).unwrap();
        VolumeMount { kind, host_path }
    }

    /// A running sandbox.
    pub(crate) async fn start(&self) -> Cell {
        let (spec, lease, key) = self.spec();
        self.runtime.create(&spec).await.unwrap();
        self.start_again(spec, lease, key).await
    }

    pub(crate) async fn start_again(
        &self,
        spec: SandboxSpec,
        lease: LeaseId,
        key: AgentKey,
    ) -> Cell {
        self.runtime.start(&lease, &key).await.unwrap();
        self.enter(spec, lease, key).await
    }

    /// One that runs, when it is ready.
    pub(crate) async fn enter(&self, spec: SandboxSpec, lease: LeaseId, key: AgentKey) -> Cell {
        let sandbox = self.runtime.sandbox(&lease, &key).unwrap();
        sandbox.ready(30_000).await.unwrap();
        Cell {
            spec,
            lease,
            key,
            sandbox,
        }
    }

    pub(crate) async fn observed(&self, lease: &LeaseId) -> Option<Observed> {
        let all = self.runtime.list().await.unwrap();
        all.into_iter().find(|observed| observed.lease == *lease)
    }

    pub(crate) async fn state(&self, lease: &LeaseId) -> Option<ObservedState> {
        self.observed(lease).await.map(|observed| observed.state)
    }
}

/// A running sandbox and what it was made of.
pub(crate) struct Cell {
    pub(crate) spec: SandboxSpec,
    pub(crate) lease: LeaseId,
    pub(crate) key: AgentKey,
    pub(crate) sandbox: Arc<dyn Sandbox>,
}

impl Cell {
    /// What a command writes to stdout, and how it ends.
    pub(crate) async fn try_run(&self, text: &str) -> Result<(String, ExecExit), SandboxError> {
        let mut stream = self
            .sandbox
            .exec(ExecRequest {
                call: CallId::from_bits(RealIds.bits()),
                command: Command::Shell(text.into()),
                cwd: None,
                user: None,
                env: Default::default(),
                timeout_ms: 60_000,
                restart: false,
            })
            .await?;
        let mut out = Vec::new();
        while let Some(event) = stream.next().await {
            match event? {
                ExecEvent::Output(OutputStream::Stdout, bytes) => out.extend_from_slice(&bytes),
                ExecEvent::Exit(exit) => {
                    return Ok((String::from_utf8_lossy(&out).into_owned(), exit));
                }
                _ => {}
            }
        }
        Err(SandboxError::Protocol("no exit".into()))
    }

    /// What a command that works writes.
    pub(crate) async fn run(&self, text: &str) -> String {
        let (out, exit) = self.try_run(text).await.unwrap();
        assert_eq!(exit.exit_code, Some(0), "{text}: {out}");
        out
    }
}

/// Asks until something holds, for `patience` at most.
pub(crate) async fn eventually(
    what: &str,
    patience: Duration,
    mut holds: impl AsyncFnMut() -> bool,
) {
    let deadline = Instant::now() + patience;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}
