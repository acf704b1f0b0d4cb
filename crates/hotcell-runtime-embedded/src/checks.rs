//! Preflight: what an operator sees when this runtime is tested.

use std::{path::Path, sync::Arc};

use hotcell_runtime::{Check, Isolation, RuntimeError};

use crate::{
    cgroup::Cgroups,
    config::EmbeddedConfig,
    embedded::{Embedded, leases},
    image::ImageStore,
    layout::{LINK_PREFIX, Layout},
    net::UPLINK,
    oci::{in_path, is_executable},
    probe::probe,
    record::{Record, need_free_space},
    scratch::Scratch,
};

/// Every check with what it is about, in the order of the list. `docs/operating/preflight.md` holds the same list.
pub const CHECKS: &[(&str, &str)] = &[
    ("runtime.oci", "a sandbox is run, and its agent answers"),
    (
        "runtime.gvisor",
        "user code stays away from the host's kernel",
    ),
    (
        "runtime.network",
        "the gateway's namespace leads nowhere but through filters",
    ),
    (
        "network.forwarding",
        "the host forwards what the filters of sandboxes let through",
    ),
    (
        "cgroup",
        "memory, processes and processor time can be limited",
    ),
    ("disk.bound", "`/workspace` and `/tmp` end at their size"),
    ("kernel.loop", "there are loop devices"),
    (
        "tool.mount",
        "the program that mounts scratch disks is there",
    ),
    ("tool.mkfs", "the program that makes scratch disks is there"),
    ("agent.binary", "the agent is where it should be"),
    ("disk.free", "there is room for another sandbox"),
    ("image.present", "there is an image to run"),
    ("leftovers", "every sandbox has a record that can be read"),
];

/// What is wrong on this host, by trying everything. For when [`Embedded::open`] fails, and for
/// an operator who sets up a profile; the runtime must not be open elsewhere.
pub async fn diagnose(config: EmbeddedConfig) -> Vec<Check> {
    let (error, config) = match Embedded::open(config.clone()).await {
        Ok(runtime) => return runtime.checks().await,
        Err(error) => (error, config),
    };
    let layout = Layout::new(&config.state_dir, &config.run_dir, &config.installation);
    let mut checks = vec![Check::fail(
        "runtime.oci",
        error.to_string(),
        "install gVisor (runsc), or crun or runc, and run hotcell as root",
    )];
    if in_path("runsc").is_none() {
        checks.push(no_gvisor(CheckLevel::Fail, "runsc is not installed"));
    }
    checks.push(match Cgroups::detect(layout.cgroup_base()) {
        Ok(cgroups) => cgroup_pass(&cgroups),
        Err(error) => Check::fail("cgroup", error.to_string(), CGROUP_FIX),
    });
    checks.extend(host_checks(&config));
    checks.push(match ImageStore::open(&config.image_dir) {
        Ok(images) => image_check(&images),
        Err(error) => Check::fail("image.present", error.to_string(), IMAGE_FIX),
    });
    checks
}

const CGROUP_FIX: &str =
    "mount cgroup v2 at /sys/fs/cgroup, or the v1 controllers memory, pids and cpu";
const IMAGE_FIX: &str = "import one with `hotcell image import`";

enum CheckLevel {
    Warn,
    Fail,
}

fn no_gvisor(level: CheckLevel, message: &str) -> Check {
    const FIX: &str = "install runsc from https://gvisor.dev and open the profile again";
    match level {
        CheckLevel::Warn => Check::warn("runtime.gvisor", message, FIX),
        CheckLevel::Fail => Check::fail("runtime.gvisor", message, FIX),
    }
}

fn cgroup_pass(cgroups: &Cgroups) -> Check {
    let message = format!("cgroup {} with memory, pids and cpu", cgroups.describe());
    Check::pass("cgroup", message)
}

fn image_check(images: &ImageStore) -> Check {
    match images.list() {
        Ok(found) if found.is_empty() => {
            Check::fail("image.present", "there is no image", IMAGE_FIX)
        }
        Ok(found) => {
            let names: Vec<_> = found.into_iter().map(|image| image.name).collect();
            Check::pass("image.present", names.join(", "))
        }
        Err(error) => Check::fail("image.present", error.to_string(), IMAGE_FIX),
    }
}

/// What does not need an open runtime.
fn host_checks(config: &EmbeddedConfig) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.push(if Path::new("/dev/loop-control").exists() {
        Check::pass("kernel.loop", "loop devices are there")
    } else {
        Check::warn(
            "kernel.loop",
            "there is no /dev/loop-control",
            "load the kernel module loop; without it scratch disks have no size",
        )
    });
    for (id, program, package) in [
        ("tool.mount", "mount", "util-linux"),
        ("tool.mkfs", "mkfs.ext4", "e2fsprogs"),
    ] {
        checks.push(match in_path(program) {
            Some(path) => Check::pass(id, path.display().to_string()),
            None => Check::warn(
                id,
                format!("{program} is not in PATH"),
                format!("install {package}; without it scratch disks have no size"),
            ),
        });
    }
    checks.push(if is_executable(&config.agent_binary) {
        Check::pass("agent.binary", config.agent_binary.display().to_string())
    } else {
        Check::fail(
            "agent.binary",
            format!("{} is no program", config.agent_binary.display()),
            "install hotcell-agent, or name its path in the configuration",
        )
    });
    checks.push(match need_free_space(&config.state_dir) {
        Ok(()) => Check::pass("disk.free", "there is room"),
        Err(error) => Check::fail(
            "disk.free",
            error.to_string(),
            "free some space or move the state directory",
        ),
    });
    checks
}

