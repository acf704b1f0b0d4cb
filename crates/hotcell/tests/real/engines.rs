//! Container engines that tests share, seen through their own command lines, and a Docker of a
//! test's own that can be restarted.

use std::{
    collections::HashMap,
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use hotcell_testkit::wait_until;
use tempfile::TempDir;

use super::given;

/// An engine that runs.
#[derive(Clone)]
pub(crate) struct ContainerEngine {
    /// `docker` or `podman`: the kind in a configuration, and the program.
    kind: &'static str,
    socket: String,
    /// Which of its OCI runtimes; its default when absent.
    oci_runtime: Option<&'static str>,
}

impl ContainerEngine {
    /// The engine that a test's name for it means; `None` for OCI runtimes.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (kind, variable, oci_runtime) = match name {
            "docker" => ("docker", "HOTCELL_TEST_DOCKER", None),
            "docker_runsc" => ("docker", "HOTCELL_TEST_DOCKER", Some("runsc")),
            "podman" => ("podman", "HOTCELL_TEST_PODMAN", None),
            "podman_runsc" => ("podman", "HOTCELL_TEST_PODMAN_RUNSC", Some("runsc")),
            "podman_rootless" => ("podman", "HOTCELL_TEST_PODMAN_ROOTLESS", None),
            _ => return None,
        };
        // A socket, so not a file that `given` would look for.
        let socket = std::env::var(variable)
            .unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"));
        Some(Self {
            oci_runtime,
            ..Self::at(kind, &socket)
        })
    }

    /// The engine that listens there.
    pub(crate) fn at(kind: &'static str, socket: &str) -> Self {
        Self {
            kind,
            socket: socket.to_owned(),
            oci_runtime: None,
        }
    }

    /// The `[runtime]` table of a configuration that uses it, with the test image.
    pub(crate) fn table(&self) -> String {
        let oci_runtime = self
            .oci_runtime
            .map(|name| format!("oci_runtime = \"{name}\"\n"))
            .unwrap_or_default();
        format!(
            "kind = \"{}\"\n{oci_runtime}socket = \"{}\"\nimage = \"{}\"",
            self.kind,
            self.socket,
            self.image()
        )
    }

    /// Ends a sandbox behind the daemon's back.
    pub(crate) fn kill(&self, lease: &str) {
        self.run(&["kill", &format!("hotcell-{lease}")]);
    }

    /// Removes a lease's containers behind the daemon's back, running or not.
    pub(crate) fn remove(&self, lease: &str) {
        // What keeps its network goes after it.
        self.run(&["rm", "-f", &format!("hotcell-{lease}")]);
        let rest = self.containers(lease);
        for container in rest.lines() {
            self.run(&["rm", "-f", container]);
        }
    }

    /// The containers of a lease, ended ones too.
    pub(crate) fn containers(&self, lease: &str) -> String {
        let filter = format!("name=hotcell-{lease}");
        self.run(&["ps", "-a", "-q", "--filter", &filter])
    }

    /// The test image's digest; it is imported once for each engine.
    fn image(&self) -> String {
        static KNOWN: Mutex<Option<HashMap<String, String>>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(image) = known.get(&self.socket) {
            return image.clone();
        }
        let tar = given("HOTCELL_TEST_IMAGE_TAR");
        let name = format!("hotcell-test-{}", fs::metadata(&tar).unwrap().len());
        let find = || self.run(&["images", "-q", "--no-trunc", &name]);
        let mut found = find();
        if found.is_empty() {
            self.run(&["import", path(&tar), &name]);
            found = find();
        }
        let image = found.lines().next().unwrap().trim();
        let image = format!("sha256:{}", image.trim_start_matches("sha256:"));
        known.insert(self.socket.clone(), image.clone());
        image
    }

    fn run(&self, words: &[&str]) -> String {
        let flag = if self.kind == "docker" {
            "--host"
        } else {
            "--url"
        };
        let output = Command::new(self.kind)
            .args([flag, &format!("unix://{}", self.socket)])
            .args(words)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{} {words:?}: {}",
            self.kind,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A Docker that no other test uses.
pub(crate) struct OwnDocker {
    data: TempDir,
    run: TempDir,
    child: Option<Child>,
}

impl OwnDocker {
    pub(crate) async fn start() -> Self {
        let directory = |parent: &str| {
            let mut builder = tempfile::Builder::new();
            builder
                .prefix("hotcell-docker-")
                .tempdir_in(parent)
                .unwrap()
        };
        let mut docker = Self {
            data: directory("/var/tmp"),
            run: directory("/run"),
            child: None,
        };
        docker.resume().await;
        docker
    }

    pub(crate) fn engine(&self) -> ContainerEngine {
        ContainerEngine::at("docker", path(&self.socket()))
    }

    fn socket(&self) -> PathBuf {
        self.run.path().join("engine.sock")
    }

    pub(crate) async fn resume(&mut self) {
        let run = self.run.path();
        let log = fs::File::create(self.data.path().join("log")).unwrap();
        let child = Command::new("dockerd")
            .arg("--data-root")
            .arg(self.data.path().join("data"))
            .arg("--exec-root")
            .arg(run.join("exec"))
            .arg("--pidfile")
            .arg(run.join("pid"))
            .arg(format!("--host=unix://{}", path(&self.socket())))
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let socket = self.socket();
        wait_until("Docker to listen", || UnixStream::connect(&socket).is_ok()).await;
    }

    /// Ends it in order, as an upgrade does: its containers end with it.
    pub(crate) fn stop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let told = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status();
        assert!(told.unwrap().success());
        child.wait().unwrap();
    }
}

impl Drop for OwnDocker {
    fn drop(&mut self) {
        self.stop();
    }
}
