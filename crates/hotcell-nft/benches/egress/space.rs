//! Network namespaces without a name: each is gone with the last process or descriptor in it.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::{Command, id},
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Moves this thread into a new one, with its loopback up.
pub(crate) fn enter_new() {
    // SAFETY: `NEWNET` takes nothing from this thread that memory or open files rely on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace needs root");
    ip(&["link", "set", "lo", "up"]);
}

/// A namespace beside this one.
pub(crate) struct Space(OwnedFd);

impl Space {
    pub(crate) fn new() -> Self {
        let made = thread::spawn(|| {
            enter_new();
            OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap())
        });
        Self(made.join().unwrap())
    }

    /// What `ip` and `nsenter` know it by.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", id(), self.0.as_raw_fd())
    }

    /// Runs `ip` in it.
    pub(crate) fn ip(&self, arguments: &[&str]) {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.path()))
            .arg("ip")
            .args(arguments);
        assert!(command.status().unwrap().success(), "ip {arguments:?}");
    }

    /// Does something on a thread in it.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let space = self.0.try_clone().unwrap();
        thread::spawn(move || {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }
}

/// Runs `ip` here.
pub(crate) fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success(), "ip {arguments:?}");
}
