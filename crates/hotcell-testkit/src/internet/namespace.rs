//! Network namespaces, and what lives in them.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    thread::{self, JoinHandle},
};

use nix::sched::{CloneFlags, setns};
use tokio::{sync::oneshot, task::JoinSet};

const PREFIX: &str = "hcnet-";
const DIR: &str = "/run/netns";

/// A namespace that is gone when this is dropped.
pub(super) struct Namespace(String);

/// A server that runs until it is dropped.
pub(super) type Server = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Namespace {
    pub(super) fn new(number: u32, what: &str) -> Self {
        let name = format!("{PREFIX}{}-{number}-{what}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let space = Self(name);
        space.run("ip", &["link", "set", "lo", "up"]);
        space
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    pub(super) fn path(&self) -> String {
        format!("{DIR}/{}", self.0)
    }

    pub(super) fn file(&self) -> File {
        let path = self.path();
        File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut all = vec!["netns", "exec", &self.0, program];
        all.extend(arguments);
        run("ip", &all)
    }

    /// A setting of the kernel, as a path beneath `/proc/sys`.
    pub(super) fn set(&self, setting: &str, value: &str) {
        let namespace = self.file();
        let path = format!("/proc/sys/{setting}");
        thread::scope(|scope| {
            scope.spawn(|| {
                enter(&namespace);
                fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
            });
        });
    }

    /// Runs servers here, in a thread of their own. `make` is called in it, in its reactor.
    pub(super) fn resident(&self, make: impl FnOnce() -> Vec<Server> + Send + 'static) -> Resident {
        let namespace = self.file();
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, made) = std::sync::mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            enter(&namespace);
            let reactor = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap_or_else(|error| panic!("no reactor: {error}"));
            reactor.block_on(async {
                let mut servers = JoinSet::new();
                for server in make() {
                    servers.spawn(server);
                }
                let _ = ready.send(());
                let _ = stopped.await;
            });
        });
        made.recv()
            .unwrap_or_else(|_| panic!("the servers in {} did not start", self.0));
        Resident {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Servers in a namespace; they end with this.
pub(super) struct Resident {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Resident {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Puts the calling thread into a namespace, for good.
pub(super) fn enter(namespace: &File) {
    setns(namespace, CloneFlags::CLONE_NEWNET)
        .unwrap_or_else(|error| panic!("cannot enter a network namespace: {error}"));
}

/// Removes namespaces of tests that were killed.
pub(super) fn sweep() {
    let Ok(entries) = fs::read_dir(DIR) else {
        return;
    };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Runs a program that must succeed.
pub(super) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
