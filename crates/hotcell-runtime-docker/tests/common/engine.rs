//! An engine of a test's own, to be restarted, killed and filled up.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use hotcell_runtime::ImageRef;
use rustix::process::{Pid, Signal, kill_process};

use super::{Case, client, eventually, import};

/// How long an engine may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct OwnEngine {
    case: Case,
    data: tempfile::TempDir,
    run: tempfile::TempDir,
    child: Option<Child>,
}

impl OwnEngine {
    /// Starts one with an image in which there is nothing at all: the agent is static.
    pub(crate) async fn start(case: Case) -> (Self, ImageRef) {
        let directory = |parent: &str| {
            let mut builder = tempfile::Builder::new();
            builder
                .prefix("hotcell-engine-")
                .tempdir_in(parent)
                .unwrap()
        };
        let mut engine = Self {
            case,
            data: directory("/var/tmp"),
            run: directory("/run"),
            child: None,
        };
        engine.resume().await;
        let image = engine.import().await;
        (engine, image)
    }

    pub(crate) fn socket(&self) -> String {
        self.run
            .path()
            .join("engine.sock")
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// Where the engine keeps what it stores.
    pub(crate) fn data(&self) -> PathBuf {
        self.data.path().join("data")
    }

    /// After its data were lost.
    pub(crate) async fn import_again(&self) -> ImageRef {
        self.import().await
    }

    async fn import(&self) -> ImageRef {
        let root = self.data.path().join("root");
        for name in [
            "etc",
            "tmp",
            "var/tmp",
            "run",
            "dev",
            "proc",
            "sys",
            "workspace",
            "mnt",
        ] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let tar = self.data.path().join("empty.tar");
        let mut pack = Command::new("tar");
        assert!(
            pack.arg("-cf")
                .arg(&tar)
                .arg("-C")
                .arg(&root)
                .arg(".")
                .status()
                .unwrap()
                .success()
        );
        let docker = client(&self.socket()).negotiate_version().await.unwrap();
        import(&docker, &tar, "hotcell-empty").await
    }

    /// Starts it again.
    pub(crate) async fn resume(&mut self) {
        let socket = self.socket();
        let _ = fs::remove_file(&socket);
        let (data, run) = (self.data(), self.run.path());
        let log = File::create(self.data.path().join("log")).unwrap();
        let mut command = match self.case {
            Case::DockerRunc => {
                let mut command = Command::new("dockerd");
                command
                    .arg("--data-root")
                    .arg(&data)
                    .arg("--exec-root")
                    .arg(run.join("exec"))
                    .arg("--pidfile")
                    .arg(run.join("pid"))
                    .arg("--host")
                    .arg(format!("unix://{socket}"))
                    .args(["--iptables=false", "--ip6tables=false", "--bridge=none"]);
                command
            }
            Case::Podman => {
                let config = self.data.path().join("containers.conf");
                let text = "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
                fs::write(&config, text).unwrap();
                let mut command = Command::new("podman");
                command
                    .env("CONTAINERS_CONF", config)
                    .arg("--root")
                    .arg(&data)
                    .arg("--runroot")
                    .arg(run.join("storage"))
                    .args(["system", "service", "--time=0"])
                    .arg(format!("unix://{socket}"));
                command
            }
            other => panic!("no test has a {other:?} of its own"),
        };
        let _ = fs::remove_file(run.join("pid"));
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
        eventually("the engine answers", PATIENCE, async || {
            Path::new(&socket).exists() && client(&socket).ping().await.is_ok()
        })
        .await;
    }

    /// Ends it and waits for that.
    pub(crate) async fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = Pid::from_child(&child);
        kill_process(pid, signal).unwrap();
        eventually("the engine ends", PATIENCE, async || {
            child.try_wait().unwrap().is_some()
        })
        .await;
        // A Docker that is killed takes its containerd along, a moment later; one that starts in
        // that moment waits for it in vain.
        let helper = self.run.path().join("exec/containerd/containerd.pid");
        if let Ok(pid) = fs::read_to_string(&helper) {
            let status = format!("/proc/{}/status", pid.trim());
            eventually("containerd ends", PATIENCE, async || {
                fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ"))
            })
            .await;
            // Not every first process of a test machine buries its orphans.
            fs::remove_file(&helper).unwrap();
        }
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
        // An engine leaves its own storage mounted when it is killed.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let (data, run) = (self.data.path().to_owned(), self.run.path().to_owned());
        for mounted in table
            .lines()
            .rev()
            .filter_map(|line| line.split(' ').nth(4))
        {
            let mounted = Path::new(mounted);
            if mounted.starts_with(&data) || mounted.starts_with(&run) {
                let _ = rustix::mount::unmount(mounted, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}