impl Embedded {
    /// Every check, by trying it.
    pub(crate) async fn checks(&self) -> Vec<Check> {
        let engine = self.engine.describe();
        let mut checks = vec![self.engine_check().await];
        checks.push(match self.engine.isolation() {
            Isolation::Gvisor => Check::pass("runtime.gvisor", engine),
            _ => no_gvisor(
                CheckLevel::Warn,
                "sandboxes share the host's kernel: gVisor was not chosen or does not run here",
            ),
        });
        checks.push(self.network_check().await);
        checks.push(Check::forwarding(hotcell_uplink::forwards()));
        checks.push(cgroup_pass(&self.cgroups));
        checks.push(self.scratch_check());
        checks.extend(host_checks(&self.config));
        checks.push(image_check(&self.images));
        checks.push(self.leftover_check());
        checks
    }

    /// Runs a sandbox.
    async fn engine_check(&self) -> Check {
        let guard = Arc::clone(&self.probing).lock_owned().await;
        let engine = Arc::clone(&self.engine);
        let (config, layout) = (self.config.clone(), self.layout.clone());
        let (cgroups, gateway) = (self.cgroups.clone(), self.gateway.clone());
        // A task of its own: a check that is given up half-way must not leave its sandbox behind.
        let ran = tokio::spawn(async move {
            let _guard = guard;
            probe(&engine, &config, &layout, &cgroups, &gateway).await
        });
        let ran = ran.await.unwrap_or_else(|error| {
            Err(RuntimeError::Failed {
                action: "probe",
                reason: error.to_string(),
            })
        });
        match ran {
            Ok(()) => Check::pass(
                "runtime.oci",
                format!("{} ran a sandbox", self.engine.describe()),
            ),
            Err(error) => Check::fail(
                "runtime.oci",
                error.to_string(),
                "look at the engine's message; reinstall it, or choose another one",
            ),
        }
    }

    async fn network_check(&self) -> Check {
        const ID: &str = "runtime.network";
        const FIX: &str = "stop hotcell and all its sandboxes, then start it again";
        match self.gateway.names().await {
            Err(error) => Check::fail(ID, error.to_string(), FIX),
            Ok(links) => {
                let foreign: Vec<_> = links
                    .iter()
                    .filter(|name| {
                        !name.starts_with(LINK_PREFIX)
                            && *name != UPLINK
                            && !FALLBACK_LINKS.contains(&name.as_str())
                    })
                    .map(String::as_str)
                    .collect();
                if foreign.is_empty() {
                    Check::pass(
                        ID,
                        "the gateway namespace leads nowhere but through filters",
                    )
                } else {
                    Check::fail(
                        ID,
                        format!(
                            "the gateway namespace has foreign links: {}",
                            foreign.join(", ")
                        ),
                        FIX,
                    )
                }
            }
        }
    }

    fn scratch_check(&self) -> Check {
        const ID: &str = "disk.bound";
        match (self.scratch, &self.scratch_fault) {
            (Scratch::Bounded, _) => Check::pass(ID, "scratch disks are ext4 images"),
            (Scratch::Unbounded, fault) => Check::warn(
                ID,
                match fault {
                    Some(error) => format!("no disk limit: {error}"),
                    None => "no disk limit".into(),
                },
                "provide loop devices, mount and mkfs.ext4",
            ),
        }
    }

    fn leftover_check(&self) -> Check {
        const ID: &str = "leftovers";
        let damaged = match leases(&self.layout) {
            Ok(leases) => leases
                .iter()
                .filter(|lease| Record::load(&self.layout.lease(lease)).is_err())
                .count(),
            Err(error) => return leftovers(ID, &error),
        };
        if damaged == 0 {
            Check::pass(ID, "none")
        } else {
            Check::warn(
                ID,
                format!("{damaged} sandboxes have no readable record"),
                "they are removed by the next reconcile; if not, remove their directories",
            )
        }
    }
}

fn leftovers(id: &str, error: &RuntimeError) -> Check {
    Check::fail(id, error.to_string(), "look at the state directory")
}

/// Links that some kernels put into every network namespace, all of them down.
const FALLBACK_LINKS: [&str; 10] = [
    "lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0",
    "ip6gre0",
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_operators_page_lists_every_check() {
        hotcell_runtime::assert_listed("embedded-checks", super::CHECKS);
    }
}
