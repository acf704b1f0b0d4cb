//! The bare OCI runtime: what a sandbox costs when nobody looks after it.
//!
//! The bundle has what hotcell's has: the same tree as a read-only root, the same mounts, its own
//! namespaces. Its one process is bash.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde_json::json;

/// A bundle that can be run again and again.
pub(crate) struct Bundle {
    runtime: String,
    directory: PathBuf,
}

impl Bundle {
    /// Lays the bundle beside nothing that matters.
    pub(crate) fn new(runtime: &str, tree: &Path) -> Result<Self> {
        let directory =
            std::env::temp_dir().join(format!("hotcell-bench-{}-{runtime}", std::process::id()));
        fs::create_dir_all(directory.join("state"))?;
        let tmpfs = |path: &str, size: &str| {
            json!({"destination": path, "type": "tmpfs", "source": "tmpfs",
                   "options": ["nosuid", "nodev", format!("size={size}")]})
        };
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 1000, "gid": 1000},
                "args": ["/bin/bash", "--noprofile", "--norc", "-c", "true"],
                "env": ["PATH=/usr/bin:/bin"],
                "cwd": "/",
                "noNewPrivileges": true,
            },
            "root": {"path": tree.canonicalize().context("the root tree")?, "readonly": true},
            "hostname": "bench",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                 "options": ["nosuid", "mode=755", "size=64k"]},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts"},
                tmpfs("/dev/shm", "64m"),
                tmpfs("/tmp", "64m"),
                tmpfs("/workspace", "64m"),
                {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "nodev", "noexec"]},
            ],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}],
                "resources": {"memory": {"limit": 1u64 << 30}, "pids": {"limit": 256}},
                "cgroupsPath": format!("/hotcell-bench-{}", std::process::id()),
            },
        });
        fs::write(directory.join("config.json"), config.to_string())?;
        Ok(Self {
            runtime: runtime.to_owned(),
            directory,
        })
    }

    /// Runs it once, and returns how long the runtime's `run` took, in milliseconds.
    ///
    /// gVisor's view of `/proc/sys/net` is made before the clock starts, in a
    /// mount namespace that is gone afterwards.
    pub(crate) fn run(&self, id: usize) -> Result<f64> {
        let flags = if self.runtime == "runsc" {
            "--platform=systrap --network=sandbox"
        } else {
            ""
        };
        let script = format!(
            "set -e; mount -t tmpfs -o ro,size=4k tmpfs /proc/sys/net; echo ready; read go; \
             exec {runtime} --root {dir}/state {flags} run --bundle {dir} bare-{id}",
            dir = self.directory.display(),
            runtime = self.runtime,
        );
        let mut child = Command::new("timeout")
            .args([
                "-k",
                "5",
                "60",
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                &script,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (mut stdin, mut stdout) = (
            child.stdin.take().context("stdin")?,
            child.stdout.take().context("stdout")?,
        );
        let mut ready = [0; 6];
        std::io::Read::read_exact(&mut stdout, &mut ready)
            .context("the bare bundle could not be laid")?;
        let begin = Instant::now();
        std::io::Write::write_all(&mut stdin, b"go\n")?;
        let output = child.wait_with_output()?;
        let taken = begin.elapsed().as_secs_f64() * 1000.0;
        if !output.status.success() {
            bail!(
                "bare {} run failed: {}",
                self.runtime,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(taken)
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
